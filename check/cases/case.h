// A test case as plain values: one problem, the layout of its tensors, and its execution. memory.h builds it, run.h runs it.
#pragma once

#include <cuflash/flash_attention.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "check/cases/choices.h"

namespace cuflash::check {

enum class Mode { dense, padded, packed };
enum class Order { bhsd, bshd, sbhd, hbsd };  // the order of dimensions in memory
enum class Fused { none, kv, qkv };           // tensors that are slices of one buffer [B, S, heads, D]
enum class Extent { full, one, repeated };    // repeated: the full extent with stride 0
enum class Flavour { normal, outliers, common_offset, constant_rows, late_peak, tiny, large_logits };

// pairs: each pair is drawn. blocks: squares of 16, 32 or 64 pairs are. documents: keys of the query's own document.
enum class MaskPattern { pairs, blocks, documents };

struct Layout {
  Order order = Order::bhsd;
  int64_t gap = 0;                                  // unused elements between rows, and between blocks of rows
  int64_t offset = 0;                               // elements from a 64-byte boundary to the first one
  bool repeat_batch = false, repeat_heads = false;  // stride 0
  bool odd_unit_strides = false;                    // along an extent of 1 the stride is arbitrary
};

// bias and mask: [B or 1, Hq or 1, Sq or 1, Sk].
struct ScoreLayout {
  std::array<Extent, 3> extents{};
  int64_t gap = 0, offset = 0;
};

struct Gradients {
  bool dq = false, dk = false, dv = false, dbias = false, dsink = false;
  bool any() const { return dq || dk || dv || dbias || dsink; }
};

struct Case {
  DType dtype = DType::f32;
  DType o_dtype = DType::f32, dout_dtype = DType::f32, gradient_dtype = DType::f32;  // dtype or f32
  int64_t batch = 1, heads_q = 1, heads_k = 1;
  int64_t len_q = 1, len_k = 1;  // packed: max_seqlen, which shapes bias and mask
  int64_t dim = 1, dim_v = 1;

  Mode mode = Mode::dense;
  std::vector<int32_t> lengths_q, lengths_k;  // [batch]; padded: either may be absent
  int64_t slack_q = 0, slack_k = 0;           // packed: rows beyond cu_seqlens[B]
  bool give_max_seqlen = false;               // packed: otherwise the library finds len_q and len_k

  bool causal = false;
  Alignment alignment = Alignment::bottom_right;
  int64_t window_left = -1, window_right = -1;
  double softcap = 0;
  std::optional<double> scale;
  int alibi_rank = 0;  // 0: none
  std::optional<ScoreLayout> bias, mask;
  DType bias_dtype = DType::f32, sink_dtype = DType::f32;
  bool dbias_repeats = false;  // if bias repeats, dbias has the full extent with stride 0 instead of extent 1
  uint32_t mask_eighths = 4;   // how many of 8 mask elements, or blocks of them, are true
  MaskPattern mask_pattern = MaskPattern::pairs;
  // Whether the call gets only the mask (none), the mask and its summary, or only the summary.
  enum class Summary { none, beside, alone } mask_summary = Summary::none;
  bool sink = false;
  double dropout_p = 0;
  uint64_t dropout_seed = 0, dropout_offset = 0;

  Fused fused = Fused::none;
  Layout q, k, v, o, lse, dout, dlse, dq, dk, dv;

  bool lse_asked = true, dlse_given = false;
  Gradients gradients;

  Device device = Device::cpu;
  bool deterministic = false;  // CUDA: two runs of backward must give the same bits; those of forward always must
  bool tile_stats = true;
  int threads = 1;
  int other_threads = 0;  // CPU, > 0: a second run with this many must give the same bits
  bool exact_workspace = false, own_parallel_for = false;

  Flavour flavour = Flavour::normal;
  uint64_t data_seed = 0;
  bool garbage = false;   // NaN and Inf in everything that no call may read
  bool live_nan = false;  // a NaN in a key that some queries see

  int64_t length_q(int64_t b) const { return lengths_q.empty() ? len_q : lengths_q[static_cast<size_t>(b)]; }
  int64_t length_k(int64_t b) const { return lengths_k.empty() ? len_k : lengths_k[static_cast<size_t>(b)]; }
  int64_t rows_q() const;  // packed: of the whole buffer
  int64_t rows_k() const;
  double scale_value() const;

  Gradients every_gradient() const { return {true, true, true, bias.has_value(), sink}; }

  // Step 6 of the contract without the mask tensor.
  bool sees(int64_t b, int64_t i, int64_t j) const;
};

// The first row of every packed sequence, and the end: [batch + 1].
std::vector<int32_t> cumulative(const std::vector<int32_t>& lengths);

struct HeadSizes {
  struct Range {
    int64_t smallest, largest;
  };
  Range dim, dim_v;
};

// Options that kernels are compiled for.
struct OptionChoice {
  bool softcap, alibi, bias, mask, dropout;
};

// Alignment of the rows of Q, K, V and similar tensors: to whole vectors of 16 bytes, with head sizes padded as kernels
// need or with any number of whole vectors; or as drawn.
enum class RowAlignment { padded, vectors, any };

// The properties of a case that kernels are compiled for: cases of one set share most of their kernels.
struct KernelSet {
  DType dtype = DType::bf16;
  bool stored_as_f32 = false;  // O, dO and gradients are f32; otherwise they have the type of Q
  HeadSizes head_sizes{};
  OptionChoice options{};
  RowAlignment rows = RowAlignment::any;
  bool every_gradient = false, deterministic = false;
  bool v_in_k = false;  // over a cache
};

struct Limits {
  int64_t work = 200'000;  // about len_q * len_k * max(dim, dim_v) * batch * heads_q
  Device device = Device::cpu;
  bool cache = false;    // calls over a KV cache instead of forward and backward
  bool plain = false;    // nothing but draw_plain_case
  bool options = false;  // only draw_plain_case, with one of option_sets
  // CUDA has kernels for ranges of head sizes. If any are listed, cases only use these.
  std::vector<HeadSizes> head_sizes{};
  // The sm_90a kernels are compiled for a set of options. If any sets are listed, cases only use these.
  std::vector<OptionChoice> option_sets{};
  // If any are listed, case n of a sweep has the set n modulo their number, which is then its kernel_set.
  std::vector<KernelSet> kernel_sets{};
  std::optional<KernelSet> kernel_set{};
};

// Any combination of options.
Case draw_case(Choices& choose, const Limits& limits = {});
// Problems for the fastest kernels of a GPU, longer than the others.
Case draw_plain_case(Choices& choose, const Limits& limits = {});
// draw_plain_case with one of the option sets of the limits, or any. Most bias and mask rows start on 16-byte
// boundaries.
Case draw_plain_case_with_options(Choices& choose, const Limits& limits = {});

// All values in one line.
std::string describe(const Case& c);
std::string describe(const Layout& layout);
std::string describe(const std::vector<int32_t>& lengths);

}  // namespace cuflash::check
