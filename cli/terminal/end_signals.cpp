#include "cli/terminal/end_signals.h"

#include <signal.h>

#include "support/temporary_file.h"

namespace cuflash::cli {

namespace {

// Resets and unblocks the signal itself: NVRTC saves and restores handlers while it compiles, and loses flags such as
// SA_RESETHAND and SA_NODEFER, without which raise() would call this handler again, forever.
void end(int signal) {
  remove_temporary_files();
  ::signal(signal, SIG_DFL);
  sigset_t only{};
  ::sigemptyset(&only);
  ::sigaddset(&only, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(signal);
}

}  // namespace

void remove_temporary_files_at_end_signals() {
  struct sigaction action {};
  action.sa_handler = end;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace cuflash::cli
