#include "files/tensors/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "dtype.h"
#include "files/error.h"
#include "numeric.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

// Calls visit with a value of the elements' C++ type. f16 and bf16 have none; the caller handles them.
template <class Visit>
void with_type(ElementType type, Visit visit) {
  switch (type) {
    case ElementType::boolean: return visit(uint8_t{});
    case ElementType::i8: return visit(int8_t{});
    case ElementType::i16: return visit(int16_t{});
    case ElementType::i32: return visit(int32_t{});
    case ElementType::i64: return visit(int64_t{});
    case ElementType::u8: return visit(uint8_t{});
    case ElementType::u16:
    case ElementType::f16:
    case ElementType::bf16: return visit(uint16_t{});
    case ElementType::u32: return visit(uint32_t{});
    case ElementType::u64: return visit(uint64_t{});
    case ElementType::f32: return visit(float{});
    case ElementType::f64: return visit(double{});
  }
}

template <class Element>
Element element_at(const Array& array, int64_t index) {
  Element element;
  std::memcpy(&element, &array.bytes[static_cast<size_t>(index) * sizeof element], sizeof element);
  return element;
}

}  // namespace

std::vector<std::byte> convert(const Array& array, DType type) {
  constexpr int64_t kChunk = 1024;  // intermediate doubles take at most 8 KiB
  const int64_t count = array.count();
  std::vector<std::byte> converted = allocate(count * cuflash::size_of(type));
  std::array<double, kChunk> chunk;
  with_type(array.type, [&]<class Element>(Element) {
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const int64_t length = std::min(kChunk, count - begin);
      for (int64_t n = 0; n < length; ++n) {
        const auto element = element_at<Element>(array, begin + n);
        if constexpr (std::is_same_v<Element, uint16_t>) {
          chunk[static_cast<size_t>(n)] = array.type == ElementType::f16    ? f16_to_float(element)
                                          : array.type == ElementType::bf16 ? bf16_to_float(element)
                                                                            : static_cast<float>(element);
        } else {
          chunk[static_cast<size_t>(n)] = static_cast<double>(element);
        }
      }
      store_row(converted.data(), type, begin, length, chunk.data());
    }
  });
  return converted;
}

std::vector<int32_t> to_int32(const Array& array) {
  if (!is_integer(array.type)) {
    throw FileError(
        join("holds ", name_of(array.type), ", but lengths must be integers (int32, or any other integer type)"));
  }
  std::vector<int32_t> values(static_cast<size_t>(array.count()));
  with_type(array.type, [&]<class Element>(Element) {
    if constexpr (std::is_integral_v<Element>) {
      for (size_t n = 0; n < values.size(); ++n) {
        const auto element = element_at<Element>(array, static_cast<int64_t>(n));
        if (!std::in_range<int32_t>(element)) {
          throw FileError(join("holds ", element, " at index ", n, ", but lengths must fit in 32 bits"));
        }
        values[n] = static_cast<int32_t>(element);
      }
    }
  });
  return values;
}

std::vector<std::byte> to_bool(const Array& array) {
  if (array.type != ElementType::boolean && !is_integer(array.type)) {
    throw FileError(join("holds ", name_of(array.type), ", but a mask is bool or an integer, where 0 hides the key; ",
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

}  // namespace cuflash::files
