// The scratch of one call: the caller's workspace, or a block allocated for the call.
#pragma once

#include <memory>
#include <new>

#include "cpu/arena.h"
#include "error.h"

namespace cuflash::cpu {

class Workspace {
 public:
  Workspace(const Execution& execution, size_t bytes) {
    if (execution.workspace) {
      if (execution.workspace_size < bytes)
        reject("workspace: workspace_size is ", execution.workspace_size, " bytes, this call needs ", bytes,
               "; ask cuflash_*_workspace_size with the same execution");
      data_ = execution.workspace;
      return;
    }
    owned_.reset(::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow));
    if (!owned_)
      throw FlashAttentionError(CUFLASH_OUT_OF_MEMORY, join("workspace: ", bytes,
                                                            " bytes could not be allocated; pass a smaller "
                                                            "problem or a workspace of your own"));
    data_ = owned_.get();
  }
  void* data() const { return data_; }

 private:
  struct Release {
    void operator()(void* block) const { ::operator delete (block, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<void, Release> owned_;
  void* data_ = nullptr;
};

}  // namespace cuflash::cpu
