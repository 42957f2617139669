#include "cpu/plan/workspace.h"

#include <atomic>
#include <new>

namespace cuflash::cpu {

// The header of a block; the scratch follows it.
struct alignas(kAlignment) Workspace::Block {
  size_t bytes;  // bytes of the scratch

  void* scratch() { return this + 1; }

  static Block* allocate(size_t bytes) {
    void* memory = ::operator new (sizeof(Block) + bytes, std::align_val_t{kAlignment}, std::nothrow);
    return memory ? new (memory) Block{bytes} : nullptr;
  }
  static void free(Block* block) { ::operator delete (block, std::align_val_t{kAlignment}); }

  // Never destroyed, because calls may run while the process exits. A forked child inherits the block that was kept at
  // the fork; a block in use at that time is not kept.
  static inline constinit std::atomic<Block*> kept = nullptr;

  static Block* take(size_t bytes) {
    Block* block = kept.exchange(nullptr, std::memory_order_acquire);
    if (block && block->bytes >= bytes) return block;
    free(block);
    return allocate(bytes);
  }
  static void give_back(Block* block) {
#if !defined(__SANITIZE_ADDRESS__)  // AddressSanitizer needs the true end of each scratch block
    if (block && block->bytes <= kLargestKeptBlock) block = kept.exchange(block, std::memory_order_acq_rel);
#endif
    free(block);
  }
};

Workspace::Workspace(const Execution& execution, size_t bytes) {
  if (execution.workspace) {
    if (execution.workspace_size < bytes)
      reject("workspace: workspace_size is ", execution.workspace_size, " bytes, this call needs ", bytes,
             "; ask cuflash_*_workspace_size with the same execution");
    data_ = execution.workspace;
    return;
  }
  own_ = Block::take(bytes);
  if (!own_)
    throw FlashAttentionError(CUFLASH_OUT_OF_MEMORY, join("workspace: ", bytes,
                                                          " bytes could not be allocated; make the problem "
                                                          "smaller or pass a workspace of your own"));
  data_ = own_->scratch();
}

Workspace::~Workspace() { Block::give_back(own_); }

void Workspace::release_kept_block() { Block::free(Block::kept.exchange(nullptr, std::memory_order_acquire)); }

}  // namespace cuflash::cpu
