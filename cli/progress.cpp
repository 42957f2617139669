#include "cli/progress.h"

#include <unistd.h>

#include <iostream>

namespace cuflash::cli {

Progress::Progress(std::chrono::seconds elsewhere)
    : terminal_(::isatty(STDERR_FILENO) == 1),
      interval_(terminal_ ? std::chrono::milliseconds(100) : elsewhere),
      next_(Clock::now() + (terminal_ ? Clock::duration::zero() : interval_)) {}

void Progress::show(const std::string& line) {
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + interval_;
  if (terminal_) {
    rewrite(line);
  } else {
    std::cerr << line << std::endl;
  }
}

void Progress::announce(const std::string& line) {
  if (terminal_) rewrite(line);
}

void Progress::rewrite(const std::string& line) {
  clear();
  std::cerr << line << std::flush;
  shown_ = line.size();
}

void Progress::clear() {
  if (shown_ > 0) std::cerr << '\r' << std::string(shown_, ' ') << '\r' << std::flush;
  shown_ = 0;
}

}  // namespace cuflash::cli
