// The commands as functions of their options. main.cpp fills the options from the command line; nothing else knows how.
#pragma once

#include <cuflash/flash_attention.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "machine/info.h"

namespace cuflash::cli {

enum class Layout { bhsd, bshd };

// Files of tensors as the user named them (array_file.h says how); "" where the flag was not given.
struct AttendOptions {
  Attention attention{};  // its scalar options; the tensors come from the files
  Execution execution{};
  Layout layout = Layout::bhsd;
  std::optional<DType> dtype;  // default: what q holds

  std::string q, k, v, grad_out, grad_lse;
  std::string alibi, bias, mask, sink;
  std::string seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k;
  std::string out, lse, dq, dk, dv, dbias, dsink;
};

struct ExplainOptions {
  Attention attention{};
  Execution execution{};
  Layout layout = Layout::bhsd;
  DType dtype = DType::f32;
  int64_t batch = 1, heads = 8, seq_q = 1024, dim = 64;
  std::optional<int64_t> heads_k, seq_k, dim_v;  // default: as for q
  bool backward = false, lse = false, alibi = false, bias = false, mask = false, sink = false;
  std::string arch;  // CUDA, on any device of this architecture; "": on the one that is there
};

struct CheckOptions {
  static constexpr int64_t kMostGrowth = int64_t{1} << 30;
  uint64_t seed = 1, first = 0, count = 20000;
  std::optional<uint64_t> only;
  bool forever = false;               // instead of count
  bool repeat = false;                // forever: the same problems in every round
  std::optional<double> minutes;      // forever: at most
  std::optional<int64_t> max_growth;  // forever: of memory, in MiB, at most kMostGrowth
  bool cache = false;                 // calls over a KV cache instead of forward and backward
  bool plain = false;                 // what the fastest CUDA kernels take
  int32_t threads = 0;
  Device device = Device::cpu;
  uint64_t head_sizes = 3;  // CUDA: pairs that kernels are compiled for; 20000 problems then meet about 900 of them
};

// Problems that differ in their lengths alone: of queries and keys, unless len_q or problem.seq_k is given.
struct GridOptions {
  static constexpr int64_t kLongest = int64_t{1} << 24, kMostHeads = 1 << 20;  // what can be counted
  ExplainOptions problem;
  std::vector<int64_t> lengths{512, 1024, 2048, 4096, 8192, 16384};
  std::optional<int64_t> len_q;  // of all problems, whose keys alone then have these lengths
  std::string json;              // a file
};

struct IoOptions : GridOptions {
  bool no_measure = false;
  std::string launch;  // "forward", "backward": compute the only problem once on the GPU, and nothing else
};

struct DemoOptions {
  static constexpr int64_t kLeastLen = 256, kMostLen = 65536;
  int64_t max_len = 4096;
  int32_t threads = 0;
};

// A grid: each list is a dimension of it; an empty one has the preset's values, or the default's.
struct BenchOptions {
  static constexpr int64_t kLargestSize = std::numeric_limits<int32_t>::max();  // of each number in these lists
  std::string preset;
  std::vector<std::string> directions, contestants;
  Device device = Device::automatic;
  std::vector<DType> dtypes;
  std::vector<int64_t> batch, heads, heads_k, hidden, head_dim, head_dim_v, len, len_q, len_k, page_size, causal;
  std::optional<int64_t> tokens;  // in a batch, whose size then follows from the length
  double seconds = 0.3;           // for each point
  int32_t threads = 0;
  std::string json, csv, markdown;
  std::string compare;  // a file of results
  double tolerance = 0.05;
  std::string command;  // as it was typed, for the files
};

// The same grid; its own seconds and files are not used.
struct TuneOptions {
  BenchOptions grid;
  double seconds = 60;   // for all of it
  bool dry_run = false;  // what would be tried, and what not and why
  bool compile = false;  // of a dry run: compile it
  std::string arch;      // of a dry run: for GPUs of this architecture
};

using InfoOptions = machine::InfoOptions;

enum class CacheAction { list, clear };

struct PackOptions {
  std::vector<std::string> archs, kernels;  // "sm_90a"; names of single kernels
  std::vector<DType> dtypes;
  std::vector<int64_t> dims;
  std::string out;
  int32_t threads = 2;
};

struct SupportOptions {
  bool markdown = false;
};

// Each returns an exit code (cli/arguments/exit.h), or throws UsageError or FlashAttentionError.
int run_attend(const AttendOptions& options);
int run_explain(const ExplainOptions& options);
int run_check(const CheckOptions& options);
int run_io(const IoOptions& options);
int run_memory(const GridOptions& options);
int run_demo(const DemoOptions& options);
int run_info(const InfoOptions& options);
int run_bench(const BenchOptions& options);
int run_tune(const TuneOptions& options);
int run_cache(CacheAction action);
int run_pack(const PackOptions& options);
int run_support(const SupportOptions& options);

}  // namespace cuflash::cli
