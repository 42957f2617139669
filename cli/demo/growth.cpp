#include <algorithm>
#include <chrono>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>

#include "cli/demo/demo.h"
#include "cli/terminal/progress.h"
#include "reference/naive.h"
#include "support/physical_memory.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

constexpr DemoShape kShape{.batch = 1, .heads_q = 8, .heads_k = 8, .seq = 0, .dim = 64};
constexpr int64_t kFirstSeq = 256;
constexpr double kNaiveBudget = 20;  // seconds for all of naive attention, to keep the demo short

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The best of a few runs, since other processes can only slow a run down.
double best_seconds(const std::function<void()>& body) {
  constexpr int kMaxRuns = 5;
  constexpr double kEnough = 0.3;
  double best = std::numeric_limits<double>::infinity();
  const auto start = std::chrono::steady_clock::now();
  for (int run = 0; run < kMaxRuns && (run == 0 || seconds_since(start) < kEnough); ++run) {
    const auto run_start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, seconds_since(run_start));
  }
  return best;
}

struct Row {
  int64_t seq;
  double naive, flash;  // seconds; naive is infinite if it was not run
  double naive_bytes, flash_bytes;
};

void print(const Row& row) {
  constexpr double kLongestBar = 40;
  const auto cell = [](int width, const std::string& text) { std::cout << std::right << std::setw(width) << text; };
  const bool ran = row.naive < std::numeric_limits<double>::infinity();
  const double speed_up = row.naive / row.flash;
  cell(7, std::to_string(row.seq));
  cell(12, ran ? fixed(row.naive * 1e3, 1) : "not run");
  cell(12, fixed(row.flash * 1e3, 1));
  cell(10, ran ? fixed(speed_up, 1) + "x" : "");
  cell(13, bytes_text(row.naive_bytes));
  cell(15, bytes_text(row.flash_bytes));
  std::cout << "  " << (ran ? std::string(static_cast<size_t>(std::clamp(speed_up, 0.0, kLongestBar)), '#') : "")
            << std::endl;
}

}  // namespace

void show_growth(int64_t max_len, const Execution& execution) {
  std::cout << "    seq    naive ms  cuflash ms  speed-up  naive extra  cuflash extra\n";
  Progress progress;
  double spent = 0, last_naive = 0;
  bool stopped = false;
  for (int64_t seq = kFirstSeq; seq <= max_len; seq *= 2) {
    DemoShape shape = kShape;
    shape.seq = seq;
    const DemoProblem problem(shape, DType::f32);
    const Attention& attention = problem.attention();
    Row row{seq, std::numeric_limits<double>::infinity(), 0,
            static_cast<double>(reference::naive_forward_bytes(attention)),
            static_cast<double>(workspace_size(attention, problem.outputs(), execution))};
    progress.announce(join("length ", seq, ": cuflash ..."));
    row.flash = best_seconds([&] { flash_attention_forward(attention, problem.outputs(), execution); });
    const bool too_slow = spent + 4 * last_naive > kNaiveBudget;  // twice the length is four times the work
    const bool too_large = row.naive_bytes > static_cast<double>(physical_memory()) / 2;
    stopped = stopped || too_slow || too_large;
    if (!stopped) {
      progress.announce(join("length ", seq, ": naive, about ", fixed(4 * last_naive, 0), " s ..."));
      const auto start = std::chrono::steady_clock::now();
      row.naive = last_naive = best_seconds([&] { reference::naive_forward(attention); });
      spent += seconds_since(start);
    }
    progress.clear();
    print(row);
  }
  if (stopped) std::cout << "  not run: naive attention would take too long or too much memory for a demo\n";
}

}  // namespace cuflash::cli
