// A copy of host tensors in device memory. Guarded tensors are copied with their guards and gaps, at the same alignment,
// so that any damage by a kernel shows in host memory after the download. For other memory only the elements are copied; the
// gaps between them are not touched.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstddef>
#include <vector>

namespace cuflash::check {

class CudaSession;

// Whether only elements are copied and each tensor is a separate allocation, so that compute-sanitizer finds reads
// outside of an allocation and reads of unwritten memory. compute-sanitizer takes an asynchronous copy of the first
// bytes of a vector for a read of all 16, so the last vector of a row is allocated to its end. It holds NaNs after the
// row, which show in the result if they are used. All other memory between rows stays unwritten.
bool elements_only();

class Mirror {
 public:
  explicit Mirror(CudaSession& session) : session_(session) {}
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Add every tensor first, then allocate, then map views.
  void add(const ConstTensor& t);
  void allocate();

  // The corresponding view of the copy. A view without elements stays unchanged, since it is never dereferenced.
  template <class Pointer>
  BasicTensor<Pointer> view(BasicTensor<Pointer> t) const {
    t.data = const_cast<void*>(static_cast<const void*>(map(t.data)));
    return t;
  }

  void upload() const;
  void download() const;

 private:
  struct Run {  // bytes to copy
    std::byte* host;
    size_t bytes;
  };
  struct Block {  // host memory with one image on the device
    std::byte *begin, *end;
    std::byte* device;
    std::vector<Run> runs;

    std::byte* image_of(const std::byte* host) const { return device + (host - begin); }
  };

  void add_block(Block block);
  void write_rests_of_vectors() const;
  const Block* around(const void* data) const;
  const std::byte* map(const void* data) const;

  CudaSession& session_;
  std::vector<Block> blocks_;          // disjoint
  std::vector<std::byte*> allocated_;  // if every block has its own allocation
};

}  // namespace cuflash::check
