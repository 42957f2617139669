#include "cli/terminal/progress.h"

#include <unistd.h>

#include <iostream>

#include "error.h"

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

std::string bar(size_t done, size_t all) {
  constexpr size_t kWidth = 20;
  const size_t filled = kWidth * done / all;
  return join("[", std::string(filled, '#'), std::string(kWidth - filled, '.'), "] ", done, " of ", all);
}

}  // namespace cuflash::cli
