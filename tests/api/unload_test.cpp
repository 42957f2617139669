// A program may close the library after a call and open it again, as hosts of plugins do.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/api/unload/attend.h"
#include "tests/shared/processes.h"

namespace cuflash::test {
namespace {

constexpr int kRounds = 20;
// Workers go to sleep after some microseconds without work, so the library is closed while they are awake, asleep and in
// between.
constexpr useconds_t kPauses[] = {0, 20, 60, 2000};

template <class Function>
Function function_of(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

bool library_attends(void* library) {
  const auto forward = function_of<decltype(&cuflash_forward)>(library, "cuflash_forward");
  return forward && attends(forward);
}

bool plugin_attends(void* library) {
  const auto function = function_of<int (*)()>(library, "plugin_attends");
  return function && function() == 1;
}

// 0 if a process survives opening, calling and closing the library repeatedly.
int open_call_close(const char* path, bool (*attend)(void*)) {
  return in_child([=] {
    for (int n = 0; n < kRounds; ++n) {
      void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
      if (!library) return 1;
      if (!attend(library)) return 2;
      ::usleep(kPauses[n % std::size(kPauses)]);
      if (::dlclose(library) != 0) return 3;
      ::usleep(1000);  // for threads that would run unloaded code
    }
    return 0;
  });
}

TEST(Unload, TheSharedLibraryMayBeClosedAndOpenedAgain) {
  EXPECT_EQ(open_call_close(CUFLASH_SHARED_LIBRARY, library_attends), 0);
}

TEST(Unload, APluginWithTheStaticLibraryMayBeClosedAndOpenedAgain) {
  EXPECT_EQ(open_call_close(CUFLASH_PLUGIN, plugin_attends), 0);
}

}  // namespace
}  // namespace cuflash::test
