#include "backend/locate.h"

#include "cuda/driver/memory.h"
#include "error.h"
#include "problem/for_each_tensor.h"

namespace cuflash {
namespace {

// No tensor has been validated yet; describe rejects malformed ones later.
template <class TensorStruct>
bool has_elements(const TensorStruct& t) {
  if (!t.data || t.rank < 1 || t.rank > 4) return false;
  for (int d = 0; d < t.rank; ++d)
    if (t.shape[d] < 1) return false;
  return true;
}

std::string words(Memory memory) {
  return memory.on_cuda() ? join("the memory of CUDA device ", memory.cuda_device) : "host memory";
}

class Locator {
 public:
  explicit Locator(const cuda::MemoryLookup& lookup) : lookup_(lookup) {}

  template <class TensorStruct>
  void visit(const char* name, const TensorStruct& t) {
    if (has_elements(t)) visit_data(name, t.data);
  }
  void visit_data(const char* name, const void* data) {
    if (!first_name_) {
      first_name_ = name;
      first_ = lookup_.of(data);
    } else if (!lookup_.is_at(data, first_)) {
      reject(name, ": is in ", words(lookup_.of(data)), ", but ", first_name_, " is in ", words(first_),
             "; all tensors of a call must be in the same memory");
    }
  }
  Memory memory() const { return first_; }
  const char* decided_by() const { return first_name_; }

 private:
  cuda::MemoryLookup lookup_;
  const char* first_name_ = nullptr;
  Memory first_;
};

template <class... Structs>
Memory locate_all(const Execution& e, const Structs&... structs) {
  if (e.device == Device::cpu) return {};
  const bool requested = e.device == Device::cuda;
  const cuda::MemoryLookup lookup = requested ? cuda::MemoryLookup::of_driver() : cuda::MemoryLookup::of_process();
  if (!lookup) return {};
  Locator locator(lookup);
  const auto visit = [&](const char* name, const auto& tensor) { locator.visit(name, tensor); };
  (for_each_tensor(structs, visit), ...);
  if (e.workspace && e.workspace_size != 0) locator.visit_data("workspace", e.workspace);
  if (requested && !locator.decided_by()) return {0};  // nothing is anywhere: any device will do
  if (requested && !locator.memory().on_cuda())
    reject(locator.decided_by(), ": is in host memory, but device cuda was requested; copy the tensors to the device, ",
           "or use device auto or cpu");
  return locator.memory();
}

}  // namespace

Memory locate(const cuflash_attention& attention, const cuflash_forward_outputs& outputs, const Execution& execution) {
  return locate_all(execution, attention, outputs);
}
Memory locate(const cuflash_attention& attention, const cuflash_backward_tensors& tensors, const Execution& execution) {
  return locate_all(execution, attention, tensors);
}

Memory locate(const cuflash_attention& attention, const cuflash_cache_tensors& cache, const Execution& execution) {
  return locate_all(execution, attention, cache);
}
Memory locate(const cuflash_merge_tensors& tensors, const Execution& execution) {
  return locate_all(execution, tensors);
}
Memory locate(const cuflash_tensor& mask, const cuflash_mutable_tensor& summary, const Execution& execution) {
  return locate_all(execution, SummaryTensors{mask, summary});
}

}  // namespace cuflash
