// A plugin of a program that knows nothing of cuflash: the static library is inside of it.
#include "tests/api/unload/attend.h"

extern "C" __attribute__((visibility("default"))) int plugin_attends() {
  return cuflash::test::attends(cuflash_forward);
}
