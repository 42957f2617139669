// Compiles a program to its own text.
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
FAKE const char* nvrtcGetErrorString(int) { return "an error of the fake compiler"; }
FAKE int nvrtcGetNumSupportedArchs(int* count) { return *count = 1, 0; }
FAKE int nvrtcGetSupportedArchs(int* archs) { return *archs = 90, 0; }
FAKE int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                            const char* const*) {
  return *program = strdup(source), 0;
}
FAKE int nvrtcDestroyProgram(void** program) { return std::free(*program), 0; }
// Like NVRTC 13, saves and restores the handlers of signals, which loses their flags.
FAKE int nvrtcCompileProgram(void*, int, const char* const*) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, std::signal(number, SIG_IGN));
  return 0;
}
FAKE int nvrtcGetCUBINSize(void* program, size_t* size) {
  return *size = std::strlen(static_cast<const char*>(program)) + 1, 0;
}
FAKE int nvrtcGetCUBIN(void* program, char* code) { return std::strcpy(code, static_cast<const char*>(program)), 0; }
FAKE int nvrtcGetProgramLogSize(void*, size_t* size) { return *size = 1, 0; }
FAKE int nvrtcGetProgramLog(void*, char* log) { return *log = '\0', 0; }
