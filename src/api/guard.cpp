#include "api/guard.h"

#include <cstdio>

namespace cuflash {

// A fixed buffer, so that reporting a failed allocation does not allocate.
static thread_local char message_of_last_error[1024] = "";

const char* last_error() { return message_of_last_error; }

void remember_error(const char* message) {
  std::snprintf(message_of_last_error, sizeof message_of_last_error, "%s", message);
}

}  // namespace cuflash
