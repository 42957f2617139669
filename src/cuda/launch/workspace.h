// The scratch memory of one call on the device: the caller's workspace, memory from the caller's allocate function, or
// a block of the device's stream-ordered pool, which is freed in stream order.
#pragma once

#include "problem/problem.h"

namespace cuflash::cuda {

class Workspace {
 public:
  Workspace(const Execution& execution, size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }

 private:
  void* stream_;
  void* data_ = nullptr;
  bool from_pool_ = false;
};

}  // namespace cuflash::cuda
