// A line that is rewritten in place on a terminal, and printed again every few seconds elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace cuflash::cli {

class Progress {
 public:
  // A line is printed every `elsewhere` seconds if the output is not a terminal.
  explicit Progress(std::chrono::seconds elsewhere = std::chrono::seconds(5));
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Notes one of many states, most of which are not shown.
  void show(const std::string& line);
  // Announces a step that may take long. Only a terminal shows it.
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
