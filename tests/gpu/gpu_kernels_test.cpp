// One small problem for each kind of kernel of the Hopper families, compared with the oracle: what compute-sanitizer runs,
// one process for each, since its tools slow kernels down by 10 to 1,000 times. Every problem has masked tiles and, where
// the kernel loops, more tiles than pipeline stages.
#include <algorithm>

#include "check/run/cache_run.h"
#include "check/run/run.h"
#include "cuda/jit/kernel_cache.h"
#include "tests/shared/device.h"
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

// Without CUFLASH_TEST_DEVICE=cuda, the problems are computed by the CPU.
void expect_kernels(const std::vector<std::string>& names) {
  const char* kernels = std::getenv("CUFLASH_CUDA_KERNELS");
  if (!on_cuda() || (kernels && std::string(kernels) == "portable")) return;
  const std::vector<cuda::LoadedKernel> loaded = cuda::loaded_kernels();
  for (const std::string& name : names) {
    const auto is_named = [&](const cuda::LoadedKernel& k) { return k.name.substr(0, k.name.find(':')) == name; };
    EXPECT_TRUE(std::any_of(loaded.begin(), loaded.end(), is_named)) << name;
  }
}
void check(const check::Case& c, const std::vector<std::string>& names) {
  EXPECT_EQ(check::run_case(c), "") << check::describe(c);
  expect_kernels(names);
}

check::Case dense(int64_t heads_q, int64_t heads_k, int64_t len_q, int64_t len_k, int64_t dim) {
  check::Case c;
  c.device = test_device(), c.heads_q = heads_q, c.heads_k = heads_k, c.len_q = len_q, c.len_k = len_k;
  c.dim = c.dim_v = dim;
  c.dtype = c.o_dtype = c.dout_dtype = c.gradient_dtype = c.bias_dtype = c.sink_dtype = DType::bf16;
  c.garbage = true;
  return c;
}
check::Case with_gradients(check::Case c) {
  c.gradients = c.every_gradient();
  return c;
}

TEST(KernelsOnGpu, Forward) {
  check::Case c = dense(2, 1, 300, 700, 128);
  c.causal = true;
  check(c, {"sm90_forward"});
}
TEST(KernelsOnGpu, ForwardOfListedTiles) {
  check::Case c = dense(8, 2, 9, 11, 192);
  c.dim_v = 96, c.batch = 34, c.mode = check::Mode::packed, c.give_max_seqlen = c.causal = true;
  for (int32_t b = 0; b < 34; ++b) c.lengths_q.push_back(b * 7 % 10), c.lengths_k.push_back(b * 5 % 12);
  check(c, {"sm90_forward", "sm90_tile_list"});
}
// Several CTAs share an SM, and each computes several tiles.
TEST(KernelsOnGpu, ForwardOfShortSequences) {
  for (const int64_t length : {49, 77, 110, 130}) {  // one key tile of 64, 80 or 128 keys, and several tiles
    check::Case c = dense(20, 10, length, length, length == 49 ? 32 : 64);
    c.batch = 60 / ((length + 63) / 64), c.causal = length != 77;
    check(c, {"sm90_forward"});
  }
}
TEST(KernelsOnGpu, ForwardBySplits) {
  check::Case c = dense(1, 1, 70, 2000, 64);
  c.causal = c.sink = true;
  check(c, {"sm90_forward", "combine_splits"});
}
TEST(KernelsOnGpu, ForwardOfTilesThatAMaskShows) {
  check::Case c = dense(2, 1, 200, 700, 64);
  c.mask = check::ScoreLayout{}, c.mask_pattern = check::MaskPattern::blocks, c.mask_eighths = 2;
  check(c, {"sm90_forward", "sm90_mask_list", "summarize_mask"});
}
// A loader, and a separate warpgroup for dQ.
TEST(KernelsOnGpu, BackwardWithALoader) {
  check::Case c = with_gradients(dense(8, 1, 150, 300, 128));
  c.window_left = 130;
  check(c, {"sm90_backward", "backward_prepare", "backward_finish"});
}
TEST(KernelsOnGpu, BackwardThatAddsDq) {
  check::Case c = with_gradients(dense(8, 1, 150, 400, 64));
  c.causal = true;
  check(c, {"sm90_backward", "backward_prepare", "backward_finish"});
}
// All keys of a sequence are in one key tile of one, two or three warpgroups.
TEST(KernelsOnGpu, BackwardThatStoresDq) {
  for (const int64_t length : {49, 100, 150}) {
    check::Case c = with_gradients(dense(4, 2, length, length, length == 49 ? 32 : 64));
    c.batch = length == 49 ? 110 : 10, c.causal = length == 100;
    check(c, {"sm90_backward", "backward_prepare"});
  }
}
// A CTA takes all key tiles of one head or of two.
TEST(KernelsOnGpu, BackwardThatKeepsDq) {
  for (const int64_t length : {200, 270}) {
    check::Case c = with_gradients(dense(4, 2, length, length, 64));
    c.batch = length == 200 ? 60 : 130, c.causal = length == 270, c.deterministic = true;
    check(c, {"sm90_backward", "backward_prepare"});
  }
  check::Case wide = with_gradients(dense(2, 2, 250, 250, 128));
  wide.batch = 40, wide.causal = true;
  check(wide, {"sm90_backward", "backward_prepare"});
  check::Case one_tile = with_gradients(dense(4, 2, 100, 100, 120));
  one_tile.batch = 70;
  check(one_tile, {"sm90_backward", "backward_prepare"});
}
TEST(KernelsOnGpu, BackwardWithAKernelForDq) {
  check::Case c = with_gradients(dense(2, 1, 200, 300, 128));
  c.causal = c.deterministic = true;
  check(c, {"sm90_backward", "sm90_dq"});
}
// dK and dV by a warpgroup each.
TEST(KernelsOnGpu, BackwardOfWideHeads) {
  check::Case c = with_gradients(dense(2, 1, 150, 130, 256));
  c.causal = true;
  check(c, {"sm90_backward", "sm90_dq"});
}
TEST(KernelsOnGpu, BackwardOfTilesThatAMaskShows) {
  check::Case c = with_gradients(dense(8, 1, 150, 400, 64));
  c.mask = check::ScoreLayout{}, c.mask_pattern = check::MaskPattern::documents;
  check(c, {"sm90_backward", "sm90_backward_mask_list"});
}
TEST(KernelsOnGpu, GradientOfABias) {
  check::Case c = dense(2, 1, 150, 200, 64);
  c.bias = check::ScoreLayout{};
  check(with_gradients(c), {"sm90_backward", "sm90_dq", "sm90_dbias"});
  c.len_q = c.len_k = 60, c.dim = c.dim_v = 32;  // one consumer warpgroup
  check(with_gradients(c), {"sm90_dbias"});
}
TEST(KernelsOnGpu, OptionsTogether) {
  check::Case c = dense(2, 1, 150, 200, 64);
  c.softcap = 20, c.alibi_rank = 1, c.dropout_p = 0.1, c.dropout_seed = 5, c.sink = true;
  check(with_gradients(c), {"sm90_forward", "sm90_backward", "sm90_dq"});
}
TEST(KernelsOnGpu, CallsOverACache) {
  for (const int64_t page_size : {0, 16})
    for (const int64_t len_q : {1, 20}) {
      check::CacheCase c;
      c.plain = dense(8, 1, len_q, 0, 128);
      c.plain.batch = 2, c.page_size = page_size;
      c.new_rows = check::NewRows::dense, c.len_new = 1;
      for (const int32_t rows : {700, 130}) {
        c.rows.push_back(rows), c.plain.lengths_k.push_back(rows + 1);
        c.plain.len_k = std::max<int64_t>(c.plain.len_k, rows + 1);
      }
      c.room = page_size == 0 ? 710 : 45;
      EXPECT_EQ(check::run_cache_case(c), "") << check::describe(c);
    }
  expect_kernels({"sm90_kv"});
}
TEST(KernelsOnGpu, CallsOverACacheWithManyQueries) {
  for (const int64_t page_size : {0, 16, 64}) {
    check::CacheCase c;
    c.plain = dense(8, 1, 150, 0, 128);
    c.plain.batch = 2, c.page_size = page_size;
    c.new_rows = check::NewRows::dense, c.len_new = 150;
    c.rotary = check::Rotary::halves, c.rotary_dim = 64;
    for (const int32_t rows : {700, 130}) {
      c.rows.push_back(rows), c.plain.lengths_k.push_back(rows + 150);
      c.plain.len_k = std::max<int64_t>(c.plain.len_k, rows + 150);
    }
    c.room = page_size == 0 ? 900 : (900 + page_size - 1) / page_size;
    EXPECT_EQ(check::run_cache_case(c), "") << check::describe(c);
  }
  expect_kernels({"sm90_forward", "prepare_cache"});
}

}  // namespace
}  // namespace cuflash::test
