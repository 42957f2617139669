// The C boundary: no exception crosses it.
#pragma once

#include <cuflash/cuflash.h>

namespace cuflash {

// The last error of this thread; "" before the first one.
const char* last_error();
void remember_error(const char* message);

// In `catch (...)`: remembers the message of the exception and returns its status.
cuflash_status status_of_exception() noexcept;

template <class Body>
cuflash_status guarded(Body body) noexcept {
  try {
    body();
    return CUFLASH_OK;
  } catch (...) {
    return status_of_exception();
  }
}

}  // namespace cuflash
