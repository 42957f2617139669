#include "bench/tables.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "bench/measure.h"
#include "cpu/threads/threads.h"
#include "dtype.h"

namespace cuflash::bench {
namespace {

struct Both {
  double forward, backward;
};

Both time_both(Workload& work, int threads, double seconds) {
  const double forward = best_times({[&] { work.forward(threads); }}, seconds)[0];
  return {forward, best_times({[&] { work.backward(threads); }}, seconds)[0]};
}

std::string number(int64_t value) { return std::to_string(value); }
std::string milliseconds(double seconds) { return text("%.3f", seconds * 1e3); }
std::string microseconds(double seconds) { return text("%.2f", seconds * 1e6); }
std::string ratio(double value) { return text("%.2f", value); }

}  // namespace

void overhead(const Settings& settings) {
  print_header({"S", "H", "D", "threads", "forward us", "backward us"});
  const auto row = [&](int64_t length, int64_t heads, int64_t dim, int threads) {
    Workload work({.heads = heads, .length = length, .dim = dim});
    const Both t = time_both(work, threads, settings.seconds);
    print_row({number(length), number(heads), number(dim), number(threads), microseconds(t.forward),
               microseconds(t.backward)});
  };
  row(1, 1, 1, 1);  // almost nothing to compute: the cost of a call
  for (const int threads : {1, std::max(settings.threads, 2)})
    for (const int64_t heads : {1, 8}) row(32, heads, 64, threads);
}

void scaling(const Settings& settings) {
  const int all = settings.threads > 0 ? settings.threads : cpu::default_num_threads();
  std::printf("1 and %d threads\n\n", all);
  print_header({"H", "D", "S", "causal", "forward ms", "1 thread", "ratio", "backward ms", "1 thread", "ratio"});
  for (const int64_t heads : {1, 8})
    for (const int64_t dim : {64, 128})
      for (const int64_t length : {32, 64, 128, 256, 512, 1024})
        for (const Option option : {Option::none, Option::causal}) {
          Workload work({.heads = heads, .length = length, .dim = dim, .option = option});
          const auto forward = best_times({[&] { work.forward(all); }, [&] { work.forward(1); }}, settings.seconds);
          const auto backward = best_times({[&] { work.backward(all); }, [&] { work.backward(1); }}, settings.seconds);
          print_row({number(heads), number(dim), number(length), option == Option::causal ? "yes" : "no",
                     milliseconds(forward[0]), milliseconds(forward[1]), ratio(forward[1] / forward[0]),
                     milliseconds(backward[0]), milliseconds(backward[1]), ratio(backward[1] / backward[0])});
        }
}

void options(const Settings& settings) {
  print_header({"type", "D", "option", "forward ms", "to plain", "backward ms", "to plain", "both to plain"});
  for (const DType type : {DType::f32, DType::bf16})
    for (const int64_t dim : {64, 128}) {
      const Shape shape{.type = type, .heads = 2, .length = 2048, .dim = dim};
      Workload plain(shape);
      for (const Option option :
           {Option::dropout, Option::bias, Option::dbias, Option::shared_dbias, Option::mask, Option::documents,
            Option::alibi, Option::softcap, Option::sink, Option::window, Option::padding, Option::causal}) {
        Shape with = shape;
        with.option = option;
        Workload work(with);
        const auto forward = best_times({[&] { work.forward(1); }, [&] { plain.forward(1); }}, settings.seconds);
        const auto backward = best_times({[&] { work.backward(1); }, [&] { plain.backward(1); }}, settings.seconds);
        print_row({name_of(type), number(dim), name_of(option), milliseconds(forward[0]),
                   ratio(forward[0] / forward[1]), milliseconds(backward[0]), ratio(backward[0] / backward[1]),
                   ratio((forward[0] + backward[0]) / (forward[1] + backward[1]))});
      }
    }
}

}  // namespace cuflash::bench
