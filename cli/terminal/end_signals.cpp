#include "cli/terminal/end_signals.h"

#include <signal.h>

#include "support/temporary_file.h"

namespace cuflash::cli {

void remove_temporary_files_at_end_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    remove_temporary_files();
    ::raise(signal);  // now with its default action
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace cuflash::cli
