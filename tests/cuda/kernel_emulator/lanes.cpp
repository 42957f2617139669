// _FORTIFY_SOURCE makes longjmp() refuse to change to another stack.
#undef _FORTIFY_SOURCE

#include "tests/cuda/kernel_emulator/lanes.h"

#include <setjmp.h>
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
constexpr int kMaxBytes = 64;

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

// The state in which a coroutine continues. setcontext() only enters a new stack; all later changes use longjmp(),
// because swapcontext() would also change the signal mask, which takes a system call.
struct Context {
  ucontext_t beginning{};
  jmp_buf place{};
  bool begun = true;
};
void change(Context& from, Context& to) {
  if (_setjmp(from.place) != 0) return;
  if (to.begun) _longjmp(to.place, 1);
  to.begun = true;
  setcontext(&to.beginning);
}

// Stacks of threads that are done: taking fresh memory from the system for each takes longer than the kernels do.
using Stack = std::unique_ptr<unsigned char[]>;
std::vector<Stack> spare_stacks;
Stack take_stack() {
  if (spare_stacks.empty()) return std::make_unique_for_overwrite<unsigned char[]>(kStack);
  Stack stack = std::move(spare_stacks.back());
  spare_stacks.pop_back();
  return stack;
}

struct Thread {
  Context context;
  Stack stack;
  uint64_t exchanges = 0;
  std::map<unsigned, uint64_t> waited;  // the number of its waits for each mbarrier
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> committed;
};

// The barrier that a thread waits for. It is separate from Thread because the scheduler mostly looks at waiting
// threads.
struct Wait {
  const Barrier* barrier = nullptr;  // the thread resumes when this has completed more than `rounds` rounds
  uint64_t rounds = 0;
  bool done = false;

  bool over() const { return !done && (!barrier || barrier->rounds != rounds); }
};

struct WarpExchange {
  Barrier barrier;
  std::array<std::array<unsigned char, kWarp * kMaxBytes>, 2> slots;
  std::map<unsigned, uint64_t> passed;  // the largest number of completed waits of a lane, for each mbarrier
};

struct Box {
  unsigned bytes;
  std::function<void()> copy;
};
struct Mbarrier {
  int arrivals = 0, missing = 0;
  int64_t bytes = 0;  // expected bytes that have not arrived
  int waiting = 0;
  Barrier barrier;
  std::vector<Box> boxes;

  void end_if_complete() {
    if (missing == 0 && bytes == 0) missing = arrivals, ++barrier.rounds;
  }
  void land_boxes() {
    for (const Box& box : boxes) box.copy(), bytes -= box.bytes;
    boxes.clear();
    end_if_complete();
  }
};

struct Cta {
  std::vector<Thread> threads;
  std::vector<Wait> waits;  // by thread
  std::vector<WarpExchange> warps;
  Barrier barrier;
  std::array<Barrier, 16> named;
  std::map<unsigned, Mbarrier> mbarriers;
  Context scheduler;
  size_t current = 0, left = 0;
  const std::function<void()>* body = nullptr;
  std::mt19937_64 random;
  int polls = 0;  // polls for other CTAs in this turn
};
constexpr int kMaxPolls = 4096;
Cta* cta = nullptr;

Thread& self() { return cta->threads[cta->current]; }

// Pauses the running thread until the barrier completes a round.
void pause(const Barrier& barrier, uint64_t round) {
  cta->waits[cta->current] = {&barrier, round};
  change(self().context, cta->scheduler);
}

void entry() {
  (*cta->body)();
  cta->waits[cta->current].done = true;
  change(self().context, cta->scheduler);
}

// Returns whether this was the last arrival.
bool arrive(Barrier& barrier, int count) {
  if (++barrier.arrived != count) return false;
  barrier.arrived = 0, ++barrier.rounds;
  return true;
}
void wait(Barrier& barrier, int count) {
  const uint64_t round = barrier.rounds;
  if (!arrive(barrier, count)) pause(barrier, round);
}

void start(Cta& here, int threads, uint64_t seed, const std::function<void()>& body) {
  here.threads = std::vector<Thread>(static_cast<size_t>(threads));
  here.waits = std::vector<Wait>(here.threads.size());
  here.warps = std::vector<WarpExchange>(static_cast<size_t>((threads + kWarp - 1) / kWarp));
  here.left = here.threads.size();
  here.body = &body;
  here.random.seed(seed);
  for (Thread& t : here.threads) {
    t.stack = take_stack();
    ucontext_t& beginning = t.context.beginning;
    getcontext(&beginning);
    beginning.uc_stack.ss_sp = t.stack.get(), beginning.uc_stack.ss_size = kStack;
    makecontext(&beginning, entry, 0);
    t.context.begun = false;
  }
}

// Runs a CTA until all of its threads are done, or until they have polled for other CTAs for long.
void resume(Cta& here) {
  cta = &here;
  here.polls = 0;
  size_t idle = 0;
  for (size_t n = here.random() % here.threads.size(); here.left > 0; n = n + 1 < here.threads.size() ? n + 1 : 0) {
    if (!here.waits[n].over()) {
      if (++idle > here.threads.size()) throw std::runtime_error("threads of a CTA wait for threads that never arrive");
      continue;
    }
    idle = 0;
    here.waits[n].barrier = nullptr;
    here.current = n;
    set_thread_number(static_cast<unsigned>(n));
    change(here.scheduler, here.threads[n].context);
    if (here.waits[n].done) --here.left;
    if (here.polls > kMaxPolls) break;
    if (here.random() % 8 == 0) n = here.random() % here.threads.size();
  }
  cta = nullptr;
  if (here.left > 0) return;
  // The box would land in the shared memory of another CTA.
  for (const auto& [address, mbarrier] : here.mbarriers)
    if (!mbarrier.boxes.empty()) throw std::runtime_error("a CTA exits while a TMA box is in flight");
  for (Thread& t : here.threads) spare_stacks.push_back(std::move(t.stack));
  here.threads.clear();
}

}  // namespace

void run_threads(int threads, uint64_t seed, const std::function<void()>& body) {
  Cta here;
  start(here, threads, seed, body);
  resume(here);
  if (here.left > 0) throw std::runtime_error("a CTA waits for another CTA, which does not run at the same time");
}

void run_ctas_interleaved(int64_t ctas, int threads, uint64_t seed, const std::function<void()>& body,
                          const std::function<void(int64_t)>& enter, const std::function<void(int64_t)>& leave) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Cta>> all;
  std::vector<int64_t> running;
  for (int64_t n = 0; n < ctas; ++n) {
    all.push_back(std::make_unique<Cta>());
    start(*all.back(), threads, random(), body);
    running.push_back(n);
  }
  // Every unfinished CTA has one turn per round. If CTAs only wait for partials, few rounds pass without one finishing.
  constexpr int kMaxIdleRounds = 64;
  for (int rounds = 0; !running.empty(); ++rounds) {
    if (rounds > kMaxIdleRounds) throw std::runtime_error("deadlock: CTAs wait for each other");
    std::shuffle(running.begin(), running.end(), random);
    const size_t before = running.size();
    for (const int64_t n : running) enter(n), resume(*all[static_cast<size_t>(n)]), leave(n);
    std::erase_if(running, [&](int64_t n) { return all[static_cast<size_t>(n)]->left == 0; });
    if (running.size() != before) rounds = 0;
  }
}

void yield() { change(self().context, cta->scheduler); }
void poll() {
  if (++cta->polls <= kMaxPolls) return;
  change(self().context, cta->scheduler);
}

int num_threads() { return static_cast<int>(cta->threads.size()); }
void sync_threads() { wait(cta->barrier, static_cast<int>(cta->threads.size())); }

void sync_named(int number, int threads) { wait(cta->named.at(static_cast<size_t>(number)), threads); }
void arrive_named(int number, int threads) { arrive(cta->named.at(static_cast<size_t>(number)), threads); }
static bool wait_any(Barrier& barrier, int threads, bool value) {
  bool& any = barrier.any[barrier.rounds % 2];
  any = (barrier.arrived != 0 && any) || value;
  wait(barrier, threads);
  return any;
}
bool sync_named_any(int number, int threads, bool value) {
  return wait_any(cta->named.at(static_cast<size_t>(number)), threads, value);
}

void init_mbarrier(unsigned barrier, int arrivals) {
  Mbarrier& mbarrier = cta->mbarriers[barrier];
  mbarrier.arrivals = mbarrier.missing = arrivals;
}
void arrive_mbarrier(unsigned barrier, unsigned announced_bytes) {
  Mbarrier& mbarrier = cta->mbarriers.at(barrier);
  if (--mbarrier.missing < 0) throw std::logic_error("more arrivals on an mbarrier than it was initialised for");
  mbarrier.bytes += announced_bytes;
  mbarrier.end_if_complete();
}
void start_tma(unsigned barrier, unsigned bytes, std::function<void()> copy) {
  Mbarrier& mbarrier = cta->mbarriers.at(barrier);
  mbarrier.boxes.push_back({bytes, std::move(copy)});
  if (mbarrier.waiting > 0) mbarrier.land_boxes();
}
// On a GPU the lanes of a warp wait together, and one of them may then release the barrier on behalf of all. Here they
// run one after the other, so a wait that another lane of the warp has completed is complete for this lane, whatever
// the phase is now.
void wait_mbarrier(unsigned barrier, unsigned parity) {
  Mbarrier& mbarrier = cta->mbarriers.at(barrier);
  const uint64_t number = ++self().waited[barrier];
  uint64_t& passed = cta->warps[cta->current / kWarp].passed[barrier];
  if (number <= passed) return;
  if (!mbarrier.boxes.empty()) mbarrier.land_boxes();
  while (mbarrier.barrier.rounds % 2 == parity) {
    ++mbarrier.waiting;
    pause(mbarrier.barrier, mbarrier.barrier.rounds);
    --mbarrier.waiting;
    if (number <= passed) return;
  }
  passed = std::max(passed, number);
}

const unsigned char* exchange(const void* mine, int bytes) {
  if (bytes > kMaxBytes) throw std::logic_error("a warp exchanges more bytes than a slot holds");
  WarpExchange& warp = cta->warps[cta->current / kWarp];
  // Double buffered: a lane may be one exchange ahead of another, but no more.
  auto& slot = warp.slots[self().exchanges++ % 2];
  std::memcpy(slot.data() + cta->current % kWarp * static_cast<size_t>(bytes), mine, static_cast<size_t>(bytes));
  wait(warp.barrier, kWarp);
  return slot.data();
}

void start_cp_async(void* to, const void* from, int bytes, int zeros) {
  self().open.push_back({static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, zeros});
}
void commit_cp_async() { self().committed.push_back(std::move(self().open)), self().open.clear(); }
void wait_cp_async(int pending) {
  auto& committed = self().committed;
  for (; committed.size() > static_cast<size_t>(pending); committed.pop_front())
    for (const Copy& c : committed.front()) {
      if (c.bytes > 0) std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
      std::memset(c.to + c.bytes, 0, static_cast<size_t>(c.zeros));
    }
}

}  // namespace kernel_emulator
