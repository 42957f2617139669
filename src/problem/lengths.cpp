#include "problem/lengths.h"

#include <algorithm>

#include "error.h"
#include "problem/tensor_rules.h"

namespace cuflash {

const int32_t* lengths_of(const Argument& a, int64_t extent, const char* shape, const char* meaning, Memory memory,
                          Snapshot& copies) {
  require_tensor(a, 1, shape);
  require_type(a, DType::i32, "the type of lengths");
  require_extent(a, 0, extent, meaning);
  return memory.on_cuda() ? static_cast<const int32_t*>(a.t.data) : copies.copy(a.t.data, extent);
}

namespace {

// Returns the largest length.
int64_t require_cumulative(const PackedLengths& lengths) {
  const auto& [cu, values, total, of] = lengths;
  const int64_t batch = cu.extent(0) - 1;
  int64_t longest = 0;
  if (values[0] != 0) reject(cu.name, ": starts with ", values[0], ", must start with 0");
  for (int64_t b = 0; b < batch; ++b) {
    if (values[b + 1] < values[b])
      reject(cu.name, ": decreases from ", values[b], " to ", values[b + 1], " at index ", b + 1);
    longest = std::max<int64_t>(longest, values[b + 1] - values[b]);
  }
  if (values[batch] > total) reject(cu.name, ": ends with ", values[batch], ", but ", of, " has only ", total, " rows");
  return longest;
}

int64_t require_bound(const char* name, int64_t given) {
  if (given < 0 || given > kMaxExtent) reject(name, ": got ", given, ", must be between 0 and ", kMaxExtent);
  return given;
}

// The host does not read lengths in device memory, so the caller must give a bound unless there are no rows.
int64_t given_bound(const char* name, int64_t given, const Argument& cu, int64_t rows) {
  if (given == 0 && rows > 0)
    reject(name, ": got 0, but ", cu.name, " is in device memory and is not read on the host; give an upper bound of ",
           "the lengths, at least 1");
  return require_bound(name, given);
}

int64_t largest_length(const char* name, int64_t given, const Argument& cu, int64_t longest) {
  if (given == 0) return longest;
  require_bound(name, given);
  if (longest > given) reject(name, ": got ", given, ", but ", cu.name, " holds a sequence of ", longest, " rows");
  return given;
}

}  // namespace

int64_t describe_bound(const char* name, int64_t given, const PackedLengths& lengths, Memory memory) {
  if (memory.on_cuda()) return given_bound(name, given, lengths.cu, lengths.total);
  return largest_length(name, given, lengths.cu, require_cumulative(lengths));
}

static void describe_packed(Problem& p, const cuflash_attention& a, Snapshot& copies) {
  const Argument cu_q("cu_seqlens_q", a.cu_seqlens_q), cu_k("cu_seqlens_k", a.cu_seqlens_k);
  if (Argument("seqlens_q", a.seqlens_q).given())
    reject("seqlens_q: cannot be combined with cu_seqlens_q; use one of them");
  if (Argument("seqlens_k", a.seqlens_k).given())
    reject("seqlens_k: cannot be combined with cu_seqlens_k; use one of them");
  require_tensor(cu_q, 1, "[B + 1]");
  if (cu_q.extent(0) < 1) reject("cu_seqlens_q: has no elements, must have B + 1");
  p.batch = cu_q.extent(0) - 1;
  p.cu_q = lengths_of(cu_q, p.batch + 1, "[B + 1]", "B + 1", p.memory, copies);
  p.cu_k = lengths_of(cu_k, p.batch + 1, "[B + 1]", "B + 1 as in cu_seqlens_q", p.memory, copies);
  p.total_q = a.q.shape[0], p.total_k = a.k.shape[0];
  p.len_q = describe_bound("max_seqlen_q", a.max_seqlen_q, {cu_q, p.cu_q, p.total_q, "q"}, p.memory);
  p.len_k = describe_bound("max_seqlen_k", a.max_seqlen_k, {cu_k, p.cu_k, p.total_k, "k"}, p.memory);
}

const int32_t* describe_used(const Argument& used, int64_t batch, int64_t length, Memory memory, Snapshot& copies) {
  if (!used.given()) return nullptr;
  const int32_t* values = lengths_of(used, batch, "[B]", "the batch", memory, copies);
  if (memory.on_cuda()) return values;
  for (int64_t b = 0; b < batch; ++b)
    if (values[b] < 0 || values[b] > length)
      reject(used.name, ": entry ", b, " is ", values[b], ", must be between 0 and the length ", length);
  return values;
}

void describe_lengths(Problem& p, const cuflash_attention& a, Snapshot& copies) {
  if (a.q.rank == 3) return describe_packed(p, a, copies);
  if (a.max_seqlen_q != 0)
    reject("max_seqlen_q: got ", a.max_seqlen_q, " without cu_seqlens_q; leave it 0 for dense tensors");
  if (a.max_seqlen_k != 0)
    reject("max_seqlen_k: got ", a.max_seqlen_k, " without cu_seqlens_k; leave it 0 for dense tensors");
  p.batch = a.q.shape[0], p.len_q = a.q.shape[2], p.len_k = a.k.shape[2];
  p.used_q = describe_used({"seqlens_q", a.seqlens_q}, p.batch, p.len_q, p.memory, copies);
  p.used_k = describe_used({"seqlens_k", a.seqlens_k}, p.batch, p.len_k, p.memory, copies);
}

void drop_loose_bounds(Problem& p) {
  if (!p.packed() || p.memory.on_cuda()) return;
  p.len_q = p.len_k = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence sequence = sequence_of(p, b);
    p.len_q = std::max(p.len_q, sequence.len_q), p.len_k = std::max(p.len_k, sequence.len_k);
  }
}

}  // namespace cuflash
