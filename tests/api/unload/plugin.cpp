// A plugin that contains the static library, for a program that knows nothing about cuflash.
#include "tests/api/unload/attend.h"

extern "C" __attribute__((visibility("default"))) int plugin_attends() {
  return cuflash::test::attends(cuflash_forward);
}
