# Writes a C++ file with the text of every kernel header and a hash of all of them:
# cmake -D folder=<kernels> -D output=<file.cpp> -P EmbedKernels.cmake

set(longest 65000) # C++ compilers must take literals of 65,536 characters

file(GLOB_RECURSE names RELATIVE ${folder} ${folder}/*.h)
list(SORT names)
set(table "")
set(everything "")
foreach(name IN LISTS names)
  file(READ ${folder}/${name} text)
  string(LENGTH "${text}" length)
  if(length GREATER longest)
    message(FATAL_ERROR "${name} has ${length} characters; a kernel header may have ${longest}. Split it")
  endif()
  string(APPEND table "    {\"${name}\", R\"__header(${text})__header\"},\n")
  string(APPEND everything "${name}\n${text}\n")
endforeach()
string(SHA256 hash "${everything}")

file(WRITE ${output} "#include \"support/kernel_headers.h\"

namespace cuflash {

static constexpr KernelHeader kHeaders[] = {
${table}};
std::span<const KernelHeader> kernel_headers() { return kHeaders; }
const char* kernel_headers_hash() { return \"${hash}\"; }

}  // namespace cuflash
")
