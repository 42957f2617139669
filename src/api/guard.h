// The C boundary: no exception crosses it.
#pragma once

#include <cuflash/cuflash.h>

#include <exception>
#include <new>

#include "error.h"

namespace cuflash {

// The last error of this thread; "" before the first one.
const char* last_error();
void remember_error(const char* message);

template <class Body>
cuflash_status guarded(Body body) noexcept {
  try {
    body();
    return CUFLASH_OK;
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
