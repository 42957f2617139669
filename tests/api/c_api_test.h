/* Tests written in C; each returns NULL or what went wrong. */
#ifndef CUFLASH_TESTS_C_API_TEST_H_
#define CUFLASH_TESTS_C_API_TEST_H_

#ifdef __cplusplus
extern "C" {
#endif

const char* c_forward_and_backward(void);
const char* c_init_functions(void);
const char* c_page_pool(void);

#ifdef __cplusplus
}
#endif

#endif /* CUFLASH_TESTS_C_API_TEST_H_ */
