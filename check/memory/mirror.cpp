#include "check/memory/mirror.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "check/memory/cuda_session.h"
#include "check/memory/guarded.h"
#include "dtype.h"

namespace cuflash::check {
namespace {

constexpr size_t kBoundary = 256;  // more alignment than any kernel checks
constexpr size_t kVector = 16;     // bytes per copy of a kernel

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The extent of a view without its repeated dimensions.
struct Rows {
  std::byte* data;
  int64_t extent[4] = {1, 1, 1, 1};  // in bytes along the last one
  int64_t stride[4] = {0, 0, 0, 0};  // in bytes

  explicit Rows(const ConstTensor& t) : data(static_cast<std::byte*>(const_cast<void*>(t.data))) {
    const int64_t size = size_of(t.dtype);
    for (int32_t d = 0; d < t.rank; ++d) {
      const auto from = static_cast<size_t>(d), to = static_cast<size_t>(4 - t.rank + d);
      extent[to] = t.shape[from], stride[to] = t.stride[from] * size;
      if (stride[to] == 0 || extent[to] == 1) extent[to] = std::min<int64_t>(extent[to], 1), stride[to] = 0;
    }
    extent[3] *= size, stride[3] = 1;
    // Merges dimensions without a gap between them.
    for (size_t d = 3; d-- > 0;)
      if (extent[d] == 1 || stride[d] == extent[3]) extent[3] *= extent[d], extent[d] = 1;
      else break;
  }

  bool empty() const {
    return std::any_of(extent, extent + 4, [](int64_t e) { return e == 0; });
  }
  std::byte* end() const {
    std::byte* last = data;
    for (size_t d = 0; d < 3; ++d) last += (extent[d] - 1) * stride[d];
    return last + extent[3];
  }
  template <class Visit>
  void for_each_run(Visit visit) const {
    for (int64_t a = 0; a < extent[0]; ++a)
      for (int64_t b = 0; b < extent[1]; ++b)
        for (int64_t c = 0; c < extent[2]; ++c) visit(data + a * stride[0] + b * stride[1] + c * stride[2]);
  }
};

}  // namespace

bool elements_only() {
  static const bool asked = std::getenv("CUFLASH_CHECK_ELEMENTS_ONLY") != nullptr;
  return asked;
}

void Mirror::add(const ConstTensor& t) {
  if (!t || !t.data) return;
  const Rows rows(t);
  if (rows.empty()) return;
  const std::optional<GuardedTensor::Block> guarded =
      elements_only() ? std::nullopt : GuardedTensor::block_around(t.data);
  if (guarded) {
    if (around(t.data)) return;  // slices of one buffer
    return add_block({guarded->begin, guarded->begin + guarded->bytes, nullptr, {{guarded->begin, guarded->bytes}}});
  }
  Block block{rows.data, rows.end(), nullptr, {}};
  rows.for_each_run([&](std::byte* run) { block.runs.push_back({run, static_cast<size_t>(rows.extent[3])}); });
  add_block(std::move(block));
}

// Views that interleave share one image.
void Mirror::add_block(Block block) {
  for (size_t n = 0; n < blocks_.size();) {
    Block& other = blocks_[n];
    if (other.end <= block.begin || block.end <= other.begin) {
      ++n;
      continue;
    }
    block.begin = std::min(block.begin, other.begin), block.end = std::max(block.end, other.end);
    block.runs.insert(block.runs.end(), other.runs.begin(), other.runs.end());
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(n));
    n = 0;
  }
  blocks_.push_back(std::move(block));
}

void Mirror::allocate() {
  const auto misalignment = [](const Block& block) { return reinterpret_cast<uintptr_t>(block.begin) % kBoundary; };
  if (elements_only()) {
    for (Block& block : blocks_) {
      const size_t end = misalignment(block) + static_cast<size_t>(block.end - block.begin);
      allocated_.push_back(session_.allocate(rounded_up(end, kVector)));
      block.device = allocated_.back() + misalignment(block);
    }
    return;
  }
  size_t bytes = 0;
  std::vector<size_t> offsets;
  for (const Block& block : blocks_) {
    offsets.push_back(bytes + misalignment(block));
    bytes = rounded_up(offsets.back() + static_cast<size_t>(block.end - block.begin), kBoundary);
  }
  std::byte* memory = session_.memory(bytes);
  for (size_t n = 0; n < blocks_.size(); ++n) blocks_[n].device = memory + offsets[n];
}

Mirror::~Mirror() {
  for (std::byte* block : allocated_) session_.release(block);
}

const Mirror::Block* Mirror::around(const void* data) const {
  const auto* byte = static_cast<const std::byte*>(data);
  for (const Block& block : blocks_)
    if (block.begin <= byte && byte < block.end) return &block;
  return nullptr;
}

const std::byte* Mirror::map(const void* data) const {
  const auto* host = static_cast<const std::byte*>(data);
  const Block* block = around(data);
  return block ? block->image_of(host) : host;
}

// Must run before the elements are written: if views interleave, the padding of one may overlap elements of another.
void Mirror::write_rests_of_vectors() const {
  std::array<std::byte, kVector> nans;
  nans.fill(std::byte{0xff});
  for (const Block& block : blocks_)
    for (const Run& run : block.runs) {
      std::byte* const end = block.image_of(run.host) + run.bytes;
      const size_t used = reinterpret_cast<uintptr_t>(end) % kVector;
      if (used != 0) session_.upload(end, nans.data(), kVector - used);
    }
}

void Mirror::upload() const {
  if (elements_only()) write_rests_of_vectors();
  for (const Block& block : blocks_)
    for (const Run& run : block.runs) session_.upload(block.image_of(run.host), run.host, run.bytes);
}

void Mirror::download() const {
  for (const Block& block : blocks_)
    for (const Run& run : block.runs) session_.download(run.host, block.image_of(run.host), run.bytes);
  session_.wait();
}

}  // namespace cuflash::check
