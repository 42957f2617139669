// A line that is rewritten in place on a terminal, and printed anew every few seconds elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace cuflash::cli {

class Progress {
 public:
  // elsewhere: how long a line stays the latest where there is no terminal.
  explicit Progress(std::chrono::seconds elsewhere = std::chrono::seconds(5));
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A state among many; most of them are not shown.
  void show(const std::string& line);
  // What happens next and may take long. Only a terminal gets to see it.
  void announce(const std::string& line);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  void rewrite(const std::string& line);

  bool terminal_;
  Clock::duration interval_;
  Clock::time_point next_;
  size_t shown_ = 0;  // characters on the terminal's line
};

// "[####................] 3 of 15"
std::string bar(size_t done, size_t all);

}  // namespace cuflash::cli
