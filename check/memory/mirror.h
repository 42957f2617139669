// A copy of host tensors in device memory. Guarded tensors are copied with their guards and gaps, at the same alignment,
// so that whatever a kernel damages is damaged in the host's memory after the download. Of other memory the elements are
// copied; what lies between them is not touched.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstddef>
#include <vector>

namespace cuflash::check {

class CudaSession;

// For compute-sanitizer, which finds what is read outside of an allocation, or before it is written: nothing but the
// elements is copied, and each tensor is an allocation of its own. But it takes an asynchronous copy of the first bytes
// of a vector for a read of all 16. So the vector in which a row ends is there to its end, and NaNs are written behind
// the row: whoever does use them has them in the result. What else lies between rows stays unwritten.
bool elements_only();

class Mirror {
 public:
  explicit Mirror(CudaSession& session) : session_(session) {}
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // First every tensor is added, then memory is taken, then views can be mapped.
  void add(const ConstTensor& t);
  void allocate();

  // The same view of the copy. One without elements stays as it is: nobody may follow it.
  template <class Pointer>
  BasicTensor<Pointer> view(BasicTensor<Pointer> t) const {
    t.data = const_cast<void*>(static_cast<const void*>(map(t.data)));
    return t;
  }

  void upload() const;
  void download() const;

 private:
  struct Run {  // bytes that are copied
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
  std::vector<Block> blocks_;          // apart from each other
  std::vector<std::byte*> allocated_;  // where every block has memory of its own
};

}  // namespace cuflash::check
