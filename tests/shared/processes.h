// Child processes of a test.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace cuflash::test {

constexpr int kChildThrew = 120;

// Runs body in a child process, which exits with its result (0 ... 119).
template <class Body>
pid_t start_child(Body body) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child > 0) return child;
  try {
    ::_exit(body());
  } catch (...) {
    ::_exit(kChildThrew);
  }
}

// The child's result; -1 if it was killed.
inline int result_of(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid failed");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

template <class Body>
int in_child(Body body) {
  return result_of(start_child(body));
}

}  // namespace cuflash::test
