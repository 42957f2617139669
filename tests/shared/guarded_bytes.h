// Bytes that end where readable memory does, so that an access beyond them ends the test. If they fill whole pages of
// memory, they also begin there.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace cuflash::test {

class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size) : size_(size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (size + page - 1) / page * page + 2 * page;
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<uint8_t*>(memory);
    mprotect(begin_, page, PROT_NONE), mprotect(begin_ + mapped_ - page, page, PROT_NONE);
    data_ = begin_ + mapped_ - page - size;
  }
  ~GuardedBytes() { munmap(begin_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_, mapped_ = 0;
  uint8_t* begin_ = nullptr;
  uint8_t* data_ = nullptr;
};

}  // namespace cuflash::test
