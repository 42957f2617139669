// An array out of a file or on its way into one, whatever the format of the file.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cuflash::cli {

enum class ElementType { boolean, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64 };

const char* name_of(ElementType type);  // "float32"
int64_t size_of(ElementType type);
bool is_integer(ElementType type);

constexpr size_t kMostDimensions = 64;  // NumPy's own limit; attention knows no array of more than 4

// An array in C order and in this machine's byte order, whatever the file had.
struct Array {
  ElementType type = ElementType::f32;
  std::vector<int64_t> shape;    // empty: one element without dimensions
  std::vector<std::byte> bytes;  // count() elements

  int64_t count() const;
};

// Bytes of an array of that shape. Throws UsageError where they, or any product of the extents, do not fit in 63 bits.
int64_t data_bytes(ElementType type, const std::vector<int64_t>& shape);

// Zeroed memory for an array, after its size was found to fit in this machine's memory. Throws UsageError otherwise.
std::vector<std::byte> allocate(int64_t bytes);

// Turns the byte order of every element around.
void swap_bytes(std::vector<std::byte>& bytes, ElementType type);

// The elements as a type the library computes with, each rounded once. The result is native and contiguous.
std::vector<std::byte> convert(const Array& array, DType type);

// Integers, none of them changed, and truth values (0 is false). They throw UsageError, without the name of the file,
// for an element type or a value that cannot be meant.
std::vector<int32_t> to_int32(const Array& array);
std::vector<std::byte> to_bool(const Array& array);

}  // namespace cuflash::cli
