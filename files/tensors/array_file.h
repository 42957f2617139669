// Arrays in files: the format follows from the name of the file, which may select one of several tensors.
#pragma once

#include <string>
#include <vector>

#include "files/array.h"

namespace cuflash::files {

enum class FileFormat { npy, safetensors };
FileFormat format_of(const std::string& path);  // safetensors if it ends in .safetensors

// An array as the user names it: "q.npy", "all.safetensors", or "all.safetensors:layers.0.q" for a tensor of that name.
struct ArrayPlace {
  std::string path;
  std::string tensor;  // "": not given, or not a safetensors file
};
ArrayPlace array_place(const std::string& text);
std::string text_of(const ArrayPlace& place);

// The destination of a flag's output. A tensor without a name is named after the flag: "dq" for --dq.
ArrayPlace output_place(const char* flag, const std::string& text);

// Reads an array. Without a tensor's name, a safetensors file gives the tensor named after the flag ("grad_out" for
// --grad-out), or its only tensor.
Array read_array(const char* flag, const std::string& text);

// Throws FileError if write_arrays could not write these, which a caller wants to know before computing.
void require_writable(const std::vector<ArrayPlace>& places);

struct ArrayOutput {
  std::string path;
  Array array;
  std::string tensor = {};
};

// Writes all files or none (output_files.h). Tensors for the same safetensors file are written together and replace its
// content.
void write_arrays(const std::vector<ArrayOutput>& outputs);

}  // namespace cuflash::files
