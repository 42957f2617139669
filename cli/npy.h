// NumPy's .npy files, versions 1 to 3, read as if every one of them came from an enemy.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cuflash::cli {

enum class NpyType { boolean, i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64 };

const char* name_of(NpyType type);  // "float32"
int64_t size_of(NpyType type);
bool is_integer(NpyType type);

// An array in C order and in this machine's byte order, whatever the file had.
struct NpyArray {
  NpyType type = NpyType::f32;
  std::vector<int64_t> shape;    // empty: one element without dimensions
  std::vector<std::byte> bytes;  // count() elements

  int64_t count() const;
};

// Throws UsageError with a sentence that names the file and what is wrong with it. Memory is taken only after the size
// that the header claims was found to be the size that the file has.
NpyArray read_npy(const std::string& path);

// The elements as a type the library computes with, each rounded once. The result is native and contiguous.
std::vector<std::byte> convert(const NpyArray& array, DType type);

// Integers, none of them changed, and truth values (0 is false). They throw UsageError, without the name of the file,
// for an element type or a value that cannot be meant.
std::vector<int32_t> to_int32(const NpyArray& array);
std::vector<std::byte> to_bool(const NpyArray& array);

// Zeroed memory for an array, after its size was found to fit in this machine's memory. Throws UsageError otherwise.
std::vector<std::byte> allocate(int64_t bytes);

struct NpyOutput {
  std::string path;
  NpyArray array;
};

// Throws UsageError for what write_npy_files would not write: worth knowing before computing.
void require_writable(const std::vector<std::string>& paths);

// Every file is written beside its place under a temporary name, and only when all are complete are they renamed: no
// file is ever seen half-written, and when one cannot be written the others stay as they were.
void write_npy_files(const std::vector<NpyOutput>& outputs);

}  // namespace cuflash::cli
