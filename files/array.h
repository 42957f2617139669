// An array as read from a file or about to be written to one, in any format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cuflash::files {

enum class ElementType { boolean, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64 };

const char* name_of(ElementType type);  // "float32"
int64_t size_of(ElementType type);
bool is_integer(ElementType type);

constexpr size_t kMaxDimensions = 64;  // NumPy's own limit; attention uses at most 4

// An array in C order and in this machine's byte order.
struct Array {
  ElementType type = ElementType::f32;
  std::vector<int64_t> shape;    // empty: a scalar
  std::vector<std::byte> bytes;  // count() elements

  int64_t count() const;
};

// Bytes of an array of that shape. Throws FileError if they, or any product of the extents, do not fit in 63 bits.
int64_t data_bytes(ElementType type, const std::vector<int64_t>& shape);

// Zeroed memory for an array. Throws FileError if the machine has less memory than that.
std::vector<std::byte> allocate(int64_t bytes);

// Reverses the byte order of every element.
void swap_bytes(std::vector<std::byte>& bytes, ElementType type);

}  // namespace cuflash::files
