// Messages that need no CUDA.
#include <stdexcept>

#include "tests/docs/provoke.h"

namespace cuflash::docs {

namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kLength = 8, kDim = 16;
constexpr size_t kElements = kBatch * kHeads * kLength * kDim, kRows = kBatch * kHeads * kLength;

template <class T>
auto rows(std::vector<T>& memory) {
  return bhsd(memory.data(), kBatch, kHeads, kLength, kDim);
}

// The call with one defect.
template <class Change>
void forward(Change change) {
  Call call;
  change(call);
  call.forward();
}
template <class Change>
void backward(Change change) {
  Call call;
  change(call);
  call.backward();
}

void check(cuflash_status status) { detail::check(status); }

const int32_t kFull[] = {kLength, kLength}, kTooLong[] = {kLength, kLength + 1};
const int32_t kRising[] = {0, 3, kLength}, kFalling[] = {0, 5, 3}, kLate[] = {1, 3, kLength}, kBeyond[] = {0, 3, 9};

// Two sequences in the rows of one head of the first batch.
void make_packed(Call& c, const int32_t (&starts_k)[3]) {
  const auto packed = [](auto t) {
    t.rank = 3, t.shape = {kLength, kHeads, kDim}, t.stride = {kDim, kLength * kDim, 1};
    return t;
  };
  c.attention.q = packed(c.attention.q), c.attention.k = packed(c.attention.k), c.attention.v = packed(c.attention.v);
  c.outputs = {.o = packed(c.outputs.o)};
  c.attention.cu_seqlens_q = contiguous(kRising, 3), c.attention.cu_seqlens_k = contiguous(starts_k, 3);
}

// 2^62 rows, each with a number of 4 bytes.
void make_unaddressable(Call& c) {
  constexpr int64_t kMany = 1 << 21, kRows = 1 << 20;
  static float sink[kMany], dsink[kMany];
  for (ConstTensor* t : {&c.attention.q, &c.attention.k, &c.attention.v, &c.tensors.o, &c.tensors.dout})
    t->shape = {kMany, kMany, kRows, kDim}, t->stride = {0, 0, 0, 1};
  c.tensors.lse.shape = {kMany, kMany, kRows}, c.tensors.lse.stride = {0, 0, 1};
  c.attention.sink = contiguous(static_cast<const float*>(sink), kMany), c.tensors.dsink = contiguous(dsink, kMany);
  c.tensors.dq = c.tensors.dk = c.tensors.dv = {};
}

// Passes the struct of a program built against a later header, with one more option, which is set.
void pass_newer_struct() {
  struct {
    cuflash_attention known;
    int64_t option;
  } newer{{}, 1};
  cuflash_attention_init(&newer.known);
  newer.known.struct_size = sizeof newer;
  cuflash_forward_outputs outputs;
  cuflash_forward_outputs_init(&outputs);
  check(cuflash_forward(&newer.known, &outputs, nullptr));
}

}  // namespace

Call::Call()
    : q(kElements),
      k(kElements),
      v(kElements),
      o(kElements),
      lse(kRows),
      grads(3 * kElements),
      attention{.q = rows(q), .k = rows(k), .v = rows(v)},
      outputs{.o = rows(o), .lse = contiguous(lse.data(), kBatch, kHeads, kLength)},
      tensors{.o = rows(o), .lse = contiguous(lse.data(), kBatch, kHeads, kLength), .dout = rows(v)} {
  const auto gradient = [&](size_t n) { return bhsd(grads.data() + n * kElements, kBatch, kHeads, kLength, kDim); };
  tensors.dq = gradient(0), tensors.dk = gradient(1), tensors.dv = gradient(2);
}

void Call::make_huge(const void* sink, void* dsink) {
  constexpr int64_t kMany = int64_t{1} << 30;
  for (ConstTensor* t : {&attention.q, &attention.k, &attention.v, &tensors.o, &tensors.dout})
    t->shape = {kMany, kManyHeads, kLength, kDim}, t->stride = {0, 0, 0, 1};
  tensors.lse.shape = {kMany, kManyHeads, kLength}, tensors.lse.stride = {0, 0, 1};
  tensors.dq = tensors.dk = tensors.dv = {};
  attention.sink = contiguous(sink, DType::f32, kManyHeads), tensors.dsink = contiguous(dsink, DType::f32, kManyHeads);
}

std::vector<Message> host_messages() {
  return {
      // Structs
      {"attention-null", {}, [] { check(cuflash_forward(nullptr, nullptr, nullptr)); }},
      {"struct-size",
       {},
       [] {
         cuflash_attention attention{};
         cuflash_forward_outputs outputs;
         cuflash_forward_outputs_init(&outputs);
         check(cuflash_forward(&attention, &outputs, nullptr));
       }},
      {"struct-newer", {}, pass_newer_struct},
      // Tensors
      {"missing", {}, [] { forward([](Call& c) { c.attention.k = {}; }); }},
      {"rank",
       {},
       [] { forward([](Call& c) { c.attention.q = contiguous(c.q.data(), kHeads, kBatch * kLength, kDim); }); }},
      {"data-null", {}, [] { forward([](Call& c) { c.attention.v.data = nullptr; }); }},
      {"alignment", {}, [] { forward([](Call& c) { c.attention.q.data = reinterpret_cast<char*>(c.q.data()) + 2; }); }},
      {"last-dimension",
       {},
       [] { forward([](Call& c) {
              c.attention.k.stride = {kHeads * kLength * kDim, kLength * kDim, 1, kLength};
            }); }},
      {"negative-stride", {}, [] { forward([](Call& c) { c.attention.k.stride[2] = -kDim; }); }},
      {"extent", {}, [] { forward([](Call& c) { c.attention.q.shape[1] = -1; }); }},
      {"output-overlap", {}, [] { forward([](Call& c) { c.outputs.o.stride[1] = 0; }); }},
      {"output-is-input", {}, [] { forward([](Call& c) { c.outputs.o.data = c.q.data(); }); }},
      {"output-in-input", {}, [] { forward([](Call& c) { c.outputs.o.data = c.q.data() + kElements / 2; }); }},
      {"unknown-type", {}, [] { forward([](Call& c) { c.attention.k.dtype = DType{99}; }); }},
      {"beyond-memory", {}, [] { forward([](Call& c) { c.attention.k.stride[0] = int64_t{1} << 62; }); }},
      {"type-of-q", {}, [] { forward([](Call& c) { c.attention.q.dtype = DType::i32; }); }},
      {"type-of-k", {}, [] { forward([](Call& c) { c.attention.k.dtype = DType::bf16; }); }},
      {"type-of-o", {}, [] { forward([](Call& c) { c.outputs.o.dtype = DType::bf16; }); }},
      {"type-of-lse", {}, [] { forward([](Call& c) { c.outputs.lse.dtype = DType::bf16; }); }},
      // Shapes
      {"heads", {}, [] { forward([](Call& c) { c.attention.k.shape[1] = c.attention.v.shape[1] = 3; }); }},
      {"no-heads", {}, [] { forward([](Call& c) { c.attention.k.shape[1] = c.attention.v.shape[1] = 0; }); }},
      {"head-size", {}, [] { forward([](Call& c) { c.attention.k.shape[3] = kDim / 2; }); }},
      {"batch", {}, [] { forward([](Call& c) { c.attention.k.shape[0] = 1; }); }},
      {"length-of-v", {}, [] { forward([](Call& c) { c.attention.v.shape[2] = kLength - 1; }); }},
      {"bias-shape",
       {},
       [] { forward([](Call& c) { c.attention.bias = contiguous(std::as_const(c.q).data(), 1, 1, 1, 5); }); }},
      {"mask-type",
       {},
       [] {
         forward([](Call& c) { c.attention.mask = contiguous(std::as_const(c.q).data(), 1, 1, kLength, kLength); });
       }},
      {"mask-summary",
       {},
       [] {
         alignas(64) static int32_t summary[1024];
         forward([](Call& c) {
           c.attention.mask_summary = {contiguous(static_cast<const int32_t*>(summary), int64_t{1024}),
                                       {1, 1, kLength, kLength + 1}};
         });
       }},
      {"lse-shape", {}, [] { forward([](Call& c) { c.outputs.lse.shape[2] = 5; }); }},
      // Options
      {"window", {}, [] { forward([](Call& c) { c.attention.window_left = -2; }); }},
      {"softcap", {}, [] { forward([](Call& c) { c.attention.softcap = -1; }); }},
      {"dropout", {}, [] { forward([](Call& c) { c.attention.dropout_p = 1; }); }},
      {"scale", {}, [] { forward([](Call& c) { c.attention.scale = 3e38; }); }},
      {"alignment-value", {}, [] { forward([](Call& c) { c.attention.alignment = Alignment{2}; }); }},
      {"device-value", {}, [] { forward([](Call& c) { c.execution.device = Device{7}; }); }},
      {"threads", {}, [] { forward([](Call& c) { c.execution.num_threads = -1; }); }},
      // Lengths
      {"seqlens", {}, [] { forward([](Call& c) { c.attention.seqlens_k = contiguous(kTooLong, kBatch); }); }},
      {"cu-seqlens-empty",
       {},
       [] { forward([](Call& c) { make_packed(c, kRising), c.attention.cu_seqlens_q.shape[0] = 0; }); }},
      {"cu-seqlens-start", {}, [] { forward([](Call& c) { make_packed(c, kLate); }); }},
      {"cu-seqlens-order", {}, [] { forward([](Call& c) { make_packed(c, kFalling); }); }},
      {"cu-seqlens-end", {}, [] { forward([](Call& c) { make_packed(c, kBeyond); }); }},
      {"seqlens-and-packed",
       {},
       [] { forward([](Call& c) { make_packed(c, kRising), c.attention.seqlens_k = contiguous(kFull, kBatch); }); }},
      {"max-seqlen", {}, [] { forward([](Call& c) { make_packed(c, kRising), c.attention.max_seqlen_k = 4; }); }},
      {"max-seqlen-dense", {}, [] { forward([](Call& c) { c.attention.max_seqlen_q = kLength; }); }},
      // Backward
      {"no-gradient", {}, [] { backward([](Call& c) { c.tensors.dq = c.tensors.dk = c.tensors.dv = {}; }); }},
      {"no-lse", {}, [] { backward([](Call& c) { c.tensors.lse = {}; }); }},
      {"dbias", {}, [] { backward([](Call& c) { c.tensors.dbias = c.tensors.dq; }); }},
      {"dbias-shape",
       {},
       [] {
         backward([](Call& c) {
           c.attention.bias = contiguous(std::as_const(c.q).data(), 1, kHeads, kLength, kLength);
           c.tensors.dbias = contiguous(c.grads.data(), kBatch, kHeads, kLength, kLength);
           c.tensors.dq = {};
         });
       }},
      {"dsink", {}, [] { backward([](Call& c) { c.tensors.dsink = contiguous(c.lse.data(), kHeads); }); }},
      // Workspace
      {"workspace-null", {}, [] { forward([](Call& c) { c.execution.workspace_size = 64; }); }},
      {"workspace-alignment",
       {},
       [] {
         alignas(64) static char memory[128];
         forward([](Call& c) { c.execution.workspace = memory + 8, c.execution.workspace_size = 100; });
       }},
      {"workspace-size",
       {},
       [] {
         alignas(64) static char memory[64];
         forward([](Call& c) { c.execution.workspace = memory, c.execution.workspace_size = sizeof memory; });
       }},
      {"workspace-overflow", {}, [] { backward(make_unaddressable); }},
      {"workspace-is-output",
       {},
       [] {
         alignas(64) static float memory[1 << 16];
         forward([](Call& c) {
           c.outputs.o.data = c.execution.workspace = memory, c.execution.workspace_size = sizeof memory;
         });
       }},
      {"workspace-memory",
       {},
       [] {
         static float sink[Call::kManyHeads], dsink[Call::kManyHeads];
         backward([](Call& c) { c.make_huge(sink, dsink); });
       }},
      // The processor
      {"threads-setting", {{"CUFLASH_NUM_THREADS", "many"}}, [] { forward([](Call&) {}); }},
      {"cpu-isa", {{"CUFLASH_CPU_ISA", "mmx"}}, [] { forward([](Call&) {}); }},
      // The caller's own threads
      {"parallel-for-throws",
       {},
       [] {
         forward([](Call& c) {
           c.execution.parallel_for = [](void*, int64_t, cuflash_parallel_body, void*) {
             throw std::runtime_error("no more threads");
           };
         });
       }},
  };
}

}  // namespace cuflash::docs
