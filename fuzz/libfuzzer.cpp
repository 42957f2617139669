// The two functions that libFuzzer calls; it brings main() and the search.
#include <cstdint>
#include <cstring>

#include "fuzz/target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cuflash::fuzz::check({reinterpret_cast<const char*>(data), size});
  return 0;
}

// Half of the inputs keep wrong lengths.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 2 == 0) return size;
  std::string input(reinterpret_cast<const char*>(data), size);
  cuflash::fuzz::repair(input);
  if (input.size() > max_size) return size;
  std::memcpy(data, input.data(), input.size());
  return input.size();
}
