// The command line: flags become options, failures become one sentence and an exit code.
#include <algorithm>
#include <cctype>
#include <functional>
#include <iostream>
#include <new>

#include "cli/arguments/arguments.h"
#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "cli/arguments/flags.h"
#include "cli/terminal/end_signals.h"
#include "cli/tune/option_sets.h"
#include "files/error.h"
#include "support/text.h"

namespace {

using namespace cuflash;
using namespace cuflash::cli;

using Job = std::function<int()>;

// Flags that decide which keys a query sees.
void add_mask(CLI::App& command, Attention& attention) {
  add_causal(command, attention.causal);
  add_choice(command, "--align", attention.alignment, kAlignments, "How queries align with keys of another length");
  add_window(command, attention);
}

// Flags for the scalar options of attention and for its execution.
void add_attention(CLI::App& command, Attention& attention, Execution& execution, Layout& layout) {
  add_mask(command, attention);
  add_decimal(command, "--softcap", attention.softcap, "Limit scores to (-X, X) by X*tanh(s/X)");
  add_decimal(command, "--scale", attention.scale, "Factor of the scores (default: 1/sqrt(D))");
  add_decimal(command, "--dropout", attention.dropout_p, "Probability of dropping a weight, in [0, 1)");
  add_unsigned(command, "--seed", attention.dropout_seed, "Seed of dropout");
  add_unsigned(command, "--offset", attention.dropout_offset, "Offset of dropout's random numbers");
  add_choice(command, "--layout", layout, kLayouts,
             "Order of the dimensions of q, k, v, the output and their gradients");
  add_choice(command, "--device", execution.device, kDevices, "Where to compute");
  add_threads(command, execution.num_threads);
}

void add_attend(CLI::App& app, AttendOptions& o, Job& job) {
  CLI::App& command =
      *app.add_subcommand("attend", "Attention on .npy and .safetensors files: forward and, on request, backward");
  command.footer(
      "FILE is a .npy file, FILE.safetensors, or FILE.safetensors:TENSOR. Without a tensor's name an input is the "
      "tensor\n"
      "named like its flag (q for --q, grad_out for --grad-out) or the file's only one, and an output is named like "
      "its\n"
      "flag (out, lse, dq, ...). Outputs that name the same .safetensors file share it; its previous content is "
      "replaced.\n"
      "Outputs to .safetensors have the type of the computation, to .npy float32 (float64 for f64).\n\n"
      "cuflash attend --q in.safetensors --k in.safetensors --v in.safetensors:values -o out.safetensors");
  add_file(command, "--q", o.q, "Queries [B, H, S, D], or packed [T, H, D]")->required();
  add_file(command, "--k", o.k, "Keys")->required();
  add_file(command, "--v", o.v, "Values")->required();
  const auto add_files = [&](const char* group,
                             std::initializer_list<std::tuple<const char*, std::string*, const char*>> files) {
    for (const auto& [flag, path, help] : files) add_file(command, flag, *path, help)->group(group);
  };
  add_files("Inputs", {{"--grad-out", &o.grad_out, "Gradient of the output: runs backward"},
                       {"--grad-lse", &o.grad_lse, "Gradient of the log-sum-exp"},
                       {"--alibi", &o.alibi, "ALiBi slopes [H] or [B, H]"},
                       {"--bias", &o.bias, "Added to the scores: [B or 1, H or 1, Sq or 1, Sk]"},
                       {"--mask", &o.mask, "Bool, shaped like a bias; false hides the key"},
                       {"--sink", &o.sink, "One logit per head [H] that only joins the softmax sum"},
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
  add_value(command, "--dtype", o.dtype, dtype_named, kDTypeNames, "Type to compute in (default: that of q)");
  add_attention(command, o.attention, o.execution, o.layout);
  command.callback([&o, &job] { job = [&o] { return run_attend(o); }; });
}

// The flags of `cuflash explain`: one length for queries and keys, unless one of them has a flag of its own.
struct ExplainFlags : ExplainOptions {
  std::optional<int64_t> len_q;

  ExplainOptions options() const {
    ExplainOptions o = *this;
    if (len_q) o.seq_k = o.seq_k.value_or(o.seq_q), o.seq_q = *len_q;
    return o;
  }
};

void add_explain(CLI::App& app, ExplainFlags& o, Job& job) {
  CLI::App& command = *app.add_subcommand("explain", "Show which backend and kernel a problem gets, and why");
  add_problem(command, o, {0}, {});
  add_size(command, "--len", o.seq_q, {0}, "Length of queries and keys");
  add_size(command, "--len-q", o.len_q, {0}, "Length of queries, if different");
  add_size(command, "--len-k", o.seq_k, {0}, "Length of keys, if different");
  command.add_flag("--backward", o.backward, "Explain backward, with every gradient");
  command.add_flag("--lse", o.lse, "Forward with a log-sum-exp output");
  command.add_flag("--alibi", o.alibi, "With ALiBi slopes");
  command.add_flag("--bias", o.bias, "With a bias");
  command.add_flag("--mask", o.mask, "With a mask");
  command.add_flag("--sink", o.sink, "With sinks");
  add_arch(command, o.arch, "CUDA on this architecture, sm_80 to sm_120; needs no GPU");
  command.add_flag("--deterministic", o.execution.deterministic, "CUDA backward that is bitwise reproducible");
  add_attention(command, o.attention, o.execution, o.layout);
  command.callback([&o, &job] { job = [&o] { return run_explain(o.options()); }; });
}

void add_check(CLI::App& app, CheckOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("check", "Self-test: random problems against a float64 oracle");
  add_unsigned(command, "--count", o.count, "Problems to check")->default_str(std::to_string(o.count));
  add_unsigned(command, "--seed", o.seed, "Which sequence of problems")->default_str(std::to_string(o.seed));
  add_unsigned(command, "--first", o.first, "Number of the first problem")->default_str(std::to_string(o.first));
  add_unsigned(command, "--only", o.only, "Check this problem alone and describe it")
      ->excludes("--first")
      ->excludes("--count");
  CLI::Option* forever =
      command.add_flag("--forever", o.forever, "Check until a problem fails, memory grows or a signal arrives")
          ->excludes("--count")
          ->excludes("--only");
  add_decimal(command, "--minutes", o.minutes, "With --forever: stop after this time")->needs(forever);
  command.add_flag("--repeat", o.repeat, "With --forever: repeat the same 1000 problems, to find leaks")
      ->needs(forever);
  add_size(command, "--max-growth", o.max_growth, {0, CheckOptions::kMaxGrowth},
           "With --forever: allowed growth of memory in MiB (default: 64; CUDA without --repeat: 1024)")
      ->needs(forever);
  CLI::Option* cache =
      command.add_flag("--cache", o.cache, "Check calls over a KV cache instead of forward and backward");
  CLI::Option* plain = command
                           .add_flag("--plain", o.plain,
                                     "Only problems for the fastest CUDA kernels: 16-bit, aligned, longer, no options")
                           ->excludes(cache);
  command.add_flag("--options", o.options, "As --plain, with options: softcap, ALiBi, bias, mask, dropout")
      ->excludes(cache)
      ->excludes(plain);
  add_threads(command, o.threads);
  add_file(command, "--failures", o.failures,
           "Also append every failing problem to this file, as soon as it is found, with the command that repeats it")
      ->excludes(forever);
  add_choice(command, "--device", o.device, kCheckedDevices, "Device to check")->default_str("cpu");
  CLI::Option* sets = add_unsigned(command, "--kernel-sets", o.kernel_sets,
                                   "CUDA: sets of types, head sizes and options to compile kernels for; 0: any")
                          ->default_str(std::to_string(o.kernel_sets));
  add_unsigned(command, "--head-sizes", o.head_sizes,
               "CUDA, instead of --kernel-sets: pairs of head sizes to compile kernels for, with all types; 0: any")
      ->excludes(sets);
  command.callback([&o, &job] { job = [&o] { return run_check(o); }; });
}

std::string list_text(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += join(text.empty() ? "" : ",", number);
  return text;
}

// Flags of problems with several lengths, forward and backward.
void add_grid(CLI::App& command, GridOptions& o) {
  ExplainOptions& problem = o.problem;
  problem.dtype = DType::bf16, problem.heads = 16, problem.dim = 128;
  const Range lengths{1, GridOptions::kLongest};
  add_problem(command, problem, {1, GridOptions::kMaxHeads}, {1, GridOptions::kMaxHeads});
  add_sizes(command, "--len", o.lengths, lengths, "Lengths of queries and keys")->default_str(list_text(o.lengths));
  add_size(command, "--len-q", o.len_q, lengths, "Length of queries of every problem, if different");
  add_size(command, "--len-k", problem.seq_k, lengths, "Length of keys of every problem, if different");
  add_mask(command, problem.attention);
  add_file(command, "--json", o.json, "Also write everything to this file");
}

void add_io(CLI::App& app, IoOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand(
      "io", "Bytes moved through device memory and operations that masks save, compared with naive attention");
  add_grid(command, o);
  add_arch(command, o.problem.arch, "Plans for this architecture (default: the GPU's, or sm_90a)");
  command.add_flag("--no-measure", o.no_measure, "Do not run ncu, even if it and a GPU are found");
  add_value(command, "--launch", o.launch, word_of({"forward", "backward"}), "forward|backward",
            "Compute once on the GPU and print nothing; ncu runs this");
  command.callback([&o, &job] { job = [&o] { return run_io(o); }; });
}

void add_memory(CLI::App& app, GridOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("memory", "Memory of a call, compared with naive attention");
  add_grid(command, o);
  add_arch(command, o.problem.arch, "On CUDA devices of this architecture (default: on the CPU)");
  add_threads(command, o.problem.execution.num_threads);
  command.callback([&o, &job] { job = [&o] { return run_memory(o); }; });
}

void add_demo(CLI::App& app, DemoOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("demo", "Accuracy, speed and memory against naive attention");
  add_size(command, "--max-len", o.max_len, {DemoOptions::kMinLen, DemoOptions::kMaxLen},
           "Longest sequence of the table");
  add_threads(command, o.threads);
  command.callback([&o, &job] { job = [&o] { return run_demo(o); }; });
}

// Flags of the grid of problems and of the device.
void add_bench_grid(CLI::App& command, BenchOptions& o, const std::string& example) {
  command.footer(
      "Each flag with N,... is a dimension of the grid. A preset sets the flags that are not given:\n"
      "  paper     16384 tokens, hidden 2048, head sizes 64, 128, 256, lengths 512 to 16384, causal or not\n"
      "  training  batch 1 to 16, hidden 768 to 4096, head size 64, lengths 512 to 4096, causal\n"
      "  decode    one query over 1024 to 65536 keys, batch 1 to 32, 32 heads over 8, pages or not\n\n" +
      example);
  const Range sizes{1, BenchOptions::kLargestSize};
  add_value(command, "--preset", o.preset, word_of({"paper", "training", "decode"}), "paper|training|decode",
            "A grid by name");
  add_list(command, "--direction", o.directions, word_of({"forward", "backward", "decode"}),
           "forward|backward|decode,...", "What to measure (default: forward)");
  add_choice(command, "--device", o.device, kDevices, "Where (default: auto, a GPU if there is one)");
  add_list(command, "--dtype", o.dtypes, dtype_named, std::string(kDTypeNames) + ",...",
           "Types (default: f32; on a GPU bf16)");
  CLI::Option* batch = add_sizes(command, "--batch", o.batch, sizes, "Batch (default: 1)");
  add_size(command, "--tokens", o.tokens, sizes, "Tokens per batch; the batch size follows from the length")
      ->excludes(batch);
  CLI::Option* heads = add_sizes(command, "--heads", o.heads, sizes, "Query heads (default: 8)");
  add_sizes(command, "--hidden", o.hidden, sizes, "Hidden size: as many heads as fit it")->excludes(heads);
  add_sizes(command, "--heads-k", o.heads_k, sizes, "Key and value heads (default: the same)");
  add_sizes(command, "--head-dim", o.head_dim, sizes, "Head size of queries and keys (default: 64)");
  add_sizes(command, "--head-dim-v", o.head_dim_v, sizes, "Head size of values (default: the same)");
  add_sizes(command, "--len", o.len, sizes, "Lengths of queries and keys (default: 512,1024,2048; decode: of keys)");
  add_sizes(command, "--len-q", o.len_q, sizes, "Length of queries, if different (default of decode: 1)");
  add_sizes(command, "--len-k", o.len_k, sizes, "Length of keys, if different");
  add_sizes(command, "--page-size", o.page_size, {0, sizes.most},
            "Decode: rows per page; 0: a contiguous cache (default: 0)");
  const auto zero_or_one = [](const std::string& flag, const std::string& text) {
    return int64_t{yes_or_no(flag, text)};
  };
  add_list(command, kCausal, o.causal, zero_or_one, "[0|1,...]",
           "A query sees no key after its own position: 0, 1 or 0,1");
  add_threads(command, o.threads);
}

void add_bench(CLI::App& app, BenchOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("bench", "Time, speed and memory over a grid of problems, on CPU or GPU");
  add_bench_grid(command, o, "cuflash bench --direction forward,backward --len 512,2048 --causal 0,1 --json now.json");
  add_list(command, "--contestant", o.contestants, word_of({"cuflash", "naive"}), "cuflash|naive,...",
           "What to compare (default: all; there is no naive on a GPU)");
  add_decimal(command, "--seconds", o.seconds, "Time for each point")->default_str("0.3");
  add_file(command, "--json", o.json, "Write the results, for --compare and python -m cuflash.plot");
  add_file(command, "--csv", o.csv, "Write the results as a table of all figures");
  add_file(command, "--markdown", o.markdown, "Write the results as a page");
  add_file(command, "--compare", o.compare, "Fail if a point is slower than in this file, written by --json");
  add_decimal(command, "--tolerance", o.tolerance, "With --compare: the slowdown that is allowed")->default_str("0.05");
  command.callback([&o, &job] { job = [&o] { return run_bench(o); }; });
}

void add_tune(CLI::App& app, TuneOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand(
      "tune", "Find the fastest tiles, stages and splits for problems on this machine, for all later calls");
  add_bench_grid(command, o.grid,
                 "cuflash tune --direction forward,backward --len 512,2048 --causal 0,1 --seconds 300");
  const auto take_sets = [&o](const CLI::results_t& words) {
    o.option_sets.clear();
    for (const std::string& word : words) o.option_sets.push_back(option_set("--option", word));
    return true;
  };
  CLI::Option* option = command.add_option("--option", CLI::callback_t(take_sets),
                                           "CUDA: problems with this set of options; several sets with spaces between");
  option->type_name("softcap|alibi|bias|mask|dropout|sinks,...")->expected(CLI::detail::expected_max_vector_size);
  command.add_flag("--all-options", o.all_options, "CUDA: problems with each option, and with the usual pairs")
      ->excludes(option);
  add_decimal(command, "--seconds", o.seconds, "Time for the whole search")->default_str("60");
  add_file(command, "--csv", o.csv, "Write the times of all candidates, for tools/tile_tables.py");
  CLI::Option* dry_run =
      command.add_flag("--dry-run", o.dry_run, "Show what would be tried, and why the rest would not");
  command.add_flag("--compile", o.compile, "With --dry-run: compile it too; needs NVRTC but no GPU")->needs(dry_run);
  add_arch(command, o.arch, "With --dry-run: for GPUs of this architecture, sm_80 to sm_120; needs no GPU")
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
  const auto add = [&](const char* name, const char* help, CacheAction action) {
    command.add_subcommand(name, help)->callback([&job, action] { job = [action] { return run_cache(action); }; });
  };
  add("list", "List them", CacheAction::list);
  add("clear", "Remove them", CacheAction::clear);
}

// Words are not split at commas, which kernel names contain.
void add_kernels(CLI::App& command, std::vector<std::string>& kernels) {
  const auto take = [&kernels](const CLI::results_t& words) {
    for (const std::string& word : words) kernels.push_back(kernel_name("--kernel", word));
    return true;
  };
  command
      .add_option("--kernel", CLI::callback_t(take),
                  "One more kernel, by the name that an error message or explain prints")
      ->type_name("NAME")
      ->expected(CLI::detail::expected_max_vector_size);
}

void add_pack(CLI::App& app, PackOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("pack", "Compile GPU kernels into one file, for CUFLASH_PACK; needs no GPU");
  add_list(command, "--arch", o.archs, arch_name, "NAME,...",
           "Architectures, for example sm_90a,sm_80: the kernels of common problems");
  add_kernels(command, o.kernels);
  add_list(command, "--dtype", o.dtypes, dtype_named, std::string(kDTypeNames) + ",...",
           "With --arch: only these types");
  add_list(command, "--head-dim", o.dims, whole_in({}), "N,...", "With --arch: only these head sizes");
  const auto threads = [](const std::string& flag, const std::string& text) {
    return static_cast<int32_t>(whole_number(flag, text, 1, 256));
  };
  add_value(command, "--threads", o.threads, threads, "N", "Parallel compilations")
      ->default_str(std::to_string(o.threads));
  add_file(command, "-o,--out", o.out, "The file to write")->required();
  command.callback([&o, &job] { job = [&o] { return run_pack(o); }; });
}

void add_support(CLI::App& app, SupportOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("support", "What is computed where: types, sizes, options, architectures");
  command.add_flag("--markdown", o.markdown, "As Markdown: the page docs/support.md");
  command.callback([&o, &job] { job = [&o] { return run_support(o); }; });
}

// The command line, quoted so that a shell reads the same words.
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
  } catch (const files::FileError& error) {
    return fail(kExitUsage, error.what());
  } catch (const FlashAttentionError& error) {
    return fail(kExitFailed, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kExitFailed, "this machine does not have enough memory for that");
  } catch (const std::exception& error) {
    return fail(kExitFailed, error.what());
  }
}

// The exit code if there is nothing to run: help was requested, or the command line is wrong.
std::optional<int> parse(CLI::App& app, const std::vector<std::string>& typed) {
  Arguments arguments;
  try {
    arguments = read_arguments(shape_of(app), typed);
    std::reverse(arguments.words.begin(), arguments.words.end());  // CLI11 wants them reversed
    app.parse(std::move(arguments.words));
    return std::nullopt;
  } catch (const UsageError& error) {
    std::string message = error.what();
    for (const auto& [older, newer] : arguments.renamed)
      if (message.starts_with(newer + " ")) message += join(" (", older, " is the older name of ", newer, ")");
    return fail(kExitUsage, message);
  } catch (const CLI::ExcludesError& error) {
    return fail(kExitUsage, join(error.what(), "; give one of them"));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(kExitUsage, join(error.what(), " (", arguments.command, " --help lists its flags)"));
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
  ExplainFlags explain;
  BenchOptions bench;
  bench.command = typed(argc, argv);
  TuneOptions tune;
  tune.grid.command = bench.command;
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
  const auto parsed = parse(app, {argv + 1, argv + argc});
  return parsed ? *parsed : run(job);
}
