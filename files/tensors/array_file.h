// Arrays in files: which format the name of a file means, and which tensor of a file that holds several.
#pragma once

#include <string>
#include <vector>

#include "files/array.h"

namespace cuflash::files {

enum class FileFormat { npy, safetensors };
FileFormat format_of(const std::string& path);  // safetensors where it ends in .safetensors

// What the user named: "q.npy", "all.safetensors", or "all.safetensors:layers.0.q", a tensor of that name.
struct ArrayPlace {
  std::string path;
  std::string tensor;  // "": not said, or not a safetensors file
};
ArrayPlace array_place(const std::string& text);
std::string text_of(const ArrayPlace& place);

// Where a flag's output goes: a tensor without a name gets that of the flag, "dq" for --dq.
ArrayPlace output_place(const char* flag, const std::string& text);

// Where a safetensors file is named without a tensor, that is the one with the name of the flag, "grad_out" for
// --grad-out, or else the only one it has.
Array read_array(const char* flag, const std::string& text);

// Throws FileError for what write_arrays would not write: worth knowing before computing.
void require_writable(const std::vector<ArrayPlace>& places);

struct ArrayOutput {
  std::string path;
  Array array;
  std::string tensor = {};
};

// All files are written, or none (output_files.h). Tensors of one safetensors file are written into it together, in the
// place of what it held.
void write_arrays(const std::vector<ArrayOutput>& outputs);

}  // namespace cuflash::files
