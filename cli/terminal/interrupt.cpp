#include "cli/terminal/interrupt.h"

#include <atomic>

namespace cuflash::cli {

namespace {

std::atomic<int> signalled = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // a handler may write nothing else

}  // namespace

AskedToEnd::AskedToEnd() {
  signalled = 0;
  struct sigaction action {};
  // Resets the signal itself: NVRTC restores handlers without flags such as SA_RESETHAND.
  action.sa_handler = [](int signal) {
    ::signal(signal, SIG_DFL);
    signalled = signal;
  };
  action.sa_flags = SA_RESTART;
  for (size_t n = 0; n < kSignals.size(); ++n) {
    ::sigaction(kSignals[n], nullptr, &before_[n]);
    if (before_[n].sa_handler != SIG_IGN)
      ::sigaction(kSignals[n], &action, nullptr);  // ignored signals stay ignored, as under nohup
  }
}

AskedToEnd::~AskedToEnd() {
  for (size_t n = 0; n < kSignals.size(); ++n) ::sigaction(kSignals[n], &before_[n], nullptr);
  signalled = 0;
}

AskedToEnd::operator bool() const { return signalled != 0; }

int AskedToEnd::exit_code() const { return 128 + signalled; }

void stop_if_asked() {
  if (signalled.load(std::memory_order_relaxed) != 0) throw Interrupted();
}

}  // namespace cuflash::cli
