#include "files/array.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "files/error.h"
#include "support/physical_memory.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

struct TypeRow {
  ElementType type;
  const char* name;
  int64_t size;
};
constexpr std::array<TypeRow, 13> kTypes{{{ElementType::boolean, "bool", 1},
                                          {ElementType::i8, "int8", 1},
                                          {ElementType::i16, "int16", 2},
                                          {ElementType::i32, "int32", 4},
                                          {ElementType::i64, "int64", 8},
                                          {ElementType::u8, "uint8", 1},
                                          {ElementType::u16, "uint16", 2},
                                          {ElementType::u32, "uint32", 4},
                                          {ElementType::u64, "uint64", 8},
                                          {ElementType::f16, "float16", 2},
                                          {ElementType::bf16, "bfloat16", 2},
                                          {ElementType::f32, "float32", 4},
                                          {ElementType::f64, "float64", 8}}};

const TypeRow& row_of(ElementType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return row.type == type; });
}

}  // namespace

const char* name_of(ElementType type) { return row_of(type).name; }
int64_t size_of(ElementType type) { return row_of(type).size; }
bool is_integer(ElementType type) { return type >= ElementType::i8 && type <= ElementType::u64; }

int64_t Array::count() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

int64_t data_bytes(ElementType type, const std::vector<int64_t>& shape) {
  // An extent of 0 makes the array empty, but the products of the other extents still become strides.
  int64_t bytes = size_of(type);
  bool empty = false;
  for (const int64_t extent : shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes)) {
      throw FileError(join("its shape ", shape_text(shape), " is larger than any memory"));
    }
  }
  return empty ? 0 : bytes;
}

std::vector<std::byte> allocate(int64_t bytes) {
  const int64_t memory = physical_memory();
  if (bytes > memory) {
    throw FileError(join("an array of ", bytes_text(static_cast<double>(bytes)),
                         " does not fit in this machine's memory of ", bytes_text(static_cast<double>(memory))));
  }
  return std::vector<std::byte>(static_cast<size_t>(bytes));
}

void swap_bytes(std::vector<std::byte>& bytes, ElementType type) {
  const auto size = static_cast<std::ptrdiff_t>(size_of(type));
  for (auto element = bytes.begin(); element != bytes.end(); element += size) std::reverse(element, element + size);
}

}  // namespace cuflash::files
