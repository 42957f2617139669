/* The C ABI as a C99 program uses it. Each function returns NULL or what went wrong; c_api_test.cpp calls them. */
#include "c_api_test.h"

#include <cuflash/cuflash.h>
#include <cuflash/cuflash_pages.h>
#include <math.h>
#include <stdio.h>

static char failure[256];

static const char* compare(const char* name, const float* actual, const double* expected, int count) {
  for (int n = 0; n < count; ++n) {
    if (fabs(actual[n] - expected[n]) <= 1e-6) continue;
    snprintf(failure, sizeof failure, "%s[%d] is %g, by hand it is %g", name, n, (double)actual[n], expected[n]);
    return failure;
  }
  return NULL;
}

static const char* succeeds(const char* name, cuflash_status status) {
  if (status == CUFLASH_OK) return NULL;
  snprintf(failure, sizeof failure, "%s: %s: %.180s", name, cuflash_status_name(status), cuflash_last_error());
  return failure;
}

static cuflash_tensor input(const float* data, int64_t length, int64_t dim) {
  const cuflash_tensor t = {data, CUFLASH_F32, 4, {1, 1, length, dim}, {length * dim, length * dim, dim, 1}};
  return t;
}

static cuflash_mutable_tensor output(float* data, int64_t length, int64_t dim) {
  const cuflash_mutable_tensor t = {data, CUFLASH_F32, 4, {1, 1, length, dim}, {length * dim, length * dim, dim, 1}};
  return t;
}

/* One query, two keys: the scores are ln 3 and 0, so the probabilities are 3/4 and 1/4. */
static const float kQ[2] = {1, 0}, kK[4] = {1, 0, 0, 1}, kV[2] = {8, 4}, kDout[1] = {1};

static cuflash_attention one_query_two_keys(void) {
  cuflash_attention a;
  cuflash_attention_init(&a);
  a.q = input(kQ, 1, 2);
  a.k = input(kK, 2, 2);
  a.v = input(kV, 2, 1);
  a.has_scale = 1;
  a.scale = log(3);
  return a;
}

const char* c_forward_and_backward(void) {
  const cuflash_attention a = one_query_two_keys();
  float o[1], lse[1], dq[2], dk[4], dv[2];
  cuflash_forward_outputs f;
  cuflash_forward_outputs_init(&f);
  f.o = output(o, 1, 1);
  const cuflash_mutable_tensor lse_tensor = {lse, CUFLASH_F32, 3, {1, 1, 1}, {1, 1, 1}};
  f.lse = lse_tensor;
  const char* wrong = succeeds("cuflash_forward", cuflash_forward(&a, &f, NULL));
  if (wrong) return wrong;

  cuflash_backward_tensors b;
  cuflash_backward_tensors_init(&b);
  b.o = input(o, 1, 1);
  const cuflash_tensor saved_lse = {lse, CUFLASH_F32, 3, {1, 1, 1}, {1, 1, 1}};
  b.lse = saved_lse;
  b.dout = input(kDout, 1, 1);
  b.dq = output(dq, 1, 2);
  b.dk = output(dk, 2, 2);
  b.dv = output(dv, 2, 1);
  wrong = succeeds("cuflash_backward", cuflash_backward(&a, &b, NULL));
  if (wrong) return wrong;

  /* dP = (8, 4), delta = 7, dS = P * (dP - delta) = (3/4, -3/4) */
  const double ds = 0.75 * log(3);
  const double expected_o[1] = {7}, expected_lse[1] = {log(4)};
  const double expected_dq[2] = {ds, -ds}, expected_dk[4] = {ds, 0, -ds, 0}, expected_dv[2] = {0.75, 0.25};
  if ((wrong = compare("o", o, expected_o, 1))) return wrong;
  if ((wrong = compare("lse", lse, expected_lse, 1))) return wrong;
  if ((wrong = compare("dq", dq, expected_dq, 2))) return wrong;
  if ((wrong = compare("dk", dk, expected_dk, 4))) return wrong;
  return compare("dv", dv, expected_dv, 2);
}

static int is_absent(const cuflash_tensor* t) { return t->data == NULL && t->rank == 0; }

const char* c_init_functions(void) {
  cuflash_attention a;
  memset(&a, 0xff, sizeof a);
  cuflash_attention_init(&a);
  if (a.struct_size != sizeof a) return "cuflash_attention_init: struct_size";
  if (a.window_left != -1 || a.window_right != -1) return "cuflash_attention_init: the window must be unbounded";
  if (a.has_scale || a.causal || a.softcap != 0 || a.dropout_p != 0) return "cuflash_attention_init: an option is on";
  if (!is_absent(&a.q) || !is_absent(&a.bias) || !is_absent(&a.seqlens_k))
    return "cuflash_attention_init: a tensor is there";
  cuflash_execution e;
  memset(&e, 0xff, sizeof e);
  cuflash_execution_init(&e);
  if (e.struct_size != sizeof e || e.device != CUFLASH_DEVICE_AUTO || e.num_threads || e.workspace || e.parallel_for)
    return "cuflash_execution_init";
  cuflash_forward_outputs f;
  memset(&f, 0xff, sizeof f);
  cuflash_forward_outputs_init(&f);
  if (f.struct_size != sizeof f || f.o.data || f.lse.rank) return "cuflash_forward_outputs_init";
  cuflash_backward_tensors b;
  memset(&b, 0xff, sizeof b);
  cuflash_backward_tensors_init(&b);
  if (b.struct_size != sizeof b || !is_absent(&b.dlse) || b.dq.data || b.dsink.rank)
    return "cuflash_backward_tensors_init";
  return NULL;
}

const char* c_page_pool(void) {
  cuflash_page_pool_config config;
  memset(&config, 0xff, sizeof config);
  cuflash_page_pool_config_init(&config);
  config.pages = 3, config.page_size = 2, config.max_sequences = 2;
  cuflash_page_pool* pool = NULL;
  if (cuflash_page_pool_create(&config, &pool) != CUFLASH_OK) return cuflash_last_error();

  cuflash_sequence both[2];
  cuflash_append_result room;
  int32_t table[2][3], lengths[2];
  const cuflash_mutable_tensor table_view = {table, CUFLASH_I32, 2, {2, 3}, {3, 1}};
  const cuflash_mutable_tensor lengths_view = {lengths, CUFLASH_I32, 1, {2}, {1}};
  const char* wrong = NULL;
  if (cuflash_page_pool_start(pool, &both[0]) != CUFLASH_OK ||
      cuflash_page_pool_append(pool, both[0], 3, &room) != CUFLASH_OK ||
      cuflash_page_pool_fork(pool, both[0], -1, &both[1]) != CUFLASH_OK ||
      cuflash_page_pool_append(pool, both[1], 1, &room) != CUFLASH_OK ||
      cuflash_page_pool_write_block_table(pool, both, 2, &table_view, -1) != CUFLASH_OK ||
      cuflash_page_pool_write_lengths(pool, both, 2, &lengths_view) != CUFLASH_OK)
    wrong = cuflash_last_error();
  else if (room.fit != CUFLASH_FITS || room.copy.source != 1 || room.copy.destination != 2 || room.copy.tokens != 1)
    wrong = "the shared page is to be copied";
  else if (table[0][1] != 1 || table[0][2] != -1 || table[1][0] != 0 || table[1][1] != 2) wrong = "the block table";
  else if (lengths[0] != 3 || lengths[1] != 4) wrong = "the lengths";
  cuflash_page_pool_destroy(pool);
  return wrong;
}
