// The command line: flags become options, failures become one sentence and an exit code.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <new>

#include "cli/commands.h"
#include "cli/end_signals.h"
#include "cli/exit.h"

namespace {

using namespace cuflash;
using namespace cuflash::cli;

using Job = std::function<int()>;

const std::map<std::string, DType> kDTypes{
    {"f64", DType::f64}, {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};
const std::map<std::string, Alignment> kAlignments{{"bottom-right", Alignment::bottom_right},
                                                   {"top-left", Alignment::top_left}};
const std::map<std::string, Device> kDevices{{"auto", Device::automatic}, {"cpu", Device::cpu}, {"cuda", Device::cuda}};
const std::map<std::string, Device> kCheckedDevices{{"cpu", Device::cpu}, {"cuda", Device::cuda}};
const std::map<std::string, Layout> kLayouts{{"bhsd", Layout::bhsd}, {"bshd", Layout::bshd}};

template <class Value>
CLI::Option* add_choice(CLI::App& command, const std::string& flag, Value& value, const auto& choices,
                        const std::string& help) {
  std::string names;
  for (const auto& [name, ignored] : choices) names += (names.empty() ? "" : "|") + name;
  return command.add_option(flag, value, help)
      ->transform(CLI::CheckedTransformer(choices).description(""))
      ->type_name(names);
}

// CLI11 reads -1 as 2^64 - 1 and cuts larger numbers off.
CLI::Option* add_unsigned(CLI::App& command, const std::string& flag, auto& value, const std::string& help) {
  const auto fault = [](const std::string& text) -> std::string {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size()
               ? ""
               : "must be a whole number from 0 to 2^64 - 1, got " + text;
  };
  return command.add_option(flag, value, help)->check(CLI::Validator(fault, ""));
}

void add_threads(CLI::App& command, int32_t& threads) {
  command
      .add_option("--threads", threads, "Threads (default: CUFLASH_NUM_THREADS, or every core this process may use)")
      ->check(CLI::Range(1, std::numeric_limits<int32_t>::max()).description(""));
}

void add_window(CLI::App& command, Attention& attention) {
  const auto parse = [&attention](const std::vector<int64_t>& sides) {
    attention.window_left = sides.at(0);
    attention.window_right = sides.at(1);
  };
  command
      .add_option_function<std::vector<int64_t>>("--window", parse, "Keys visible on either side of a query; -1: all")
      ->delimiter(',')
      ->expected(2)
      ->type_name("L,R");
}

// The flags that describe attention beside its tensors, and where it runs.
void add_attention(CLI::App& command, Attention& attention, Execution& execution, Layout& layout) {
  command.add_flag("--causal", attention.causal, "A query sees no key after its own position");
  add_choice(command, "--align", attention.alignment, kAlignments,
             "Where queries stand against keys of another length");
  add_window(command, attention);
  command.add_option("--softcap", attention.softcap, "Limit scores to (-X, X) by X*tanh(s/X)");
  command.add_option("--scale", attention.scale, "Factor of the scores (default: 1/sqrt(D))");
  command.add_option("--dropout", attention.dropout_p, "Probability of dropping a weight, in [0, 1)");
  add_unsigned(command, "--seed", attention.dropout_seed, "Seed of dropout");
  add_unsigned(command, "--offset", attention.dropout_offset, "Offset of dropout's random numbers");
  add_choice(command, "--layout", layout, kLayouts,
             "Order of the dimensions of q, k, v, the output and their gradients");
  add_choice(command, "--device", execution.device, kDevices, "Where to compute");
  add_threads(command, execution.num_threads);
}

void add_attend(CLI::App& app, AttendOptions& o, Job& job) {
  CLI::App& command =
      *app.add_subcommand("attend", "Attention on .npy and .safetensors files: forward, and backward where asked for");
  command.footer(
      "FILE is a .npy file, FILE.safetensors, or FILE.safetensors:TENSOR. Without a tensor's name an input is the "
      "tensor\n"
      "named like its flag (q for --q, grad_out for --grad-out) or the file's only one, and an output is named like "
      "its\n"
      "flag (out, lse, dq, ...). Outputs that name one .safetensors file share it; what it held before is replaced.\n"
      "Outputs are written to .safetensors in the type computed in, to .npy as float32 (float64 for f64).\n\n"
      "cuflash attend --q in.safetensors --k in.safetensors --v in.safetensors:values -o out.safetensors");
  command.add_option("--q", o.q, "Queries [B, H, S, D], or packed [T, H, D]")->required()->type_name("FILE");
  command.add_option("--k", o.k, "Keys")->required()->type_name("FILE");
  command.add_option("--v", o.v, "Values")->required()->type_name("FILE");
  const auto add_files = [&](const char* group,
                             std::initializer_list<std::tuple<const char*, std::string*, const char*>> files) {
    for (const auto& [flag, path, help] : files) command.add_option(flag, *path, help)->type_name("FILE")->group(group);
  };
  add_files("Inputs", {{"--grad-out", &o.grad_out, "Gradient of the output: asks for backward"},
                       {"--grad-lse", &o.grad_lse, "Gradient of the log-sum-exp"},
                       {"--alibi", &o.alibi, "ALiBi slopes [H] or [B, H]"},
                       {"--bias", &o.bias, "Added to the scores: [B or 1, H or 1, Sq or 1, Sk]"},
                       {"--mask", &o.mask, "Bool, shaped as a bias; false hides the key"},
                       {"--sink", &o.sink, "A logit of each head [H] that takes part in the softmax alone"},
                       {"--seqlens-q", &o.seqlens_q, "Lengths [B] of padded queries"},
                       {"--seqlens-k", &o.seqlens_k, "Lengths [B] of padded keys"},
                       {"--cu-seqlens-q", &o.cu_seqlens_q, "Starts [B+1] of packed queries"},
                       {"--cu-seqlens-k", &o.cu_seqlens_k, "Starts [B+1] of packed keys"}});
  add_files("Outputs", {{"-o,--out", &o.out, "The output"},
                        {"--lse", &o.lse, "Log-sum-exp [B, H, Sq], or packed [H, T]"},
                        {"--dq", &o.dq, "Gradient of q"},
                        {"--dk", &o.dk, "Gradient of k"},
                        {"--dv", &o.dv, "Gradient of v"},
                        {"--dbias", &o.dbias, "Gradient of the bias"},
                        {"--dsink", &o.dsink, "Gradient of the sinks"}});
  add_choice(command, "--dtype", o.dtype, kDTypes, "Type to compute in (default: what q holds)");
  add_attention(command, o.attention, o.execution, o.layout);
  command.callback([&o, &job] { job = [&o] { return run_attend(o); }; });
}

void add_explain(CLI::App& app, ExplainOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("explain", "Which backend and kernel a problem gets, and why");
  command.add_option("--batch", o.batch, "Batch")->capture_default_str();
  command.add_option("--heads", o.heads, "Query heads")->capture_default_str();
  command.add_option("--heads-k", o.heads_k, "Key and value heads (default: as many)");
  command.add_option("--seq-q", o.seq_q, "Queries")->capture_default_str();
  command.add_option("--seq-k", o.seq_k, "Keys (default: as many)");
  command.add_option("--dim", o.dim, "Head size of queries and keys")->capture_default_str();
  command.add_option("--dim-v", o.dim_v, "Head size of values (default: the same)");
  add_choice(command, "--dtype", o.dtype, kDTypes, "Type to compute in (default: f32)");
  command.add_flag("--backward", o.backward, "Explain backward, with every gradient");
  command.add_flag("--lse", o.lse, "Forward with a log-sum-exp output");
  command.add_flag("--alibi", o.alibi, "With ALiBi slopes");
  command.add_flag("--bias", o.bias, "With a bias");
  command.add_flag("--mask", o.mask, "With a mask");
  command.add_flag("--sink", o.sink, "With sinks");
  command.add_option("--arch", o.arch, "CUDA on this architecture, sm_80 to sm_120; needs no GPU")->type_name("NAME");
  command.add_flag("--deterministic", o.execution.deterministic, "CUDA backward that is bitwise reproducible");
  add_attention(command, o.attention, o.execution, o.layout);
  command.callback([&o, &job] { job = [&o] { return run_explain(o); }; });
}

void add_check(CLI::App& app, CheckOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("check", "Self-test: random problems against a float64 oracle");
  add_unsigned(command, "--count", o.count, "Problems to check")->capture_default_str();
  add_unsigned(command, "--seed", o.seed, "Which sequence of problems")->capture_default_str();
  add_unsigned(command, "--first", o.first, "Number of the first problem")->capture_default_str();
  add_unsigned(command, "--only", o.only, "Check this problem alone and describe it")
      ->excludes("--first")
      ->excludes("--count");
  CLI::Option* forever =
      command.add_flag("--forever", o.forever, "Until a problem fails, memory grows or a signal comes")
          ->excludes("--count")
          ->excludes("--only");
  command.add_option("--minutes", o.minutes, "With --forever: for so long at most")->needs(forever);
  command.add_flag("--repeat", o.repeat, "With --forever: the same 1000 problems again and again, to see a leak")
      ->needs(forever);
  command
      .add_option("--max-growth", o.max_growth,
                  "With --forever: MiB that memory may grow by (default: 64; CUDA without --repeat: 1024)")
      ->needs(forever);
  CLI::Option* cache = command.add_flag("--cache", o.cache, "Calls over a KV cache, instead of forward and backward");
  command
      .add_flag("--plain", o.plain, "Problems for the fastest CUDA kernels alone: 16-bit, aligned, longer, no options")
      ->excludes(cache);
  add_threads(command, o.threads);
  add_choice(command, "--device", o.device, kCheckedDevices, "What is checked")->capture_default_str();
  add_unsigned(command, "--head-sizes", o.head_sizes, "CUDA: pairs of head sizes to compile kernels for; 0: any")
      ->capture_default_str();
  command.callback([&o, &job] { job = [&o] { return run_check(o); }; });
}

// Problems of several lengths, forward and backward.
void add_grid(CLI::App& command, GridOptions& o) {
  ExplainOptions& problem = o.problem;
  problem.dtype = DType::bf16, problem.heads = 16, problem.dim = 128;
  add_choice(command, "--dtype", problem.dtype, kDTypes, "Type of the tensors (default: bf16)");
  command.add_option("--batch", problem.batch, "Batch")->capture_default_str();
  command.add_option("--heads", problem.heads, "Query heads")->capture_default_str();
  command.add_option("--heads-k", problem.heads_k, "Key and value heads (default: as many)");
  command.add_option("--head-dim", problem.dim, "Head size of queries and keys")->capture_default_str();
  command.add_option("--head-dim-v", problem.dim_v, "Head size of values (default: the same)");
  command.add_option("--len", o.lengths, "Lengths of queries")->delimiter(',')->capture_default_str();
  command.add_option("--len-k", problem.seq_k, "Length of keys (default: as of queries)");
  command.add_flag("--causal", problem.attention.causal, "A query sees no key after its own position");
  add_choice(command, "--align", problem.attention.alignment, kAlignments,
             "Where queries stand against keys of another length");
  add_window(command, problem.attention);
  command.add_option("--json", o.json, "Also write everything to this file")->type_name("FILE");
}

void add_io(CLI::App& app, IoOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand(
      "io", "Bytes moved through device memory, and operations that masks save: naive attention beside this one");
  add_grid(command, o);
  command.add_option("--arch", o.problem.arch, "Plans for this architecture (default: the GPU's, or sm_90a)")
      ->type_name("NAME");
  command.add_flag("--no-measure", o.no_measure, "Do not run ncu, where it and a GPU are there");
  command.add_option("--launch", o.launch, "Compute once on the GPU and print nothing: what ncu is run on")
      ->check(CLI::IsMember({"forward", "backward"}).description(""))
      ->type_name("forward|backward");
  command.callback([&o, &job] { job = [&o] { return run_io(o); }; });
}

void add_memory(CLI::App& app, GridOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("memory", "Memory of a call, beside that of naive attention");
  add_grid(command, o);
  command.add_option("--arch", o.problem.arch, "On CUDA devices of this architecture (default: on the CPU)")
      ->type_name("NAME");
  add_threads(command, o.problem.execution.num_threads);
  command.callback([&o, &job] { job = [&o] { return run_memory(o); }; });
}

void add_demo(CLI::App& app, DemoOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("demo", "Accuracy, speed and memory against naive attention");
  command.add_option("--max-seq", o.max_seq, "Longest sequence of the table")->capture_default_str();
  add_threads(command, o.threads);
  command.callback([&o, &job] { job = [&o] { return run_demo(o); }; });
}

// The values of a dimension of the grid.
void add_sizes(CLI::App& command, const std::string& flag, std::vector<int64_t>& sizes, const std::string& help) {
  command.add_option(flag, sizes, help)->delimiter(',')->type_name("N,...");
}

void add_words(CLI::App& command, const char* flag, auto& value, std::vector<std::string> words, const char* help) {
  command.add_option(flag, value, help)->delimiter(',')->check(CLI::IsMember(std::move(words)));
}

// What is measured, and where.
void add_bench_grid(CLI::App& command, BenchOptions& o, const std::string& example) {
  command.footer(
      "Each flag with N,... is a dimension of the grid. A preset gives what no flag gives:\n"
      "  paper     16384 tokens, hidden 2048, head sizes 64, 128, 256, lengths 512 to 16384, causal or not\n"
      "  training  batch 1 to 16, hidden 768 to 4096, head size 64, lengths 512 to 4096, causal\n"
      "  decode    one query over 1024 to 65536 keys, batch 1 to 32, 32 heads over 8, pages or not\n\n" +
      example);
  add_words(command, "--preset", o.preset, {"paper", "training", "decode"}, "A grid by name");
  add_words(command, "--direction", o.directions, {"forward", "backward", "decode"},
            "What is measured (default: forward)");
  add_choice(command, "--device", o.device, kDevices, "Where (default: auto, a GPU where there is one)");
  add_choice(command, "--dtype", o.dtypes, kDTypes, "Types (default: f32, on a GPU bf16)")->delimiter(',');
  add_sizes(command, "--batch", o.batch, "Batch (default: 1)");
  command.add_option("--tokens", o.tokens, "Tokens of a batch, whose size follows from the length")
      ->excludes("--batch");
  add_sizes(command, "--heads", o.heads, "Query heads (default: 8)");
  add_sizes(command, "--hidden", o.hidden, "Hidden size: as many heads as fill it");
  command.get_option("--hidden")->excludes("--heads");
  add_sizes(command, "--heads-k", o.heads_k, "Key and value heads (default: as many)");
  add_sizes(command, "--head-dim", o.head_dim, "Head size (default: 64)");
  add_sizes(command, "--head-dim-v", o.head_dim_v, "Head size of values (default: the same)");
  add_sizes(command, "--len", o.len, "Keys, and queries without --len-q (default: 512,1024,2048)");
  add_sizes(command, "--len-q", o.len_q, "Queries (default: as many as keys; decode: 1)");
  add_sizes(command, "--page-size", o.page_size, "Decode: rows of a page; 0: a contiguous cache (default: 0)");
  add_sizes(command, "--causal", o.causal, "0, 1 or both (default: 0)");
  add_threads(command, o.threads);
}

void add_bench(CLI::App& app, BenchOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("bench", "Time, speed and memory over a grid of problems, on CPU or GPU");
  add_bench_grid(command, o, "cuflash bench --direction forward,backward --len 512,2048 --causal 0,1 --json now.json");
  add_words(command, "--contestant", o.contestants, {"cuflash", "naive"},
            "Who is measured (default: all; a GPU has no naive)");
  command.add_option("--seconds", o.seconds, "For each point")->capture_default_str();
  command.add_option("--json", o.json, "Write the results, for --compare and python -m cuflash.plot")
      ->type_name("FILE");
  command.add_option("--csv", o.csv, "Write the results as a table of all figures")->type_name("FILE");
  command.add_option("--markdown", o.markdown, "Write the results as a page")->type_name("FILE");
  command.add_option("--compare", o.compare, "Fail where a point is slower than in this file of --json")
      ->type_name("FILE");
  command.add_option("--tolerance", o.tolerance, "Of --compare: a slowdown that is allowed")->capture_default_str();
  command.callback([&o, &job] { job = [&o] { return run_bench(o); }; });
}

void add_tune(CLI::App& app, TuneOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand(
      "tune", "Find the fastest tiles, stages and splits for problems on this machine, for all later calls");
  add_bench_grid(command, o.grid,
                 "cuflash tune --direction forward,backward --len 512,2048 --causal 0,1 --seconds 300");
  command.add_option("--seconds", o.seconds, "For everything")->capture_default_str();
  CLI::Option* dry_run = command.add_flag("--dry-run", o.dry_run, "Show what would be tried, and what not and why");
  command.add_flag("--compile", o.compile, "With --dry-run: compile it, too; needs NVRTC and no GPU")->needs(dry_run);
  command.add_option("--arch", o.arch, "With --dry-run: for GPUs of this architecture, sm_80 to sm_120; needs no GPU")
      ->type_name("NAME")
      ->needs(dry_run);
  command.callback([&o, &job] { job = [&o] { return run_tune(o); }; });
}

void add_info(CLI::App& app, InfoOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("info", "Versions, CPU, threads, GPUs, compiler and cache");
  command.add_flag("--measure", o.measure, "Time the first compile of a kernel and its load from disk");
  command.callback([&o, &job] { job = [&o] { return run_info(o); }; });
}

void add_cache(CLI::App& app, Job& job) {
  CLI::App& command = *app.add_subcommand("cache", "Compiled GPU kernels and tuned choices on this machine's disk");
  command.require_subcommand(1);
  const auto add = [&](const char* name, const char* help, CacheAction action) {
    command.add_subcommand(name, help)->callback([&job, action] { job = [action] { return run_cache(action); }; });
  };
  add("list", "What is there", CacheAction::list);
  add("clear", "Remove it", CacheAction::clear);
}

void add_pack(CLI::App& app, PackOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("pack", "Compile GPU kernels into one file, for CUFLASH_PACK; needs no GPU");
  command.add_option("--arch", o.archs, "Architectures, for example sm_90a,sm_80: the kernels of common problems")
      ->delimiter(',');
  command.add_option("--kernel", o.kernels, "One more kernel, by the name that an error or explain gives")
      ->type_name("NAME");
  add_choice(command, "--dtype", o.dtypes, kDTypes, "Of those for --arch, these types alone")->delimiter(',');
  command.add_option("--dim", o.dims, "Of those for --arch, these head sizes alone")->delimiter(',');
  command.add_option("--threads", o.threads, "Compiles at a time")->capture_default_str()->check(CLI::Range(1, 256));
  command.add_option("-o,--out", o.out, "The file")->required()->type_name("FILE");
  command.callback([&o, &job] { job = [&o] { return run_pack(o); }; });
}

void add_support(CLI::App& app, SupportOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("support", "What is computed where: types, sizes, options, architectures");
  command.add_flag("--markdown", o.markdown, "As the page docs/support.md");
  command.callback([&o, &job] { job = [&o] { return run_support(o); }; });
}

// As a shell would take it again.
std::string typed(int argc, char** argv) {
  std::string command = "cuflash";
  for (int n = 1; n < argc; ++n) {
    const std::string word = argv[n];
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || std::string_view("-_=,./:").find(static_cast<char>(c)) != std::string_view::npos;
    });
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    command += " " + (plain ? word : quoted + "'");
  }
  return command;
}

int fail(int code, const std::string& message) {
  std::cerr << "cuflash: " << message << "\n";
  return code;
}

int run(const Job& job) {
  try {
    const int code = job();
    std::cout.flush();
    return std::cout ? code : fail(kExitUsage, "cannot write to the standard output");
  } catch (const UsageError& error) {
    return fail(kExitUsage, error.what());
  } catch (const FlashAttentionError& error) {
    return fail(kExitFailed, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kExitFailed, "this machine has not enough memory for that");
  } catch (const std::exception& error) {
    return fail(kExitFailed, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  remove_temporary_files_at_end_signals();
  CLI::App app("Exact, IO-aware attention", "cuflash");
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", cuflash_version());
  Job job;
  AttendOptions attend;
  ExplainOptions explain;
  BenchOptions bench;
  bench.command = typed(argc, argv);
  TuneOptions tune;
  CheckOptions check;
  IoOptions io;
  GridOptions memory;
  DemoOptions demo;
  InfoOptions info;
  PackOptions pack;
  SupportOptions support;
  add_demo(app, demo, job);
  add_bench(app, bench, job);
  add_tune(app, tune, job);
  add_info(app, info, job);
  add_check(app, check, job);
  add_explain(app, explain, job);
  add_io(app, io, job);
  add_memory(app, memory, job);
  add_attend(app, attend, job);
  add_cache(app, job);
  add_pack(app, pack, job);
  add_support(app, support, job);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(kExitUsage, std::string(error.what()) + " (cuflash --help lists what there is)");
  }
  if (!job)
    return fail(kExitUsage,
                "a command is needed: demo, bench, tune, info, check, explain, io, memory, attend, cache, pack or "
                "support (cuflash --help says more)");
  return run(job);
}
