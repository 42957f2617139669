// Handles and results are tuples here; cuflash/_page_pool.py gives their fields names.
#include "page_pool.h"

#include <cuflash/page_pool.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "array.h"
#include "raise.h"

namespace cuflash::python {
namespace {

using Handle = std::tuple<uint64_t, int64_t>;        // serial, slot
using Copy = std::tuple<int32_t, int32_t, int32_t>;  // source, destination, tokens

CachedSequence from(const Handle& handle) { return {std::get<0>(handle), std::get<1>(handle)}; }
std::optional<Handle> to_python(const std::optional<CachedSequence>& s) {
  return s ? std::optional(Handle(s->serial, s->slot)) : std::nullopt;
}
const char* to_python(Fit fit) {
  return fit == Fit::fits ? "fits" : fit == Fit::pool_full ? "pool_full" : "sequence_full";
}

template <class Body>
auto raising(Body body) {
  try {
    return body();
  } catch (const FlashAttentionError& error) {
    raise_error(error.status(), error.what(), {""});
  }
}

// The caller's array, which must be writable and in host memory.
Tensor output(const Array& array, const char* name) {
  if (array.device.type != dlpack::kCpu)
    throw nb::value_error(
        (std::string(name) + ": is not in host memory; write into an array on the CPU, and copy it").c_str());
  if (array.read_only) throw nb::value_error((std::string(name) + ": is read-only, and the call writes to it").c_str());
  Tensor tensor{array.data, static_cast<DType>(dtype_of(array, name)), array.rank, {}, {}};
  for (size_t d = 0; d < 4; ++d) tensor.shape[d] = array.shape[d], tensor.stride[d] = array.stride[d];
  return tensor;
}

// Lets `write` fill one row of the array for each sequence.
template <class Write>
void write_rows(const std::vector<Handle>& handles, nb::handle object, const char* name, Write write) {
  const Array array = array_of(object, name, 0);
  std::vector<CachedSequence> sequences;
  for (const Handle& handle : handles) sequences.push_back(from(handle));
  raising([&] { write(sequences, output(array, name)); });
}

auto append(PagePool& pool, const Handle& sequence, int64_t tokens) {
  const Append a = raising([&] { return pool.append(from(sequence), tokens); });
  std::optional<Copy> copy;
  if (a.copy) copy = Copy(a.copy->source, a.copy->destination, a.copy->tokens);
  return std::tuple(to_python(a.fit), a.pages, a.missing_pages, copy);
}
auto trim(PagePool& pool, const Handle& sequence, int64_t sinks, int64_t window) {
  const Trim t = raising([&] { return pool.trim(from(sequence), sinks, window); });
  return std::tuple(t.first_page, t.pages, t.freed_pages);
}
auto state(const PagePool& pool, const Handle& sequence) {
  const CachedSequenceState s = raising([&] { return pool.state(from(sequence)); });
  return std::tuple(s.tokens, s.pages, s.sinks, s.dropped, s.position);
}
auto statistics(const PagePool& pool) {
  const PagePoolStats s = raising([&] { return pool.statistics(); });
  return std::tuple(s.pages, s.used_pages, s.free_pages, s.shared_pages, s.table_entries, s.sequences, s.tokens,
                    s.wasted_tokens);
}

}  // namespace

void bind_page_pool(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PagePool>(module, "PagePool")
      .def(
          "__init__",
          [](PagePool* memory, int64_t pages, int64_t page_size, int64_t max_sequences,
             int64_t max_pages_per_sequence) {
            raising([&] { new (memory) PagePool({pages, page_size, max_sequences, max_pages_per_sequence}); });
          },
          "pages"_a, "page_size"_a, "max_sequences"_a, "max_pages_per_sequence"_a)
      .def("start", [](PagePool& p) { return to_python(raising([&] { return p.start(); })); })
      .def(
          "fork",
          [](PagePool& p, const Handle& parent, int64_t tokens) {
            return to_python(raising([&] { return p.fork(from(parent), tokens); }));
          },
          "parent"_a, "tokens"_a)
      .def("append", append, "sequence"_a, "tokens"_a)
      .def(
          "truncate",
          [](PagePool& p, const Handle& s, int64_t tokens) { raising([&] { p.truncate(from(s), tokens); }); },
          "sequence"_a, "tokens"_a)
      .def("trim", trim, "sequence"_a, "sinks"_a, "window"_a)
      .def(
          "release", [](PagePool& p, const Handle& s) { raising([&] { p.release(from(s)); }); }, "sequence"_a)
      .def("state", state, "sequence"_a)
      .def("statistics", statistics)
      .def(
          "write_block_table",
          [](const PagePool& p, const std::vector<Handle>& sequences, nb::handle block_table, int32_t unused) {
            write_rows(sequences, block_table, "block_table",
                       [&](const auto& list, const Tensor& to) { p.write_block_table(list, to, unused); });
          },
          "sequences"_a, "block_table"_a, "unused"_a)
      .def(
          "write_lengths",
          [](const PagePool& p, const std::vector<Handle>& sequences, nb::handle cache_seqlens) {
            write_rows(sequences, cache_seqlens, "cache_seqlens",
                       [&](const auto& list, const Tensor& to) { p.write_lengths(list, to); });
          },
          "sequences"_a, "cache_seqlens"_a)
      .def("check", [](const PagePool& p) { raising([&] { p.check(); }); });
}

}  // namespace cuflash::python
