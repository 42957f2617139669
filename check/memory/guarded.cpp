#include "check/memory/guarded.h"

#include <algorithm>
#include <cstring>
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

// The number of existing elements in the row that starts at this index.
int64_t existing_columns(const Tensor& existing, const Index& index) {
  const auto last = static_cast<size_t>(existing.rank - 1);
  for (size_t d = 0; d < last; ++d)
    if (index[d] >= existing.shape[d]) return 0;
  return existing.shape[last];
}

// The first of `count` elements that has only bytes of the pattern, or count.
template <class Word>
int64_t find_pattern(const std::byte* row, int64_t count) {
  for (int64_t n = 0; n < count; ++n) {
    Word word;
    std::memcpy(&word, row + n * static_cast<int64_t>(sizeof word), sizeof word);
    if (word == static_cast<Word>(~Word{0})) return n;
  }
  return count;
}

int64_t find_pattern(const std::byte* row, int64_t count, int64_t element) {
  switch (element) {
    case 1: return find_pattern<uint8_t>(row, count);
    case 2: return find_pattern<uint16_t>(row, count);
    case 4: return find_pattern<uint32_t>(row, count);
    default: return find_pattern<uint64_t>(row, count);
  }
}

}  // namespace

int64_t span_of(const Tensor& view) {
  if (view.rank == 0) return 0;
  int64_t last = 0;
  for (size_t d = 0; d < static_cast<size_t>(view.rank); ++d) {
    if (view.shape[d] == 0) return 0;
    last += (view.shape[d] - 1) * view.stride[d];
  }
  return last + 1;
}

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

double GuardedTensor::get(int64_t offset) const { return load_element(view_.data, view_.dtype, offset); }

void GuardedTensor::set(int64_t offset, double value) { set_row(offset, 1, &value); }

void GuardedTensor::set_row(int64_t offset, int64_t count, const double* values) {
  const auto convert = [&]<class Integer>(Integer* to) {
    for (int64_t n = 0; n < count; ++n) to[offset + n] = static_cast<Integer>(values[n]);
  };
  if (view_.dtype == DType::i32) convert(static_cast<int32_t*>(view_.data));
  else if (view_.dtype == DType::boolean) convert(static_cast<uint8_t*>(view_.data));
  else store_row(view_.data, view_.dtype, offset, count, values);
}

std::vector<double> GuardedTensor::read() const {
  std::vector<double> values;
  for_each_row(view_, [&](const Index& index, int64_t offset) {
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(row_length()));
    load_row(view_.data, view_.dtype, offset, existing_columns(existing_, index), values.data() + begin);
  });
  return values;
}

void GuardedTensor::write(const std::vector<double>& values) {
  const double* row = values.data();
  for_each_row(view_, [&](const Index&, int64_t offset) {
    set_row(offset, row_length(), row);
    row += row_length();
  });
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
  std::vector<std::byte> written;
  if (memory_->frozen.empty()) {
    written.assign(memory_->bytes.size(), kPattern);
    for_each_row(existing_, [&](const Index& index, int64_t offset) {
      const auto begin = static_cast<int64_t>(byte_of(offset));
      std::copy_n(memory_->bytes.begin() + begin, existing_columns(existing_, index) * size_of(view_.dtype),
                  written.begin() + begin);
    });
  }
  const std::vector<std::byte>& expected = memory_->frozen.empty() ? written : memory_->frozen;
  if (std::memcmp(memory_->bytes.data(), expected.data(), expected.size()) == 0) return "";
  const auto byte = std::mismatch(memory_->bytes.begin(), memory_->bytes.end(), expected.begin()).first;
  const auto place = (byte - memory_->bytes.begin()) - static_cast<int64_t>(memory_->first);
  return join(name_, ": byte ", place, " from its start, which is ",
              memory_->frozen.empty() ? "outside its elements" : "read-only", ", was written (span ",
              span() * size_of(view_.dtype), " bytes)");
}

std::string GuardedTensor::unwritten() const {
  std::string found;
  if (!memory_) return found;
  for_each_row(existing_, [&](Index index, int64_t offset) {
    const int64_t columns = existing_columns(existing_, index);
    const int64_t column = find_pattern(memory_->bytes.data() + byte_of(offset), columns, size_of(view_.dtype));
    if (!found.empty() || column == columns) return;
    index[static_cast<size_t>(existing_.rank - 1)] = column;
    found = join(name_, ": element [", index[0], ",", index[1], ",", index[2], ",", index[3], "] was never written");
  });
  return found;
}

}  // namespace cuflash::check
