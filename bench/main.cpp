// cuflash_bench [table ...] [--seconds S] [--threads N]: prints all tables, or the named ones.
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "bench/tables.h"

using namespace cuflash::bench;

namespace {

struct Table {
  const char* name;
  const char* what;
  void (*print)(const Settings&);
};

constexpr Table kTables[] = {
    {"peak", "The peak of one core, and the share of it that forward reaches", peak},
    {"overhead", "What a call costs in addition to its arithmetic, f32", overhead},
    {"scaling", "One thread and all of them, f32", scaling},
    {"options", "What each option costs: H = 2, S = 2,048, one thread", options},
    {"cache", "A decode step over a cache: Hk = 8, S = 16,384, D = 128, one thread, GB/s of K and V", cache},
};

int usage() {
  std::fprintf(stderr, "usage: cuflash_bench [table ...] [--seconds S] [--threads N]\n");
  for (const Table& table : kTables) std::fprintf(stderr, "  %-10s %s\n", table.name, table.what);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  std::vector<const Table*> chosen;
  for (int n = 1; n < argc; ++n) {
    const std::string_view word = argv[n];
    if (word == "--seconds" && n + 1 < argc) settings.seconds = std::atof(argv[++n]);
    else if (word == "--threads" && n + 1 < argc) settings.threads = std::atoi(argv[++n]);
    else {
      const Table* found = nullptr;
      for (const Table& table : kTables)
        if (word == table.name) found = &table;
      if (!found) return usage();
      chosen.push_back(found);
    }
  }
  for (const Table& table : kTables) {
    bool wanted = chosen.empty();
    for (const Table* one : chosen) wanted |= one == &table;
    if (!wanted) continue;
    std::printf("### %s\n\n", table.what);
    table.print(settings);
    std::printf("\n");
  }
  return 0;
}
