// An NVRTC that is too old to be used.
extern "C" {

int nvrtcVersion(int* major, int* minor) { return *major = 11, *minor = 8, 0; }
const char* nvrtcGetErrorString(int) { return "a made-up error"; }
int nvrtcGetNumSupportedArchs(int*) { return 1; }
int nvrtcGetSupportedArchs(int*) { return 1; }
int nvrtcCreateProgram() { return 1; }
int nvrtcDestroyProgram() { return 1; }
int nvrtcCompileProgram() { return 1; }
int nvrtcGetCUBINSize() { return 1; }
int nvrtcGetCUBIN() { return 1; }
int nvrtcGetProgramLogSize() { return 1; }
int nvrtcGetProgramLog() { return 1; }

}  // extern "C"
