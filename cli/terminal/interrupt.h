// Ctrl-C in a long-running command: finished results are shown and stored.
#pragma once

#include <signal.h>

#include <array>

namespace cuflash::cli {

// Thrown by stop_if_asked.
struct Interrupted {};

// While it lives, the first SIGINT or SIGTERM requests a stop, and a second one ends the process as usual. At most one
// may exist at a time.
class AskedToEnd {
 public:
  AskedToEnd();
  ~AskedToEnd();
  AskedToEnd(const AskedToEnd&) = delete;
  AskedToEnd& operator=(const AskedToEnd&) = delete;

  explicit operator bool() const;
  int exit_code() const;  // 128 plus the signal number, as in a shell: 130 after Ctrl-C

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

// Throws Interrupted if a stop was requested. It costs one load, so it may precede measured calls.
void stop_if_asked();

}  // namespace cuflash::cli
