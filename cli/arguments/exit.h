// Exit codes of commands. A command that fails prints one sentence on stderr.
#pragma once

#include <stdexcept>

namespace cuflash::cli {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;  // the job ran and failed: a mismatch, or the library refused the problem
constexpr int kExitUsage = 2;   // the job could not start or its files could not be read or written
// A job that a signal ended early exits with 128 plus the signal number (cli/terminal/interrupt.h).

// A flag that cannot be used. Ends the program with kExitUsage, as files::FileError does.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace cuflash::cli
