// Prints which kernel computes what, on which device. The library itself answers for every cell, so the tables cannot
// be wrong.
#include <functional>
#include <iostream>

#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "cli/support/question.h"
#include "cli/support/tables.h"
#include "cuda/driver/arch.h"

namespace cuflash::cli {

namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
  return "none";
}

Table limits() {
  Table table{{"problem", "answer"}, {}};
  const auto on = [&](const char* place, const char* words, const std::function<void(ExplainOptions&)>& set) {
    Question question = plain_question(DType::bf16, 64, false);
    set(question.options);
    const Answer answer = ask(question, place);
    table.rows.push_back({join(words, ", ", place), answer.served ? "served" : answer.reason});
  };
  static constexpr int64_t kMax = (int64_t{1} << 31) - 1;
  on(kSupportCpu, "head size 4096", [](auto& o) { o.dim = 4096; });
  on("sm_90a", "head size 257", [](auto& o) { o.dim = 257; });
  on("sm_90a", "head size 257 of v", [](auto& o) { o.dim_v = 257; });
  on(kSupportCpu, "2^31 - 1 keys", [](auto& o) { o.seq_k = kMax; });
  on("sm_90a", "2^31 - 1024 keys", [](auto& o) { o.seq_k = kMax - 1023; });
  on("sm_90a", "2^31 - 1 keys", [](auto& o) { o.seq_k = kMax; });
  on(kSupportCpu, "2^31 keys", [](auto& o) { o.seq_k = kMax + 1; });
  on("sm_90a", "a batch of 2^20", [](auto& o) { o.batch = 1 << 20; });
  table.rows.push_back({"a GPU of compute capability 7.5", refusal([] { cuda::arch_of(7, 5); })});
  return table;
}

struct Section {
  const char* title;
  const char* words;
  Table table;
};

std::vector<Section> sections() {
  return {
      {"Forward: types and head sizes",
       "Four heads, 1024 queries and keys, q, k and v of the same head size. A cell has the tile of the kernel, "
       "queries x\n"
       "keys. \"yes\" is the CPU, which has one algorithm for all sizes; \"no\" is explained under limits.",
       head_sizes(false)},
      {"Backward: types and head sizes", "The same problems; dQ, dK and dV are all requested.", head_sizes(true)},
      {"Options",
       "\"yes\": supported in both directions, or in the one that the option has, for f64, f32, f16 and bf16 and for "
       "head\n"
       "sizes 2, 31, 32, 64, 72, 96, 128, 160, 192, 250 and 256; otherwise the cell says what is rejected. The last "
       "two\n"
       "columns have the options that the kernel for bf16 of head size 128 is compiled with on sm_80: calls with "
       "several\n"
       "options, and calls with rows that do not start on 16-byte boundaries, share the kernel with every option.",
       options_everywhere()},
      {"Kernels for Hopper: head sizes", "The tiles of the sm_90a kernels, or the reason for the portable kernel.",
       hopper_sizes()},
      {"Kernels for Hopper: options",
       "The tiles of the sm_90a kernels for bf16 with one option; all columns but the last are forward.",
       hopper_options()},
      {"Limits", "Problems that are rejected before anything is written, and the message.", limits()},
      {"KV cache: types and head sizes",
       "Two sequences of one query each, 32 query heads on 8 key heads, k and v of the same head size. Heads that "
       "share keys\n"
       "are rows of one tile: a cell has rows x keys. \"boxes\" is the kernel for Hopper, which loads keys by TMA; all "
       "other\n"
       "cells are the portable kernel.",
       cache_sizes()},
      {"KV cache: head sizes of values",
       "The same problems with 128 query heads on one key head. Latent attention has 576 and 512, with values that "
       "are\n"
       "columns of keys.",
       cache_head_pairs()},
      {"KV cache: rows of a tile",
       "Tiles for bf16 by the number of query heads that share keys, with one query each; n queries have n times as "
       "many\n"
       "rows. With a fixed number of splits the tile is that of one query, whatever the number of queries. The values "
       "of 576\n"
       "and 512 are columns of keys. More than 64 queries take the tiles of forward on sm_90a (docs/design.md).",
       cache_rows()},
      {"KV cache: options",
       "\"yes\": supported wherever a call without the option is, for f64, f32, f16 and bf16 and head sizes 2, 31, 32, "
       "64, 72,\n"
       "96, 128, 160, 192, 250, 256, 512 and 576; otherwise the cell says what is rejected. The last two columns are "
       "for bf16\n"
       "of head size 128: the options that the portable kernel is compiled with on sm_80, and the tiles of boxes on "
       "sm_90a or\n"
       "the reason for the portable kernel.",
       cache_options()},
      {"KV cache: limits", "There are no gradients. These calls are rejected, too, with this message:", cache_limits()},
  };
}

}  // namespace

int run_support(const SupportOptions& options) {
  if (options.markdown) {
    std::cout << "<!-- generated by: cuflash support --markdown -->\n# What is supported\n\n"
              << "Each cell is the library's own answer, given without a GPU: `cuflash support --markdown` prints this "
                 "page, and\na test fails if the two differ. `cuflash explain` answers for one problem, with the "
                 "reason.\n\nA cell says what would be launched, not that it has run on such a GPU: docs/benchmarks.md "
                 "says what was measured and\nchecked, and where.\n";
  }
  for (const Section& section : sections()) {
    if (options.markdown) {
      std::cout << "\n## " << section.title << "\n\n" << section.words << "\n\n" << section.table.markdown();
    } else {
      std::cout << section.title << "\n\n" << section.table.text() << "\n";
    }
  }
  return kExitOk;
}

}  // namespace cuflash::cli
