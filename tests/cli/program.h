// Runs the cuflash tool as a program.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "tests/shared/temp_dir.h"

namespace cuflash::cli {

// The tool under test: CUFLASH_TEST_TOOL names another one than that of this build.
inline std::string tool() {
  const char* given = std::getenv("CUFLASH_TEST_TOOL");
  return given ? given : CUFLASH_CLI_PATH;
}

struct Outcome {
  int code;
  std::string out, err;
};

// Runs the program in the test's directory. In a sanitized build the search for leaks takes seconds at the end of every
// process, of which there are a hundred here; the tests that call the library in their own process search for them.
inline Outcome run(const test::TempDir& dir, const std::string& words, const std::string& environment = "") {
  const std::string command = "cd '" + dir.file("") + "' && ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" " +
                              environment + " '" + tool() + "' " + words + " >stdout 2>stderr";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, dir.read("stdout"), dir.read("stderr")};
}

// Two fake Hopper GPUs.
inline std::string fake_gpu_environment(const test::TempDir& dir) {
  return "LD_LIBRARY_PATH='" CUFLASH_FAKE_GPU_PATH "' CUFLASH_CACHE_DIR='" + dir.file("cache") + "'";
}

class Commands : public testing::Test {
 protected:
  test::TempDir dir;
};

}  // namespace cuflash::cli
