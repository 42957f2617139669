#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cli/exit.h"
#include "cli/machine.h"
#include "cli/npy.h"
#include "cli/text.h"
#include "dtype.h"
#include "numeric.h"

namespace cuflash::cli {

namespace {

// Calls visit with a value of the C++ type of the elements; f16 has none and is left to the caller.
template <class Visit>
void with_type(NpyType type, Visit visit) {
  switch (type) {
    case NpyType::boolean: return visit(uint8_t{});
    case NpyType::i8: return visit(int8_t{});
    case NpyType::i16: return visit(int16_t{});
    case NpyType::i32: return visit(int32_t{});
    case NpyType::i64: return visit(int64_t{});
    case NpyType::u8: return visit(uint8_t{});
    case NpyType::u16:
    case NpyType::f16: return visit(uint16_t{});
    case NpyType::u32: return visit(uint32_t{});
    case NpyType::u64: return visit(uint64_t{});
    case NpyType::f32: return visit(float{});
    case NpyType::f64: return visit(double{});
  }
}

template <class Element>
Element element_at(const NpyArray& array, int64_t index) {
  Element element;
  std::memcpy(&element, &array.bytes[static_cast<size_t>(index) * sizeof element], sizeof element);
  return element;
}

}  // namespace

std::vector<std::byte> convert(const NpyArray& array, DType type) {
  constexpr int64_t kChunk = 1024;  // the doubles in between never take more than 8 KiB
  const int64_t count = array.count();
  std::vector<std::byte> converted = allocate(count * cuflash::size_of(type));
  std::array<double, kChunk> chunk;
  with_type(array.type, [&]<class Element>(Element) {
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const int64_t length = std::min(kChunk, count - begin);
      for (int64_t n = 0; n < length; ++n) {
        const auto element = element_at<Element>(array, begin + n);
        if constexpr (std::is_same_v<Element, uint16_t>) {
          chunk[static_cast<size_t>(n)] =
              array.type == NpyType::f16 ? f16_to_float(element) : static_cast<float>(element);
        } else {
          chunk[static_cast<size_t>(n)] = static_cast<double>(element);
        }
      }
      store_row(converted.data(), type, begin, length, chunk.data());
    }
  });
  return converted;
}

std::vector<int32_t> to_int32(const NpyArray& array) {
  if (!is_integer(array.type)) {
    throw UsageError(
        join("holds ", name_of(array.type), ", but lengths must be integers (int32, or any other integer type)"));
  }
  std::vector<int32_t> values(static_cast<size_t>(array.count()));
  with_type(array.type, [&]<class Element>(Element) {
    if constexpr (std::is_integral_v<Element>) {
      for (size_t n = 0; n < values.size(); ++n) {
        const auto element = element_at<Element>(array, static_cast<int64_t>(n));
        if (!std::in_range<int32_t>(element)) {
          throw UsageError(join("holds ", element, " at index ", n, ", but lengths must fit in 32 bits"));
        }
        values[n] = static_cast<int32_t>(element);
      }
    }
  });
  return values;
}

std::vector<std::byte> to_bool(const NpyArray& array) {
  if (array.type != NpyType::boolean && !is_integer(array.type)) {
    throw UsageError(join("holds ", name_of(array.type), ", but a mask is bool or an integer, where 0 hides the key; ",
                          "pass numbers that are added to the scores as --bias"));
  }
  std::vector<std::byte> truth = allocate(array.count());
  with_type(array.type, [&]<class Element>(Element) {
    for (size_t n = 0; n < truth.size(); ++n) {
      truth[n] = std::byte{element_at<Element>(array, static_cast<int64_t>(n)) != Element{}};
    }
  });
  return truth;
}

std::vector<std::byte> allocate(int64_t bytes) {
  const int64_t memory = physical_memory();
  if (bytes > memory) {
    throw UsageError(join("an array of ", bytes_text(static_cast<double>(bytes)),
                          " does not fit in this machine's memory of ", bytes_text(static_cast<double>(memory))));
  }
  return std::vector<std::byte>(static_cast<size_t>(bytes));
}

}  // namespace cuflash::cli
