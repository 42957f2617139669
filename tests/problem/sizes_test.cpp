// Extents that are legal one by one can make sizes beyond 64 bits. Such a call is refused, with the number, by the size
// query, by explain and by the call itself. And no size grows with a bound that is far above the lengths.
#include <cuflash/cuflash_cache.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "checked.h"
#include "cuda/families/summarize_mask.h"
#include "cuda/plan/plan.h"
#include "problem/describe.h"
#include "problem/describe_cache.h"
#include "problem/tensor_rules.h"
#include "tests/problem/rejections_cache.h"
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

TEST(Checked, IsExactUpToTheLargestNumber) {
  EXPECT_EQ((Checked(int64_t{1} << 31) * (int64_t{1} << 31) + 5).value(""), (int64_t{1} << 62) + 5);
  EXPECT_EQ((Checked(kLargest - 1) + 1).value(""), kLargest);
  EXPECT_EQ(round_up(Checked(65), 64).value(""), 128);
  EXPECT_EQ(Checked(7).at_most(8), 7);
  EXPECT_EQ(Checked(9).at_most(8), 8);
  EXPECT_EQ(workspace_bytes(kLargest), static_cast<size_t>(kLargest));
}

TEST(Checked, StatesWhatDoesNotFit) {
  const Checked large = Checked(int64_t{1} << 32) * (int64_t{1} << 32);
  for (const Checked& n : {large, Checked(kLargest) + 1, round_up(Checked(kLargest), 64), large + 1, large * large}) {
    EXPECT_FALSE(n.fits());
    EXPECT_EQ(n.at_most(7), 7);
    EXPECT_THROW(n.value("n: is"), FlashAttentionError);
    EXPECT_THROW(workspace_bytes(n), FlashAttentionError);
  }
  EXPECT_EQ(join(large), "1.84467e+19");
  EXPECT_EQ(join(large * large), "3.40282e+38");
}

TEST(Checked, NothingTimesAnythingIsNothing) {
  const Checked large = Checked(kLargest) * kLargest;
  EXPECT_EQ((large * 0).value(""), 0);
  EXPECT_EQ((Checked(0) * large).value(""), 0);
}

// Invalid addresses, far apart and beyond those of any process: no size query may dereference one.
void* address() {
  static uintptr_t last = 16;
  return reinterpret_cast<void*>(++last << 44);
}

using Extents = std::initializer_list<int64_t>;

template <class TensorStruct>
void set(TensorStruct& t, DType dtype, Extents shape, Extents stride) {
  t.data = address(), t.dtype = static_cast<int32_t>(dtype), t.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(stride.begin(), stride.end(), t.stride);
}

struct Answer {
  cuflash_status status;
  std::string message;
};
Answer answer(cuflash_status status) { return {status, status == CUFLASH_OK ? "" : cuflash_last_error()}; }

// All of them refuse, in the same words, and state this number.
void expect_all_refuse(const std::vector<std::function<cuflash_status()>>& calls, const std::string& number) {
  std::string first;
  for (const auto& call : calls) {
    const Answer a = answer(call());
    ASSERT_EQ(a.status, CUFLASH_INVALID_ARGUMENT) << a.message;
    if (first.empty()) first = a.message;
    EXPECT_EQ(a.message, first);
    EXPECT_EQ(a.message.find("workspace: this call needs " + number), 0u) << a.message;
  }
}

// Inputs that repeat one row.
struct HugeBackward {
  cuflash_attention attention;
  cuflash_backward_tensors tensors;
  cuflash_execution execution;

  HugeBackward(int64_t batch, int64_t heads, int64_t length) {
    cuflash_attention_init(&attention), cuflash_backward_tensors_init(&tensors), cuflash_execution_init(&execution);
    for (cuflash_tensor* t : {&attention.q, &attention.k, &attention.v, &tensors.o, &tensors.dout})
      set(*t, DType::f32, {batch, heads, length, 8}, {0, 0, 0, 1});
    set(attention.sink, DType::f32, {heads}, {1});
    set(tensors.lse, DType::f32, {batch, heads, length}, {0, 0, 1});
    set(tensors.dsink, DType::f32, {heads}, {1});
    execution.device = CUFLASH_DEVICE_CPU;
  }
  cuflash_status size(size_t* bytes) const {
    return cuflash_backward_workspace_size(&attention, &tensors, &execution, bytes);
  }
  std::vector<std::function<cuflash_status()>> calls() const {
    return {[this] {
              size_t bytes = 0;
              return size(&bytes);
            },
            [this] { return cuflash_explain_backward(&attention, &tensors, &execution, nullptr, 0, nullptr); },
            [this] { return cuflash_backward(&attention, &tensors, &execution); }};
  }
};

TEST(WorkspaceSize, OfBackwardBeyond64BitsIsRefusedWithTheNumber) {
  const HugeBackward call(1 << 21, 1 << 21, 1 << 20);  // 2^62 rows of 4 bytes: 2^64 and the rest
  expect_all_refuse(call.calls(), "1.84467e+19 bytes");
  const HugeBackward largest(kMaxExtent, kMaxExtent, kMaxExtent);
  expect_all_refuse(largest.calls(), "3.96141e+28 bytes");
}

TEST(WorkspaceSize, OfBackwardHasRoomForItsRows) {
  for (int bits = 3; bits <= 20; ++bits) {
    size_t bytes = 0;
    const HugeBackward call(1 << bits, 1 << bits, 1 << bits);
    ASSERT_EQ(call.size(&bytes), CUFLASH_OK) << cuflash_last_error();
    EXPECT_GT(bytes, size_t{4} << (3 * bits));
  }
}

// A cache that repeats one row, and lengths of 0: the workspace of splits follows from the room.
struct HugeCache {
  static constexpr int64_t kBatch = 16, kHeads = 1 << 20, kRoom = kMaxExtent, kDimV = 1 << 15;
  std::vector<int32_t> lengths = std::vector<int32_t>(kBatch);
  cuflash_attention attention;
  cuflash_cache_tensors cache;
  cuflash_execution execution;

  explicit HugeCache(int32_t num_splits) {
    cuflash_attention_init(&attention), cuflash_cache_tensors_init(&cache), cuflash_execution_init(&execution);
    set(attention.q, DType::f32, {kBatch, kHeads, 1, 8}, {0, 0, 0, 1});
    set(cache.k, DType::f32, {kBatch, kHeads, kRoom, 8}, {0, 0, 0, 1});
    set(cache.v, DType::f32, {kBatch, kHeads, kRoom, kDimV}, {0, 0, 0, 1});
    set(cache.seqlens, DType::i32, {kBatch}, {1});
    cache.seqlens.data = lengths.data();
    set(cache.o, DType::f32, {kBatch, kHeads, 1, kDimV}, {kHeads * kDimV, kDimV, kDimV, 1});
    cache.num_splits = num_splits;
    execution.device = CUFLASH_DEVICE_CPU;
  }

  // The call, its workspace query and its explanation must all refuse it.
  void expect_refused(const char* reason) const {
    size_t bytes = 0;
    expect_all_refuse(
        {[&] { return cuflash_attend_cache_workspace_size(&attention, &cache, &execution, &bytes); },
         [&] { return cuflash_explain_attend_cache(&attention, &cache, &execution, nullptr, 0, nullptr); },
         [&] { return cuflash_attend_cache(&attention, &cache, &execution); }},
        reason);
  }
};

TEST(WorkspaceSize, OfSplitsBeyond64BitsIsRefusedWithTheNumber) {
  const HugeCache call(std::numeric_limits<int32_t>::max());
  call.expect_refused("1.84");
}

TEST(WorkspaceSize, OfRotatedQueriesBeyond64BitsIsRefusedWithTheNumber) {
  HugeCache call(1);
  set(call.attention.q, DType::f32, {16, 1 << 20, 1 << 20, 1 << 20}, {0, 0, 0, 1});
  set(call.cache.k, DType::f32, {16, 1 << 20, 8, 1 << 20}, {0, 0, 0, 1});
  set(call.cache.v, DType::f32, {16, 1 << 20, 8, 1}, {0, 0, 0, 1});
  set(call.cache.rotary_cos, DType::f32, {8, 4}, {4, 1});
  set(call.cache.rotary_sin, DType::f32, {8, 4}, {4, 1});
  set(call.attention.seqlens_q, DType::i32, {16}, {1});
  call.attention.seqlens_q.data = call.lengths.data();
  set(call.cache.o, DType::f32, {16, 1 << 20, 1 << 20, 1},
      {int64_t{1} << 40, 1 << 20, 1, 1});  // last, since it overlaps the addresses after it
  call.expect_refused("7.3787e+19 bytes");
}

// Heads of a group that would be rows of a panel (src/cpu/plan/heads_as_rows.h), with strides beyond 64 bits.
TEST(WorkspaceSize, OfRotatedQueriesOfHugeGroupsIsRefusedWithTheNumber) {
  HugeCache call(1);
  constexpr int64_t kQueries = 100, kGroup = 1 << 27;
  set(call.attention.q, DType::f32, {1, kGroup, kQueries, kMaxExtent}, {0, 0, 0, 1});
  set(call.cache.k, DType::f32, {1, 1, 8, kMaxExtent}, {0, 0, 0, 1});
  set(call.cache.v, DType::f32, {1, 1, 8, 1}, {0, 0, 0, 1});
  set(call.cache.rotary_cos, DType::f32, {8, 4}, {4, 1});
  set(call.cache.rotary_sin, DType::f32, {8, 4}, {4, 1});
  set(call.attention.seqlens_q, DType::i32, {1}, {1});
  set(call.cache.seqlens, DType::i32, {1}, {1});
  call.attention.seqlens_q.data = call.cache.seqlens.data = call.lengths.data();
  set(call.cache.o, DType::f32, {1, kGroup, kQueries, 1}, {kGroup * kQueries, kQueries, 1, 1});
  call.expect_refused("1.15292e+20 bytes");
}

// The other extents of an empty tensor are arbitrary, and no query loops over them.
TEST(WorkspaceSize, OfNothingIsSmallWhateverTheOtherExtents) {
  HugeBackward call(kMaxExtent, 4, 0);
  size_t bytes = 0;
  EXPECT_EQ(call.size(&bytes), CUFLASH_OK) << cuflash_last_error();
}

std::string refusal(const std::function<void()>& body, cuflash_status status) {
  try {
    body();
  } catch (const FlashAttentionError& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was not refused";
  return "";
}

constexpr Memory kDevice{.cuda_device = 0};
constexpr const char* kTargets[] = {"sm_80", "sm_90a", "sm_120"};

TEST(CudaPlan, OfAWorkspaceBeyond64BitsIsRefusedWithTheNumber) {
  for (const char* target : kTargets)
    for (const int bits : {21, 31}) {
      const int64_t extent = bits == 31 ? kMaxExtent - 1024 : int64_t{1} << bits;
      const HugeBackward call(extent, extent, extent);
      Snapshot copies;
      const BackwardProblem p = describe(call.attention, call.tensors, kDevice, copies);
      const auto planned = refusal([&] { plan_backward(p, cuda::arch_named(target), cuda::Reproducible::no); },
                                   CUFLASH_INVALID_ARGUMENT);
      EXPECT_EQ(planned.find("workspace: this call needs "), 0u) << planned;
      EXPECT_NE(planned.find("e+"), std::string::npos) << planned;
      EXPECT_EQ(refusal([&] { explain(p, Execution{}, cuda::arch_named(target)); }, CUFLASH_INVALID_ARGUMENT), planned);
    }
}

// 2^31 - 1 times 2^16 - 1.
TEST(CudaPlan, OfMoreTilesThanAGridHoldsIsRefusedWithTheNumber) {
  constexpr int64_t kBatch = 1 << 21, kHeads = 1 << 20, kLength = 1 << 20;
  cuflash_attention attention;
  cuflash_attention_init(&attention);
  for (cuflash_tensor* t : {&attention.q, &attention.k, &attention.v})
    set(*t, DType::f16, {kBatch, kHeads, kLength, 1}, {0, 0, 0, 1});
  cuflash_cache_tensors c;
  cuflash_cache_tensors_init(&c);
  set(c.k, DType::f16, {kBatch, kHeads, kLength, 1}, {0, 0, 0, 1});
  set(c.v, DType::f16, {kBatch, kHeads, kLength, 1}, {0, 0, 0, 1});
  set(c.seqlens, DType::i32, {kBatch}, {1});
  cuflash_attention queries = attention;
  queries.k = queries.v = {};

  cuflash_merge_tensors m;
  cuflash_merge_tensors_init(&m);
  m.o_a = m.o_b = attention.q;
  set(m.lse_a, DType::f32, {kBatch, kHeads, kLength}, {0, 0, 1});
  m.lse_b = m.lse_a;

  cuflash_forward_outputs outputs;
  cuflash_forward_outputs_init(&outputs);
  set(outputs.o, DType::f16, {kBatch, kHeads, kLength, 1},
      {kHeads * kLength, kLength, 1, 1});  // overlaps the addresses after it
  c.o = m.o = outputs.o;
  Snapshot copies;
  const ForwardProblem p = describe(attention, outputs, kDevice, copies);
  const CacheProblem cached = describe(queries, c, kDevice, copies);
  const MergeProblem merged = describe(m, kDevice);

  for (const char* target : kTargets) {
    const cuda::Arch arch = cuda::arch_named(target);
    for (const auto& text : {refusal([&] { plan_forward(p, arch); }, CUFLASH_UNSUPPORTED),
                             refusal([&] { plan_kv(cached, arch, 132); }, CUFLASH_UNSUPPORTED),
                             refusal([&] { plan_merge(merged, arch); }, CUFLASH_UNSUPPORTED)})
      EXPECT_NE(text.find(" tiles, more than 140735340806145"), std::string::npos) << text;
    EXPECT_NE(explain(p, Execution{}, arch).find("more than 140735340806145"), std::string::npos);
  }
}

// The size query must refuse it, too: explain and the call do when they plan the launch of the summary.
TEST(CudaPlan, OfAMaskSummaryThatNoGridHoldsIsRefusedByTheSizeQuery) {
  constexpr int64_t kBatch = 4, kHeads = 256, kLength = kMaxExtent - 1024;
  cuflash_attention attention;
  cuflash_attention_init(&attention);
  for (cuflash_tensor* t : {&attention.q, &attention.k, &attention.v})
    set(*t, DType::f16, {kBatch, kHeads, kLength, 64}, {0, 0, 0, 1});
  set(attention.mask, DType::boolean, {kBatch, kHeads, kLength, kLength}, {1, 1, 1, 1});
  cuflash_forward_outputs outputs;
  cuflash_forward_outputs_init(&outputs);
  set(outputs.o, DType::f16, {kBatch, kHeads, kLength, 64}, {kHeads * kLength * 64, kLength * 64, 64, 1});
  Snapshot copies;
  const ForwardProblem p = describe(attention, outputs, kDevice, copies);
  const cuda::Arch arch = cuda::arch_named("sm_90a");
  const cuda::ForwardPlan plan = plan_forward(p, arch);
  const std::string text =
      refusal([&] { cuda::bytes_with_summary(p, plan, plan.workspace.size); }, CUFLASH_UNSUPPORTED);
  EXPECT_NE(text.find(" tiles, more than 140735340806145"), std::string::npos) << text;
  EXPECT_NE(explain(p, Execution{}, arch).find(text), std::string::npos);
}

// Sequences of one row each; the bounds allow 2^27.
struct LooseBounds {
  static constexpr int64_t kSequences = 40, kBound = int64_t{1} << 27;
  Inputs in;

  LooseBounds() : in(packed({.heads_q = 2, .heads_k = 1, .len_q = kSequences, .len_k = kSequences}, ends(), ends())) {}
  static std::vector<int32_t> ends() {
    std::vector<int32_t> all(kSequences + 1);
    for (size_t b = 0; b < all.size(); ++b) all[b] = static_cast<int32_t>(b);
    return all;
  }
  void loosen() { in.attention.max_seqlen_q = in.attention.max_seqlen_k = kBound; }
};

TEST(LooseBound, ChangesNeitherResultsNorTheirMemory) {
  LooseBounds p;
  const Results tight = expect_matches_oracle(p.in);
  const Buffer o(p.in.dout.view()), dq(p.in.q.view());
  const Buffer lse(contiguous<void>(nullptr, DType::f32, 2, LooseBounds::kSequences));
  const auto sizes = [&] {
    const BackwardTensors gradients{.o = o.view(), .lse = lse.view(), .dout = p.in.dout.view(), .dq = dq.view()};
    return std::pair(workspace_size(p.in.attention, ForwardOutputs{.o = o.view()}),
                     workspace_size(p.in.attention, gradients));
  };
  const auto tight_sizes = sizes();
  p.loosen();
  EXPECT_EQ(sizes(), tight_sizes);
  EXPECT_LT(tight_sizes.second, size_t{1} << 30);
  EXPECT_TRUE(same_bits(run(p.in), tight));
}

// bias has the bounds' shape; the part beyond all sequences has a gradient of 0.
TEST(LooseBound, LeavesAGradientOfBiasBeyondTheLengths) {
  constexpr int64_t kBoundQ = 70, kBoundK = 300;
  for (const int64_t rows : {int64_t{1}, kBoundQ}) {
    Inputs in = packed({.heads_q = 2, .heads_k = 1, .len_q = 9, .len_k = 12}, {0, 4, 9}, {0, 5, 12});
    in.attention.max_seqlen_q = kBoundQ, in.attention.max_seqlen_k = kBoundK;
    Buffer bias(contiguous<void>(nullptr, DType::f32, 2, 1, rows, kBoundK));
    fill_normal(bias.view(), 5);
    in.attention.bias = bias.view();
    const Results r = expect_matches_oracle(in);
    ASSERT_EQ(r.dbias.size(), static_cast<size_t>(2 * rows * kBoundK));
    EXPECT_TRUE(all_equal(part(r.dbias, 7, kBoundK - 7), 0));
    EXPECT_FALSE(all_equal(part(r.dbias, 0, 5), 0));
  }
}

// The bound must not cause as many tasks, which would take seconds, nor another result.
TEST(LooseBound, OfRowsThatACacheGetsCostsNothing) {
  using rejections::CacheCall, rejections::CacheKind;
  const CacheKind kind{.queries = rejections::Mode::packed, .new_rows = rejections::NewRows::packed};
  CacheCall tight(kind), loose(kind);
  loose.attention.max_seqlen_q = loose.cache.max_seqlen_new = kMaxExtent;
  ASSERT_EQ(tight.run(), CUFLASH_OK) << cuflash_last_error();
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(loose.run(), CUFLASH_OK) << cuflash_last_error();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  const auto values = [](const CacheCall& call) {
    const auto* o = static_cast<const float*>(call.cache.o.data);
    return std::vector<float>(o, o + call.cache.o.shape[0] * call.cache.o.stride[0]);
  };
  EXPECT_EQ(values(loose), values(tight));
}

}  // namespace
}  // namespace cuflash::test
