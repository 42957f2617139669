#include "tests/shared/sparse_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace cuflash::test {
namespace {

size_t span_of(const Tensor& t) {
  int64_t last = 0;
  for (size_t d = 0; d < static_cast<size_t>(t.rank); ++d) last += (t.shape[d] - 1) * t.stride[d];
  return static_cast<size_t>((last + 1) * size_of(t.dtype));
}

void* map(void* where, size_t bytes, int flags, int file) {
  void* data = mmap(where, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, file, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return data;
}

}  // namespace

SparseTensor::SparseTensor(const Tensor& layout) : view_(layout), bytes_(span_of(layout)) {
  view_.data = map(nullptr, bytes_, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  madvise(view_.data, bytes_, MADV_NOHUGEPAGE);  // each touched element would take 2 MB
}

SparseTensor::SparseTensor(const Tensor& layout, const Repeated& repeated) : SparseTensor(layout) {
  const int file = memfd_create("cuflash_test", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(repeated.period)) != 0) throw std::bad_alloc();
  const size_t shared = bytes_ > repeated.distinct ? bytes_ - repeated.distinct : 0;
  for (size_t begin = 0; begin + repeated.period <= shared; begin += repeated.period)
    map(static_cast<char*>(view_.data) + begin, repeated.period, MAP_SHARED | MAP_FIXED, file);
  close(file);
}

SparseTensor::~SparseTensor() {
  if (view_.data) munmap(view_.data, bytes_);
}

SparseTensor::SparseTensor(SparseTensor&& other) noexcept
    : view_(std::exchange(other.view_, {})), bytes_(other.bytes_) {}

}  // namespace cuflash::test
