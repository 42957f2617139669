#include "check/cases/setup.h"

namespace cuflash::check {

void run_backwards(void*, int64_t n, cuflash_parallel_body body, void* body_context) {
  while (n-- > 0) body(body_context, n);
}

}  // namespace cuflash::check
