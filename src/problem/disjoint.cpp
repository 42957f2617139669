#include "problem/disjoint.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "error.h"

namespace cuflash {
namespace {

[[noreturn]] void reject_shared(const Argument& output, const Argument& other, const char* needs) {
  if (output.t.data == other.t.data)
    reject(output.name, ": has the same data as ", other.name, ", ", output.t.data, "; ", needs);
  const auto hex = [](uintptr_t address) { return reinterpret_cast<const void*>(address); };
  const Extent a = extent_of(output), b = extent_of(other);
  reject(output.name, ": shares memory with ", other.name, ": its bytes are from ", hex(a.begin), " to ",
         hex(a.end - 1), ", those of ", other.name, " from ", hex(b.begin), " to ", hex(b.end - 1), "; ", needs);
}

constexpr char kOutputNeeds[] = "an output needs memory of its own";

// The tensors of one call that have elements.
class Tensors {
 public:
  void written(const Argument& a) { outputs_.add(a); }
  void read(const Argument& a) { inputs_.add(a); }

  void require_disjoint() const {
    for_each_pair([&](const TensorExtent& output, const TensorExtent& other) {
      if (output.extent.meets(other.extent) && share_memory(output.tensor, other.tensor)) reject(output, other);
    });
  }

 private:
  struct TensorExtent {
    Argument tensor;
    Extent extent;
  };
  struct List {
    std::array<TensorExtent, 24> all;  // no call has more; the first `count` are used
    size_t count = 0;

    void add(const Argument& a) {
      const Extent extent = extent_of(a);
      if (extent.begin != extent.end) all.at(count++) = {a, extent};
    }
  };

  template <class Visit>
  void for_each_pair(Visit visit) const {
    for (size_t n = 0; n < outputs_.count; ++n) {
      for (size_t other = n + 1; other < outputs_.count; ++other) visit(outputs_.all[n], outputs_.all[other]);
      for (size_t other = 0; other < inputs_.count; ++other) visit(outputs_.all[n], inputs_.all[other]);
    }
  }

  // If a tensor was passed twice, it may also overlap others behind it; report the shared pointer, which is the
  // mistake.
  [[noreturn]] void reject(const TensorExtent& output, const TensorExtent& other) const {
    for_each_pair([&](const TensorExtent& a, const TensorExtent& b) {
      if (a.extent.begin == b.extent.begin) reject_shared(a.tensor, b.tensor, kOutputNeeds);
    });
    reject_shared(output.tensor, other.tensor, kOutputNeeds);
  }

  List outputs_, inputs_;
};

// A mutable tensor of the struct is an output.
template <class Struct>
void add_all(Tensors& to, const Struct& tensors) {
  for_each_tensor(tensors, [&]<class Tensor>(const char* name, const Tensor& t) {
    std::is_same_v<Tensor, cuflash_tensor> ? to.read({name, t}) : to.written({name, t});
  });
}

bool is_same_view(const Argument& a, const Argument& b) {
  if (a.t.data != b.t.data || a.t.dtype != b.t.dtype || a.t.rank != b.t.rank) return false;
  for (int d = 0; d < a.t.rank; ++d)
    if (a.step(d) != b.step(d)) return false;
  return true;
}

}  // namespace

void require_disjoint(const cuflash_attention& attention, const cuflash_forward_outputs& outputs) {
  Tensors all;
  add_all(all, attention), add_all(all, outputs);
  all.require_disjoint();
}

void require_disjoint(const cuflash_attention& attention, const cuflash_backward_tensors& tensors) {
  Tensors all;
  add_all(all, attention), add_all(all, tensors);
  all.require_disjoint();
}

void require_disjoint(const CacheProblem& p, const cuflash_attention& attention, const cuflash_cache_tensors& cache) {
  const Argument k("k", cache.k), v("v", cache.v);
  Tensors all;
  add_all(all, attention);
  for_each_tensor(cache, [&]<class Tensor>(const char* name, const Tensor& t) {
    if constexpr (std::is_same_v<Tensor, cuflash_tensor>) all.read({name, t});
  });
  all.written({"o", cache.o}), all.written({"lse", cache.lse});
  if (!p.k_new) {
    all.read(k), all.read(v);
  } else {
    if (!p.v_in_k) all.written(v);
    all.written(k);
  }
  all.require_disjoint();
}

void require_disjoint(const cuflash_merge_tensors& t) {
  const Argument o("o", t.o), lse("lse", t.lse);
  Tensors all;
  all.written(o), all.written(lse);
  // An input that is also the output obeys the rules of the output.
  const auto add = [&](const Argument& input, const Argument& output) {
    if (!is_same_view(input, output)) all.read(input);
  };
  add({"o_a", t.o_a}, o), add({"o_b", t.o_b}, o), add({"lse_a", t.lse_a}, lse), add({"lse_b", t.lse_b}, lse);
  all.require_disjoint();
}

void require_disjoint(const Argument& output, const Argument& other) {
  if (share_memory(output, other)) reject_shared(output, other, kOutputNeeds);
}

void require_disjoint_from_workspace(const Argument& tensor, const Execution& execution, size_t used) {
  constexpr size_t kMax = std::numeric_limits<int64_t>::max();
  const auto bytes = static_cast<int64_t>(std::min({used, execution.workspace_size, kMax}));
  const cuflash_mutable_tensor view{execution.workspace, CUFLASH_BOOL, 1, {bytes}, {1}};
  const Argument workspace("workspace", view);
  if (share_memory(workspace, tensor)) reject_shared(workspace, tensor, "scratch needs memory of its own");
}

}  // namespace cuflash
