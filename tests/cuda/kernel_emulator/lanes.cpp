#include "tests/cuda/kernel_emulator/lanes.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

struct uint3;
namespace kernel_emulator {
extern void set_thread_number(unsigned x);

namespace {

constexpr size_t kStack = size_t{256} << 10;
constexpr int kMostBytes = 64;

struct Barrier {
  int arrived = 0;
  uint64_t rounds = 0;
  bool any[2] = {};
};

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes, zeros;
};

struct Thread {
  ucontext_t context{};
  std::unique_ptr<unsigned char[]> stack;
  bool done = false;
  const Barrier* waits = nullptr;  // until it has done more rounds than this
  uint64_t rounds = 0;
  uint64_t exchanges = 0;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> committed;
};

struct WarpExchange {
  Barrier barrier;
  std::array<std::array<unsigned char, kWarp * kMostBytes>, 2> slots;
};

struct Box {
  unsigned bytes;
  std::function<void()> copy;
};
struct Phases {
  int arrivals = 0, missing = 0;
  int64_t bytes = 0;  // announced and not there
  int waiting = 0;
  Barrier barrier;
  std::vector<Box> boxes;

  void end_if_complete() {
    if (missing == 0 && bytes == 0) missing = arrivals, ++barrier.rounds;
  }
  void bring_boxes() {
    for (const Box& box : boxes) box.copy(), bytes -= box.bytes;
    boxes.clear();
    end_if_complete();
  }
};

struct Cta {
  std::vector<Thread> threads;
  std::vector<WarpExchange> warps;
  Barrier barrier;
  std::array<Barrier, 16> numbered;
  std::map<unsigned, Phases> phases;
  ucontext_t scheduler{};
  size_t current = 0, left = 0;
  const std::function<void()>* body = nullptr;
  std::mt19937_64 random;
  int looks = 0;  // for what is done elsewhere, in this turn
};
constexpr int kMostLooks = 4096;
Cta* cta = nullptr;

Thread& self() { return cta->threads[cta->current]; }

void entry() {
  (*cta->body)();
  self().done = true;
  swapcontext(&self().context, &cta->scheduler);
}

// Whether all of them are there.
bool arrive(Barrier& barrier, int count) {
  if (++barrier.arrived != count) return false;
  barrier.arrived = 0, ++barrier.rounds;
  return true;
}
void wait(Barrier& barrier, int count) {
  const uint64_t round = barrier.rounds;
  if (arrive(barrier, count)) return;
  self().waits = &barrier, self().rounds = round;
  swapcontext(&self().context, &cta->scheduler);
}

void start(Cta& here, int threads, uint64_t seed, const std::function<void()>& body) {
  here.threads = std::vector<Thread>(static_cast<size_t>(threads));
  here.warps = std::vector<WarpExchange>(static_cast<size_t>((threads + kWarp - 1) / kWarp));
  here.left = here.threads.size();
  here.body = &body;
  here.random.seed(seed);
  for (Thread& t : here.threads) {
    t.stack = std::make_unique_for_overwrite<unsigned char[]>(kStack);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get(), t.context.uc_stack.ss_size = kStack;
    t.context.uc_link = &here.scheduler;
    makecontext(&t.context, entry, 0);
  }
}

// Until all of its threads are done, or some of them have looked elsewhere for long.
void go_on(Cta& here) {
  cta = &here;
  here.looks = 0;
  size_t idle = 0;
  for (size_t n = here.random() % here.threads.size(); here.left > 0; n = (n + 1) % here.threads.size()) {
    Thread& t = here.threads[n];
    if (t.done || (t.waits && t.waits->rounds == t.rounds)) {
      if (++idle > here.threads.size()) throw std::runtime_error("threads of a CTA wait for ones that never come");
      continue;
    }
    idle = 0;
    t.waits = nullptr;
    here.current = n;
    set_thread_number(static_cast<unsigned>(n));
    swapcontext(&here.scheduler, &t.context);
    if (t.done) --here.left;
    if (here.looks > kMostLooks) break;
    if (here.random() % 8 == 0) n = here.random() % here.threads.size();
  }
  cta = nullptr;
  if (here.left > 0) return;
  // It would come to the shared memory of another CTA.
  for (const auto& [address, phases] : here.phases)
    if (!phases.boxes.empty()) throw std::runtime_error("a CTA ends while a box is on its way");
  here.threads.clear();
}

}  // namespace

void run_threads(int threads, uint64_t seed, const std::function<void()>& body) {
  Cta here;
  start(here, threads, seed, body);
  go_on(here);
  if (here.left > 0) throw std::runtime_error("a CTA waits for another one, which does not run at the same time");
}

void run_ctas_together(int64_t ctas, int threads, uint64_t seed, const std::function<void()>& body,
                       const std::function<void(int64_t)>& enter, const std::function<void(int64_t)>& leave) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Cta>> all;
  std::vector<int64_t> running;
  for (int64_t n = 0; n < ctas; ++n) {
    all.push_back(std::make_unique<Cta>());
    start(*all.back(), threads, random(), body);
    running.push_back(n);
  }
  // Each of those that are not done has one turn in a round; rounds in which none is done are few where all wait for posts.
  constexpr int kMostRounds = 64;
  for (int rounds = 0; !running.empty(); ++rounds) {
    if (rounds > kMostRounds) throw std::runtime_error("CTAs wait for each other in vain");
    std::shuffle(running.begin(), running.end(), random);
    const size_t before = running.size();
    for (const int64_t n : running) enter(n), go_on(*all[static_cast<size_t>(n)]), leave(n);
    std::erase_if(running, [&](int64_t n) { return all[static_cast<size_t>(n)]->left == 0; });
    if (running.size() != before) rounds = 0;
  }
}

void look_elsewhere() {
  if (++cta->looks <= kMostLooks) return;
  swapcontext(&self().context, &cta->scheduler);
}

void wait_for_all() { wait(cta->barrier, static_cast<int>(cta->threads.size())); }

void wait_for_some(int number, int threads) { wait(cta->numbered.at(static_cast<size_t>(number)), threads); }
void arrive_for_some(int number, int threads) { arrive(cta->numbered.at(static_cast<size_t>(number)), threads); }
bool any_of_some(int number, int threads, bool value) {
  Barrier& barrier = cta->numbered.at(static_cast<size_t>(number));
  bool& any = barrier.any[barrier.rounds % 2];
  any = (barrier.arrived != 0 && any) || value;
  wait(barrier, threads);
  return any;
}

void start_phases(unsigned barrier, int arrivals) {
  Phases& phases = cta->phases[barrier];
  phases.arrivals = phases.missing = arrivals;
}
void arrive(unsigned barrier, unsigned announced_bytes) {
  Phases& phases = cta->phases.at(barrier);
  if (--phases.missing < 0) throw std::logic_error("more arrive on a barrier than it was made for");
  phases.bytes += announced_bytes;
  phases.end_if_complete();
}
void start_box(unsigned barrier, unsigned bytes, std::function<void()> copy) {
  Phases& phases = cta->phases.at(barrier);
  phases.boxes.push_back({bytes, std::move(copy)});
  if (phases.waiting > 0) phases.bring_boxes();
}
void wait_for_phase(unsigned barrier, unsigned parity) {
  Phases& phases = cta->phases.at(barrier);
  if (!phases.boxes.empty()) phases.bring_boxes();
  while (phases.barrier.rounds % 2 == parity) {
    ++phases.waiting;
    self().waits = &phases.barrier, self().rounds = phases.barrier.rounds;
    swapcontext(&self().context, &cta->scheduler);
    --phases.waiting;
  }
}

const unsigned char* exchange(const void* mine, int bytes) {
  if (bytes > kMostBytes) throw std::logic_error("too much is exchanged at once");
  WarpExchange& warp = cta->warps[cta->current / kWarp];
  // Two by turns: a lane may be one exchange ahead of another, and no more.
  auto& slot = warp.slots[self().exchanges++ % 2];
  std::memcpy(slot.data() + cta->current % kWarp * static_cast<size_t>(bytes), mine, static_cast<size_t>(bytes));
  wait(warp.barrier, kWarp);
  return slot.data();
}

void start_copy(void* to, const void* from, int bytes, int zeros) {
  self().open.push_back({static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, zeros});
}
void commit_copies() { self().committed.push_back(std::move(self().open)), self().open.clear(); }
void wait_for_copies(int pending) {
  auto& committed = self().committed;
  for (; committed.size() > static_cast<size_t>(pending); committed.pop_front())
    for (const Copy& c : committed.front()) {
      if (c.bytes > 0) std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
      std::memset(c.to + c.bytes, 0, static_cast<size_t>(c.zeros));
    }
}

}  // namespace kernel_emulator
