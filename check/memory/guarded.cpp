#include "check/memory/guarded.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "dtype.h"
#include "error.h"

namespace cuflash::check {
namespace {

constexpr std::byte kPattern{0xff};
constexpr size_t kGuard = 128;  // a vector register of any ISA, and a cache line, on either side
constexpr size_t kBoundary = 64;

int64_t span_of(const Tensor& t) {
  if (t.rank == 0) return 0;
  int64_t last = 0;
  for (size_t d = 0; d < static_cast<size_t>(t.rank); ++d) {
    if (t.shape[d] == 0) return 0;
    last += (t.shape[d] - 1) * t.stride[d];
  }
  return last + 1;
}

void visit_elements(const Tensor& t, const std::function<void(const Index&, int64_t)>& visit) {
  if (span_of(t) == 0) return;
  Index index{};
  int64_t offset = 0;
  for (;;) {
    visit(index, offset);
    auto d = static_cast<size_t>(t.rank);
    for (;;) {
      if (d == 0) return;
      --d;
      offset += t.stride[d];
      if (++index[d] < t.shape[d]) break;
      offset -= t.shape[d] * t.stride[d];
      index[d] = 0;
    }
  }
}

// Blocks of guarded memory by their address; many threads create and destroy them.
class AllMemory {
 public:
  static AllMemory& instance() {
    static AllMemory all;
    return all;
  }
  void add(std::vector<std::byte>& bytes) {
    const std::lock_guard lock(mutex_);
    blocks_[bytes.data()] = bytes.size();
  }
  void remove(const std::vector<std::byte>& bytes) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(const_cast<std::byte*>(bytes.data()));
  }
  std::optional<GuardedTensor::Block> around(const void* data) {
    auto* byte = static_cast<std::byte*>(const_cast<void*>(data));
    const std::lock_guard lock(mutex_);
    auto block = blocks_.upper_bound(byte);
    if (block == blocks_.begin()) return std::nullopt;
    --block;
    if (byte >= block->first + block->second) return std::nullopt;
    return GuardedTensor::Block{block->first, block->second};
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, size_t> blocks_;
};

bool exists(const Tensor& existing, const Index& index) {
  for (size_t d = 0; d < static_cast<size_t>(existing.rank); ++d)
    if (index[d] >= existing.shape[d]) return false;
  return true;
}

}  // namespace

GuardedTensor::Memory::Memory(size_t size) : bytes(size, kPattern) { AllMemory::instance().add(bytes); }
GuardedTensor::Memory::~Memory() { AllMemory::instance().remove(bytes); }

std::optional<GuardedTensor::Block> GuardedTensor::block_around(const void* data) {
  return AllMemory::instance().around(data);
}

GuardedTensor::GuardedTensor(std::string name, DType dtype, const std::vector<int64_t>& shape,
                             const std::vector<int64_t>& stride, int64_t offset)
    : name_(std::move(name)) {
  view_.dtype = dtype;
  view_.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view_.shape.begin());
  std::copy(stride.begin(), stride.end(), view_.stride.begin());
  existing_ = view_;

  const auto element = static_cast<size_t>(size_of(dtype));
  const size_t used = (static_cast<size_t>(offset) + static_cast<size_t>(span_of(view_))) * element;
  memory_ = std::make_shared<Memory>(kGuard + kBoundary + used + kGuard);
  const auto address = reinterpret_cast<uintptr_t>(memory_->bytes.data()) + kGuard;
  const size_t to_boundary = (kBoundary - address % kBoundary) % kBoundary;
  memory_->first = kGuard + to_boundary + static_cast<size_t>(offset) * element;
  view_.data = memory_->bytes.data() + memory_->first;
}

GuardedTensor GuardedTensor::heads(std::string name, int64_t first, int64_t count) const {
  GuardedTensor slice = *this;
  slice.name_ = std::move(name);
  slice.view_.data = static_cast<std::byte*>(view_.data) + first * view_.stride[1] * size_of(view_.dtype);
  slice.view_.shape[1] = count;
  slice.existing_.shape[1] = count;
  return slice;
}

GuardedTensor GuardedTensor::columns(std::string name, int64_t first, int64_t count) const {
  GuardedTensor slice = *this;
  slice.name_ = std::move(name);
  slice.view_.data = static_cast<std::byte*>(view_.data) + first * size_of(view_.dtype);
  const auto last = static_cast<size_t>(view_.rank - 1);
  slice.view_.shape[last] = count;
  slice.existing_.shape[last] = count;
  return slice;
}

int64_t GuardedTensor::span() const { return span_of(view_); }

void GuardedTensor::for_each(const std::function<void(const Index&, int64_t)>& visit) const {
  visit_elements(view_, visit);
}

double GuardedTensor::get(int64_t offset) const { return load_element(view_.data, view_.dtype, offset); }

void GuardedTensor::set(int64_t offset, double value) {
  if (view_.dtype == DType::i32) static_cast<int32_t*>(view_.data)[offset] = static_cast<int32_t>(value);
  else if (view_.dtype == DType::boolean) static_cast<uint8_t*>(view_.data)[offset] = static_cast<uint8_t>(value);
  else store_row(view_.data, view_.dtype, offset, 1, &value);
}

std::vector<double> GuardedTensor::read() const {
  std::vector<double> values;
  for_each([&](const Index& index, int64_t offset) { values.push_back(exists(existing_, index) ? get(offset) : 0); });
  return values;
}

void GuardedTensor::write(const std::vector<double>& values) {
  auto value = values.begin();
  for_each([&](const Index&, int64_t offset) { set(offset, *value++); });
}

std::vector<std::byte> GuardedTensor::bytes() const { return memory_ ? memory_->bytes : std::vector<std::byte>{}; }

void GuardedTensor::poison() {
  if (!memory_) return;
  std::fill(memory_->bytes.begin(), memory_->bytes.end(), kPattern);
  memory_->frozen.clear();
}

void GuardedTensor::freeze() {
  if (memory_) memory_->frozen = memory_->bytes;
}

void GuardedTensor::accept(int64_t offset, int64_t count) {
  const auto begin = static_cast<int64_t>(byte_of(offset));
  std::copy_n(memory_->bytes.begin() + begin, count * size_of(view_.dtype), memory_->frozen.begin() + begin);
}

void GuardedTensor::put_back(const std::vector<std::byte>& bytes) {
  if (memory_) std::copy(bytes.begin(), bytes.end(), memory_->bytes.begin());
}

size_t GuardedTensor::byte_of(int64_t offset) const {
  return static_cast<size_t>(static_cast<std::byte*>(view_.data) - memory_->bytes.data() +
                             offset * size_of(view_.dtype));
}

std::string GuardedTensor::damage() const {
  if (!memory_) return "";
  std::vector<std::byte> expected = memory_->frozen;
  if (expected.empty()) {
    expected.assign(memory_->bytes.size(), kPattern);
    Tensor rows = existing_;  // the last dimension is contiguous
    const int64_t width = std::exchange(rows.shape[static_cast<size_t>(rows.rank - 1)], 1);
    visit_elements(rows, [&](const Index&, int64_t offset) {
      const auto begin = static_cast<int64_t>(byte_of(offset));
      std::copy_n(memory_->bytes.begin() + begin, width * size_of(view_.dtype), expected.begin() + begin);
    });
  }
  const auto [byte, at] = std::mismatch(memory_->bytes.begin(), memory_->bytes.end(), expected.begin());
  if (byte == memory_->bytes.end()) return "";
  const auto place = (byte - memory_->bytes.begin()) - static_cast<int64_t>(memory_->first);
  return join(name_, ": byte ", place, " from its start, which is ",
              memory_->frozen.empty() ? "outside its elements" : "read-only", ", was written (span ",
              span() * size_of(view_.dtype), " bytes)");
}

std::string GuardedTensor::unwritten() const {
  std::string found;
  if (!memory_) return found;
  visit_elements(existing_, [&](const Index& index, int64_t offset) {
    if (!found.empty()) return;
    const auto begin = memory_->bytes.begin() + static_cast<int64_t>(byte_of(offset));
    if (std::any_of(begin, begin + size_of(view_.dtype), [](std::byte byte) { return byte != kPattern; })) return;
    found = join(name_, ": element [", index[0], ",", index[1], ",", index[2], ",", index[3], "] was never written");
  });
  return found;
}

}  // namespace cuflash::check
