// Ctrl-C in a command that runs long: what is finished is shown and stored.
#pragma once

#include <signal.h>

#include <array>

namespace cuflash::cli {

// Thrown by stop_if_asked.
struct Interrupted {};

// While it lives, the first SIGINT or SIGTERM asks for an end, and a second one ends the process as ever. One at a time.
class AskedToEnd {
 public:
  AskedToEnd();
  ~AskedToEnd();
  AskedToEnd(const AskedToEnd&) = delete;
  AskedToEnd& operator=(const AskedToEnd&) = delete;

  explicit operator bool() const;
  int exit_code() const;  // 128 and the number of the signal, as a shell has it: 130 after ctrl-C

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

// Throws Interrupted where an end was asked for. Costs no more than a load, so that measured calls can be preceded by it.
void stop_if_asked();

}  // namespace cuflash::cli
