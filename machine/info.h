// Describes this build and what it finds on this machine.
#pragma once

#include <iosfwd>
#include <stdexcept>

namespace cuflash::machine {

struct InfoOptions {
  bool measure = false;  // compile a kernel and load it again
};

// The temporary cache that the measurement needs could not be used.
class InfoError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void write_info(std::ostream& out, const InfoOptions& options);

}  // namespace cuflash::machine
