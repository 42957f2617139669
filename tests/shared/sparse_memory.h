// Address space without memory, for huge tensors of which little is touched.
#pragma once

#include <cuflash/flash_attention.h>

#include <vector>

#include "dtype.h"

namespace cuflash::test {

// A view over its own span, which takes memory page by page as it is touched.
class SparseTensor {
 public:
  explicit SparseTensor(const Tensor& layout);
  ~SparseTensor();
  SparseTensor(SparseTensor&& other) noexcept;
  SparseTensor& operator=(SparseTensor&&) = delete;

  Tensor view() const { return view_; }

 protected:
  struct Repeated {
    size_t period;    // bytes that repeat
    size_t distinct;  // bytes at the end that do not
  };
  SparseTensor(const Tensor& layout, const Repeated& repeated);

 private:
  Tensor view_;
  size_t bytes_ = 0;
};

// An output of billions of elements over a few megabytes: all but the last `distinct` bytes are one block of memory,
// mapped repeatedly. It holds what was written last.
class RepeatedTensor : public SparseTensor {
 public:
  RepeatedTensor(const Tensor& layout, size_t distinct) : SparseTensor(layout, {size_t{1} << 24, distinct}) {}
};

}  // namespace cuflash::test
