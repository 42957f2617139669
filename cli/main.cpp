// The command line: flags become options, failures become one sentence and an exit code.
#include <algorithm>
#include <cctype>
#include <functional>
#include <iostream>
#include <new>

#include "cli/arguments/arguments.h"
#include "cli/arguments/exit.h"
#include "cli/arguments/flags.h"
#include "cli/commands.h"
#include "cli/terminal/end_signals.h"
#include "files/error.h"
#include "support/text.h"

namespace {

using namespace cuflash;
using namespace cuflash::cli;

using Job = std::function<int()>;

// Which keys a query sees.
void add_mask(CLI::App& command, Attention& attention) {
  add_causal(command, attention.causal);
  add_choice(command, "--align", attention.alignment, kAlignments,
             "Where queries stand against keys of another length");
  add_window(command, attention);
}

// The flags that describe attention beside its tensors, and where it runs.
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
      *app.add_subcommand("attend", "Attention on .npy and .safetensors files: forward, and backward where asked for");
  command.footer(
      "FILE is a .npy file, FILE.safetensors, or FILE.safetensors:TENSOR. Without a tensor's name an input is the "
      "tensor\n"
      "named like its flag (q for --q, grad_out for --grad-out) or the file's only one, and an output is named like "
      "its\n"
      "flag (out, lse, dq, ...). Outputs that name one .safetensors file share it; what it held before is replaced.\n"
      "Outputs are written to .safetensors in the type computed in, to .npy as float32 (float64 for f64).\n\n"
      "cuflash attend --q in.safetensors --k in.safetensors --v in.safetensors:values -o out.safetensors");
  add_file(command, "--q", o.q, "Queries [B, H, S, D], or packed [T, H, D]")->required();
  add_file(command, "--k", o.k, "Keys")->required();
  add_file(command, "--v", o.v, "Values")->required();
  const auto add_files = [&](const char* group,
                             std::initializer_list<std::tuple<const char*, std::string*, const char*>> files) {
    for (const auto& [flag, path, help] : files) add_file(command, flag, *path, help)->group(group);
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
  add_value(command, "--dtype", o.dtype, dtype_named, kDTypeNames, "Type to compute in (default: what q holds)");
  add_attention(command, o.attention, o.execution, o.layout);
  command.callback([&o, &job] { job = [&o] { return run_attend(o); }; });
}

// As the flags name it: one length for queries and keys, unless one of them has its own.
struct ExplainFlags : ExplainOptions {
  std::optional<int64_t> len_q;

  ExplainOptions options() const {
    ExplainOptions o = *this;
    if (len_q) o.seq_k = o.seq_k.value_or(o.seq_q), o.seq_q = *len_q;
    return o;
  }
};

void add_explain(CLI::App& app, ExplainFlags& o, Job& job) {
  CLI::App& command = *app.add_subcommand("explain", "Which backend and kernel a problem gets, and why");
  add_problem(command, o, {0}, {});
  add_size(command, "--len", o.seq_q, {0}, "Length of queries and keys");
  add_size(command, "--len-q", o.len_q, {0}, "Queries, where they have another length");
  add_size(command, "--len-k", o.seq_k, {0}, "Keys, where they have another length");
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
      command.add_flag("--forever", o.forever, "Until a problem fails, memory grows or a signal comes")
          ->excludes("--count")
          ->excludes("--only");
  add_decimal(command, "--minutes", o.minutes, "With --forever: for so long at most")->needs(forever);
  command.add_flag("--repeat", o.repeat, "With --forever: the same 1000 problems again and again, to see a leak")
      ->needs(forever);
  add_size(command, "--max-growth", o.max_growth, {0, CheckOptions::kMostGrowth},
           "With --forever: MiB that memory may grow by (default: 64; CUDA without --repeat: 1024)")
      ->needs(forever);
  CLI::Option* cache = command.add_flag("--cache", o.cache, "Calls over a KV cache, instead of forward and backward");
  command
      .add_flag("--plain", o.plain, "Problems for the fastest CUDA kernels alone: 16-bit, aligned, longer, no options")
      ->excludes(cache);
  add_threads(command, o.threads);
  add_choice(command, "--device", o.device, kCheckedDevices, "What is checked")->default_str("cpu");
  add_unsigned(command, "--head-sizes", o.head_sizes, "CUDA: pairs of head sizes to compile kernels for; 0: any")
      ->default_str(std::to_string(o.head_sizes));
  command.callback([&o, &job] { job = [&o] { return run_check(o); }; });
}

std::string list_text(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += join(text.empty() ? "" : ",", number);
  return text;
}

// Problems of several lengths, forward and backward.
void add_grid(CLI::App& command, GridOptions& o) {
  ExplainOptions& problem = o.problem;
  problem.dtype = DType::bf16, problem.heads = 16, problem.dim = 128;
  const Range lengths{1, GridOptions::kLongest};
  add_problem(command, problem, {1, GridOptions::kMostHeads}, {1, GridOptions::kMostHeads});
  add_sizes(command, "--len", o.lengths, lengths, "Lengths of queries and keys")->default_str(list_text(o.lengths));
  add_size(command, "--len-q", o.len_q, lengths, "Queries of every problem, where they have another length");
  add_size(command, "--len-k", problem.seq_k, lengths, "Keys of every problem, where they have another length");
  add_mask(command, problem.attention);
  add_file(command, "--json", o.json, "Also write everything to this file");
}

void add_io(CLI::App& app, IoOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand(
      "io", "Bytes moved through device memory, and operations that masks save: naive attention beside this one");
  add_grid(command, o);
  add_arch(command, o.problem.arch, "Plans for this architecture (default: the GPU's, or sm_90a)");
  command.add_flag("--no-measure", o.no_measure, "Do not run ncu, where it and a GPU are there");
  add_value(command, "--launch", o.launch, word_of({"forward", "backward"}), "forward|backward",
            "Compute once on the GPU and print nothing: what ncu is run on");
  command.callback([&o, &job] { job = [&o] { return run_io(o); }; });
}

void add_memory(CLI::App& app, GridOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("memory", "Memory of a call, beside that of naive attention");
  add_grid(command, o);
  add_arch(command, o.problem.arch, "On CUDA devices of this architecture (default: on the CPU)");
  add_threads(command, o.problem.execution.num_threads);
  command.callback([&o, &job] { job = [&o] { return run_memory(o); }; });
}

void add_demo(CLI::App& app, DemoOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("demo", "Accuracy, speed and memory against naive attention");
  add_size(command, "--max-len", o.max_len, {DemoOptions::kLeastLen, DemoOptions::kMostLen},
           "Longest sequence of the table");
  add_threads(command, o.threads);
  command.callback([&o, &job] { job = [&o] { return run_demo(o); }; });
}

// What is measured, and where.
void add_bench_grid(CLI::App& command, BenchOptions& o, const std::string& example) {
  command.footer(
      "Each flag with N,... is a dimension of the grid. A preset gives what no flag gives:\n"
      "  paper     16384 tokens, hidden 2048, head sizes 64, 128, 256, lengths 512 to 16384, causal or not\n"
      "  training  batch 1 to 16, hidden 768 to 4096, head size 64, lengths 512 to 4096, causal\n"
      "  decode    one query over 1024 to 65536 keys, batch 1 to 32, 32 heads over 8, pages or not\n\n" +
      example);
  const Range sizes{1, BenchOptions::kLargestSize};
  add_value(command, "--preset", o.preset, word_of({"paper", "training", "decode"}), "paper|training|decode",
            "A grid by name");
  add_list(command, "--direction", o.directions, word_of({"forward", "backward", "decode"}),
           "forward|backward|decode,...", "What is measured (default: forward)");
  add_choice(command, "--device", o.device, kDevices, "Where (default: auto, a GPU where there is one)");
  add_list(command, "--dtype", o.dtypes, dtype_named, std::string(kDTypeNames) + ",...",
           "Types (default: f32, on a GPU bf16)");
  CLI::Option* batch = add_sizes(command, "--batch", o.batch, sizes, "Batch (default: 1)");
  add_size(command, "--tokens", o.tokens, sizes, "Tokens of a batch, whose size follows from the length")
      ->excludes(batch);
  CLI::Option* heads = add_sizes(command, "--heads", o.heads, sizes, "Query heads (default: 8)");
  add_sizes(command, "--hidden", o.hidden, sizes, "Hidden size: as many heads as fill it")->excludes(heads);
  add_sizes(command, "--heads-k", o.heads_k, sizes, "Key and value heads (default: as many)");
  add_sizes(command, "--head-dim", o.head_dim, sizes, "Head size of queries and keys (default: 64)");
  add_sizes(command, "--head-dim-v", o.head_dim_v, sizes, "Head size of values (default: the same)");
  add_sizes(command, "--len", o.len, sizes, "Lengths of queries and keys (default: 512,1024,2048; decode: of keys)");
  add_sizes(command, "--len-q", o.len_q, sizes, "Queries, where they have another length (default of decode: 1)");
  add_sizes(command, "--len-k", o.len_k, sizes, "Keys, where they have another length");
  add_sizes(command, "--page-size", o.page_size, {0, sizes.most},
            "Decode: rows of a page; 0: a contiguous cache (default: 0)");
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
           "Who is measured (default: all; a GPU has no naive)");
  add_decimal(command, "--seconds", o.seconds, "For each point")->default_str("0.3");
  add_file(command, "--json", o.json, "Write the results, for --compare and python -m cuflash.plot");
  add_file(command, "--csv", o.csv, "Write the results as a table of all figures");
  add_file(command, "--markdown", o.markdown, "Write the results as a page");
  add_file(command, "--compare", o.compare, "Fail where a point is slower than in this file of --json");
  add_decimal(command, "--tolerance", o.tolerance, "Of --compare: a slowdown that is allowed")->default_str("0.05");
  command.callback([&o, &job] { job = [&o] { return run_bench(o); }; });
}

void add_tune(CLI::App& app, TuneOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand(
      "tune", "Find the fastest tiles, stages and splits for problems on this machine, for all later calls");
  add_bench_grid(command, o.grid,
                 "cuflash tune --direction forward,backward --len 512,2048 --causal 0,1 --seconds 300");
  add_decimal(command, "--seconds", o.seconds, "For everything")->default_str("60");
  CLI::Option* dry_run = command.add_flag("--dry-run", o.dry_run, "Show what would be tried, and what not and why");
  command.add_flag("--compile", o.compile, "With --dry-run: compile it, too; needs NVRTC and no GPU")->needs(dry_run);
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
  add("list", "What is there", CacheAction::list);
  add("clear", "Remove it", CacheAction::clear);
}

// Not split at commas, which their names have.
void add_kernels(CLI::App& command, std::vector<std::string>& kernels) {
  const auto take = [&kernels](const CLI::results_t& words) {
    for (const std::string& word : words) kernels.push_back(kernel_name("--kernel", word));
    return true;
  };
  command.add_option("--kernel", CLI::callback_t(take), "One more kernel, by the name that an error or explain gives")
      ->type_name("NAME")
      ->expected(CLI::detail::expected_max_vector_size);
}

void add_pack(CLI::App& app, PackOptions& o, Job& job) {
  CLI::App& command = *app.add_subcommand("pack", "Compile GPU kernels into one file, for CUFLASH_PACK; needs no GPU");
  add_list(command, "--arch", o.archs, arch_name, "NAME,...",
           "Architectures, for example sm_90a,sm_80: the kernels of common problems");
  add_kernels(command, o.kernels);
  add_list(command, "--dtype", o.dtypes, dtype_named, std::string(kDTypeNames) + ",...",
           "Of those for --arch, these types alone");
  add_list(command, "--head-dim", o.dims, whole_in({}), "N,...", "Of those for --arch, these head sizes alone");
  const auto threads = [](const std::string& flag, const std::string& text) {
    return static_cast<int32_t>(whole_number(flag, text, 1, 256));
  };
  add_value(command, "--threads", o.threads, threads, "N", "Compiles at a time")
      ->default_str(std::to_string(o.threads));
  add_file(command, "-o,--out", o.out, "The file")->required();
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
  } catch (const files::FileError& error) {
    return fail(kExitUsage, error.what());
  } catch (const FlashAttentionError& error) {
    return fail(kExitFailed, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kExitFailed, "this machine has not enough memory for that");
  } catch (const std::exception& error) {
    return fail(kExitFailed, error.what());
  }
}

// The exit code where there is nothing to run: help was asked for, or the words are wrong.
std::optional<int> parse(CLI::App& app, const std::vector<std::string>& typed) {
  Arguments arguments;
  try {
    arguments = read_arguments(shape_of(app), typed);
    std::reverse(arguments.words.begin(), arguments.words.end());  // as CLI11 wants them
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
