// Compiles everything to the same few bytes.
#include <cstddef>
#include <cstring>

#define FAKE extern "C" __attribute__((visibility("default")))

static constexpr char kCode[] = "fake machine code";

FAKE int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
FAKE const char* nvrtcGetErrorString(int) { return "an error of the fake compiler"; }
FAKE int nvrtcGetNumSupportedArchs(int* count) { return *count = 1, 0; }
FAKE int nvrtcGetSupportedArchs(int* archs) { return *archs = 90, 0; }
FAKE int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
  return *program = const_cast<char*>(kCode), 0;
}
FAKE int nvrtcDestroyProgram(void**) { return 0; }
FAKE int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
FAKE int nvrtcGetCUBINSize(void*, size_t* size) { return *size = sizeof kCode, 0; }
FAKE int nvrtcGetCUBIN(void*, char* code) { return std::memcpy(code, kCode, sizeof kCode), 0; }
FAKE int nvrtcGetProgramLogSize(void*, size_t* size) { return *size = 1, 0; }
FAKE int nvrtcGetProgramLog(void*, char* log) { return *log = '\0', 0; }
