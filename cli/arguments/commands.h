// The commands as functions of their options. Only main.cpp knows how the command line becomes options.
#pragma once

#include <cuflash/flash_attention.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "machine/info.h"

namespace cuflash::cli {

enum class Layout { bhsd, bshd };

// Files of tensors as the user named them (files/tensors/array_file.h); "" if the flag was not given.
struct AttendOptions {
  Attention attention{};  // its scalar options; the tensors come from the files
  Execution execution{};
  Layout layout = Layout::bhsd;
  std::optional<DType> dtype;  // default: the type of q

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
  std::string arch;  // CUDA on any device of this architecture; "": on this machine's device
};

struct CheckOptions {
  static constexpr int64_t kMaxGrowth = int64_t{1} << 30;
  uint64_t seed = 1, first = 0, count = 20000;
  std::optional<uint64_t> only;
  bool forever = false;               // instead of count
  bool repeat = false;                // forever: the same problems in every round
  std::optional<double> minutes;      // forever: the time limit
  std::optional<int64_t> max_growth;  // forever: limit of memory growth in MiB, at most kMaxGrowth
  bool cache = false;                 // calls over a KV cache instead of forward and backward
  bool plain = false;                 // only problems for the fastest CUDA kernels
  bool options = false;               // only problems for the fastest CUDA kernels with options
  int32_t threads = 0;
  std::string failures;  // a file that gets every failing problem as it is found
  Device device = Device::cpu;
  uint64_t kernel_sets = 16;  // CUDA: sets of what kernels are compiled for; 0: any
  std::optional<uint64_t>
      head_sizes;  // CUDA, instead: pairs of head sizes; with 3, 20000 problems use about 900 kernels
};

// Problems that differ only in their lengths: of queries and keys, unless len_q or problem.seq_k is given.
struct GridOptions {
  static constexpr int64_t kLongest = int64_t{1} << 24, kMaxHeads = 1 << 20;  // larger ones could not be counted
  ExplainOptions problem;
  std::vector<int64_t> lengths{512, 1024, 2048, 4096, 8192, 16384};
  std::optional<int64_t> len_q;  // fixed for all problems; `lengths` then holds those of the keys
  std::string json;              // a file
};

struct IoOptions : GridOptions {
  bool no_measure = false;
  std::string launch;  // "forward" or "backward": only compute the single problem once on the GPU
};

struct DemoOptions {
  static constexpr int64_t kMinLen = 256, kMaxLen = 65536;
  int64_t max_len = 4096;
  int32_t threads = 0;
};

// A grid: each list is a dimension; an empty list takes the values of the preset, or the default.
struct BenchOptions {
  static constexpr int64_t kLargestSize = std::numeric_limits<int32_t>::max();  // limit of each number in these lists
  std::string preset;
  std::vector<std::string> directions, contestants;
  Device device = Device::automatic;
  std::vector<DType> dtypes;
  std::vector<int64_t> batch, heads, heads_k, hidden, head_dim, head_dim_v, len, len_q, len_k, page_size, causal;
  std::optional<int64_t> tokens;  // per batch; the batch size follows from the length
  double seconds = 0.3;           // for each point
  int32_t threads = 0;
  std::string json, csv, markdown;
  std::string compare;  // a file of results
  double tolerance = 0.05;
  std::string command;  // as typed, for the result files
};

// Options of `cuflash tune`. It uses the grid of BenchOptions, but not its seconds and files.
struct TuneOptions {
  BenchOptions grid;
  double seconds = 60;           // for the whole search
  bool dry_run = false;          // show which candidates would be tried, and why others would not
  bool compile = false;          // with dry_run: compile the candidates
  std::string arch;              // with dry_run: for GPUs of this architecture
  std::vector<int> option_sets;  // tuned::Options; every problem is searched with each set
  bool all_options = false;      // search every problem with each of the usual sets
  std::string csv;               // a file: the times of all candidates
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

// Each returns an exit code (cli/arguments/exit.h), or throws UsageError, files::FileError or FlashAttentionError.
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
