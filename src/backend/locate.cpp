#include "backend/locate.h"

#include "cuda/memory_place.h"
#include "error.h"

namespace cuflash {
namespace {

// Nothing about a tensor has been validated yet; one that is malformed is left for describe to refuse.
template <class TensorStruct>
bool has_elements(const TensorStruct& t) {
  if (!t.data || t.rank < 1 || t.rank > 4) return false;
  for (int d = 0; d < t.rank; ++d)
    if (t.shape[d] < 1) return false;
  return true;
}

std::string words(Place place) {
  return place.on_cuda() ? join("the memory of CUDA device ", place.cuda_device) : "host memory";
}

class Locator {
 public:
  explicit Locator(const cuda::MemoryPlaces& places) : places_(places) {}

  template <class TensorStruct>
  void visit(const char* name, const TensorStruct& t) {
    if (has_elements(t)) visit_data(name, t.data);
  }
  void visit_data(const char* name, const void* data) {
    if (!first_name_) {
      first_name_ = name;
      first_ = places_.of(data);
    } else if (!places_.is_at(data, first_)) {
      reject(name, ": is in ", words(places_.of(data)), ", but ", first_name_, " is in ", words(first_),
             "; all tensors of a call must be in the same memory");
    }
  }
  Place place() const { return first_; }
  const char* decided_by() const { return first_name_; }

 private:
  cuda::MemoryPlaces places_;
  const char* first_name_ = nullptr;
  Place first_;
};

void visit_all(Locator& l, const cuflash_attention& a) {
  l.visit("q", a.q), l.visit("k", a.k), l.visit("v", a.v);
  l.visit("alibi_slopes", a.alibi_slopes), l.visit("bias", a.bias), l.visit("mask", a.mask), l.visit("sink", a.sink);
  l.visit("cu_seqlens_q", a.cu_seqlens_q), l.visit("cu_seqlens_k", a.cu_seqlens_k);
  l.visit("seqlens_q", a.seqlens_q), l.visit("seqlens_k", a.seqlens_k);
}
void visit_all(Locator& l, const cuflash_forward_outputs& t) { l.visit("o", t.o), l.visit("lse", t.lse); }
void visit_all(Locator& l, const cuflash_backward_tensors& t) {
  l.visit("o", t.o), l.visit("lse", t.lse), l.visit("dout", t.dout), l.visit("dlse", t.dlse);
  l.visit("dq", t.dq), l.visit("dk", t.dk), l.visit("dv", t.dv);
  l.visit("dbias", t.dbias), l.visit("dsink", t.dsink);
}

void visit_all(Locator& l, const cuflash_cache_tensors& t) {
  l.visit("k", t.k), l.visit("v", t.v), l.visit("seqlens", t.seqlens), l.visit("block_table", t.block_table);
  l.visit("batch_idx", t.batch_idx), l.visit("leftpad", t.leftpad), l.visit("k_new", t.k_new);
  l.visit("v_new", t.v_new), l.visit("cu_seqlens_new", t.cu_seqlens_new), l.visit("seqlens_new", t.seqlens_new);
  l.visit("rotary_cos", t.rotary_cos), l.visit("rotary_sin", t.rotary_sin), l.visit("o", t.o), l.visit("lse", t.lse);
}
void visit_all(Locator& l, const cuflash_merge_tensors& t) {
  l.visit("o_a", t.o_a), l.visit("lse_a", t.lse_a), l.visit("o_b", t.o_b), l.visit("lse_b", t.lse_b);
  l.visit("o", t.o), l.visit("lse", t.lse);
}

template <class... Structs>
Place locate_all(const Execution& e, const Structs&... structs) {
  if (e.device == Device::cpu) return {};
  const bool asked_for = e.device == Device::cuda;
  const cuda::MemoryPlaces places = asked_for ? cuda::MemoryPlaces::of_driver() : cuda::MemoryPlaces::of_process();
  if (!places) return {};
  Locator locator(places);
  (visit_all(locator, structs), ...);
  if (e.workspace && e.workspace_size != 0) locator.visit_data("workspace", e.workspace);
  if (asked_for && !locator.decided_by()) return {0};  // nothing is anywhere: any device will do
  if (asked_for && !locator.place().on_cuda())
    reject(locator.decided_by(), ": is in host memory, but device cuda was asked for; copy the tensors to the device, ",
           "or use device auto or cpu");
  return locator.place();
}

}  // namespace

Place locate(const cuflash_attention& attention, const cuflash_forward_outputs& outputs, const Execution& execution) {
  return locate_all(execution, attention, outputs);
}
Place locate(const cuflash_attention& attention, const cuflash_backward_tensors& tensors, const Execution& execution) {
  return locate_all(execution, attention, tensors);
}

Place locate(const cuflash_attention& attention, const cuflash_cache_tensors& cache, const Execution& execution) {
  return locate_all(execution, attention, cache);
}
Place locate(const cuflash_merge_tensors& tensors, const Execution& execution) {
  return locate_all(execution, tensors);
}

}  // namespace cuflash
