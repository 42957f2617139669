#include "tests/cuda/kernel_emulator/lanes.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
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

// A set of threads of a CTA.
struct ThreadSet {
  std::array<uint64_t, 1024 / 64> words = {};

  void add(size_t n) { words[n / 64] |= uint64_t{1} << n % 64; }
  void remove(size_t n) { words[n / 64] &= ~(uint64_t{1} << n % 64); }
  // The next member at or after n, or `end` if there is none.
  size_t next(size_t n, size_t end) const {
    for (uint64_t mask = ~uint64_t{0} << n % 64; n < end; n = (n / 64 + 1) * 64, mask = ~uint64_t{0})
      if (const uint64_t word = words[n / 64] & mask) return n / 64 * 64 + static_cast<size_t>(std::countr_zero(word));
    return end;
  }
};

struct Barrier {
  int arrived = 0;
  uint64_t rounds = 0;
  bool any[2] = {};
  ThreadSet waiting;
};

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes, zeros;
};

// Where a coroutine goes on. Only what a call preserves is stored: swapcontext() would change the signal mask as well, which
// is a system call, and a pair of setjmp() and longjmp() takes several times as long.
#if defined(__x86_64__) || defined(__aarch64__)
struct Context {
  void* stack_pointer = nullptr;
};
#if defined(__x86_64__)
asm(R"(
  .text
  .p2align 4
  .type kernel_emulator_change, @function
kernel_emulator_change:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size kernel_emulator_change, . - kernel_emulator_change
)");
constexpr size_t kSavedWords = 8, kEntryWord = 6;  // the last is no return address
#else
asm(R"(
  .text
  .p2align 4
  .type kernel_emulator_change, %function
kernel_emulator_change:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  ldr x9, [x1]
  mov sp, x9
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size kernel_emulator_change, . - kernel_emulator_change
)");
constexpr size_t kSavedWords = 20, kEntryWord = 11;  // x30
#endif
extern "C" void kernel_emulator_change(Context* from, const Context* to);
void change(Context& from, const Context& to) { kernel_emulator_change(&from, &to); }
void begin(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
  auto* const words = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16) - kSavedWords;
  std::fill_n(words, kSavedWords, uint64_t{0});
  words[kEntryWord] = reinterpret_cast<uintptr_t>(entry);
  context.stack_pointer = words;
}
#else
struct Context {
  ucontext_t place{};
};
void change(Context& from, const Context& to) { swapcontext(&from.place, &to.place); }
void begin(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.place);
  context.place.uc_stack.ss_sp = stack, context.place.uc_stack.ss_size = bytes;
  makecontext(&context.place, entry, 0);
}
#endif

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

struct WarpExchange {
  Barrier barrier;
  std::array<std::array<unsigned char, kWarp * kMaxBytes>, 2> slots;
  std::map<unsigned, uint64_t> passed;  // the largest number of completed waits of a lane, for each mbarrier
};

void complete(Barrier& barrier);

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
    if (missing == 0 && bytes == 0) missing = arrivals, complete(barrier);
  }
  void land_boxes() {
    for (const Box& box : boxes) box.copy(), bytes -= box.bytes;
    boxes.clear();
    end_if_complete();
  }
};

struct Cta {
  std::vector<Thread> threads;
  ThreadSet ready;  // those that do not wait
  std::vector<WarpExchange> warps;
  Barrier barrier;
  std::array<Barrier, 16> named;
  std::map<unsigned, Mbarrier> mbarriers;
  Context scheduler;
  size_t current = 0, left = 0;
  bool done = false;  // the thread that ran last
  const std::function<void()>* body = nullptr;
  uint64_t random = 0;
  int polls = 0;  // for other CTAs, in this turn
};
constexpr int kMaxPolls = 4096;
Cta* cta = nullptr;

Thread& self() { return cta->threads[cta->current]; }

// SplitMix64: an order that looks random takes no better numbers.
uint64_t draw(uint64_t& state) {
  uint64_t x = state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Those that wait for the round go on.
void complete(Barrier& barrier) {
  ++barrier.rounds;
  const size_t words = (cta->threads.size() + 63) / 64;
  for (size_t n = 0; n < words; ++n) cta->ready.words[n] |= barrier.waiting.words[n], barrier.waiting.words[n] = 0;
}

// Until the barrier completes its round.
void pause(Barrier& barrier) {
  barrier.waiting.add(cta->current), cta->ready.remove(cta->current);
  change(self().context, cta->scheduler);
}

void entry() {
  (*cta->body)();
  cta->done = true;
  change(self().context, cta->scheduler);
}

// Returns whether this was the last arrival.
bool arrive(Barrier& barrier, int count) {
  if (++barrier.arrived != count) return false;
  barrier.arrived = 0, complete(barrier);
  return true;
}
void wait(Barrier& barrier, int count) {
  if (!arrive(barrier, count)) pause(barrier);
}

void start(Cta& here, int threads, uint64_t seed, const std::function<void()>& body) {
  here.threads = std::vector<Thread>(static_cast<size_t>(threads));
  if (here.threads.size() > here.ready.words.size() * 64) throw std::logic_error("a CTA has more than 1024 threads");
  for (size_t n = 0; n < here.threads.size(); ++n) here.ready.add(n);
  here.warps = std::vector<WarpExchange>(static_cast<size_t>((threads + kWarp - 1) / kWarp));
  here.left = here.threads.size();
  here.body = &body;
  here.random = seed;
  for (Thread& t : here.threads) {
    t.stack = take_stack();
    begin(t.context, t.stack.get(), kStack, entry);
  }
}

// Runs a CTA until all of its threads are done, or until they have polled for other CTAs for long.
void resume(Cta& here) {
  cta = &here;
  here.polls = 0;
  const size_t threads = here.threads.size();
  for (size_t n = draw(here.random) % threads; here.left > 0; ++n) {
    n = here.ready.next(n, threads);
    if (n == threads) n = here.ready.next(0, threads);
    if (n == threads) throw std::runtime_error("threads of a CTA wait for threads that never arrive");
    here.current = n;
    set_thread_number(static_cast<unsigned>(n));
    change(here.scheduler, here.threads[n].context);
    if (here.done) here.done = false, here.ready.remove(n), --here.left;
    if (here.polls > kMaxPolls) break;
    if (const uint64_t random = draw(here.random); random % 8 == 0) n = random / 8 % threads;
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
    pause(mbarrier.barrier);
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
