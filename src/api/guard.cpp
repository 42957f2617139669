#include "api/guard.h"

#include <cstdio>
#include <exception>
#include <new>

#include "error.h"

namespace cuflash {

// A fixed buffer, so that reporting a failed allocation does not allocate.
static thread_local char message_of_last_error[1024] = "";

const char* last_error() { return message_of_last_error; }

void remember_error(const char* message) {
  std::snprintf(message_of_last_error, sizeof message_of_last_error, "%s", message);
}

cuflash_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const FlashAttentionError& error) {
    remember_error(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    remember_error("a small allocation failed: the process is out of memory");
    return CUFLASH_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    remember_error(error.what());
  } catch (...) {
    remember_error("an unknown exception");
  }
  return CUFLASH_INTERNAL;
}

}  // namespace cuflash
