// Kernel configs: the compile-time choices of a plan. A config is the kernel's template argument, its cache key and its
// log line. Host and device share this file, so it includes nothing. Every config is an Element followed by ints: the
// host writes it into the generated program and into cache keys without knowing its fields.
#pragma once

namespace cuflash {

enum class Element : int { f64 = 1, f32 = 2, f16 = 3, bf16 = 4 };  // same values as cuflash_dtype

constexpr int size_of(Element e) { return e == Element::f64 ? 8 : e == Element::f32 ? 4 : 2; }

// Options that modify or mask a score beyond scale, lengths and window. A kernel compiled with a bit still checks its
// params for the option, so that one kernel with all required bits serves a problem with several options.
enum OptionBits : int {
  kSoftcap = 1,
  kAlibi = 2,
  kBias = 4,
  kMaskTensor = 8,
  kDropout = 16,
  kScaleFirst = 32,  // the scale is not positive and cannot be folded into the exponent
  kAllOptions = 63,
};
// Whether any of the options changes the value of a visible score, so that the scale is not folded into the exponent.
constexpr bool modifies_score(int options) { return (options & (kSoftcap | kAlibi | kBias | kScaleFirst)) != 0; }

// How rows are copied from global to shared memory.
enum CopyMode : int {
  kCopyVectors = 0,   // cp.async of 16 bytes: every row starts on a 16-byte boundary
  kCopyElements = 1,  // one element at a time, with conversion: any alignment, any stored type
  kCopyWhole = 2,     // kCopyVectors for rows of exactly the padded size, which have no columns to zero
  kCopyTma = 3,       // TMA loads by a producer warp (sm_90a, 16-bit elements)
};

struct ForwardConfig {
  Element element;
  int dim_qk, dim_v;  // padded: multiples of 16, up to 256
  int tile_q, tile_k;
  int row_warps;     // split the tile's queries
  int column_warps;  // split dim_v; each recomputes the scores of its queries
  int stages;        // K and V tiles in shared memory
  int ctas_per_sm;   // occupancy that the register budget allows for
  int copy;          // CopyMode
  int options;       // OptionBits
};

// How the sm90 forward kernel overlaps wgmma with other work.
enum ForwardSchedule : int {
  kPingPong = 1,     // consumer warpgroups alternate: one computes softmax while another issues wgmma
  kPinWait = 2,      // keeps the compiler from hoisting wgmma.wait_group above the softmax it overlaps with
  kStoreBySmem = 4,  // O is stored with TMA from shared memory, overlapping with the next query tile
  kPrefetchQ = 8,    // Q of the next query tile is loaded while the current one is in use
  kTmaBias = 16,     // TMA loads tiles of the bias, which has the type of Q; otherwise consumers load elements
  kOneKeyTile = 32,  // no sequence has more than tile_k keys, so that there is no mainloop
  kFixedMax = 64,    // softcap bounds the scores, so that the softmax needs no maximum; bf16
  kFirstMax = 128,   // the maximum of a row's first key tile serves the later ones, too: see FirstMaxSoftmax
  // Times the number of other CTAs on the same SM, up to 7: while some wait for loads, products or stores of their
  // tiles, others compute. Only with one or two consumer warpgroups.
  kMoreCtas = 256,
  kAllMoreCtas = 7 * kMoreCtas,
};

// Where the work items of the sm90 forward kernel come from.
enum ForwardWork : int {
  kSplitKeys = 1,  // CTAs share the keys of a query tile; their partial results are reduced by combine_splits.h
  kTileList = 2,   // query tiles are taken by ticket from a list in the workspace, made by tile_list.h
  // With kSplitKeys: the rows of a tile are pairs of a query and a head of the group that shares keys, as in KvConfig.
  // The size of a group divides 64.
  kPackHeads = 4,
  kPagedKeys = 8,  // K and V are a KV cache whose rows are found by a table: sm90/forward/paged_keys.h
};

// Forward on sm_90a: one producer warpgroup, and consumer warpgroups with 64 queries each.
struct Sm90ForwardConfig {
  Element element;    // f16 or bf16
  int dim_qk, dim_v;  // padded: multiples of 16, dim_v of 32, up to 256
  int warpgroups;     // consumer warpgroups
  int tile_k;
  int stages;    // K tiles, and V tiles, in shared memory
  int schedule;  // ForwardSchedule
  int options;   // OptionBits
  int work;      // ForwardWork
};

constexpr int kWholeCache = 2;  // KvConfig::fast_decode of a call that has K and V instead of a cache

// Attention over a KV cache. A row is a pair of a query and a query head of the group that shares a KV head.
struct KvConfig {
  Element element;
  int dim_qk, dim_v;  // padded: multiples of 32, up to 576
  int tile_q;         // rows
  int tile_k;
  int row_warps;     // split the tile's rows, 16 each; in large tiles 16 rows of each block, see row_blocks
  int key_warps;     // split the tile's keys; their partial results are reduced in the epilogue
  int column_warps;  // split dim_v; each recomputes the scores of its rows and keys
  int stages;        // K and V tiles in shared memory, at least 2
  int ctas_per_sm;
  int copy;     // CopyMode
  int options;  // OptionBits
  int v_in_k;   // 1: V is a slice of the columns of K and is not loaded separately
  // If not 0, the call appends and rotates no rows, sequences differ only in the length of their cache, which starts at
  // its first row, and 16-byte vectors of Q and of O, which have the same type, are aligned. The kernel then omits the
  // code for everything else, which need not be fetched. kWholeCache: every sequence fills its cache.
  int fast_decode;
  // 1: all CTAs are co-resident, and the splits of a row tile exchange partial results through L2: see
  // kv/exchange_reduce.h.
  int l2_exchange;
};

// Appends rows to a KV cache and rotates queries, before the sm90 forward kernels attend it.
struct CachePrepareConfig {
  Element element;
};
constexpr int kPrepareThreads = 256;

// Merges partial results.
struct MergeConfig {
  Element element;
  int lanes;  // lanes per row
};

// Makes the summary of a mask tensor. The element is not used.
struct MaskSummaryConfig {
  Element element;
  int vectors;  // 1: rows of the mask start on 16 bytes
};

// A CTA keeps tile_k keys and visits query tiles.
struct BackwardConfig {
  Element element;
  int dim_qk, dim_v;
  int tile_q, tile_k;
  int key_warps;     // split the tile's keys
  int column_warps;  // split the columns of dK and dV; each computes the scores of some queries for all of them
  int stages;        // Q and dO tiles in shared memory; 0: K and V share one buffer, Q and dO another
  int ctas_per_sm;
  int copy;
  int options;
  int ordered;        // 1: dQ is accumulated in key order, bitwise reproducible
  int all_gradients;  // 1: the call wants dQ, dK and dV, so the kernel does not check for absent gradients
};

// What the main backward kernel of sm_90a does about dQ.
enum DqMode : int {
  kNoDq = 0,      // dQ is not wanted, or the dQ kernel computes it
  kAddsDq = 1,    // every key tile adds to dq_accum; needs two consumer warpgroups or more
  kStoresDq = 2,  // stores dQ: all keys of a sequence are in one key tile
  // Keeps the sums of dQ to itself, and stores dQ at the last key tile that a query tile sees: a CTA takes all key tiles
  // of its heads, one after the other.
  kKeepsDq = 3
};

// Backward on sm_90a: consumer warpgroups with 64 keys each, and a producer warpgroup that also computes dQ, unless a
// separate warpgroup does (has_loader).
struct Sm90BackwardConfig {
  Element element;    // f16 or bf16
  int dim_qk, dim_v;  // padded: multiples of 32
  int tile_q;         // 64
  int warpgroups;     // consumer warpgroups with different keys; see split_dk_dv
  int stages;         // Q and dO tiles in shared memory, at least 2
  int dq;             // DqMode
  int options;        // OptionBits, exactly those of the call
};

// dQ alone on sm_90a: consumer warpgroups with 64 queries each, and a producer warpgroup.
struct Sm90DqConfig {
  Element element;               // f16 or bf16
  int dim_qk, dim_v;             // padded: multiples of 32
  int warpgroups;                // consumer warpgroups
  int tile_k;                    // a multiple of 16
  int key_stages, value_stages;  // at least 2 K tiles, because K is used twice
  int query_stages;              // 2: Q and dO of the next query tile are loaded while the current ones are in use
  int ping_pong;                 // 1: consumer warpgroups alternate in issuing wgmma for S and dQ
  int options;                   // OptionBits, exactly those of the call
};

// dBias on sm_90a: consumer warpgroups with 64 queries each, and a producer warp.
struct Sm90DbiasConfig {
  Element element;    // f16 or bf16
  int dim_qk, dim_v;  // padded: multiples of 32
  int warpgroups;     // consumer warpgroups, 2, or 1 for sequences of up to 64 queries
  int tile_k;         // 64, or 128 where registers and shared memory suffice
  int stages;         // stages of one ring, in which Q and K alternate with dO and V
  int options;        // OptionBits, exactly those of the call
};

constexpr int kExchangeColumns = 32;  // columns of a row that one warp reduces over all splits

// Shared memory rows are padded so that eight (f64: four) consecutive rows fall into different banks.
constexpr int row_padding_bytes(Element e) { return e == Element::f64 ? 32 : 16; }
constexpr int row_stride(Element e, int columns) { return columns + row_padding_bytes(e) / size_of(e); }  // elements
constexpr int tile_bytes(Element e, int rows, int columns) { return rows * row_stride(e, columns) * size_of(e); }

constexpr int num_threads(const ForwardConfig& c) { return 32 * c.row_warps * c.column_warps; }
constexpr int shared_bytes(const ForwardConfig& c) {
  const int output = tile_bytes(c.element, c.tile_q, c.dim_v);  // the epilogue reuses all of it
  const int inputs = tile_bytes(c.element, c.tile_q, c.dim_qk) +
                     c.stages * (tile_bytes(c.element, c.tile_k, c.dim_qk) + tile_bytes(c.element, c.tile_k, c.dim_v)) +
                     (c.options & kMaskTensor ? (c.tile_k + 31) / 32 * 4 : 0);  // one bit per key: some query sees it
  return output > inputs ? output : inputs;
}

constexpr int kWarpgroupRows = 64, kWarpgroupThreads = 128;
constexpr bool splits_keys(const Sm90ForwardConfig& c) { return (c.work & kSplitKeys) != 0; }
constexpr bool packs_heads(const Sm90ForwardConfig& c) { return (c.work & kPackHeads) != 0; }
constexpr bool lists_tiles(const Sm90ForwardConfig& c) { return (c.work & kTileList) != 0; }
constexpr bool has_paged_keys(const Sm90ForwardConfig& c) { return (c.work & kPagedKeys) != 0; }
constexpr int tile_q_of(const Sm90ForwardConfig& c) { return kWarpgroupRows * c.warpgroups; }
constexpr bool has_one_key_tile(const Sm90ForwardConfig& c) { return (c.schedule & kOneKeyTile) != 0; }
// Whether the softmax keeps the maximum of the first key tile (kFirstMax). It may have to repeat a step, so the scores
// stay in registers until the sums are known.
constexpr bool uses_first_max(const Sm90ForwardConfig& c) { return (c.schedule & kFirstMax) != 0; }
// Whether the last query tile of a sequence is full and the first one has the remaining queries. In a causal problem
// the first tile sees the fewest keys, so that warpgroups without rows wait for the fewest steps.
constexpr bool ends_with_full_tile(const Sm90ForwardConfig& c) {
  return uses_first_max(c) && (c.work & ~kPagedKeys) == 0 && (c.options & kMaskTensor) == 0;
}
// Whether a warpgroup computes only half of its first key tile if its queries see no key of the other half. In a causal
// problem that is every other warpgroup.
constexpr bool halves_first_tile(const Sm90ForwardConfig& c) {
  return ends_with_full_tile(c) && c.tile_k == 2 * kWarpgroupRows;
}
constexpr int num_threads(const Sm90ForwardConfig& c) { return kWarpgroupThreads * (c.warpgroups + 1); }
constexpr int ctas_per_sm(const Sm90ForwardConfig& c) { return 1 + (c.schedule & kAllMoreCtas) / kMoreCtas; }
// An SM has 512 registers for each of 128 lanes. A launch divides them evenly; setmaxnreg then moves registers from the
// producers to the consumers, unless an SM has one consumer warpgroup, which already has as many as an instruction can
// address. The sanitizer warp of the producer needs more registers if it reads a mask tensor; such kernels have at most
// three consumer warpgroups.
constexpr bool moves_registers(const Sm90ForwardConfig& c) { return c.warpgroups > 1 || ctas_per_sm(c) > 1; }
constexpr bool sanitizes_by_mask(const Sm90ForwardConfig& c) {
  return c.warpgroups <= 3 && (c.options & kMaskTensor) != 0;
}
constexpr int producer_registers(const Sm90ForwardConfig& c) {
  return sanitizes_by_mask(c) ? 56 : c.warpgroups * ctas_per_sm(c) > 2 ? 32 : 40;
}
constexpr int launch_registers(const Sm90ForwardConfig& c) { return 512 / ctas_per_sm(c) / (c.warpgroups + 1) / 8 * 8; }
// ptxas refuses products whose sums, and 26 other registers, are more than the registers at launch (C7602).
constexpr int max_product_columns(const Sm90ForwardConfig& c) { return 2 * (launch_registers(c) - 26); }
constexpr int consumer_registers(const Sm90ForwardConfig& c) {
  if (ctas_per_sm(c) > 1)
    return ((c.warpgroups + 1) * launch_registers(c) - producer_registers(c)) / c.warpgroups / 8 * 8;
  if (c.warpgroups <= 2) return sanitizes_by_mask(c) ? 224 : 232;
  if (c.warpgroups == 3) return sanitizes_by_mask(c) ? 152 : 160;
  return 112;
}
// The layout of tile/swizzled.h.
constexpr int kPanelColumns = 64, kPanelRowBytes = 128;
constexpr int num_panels(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
constexpr int swizzled_bytes(int rows, int columns) { return rows * kPanelRowBytes * num_panels(columns); }
// A TMA box of the mask summary has the bits of 64 queries, or of one if all queries share them, for 128 keys. It
// begins at a multiple of 128 keys, because TMA coordinates are multiples of 16 bytes. A key tile that may straddle two
// boxes loads two.
constexpr int kMaskBoxKeys = 128, kMaskBoxBytes = kMaskBoxKeys / 8, kMaskBitsBytes = kWarpgroupRows * kMaskBoxBytes;
constexpr int mask_box_bytes(int tile_k) { return kMaskBoxKeys % tile_k == 0 ? kMaskBoxBytes : 2 * kMaskBoxBytes; }
constexpr int kMaskListThreads = 128, kMaskListHeader = 16, kMaxMaskWarpgroups = 3;  // sm90/mask_tiles.h
constexpr int kTilingGroupBytes = 16, kMaxTilingGroups = 1024,
              kMaxTilingKeys = 1 << 20;  // sm90/forward/mask_aligned_tiling.h
constexpr bool reads_mask(const Sm90ForwardConfig& c) { return (c.options & kMaskTensor) != 0; }
// Whether the mask decides where query tiles begin.
constexpr bool aligns_tiles_to_mask(const Sm90ForwardConfig& c) { return reads_mask(c) && lists_tiles(c); }
// Whether the TileInfo has a run of key tiles in which the mask hides nothing.
constexpr bool has_full_run(const Sm90ForwardConfig& c) { return reads_mask(c) && !splits_keys(c); }
constexpr int query_stages(const Sm90ForwardConfig& c) { return (c.schedule & kPrefetchQ) != 0 ? 2 : 1; }
// Tiles of the bias: one per consumer warpgroup and stage, in 64-column panels.
constexpr bool has_bias_tiles(const Sm90ForwardConfig& c) { return (c.schedule & kTmaBias) != 0; }
constexpr int bias_tile_bytes(const Sm90ForwardConfig& c) {
  return (c.schedule & kTmaBias) != 0 ? swizzled_bytes(kWarpgroupRows, c.tile_k) : 0;
}
// Bits of the mask tensor per consumer warpgroup and stage of K, and the listed tile of every such stage.
constexpr int mask_tile_bytes(const Sm90ForwardConfig& c) {
  return reads_mask(c) ? kWarpgroupRows * mask_box_bytes(c.tile_k) : 0;
}
constexpr int listed_tile_bytes(const Sm90ForwardConfig& c) { return reads_mask(c) ? (c.stages + 1) / 2 * 8 : 0; }
constexpr int bias_and_mask_bytes(const Sm90ForwardConfig& c) {
  return c.stages * c.warpgroups * (bias_tile_bytes(c) + mask_tile_bytes(c));
}
constexpr int num_barriers(const Sm90ForwardConfig& c) {
  return (has_bias_tiles(c) ? 7 : 5) * c.stages + 2 * c.warpgroups * query_stages(c);
}
// One TileInfo per consumer warpgroup and query tile. The producer writes it before the stage of its Q is free. By then
// Q of the previous tile may be waiting, and the tile before that may still be in its epilogue.
constexpr int kTileInfoBytes = 64;
constexpr int num_tile_infos(const Sm90ForwardConfig& c) { return 2 + query_stages(c); }
constexpr int staged_columns(const Sm90ForwardConfig& c) {
  return c.dim_v < 128 ? c.dim_v : 128;
}  // per TMA store of O
constexpr int staged_bytes(const Sm90ForwardConfig& c) {
  return (c.schedule & kStoreBySmem) != 0 ? swizzled_bytes(tile_q_of(c), staged_columns(c)) : 0;
}
// The ticket of a query tile, for all warps of the producer, and its mbarriers.
constexpr int ticket_bytes(const Sm90ForwardConfig& c) { return lists_tiles(c) ? (2 + 1) * 8 : 0; }
constexpr int shared_bytes(const Sm90ForwardConfig& c) {
  return query_stages(c) * swizzled_bytes(tile_q_of(c), c.dim_qk) + staged_bytes(c) +
         c.stages * (swizzled_bytes(c.tile_k, c.dim_qk) + swizzled_bytes(c.tile_k, c.dim_v)) + bias_and_mask_bytes(c) +
         num_tile_infos(c) * c.warpgroups * kTileInfoBytes + num_barriers(c) * 8 + ticket_bytes(c) +
         listed_tile_bytes(c);
}

constexpr int sum_size(Element e) { return e == Element::f64 ? 8 : 4; }  // bytes of an accumulator or softmax state
constexpr int consumer_threads(const KvConfig& c) { return 32 * c.row_warps * c.key_warps * c.column_warps; }
// Large row tiles are multiplied with wgmma. Blocks are stored one after the other, each with 16 rows of every warp, so
// that the 64 rows of a warpgroup are contiguous.
constexpr bool by_warpgroups(const KvConfig& c) { return c.copy == kCopyTma && c.tile_q > kWarpgroupRows; }
constexpr int block_rows(const KvConfig& c) { return 16 * c.row_warps; }
constexpr int row_blocks(const KvConfig& c) { return c.tile_q / block_rows(c); }
// Nine warps could have 168 registers each, too few for accumulators of two row blocks. Three idle warps extend the
// producer warp to a warpgroup, whose setmaxnreg.dec frees registers for the two consumer warpgroups.
constexpr bool uses_setmaxnreg(const KvConfig& c) { return by_warpgroups(c) && row_blocks(c) > 1; }
constexpr int consumer_registers(const KvConfig&) { return 240; }
constexpr int producer_registers(const KvConfig&) { return 24; }
// Consumer threads and the producer warp, which waits only for stages that the consumers release.
constexpr int active_threads(const KvConfig& c) { return consumer_threads(c) + 32; }
constexpr int num_threads(const KvConfig& c) {
  if (uses_setmaxnreg(c)) return consumer_threads(c) + kWarpgroupThreads;
  return c.copy == kCopyTma ? active_threads(c) : consumer_threads(c);
}
constexpr int num_threads(const MergeConfig&) { return 128; }
constexpr int num_threads(const MaskSummaryConfig&) { return 128; }
// Bytes of K and V that a CTA with a part of the keys keeps in flight: about what keeps memory busy, 44 KiB per SM
// (docs/lab/kv.md), in whole tiles.
constexpr int kSplitBytesInFlight = 40 << 10;
// The reduction of the splits of a forward call (combine_splits.h): parts of rows that a thread has in flight, those of
// one row, as a power of two, the rows of a CTA, and its shared memory. The shared memory is larger than the parts, so
// that two CTAs fill an SM. Otherwise an SM without a CTA of the forward kernel would take as many CTAs as it has threads
// for, long before the other SMs have room for one, and all of them would wait.
constexpr int kPartsInFlight = 16;
constexpr int slot_bits(unsigned splits) { return splits > 8 ? 4 : splits > 4 ? 3 : splits > 2 ? 2 : 1; }
constexpr int rows_of_reduction(const MergeConfig& c, unsigned splits) {
  return num_threads(c) / c.lanes * (kPartsInFlight >> slot_bits(splits));
}
constexpr int kReductionBytes = 100 << 10;
static_assert(kPartsInFlight * num_threads(MergeConfig{}) * 16 <= kReductionBytes);
constexpr int kTileListThreads = 1024;
constexpr int kTileListBytes = (4 * kTileListThreads + kTileListThreads / 32) * 4;  // shared memory
constexpr int keys_bytes(const KvConfig& c, int columns) {
  return c.copy == kCopyTma ? swizzled_bytes(c.tile_k, columns) : tile_bytes(c.element, c.tile_k, columns);
}
// Tensors that a key tile consists of: K, and V unless it is a slice of K.
constexpr int parts_of_tile(const KvConfig& c) { return c.v_in_k ? 1 : 2; }
constexpr int stage_bytes(const KvConfig& c) {
  return keys_bytes(c, c.dim_qk) + (c.v_in_k ? 0 : keys_bytes(c, c.dim_v));
}
// Bytes per stage: for each key the offsets of its row in K and in V; with TMA the mbarriers.
constexpr int stage_info_bytes(const KvConfig& c) { return c.copy == kCopyTma ? 24 : c.tile_k * 16; }
// In the epilogue, shared memory holds the accumulators, maxima and sums of every key warp instead. Eight more columns
// keep neighbouring rows in different banks.
constexpr int sums_stride(const KvConfig& c) { return c.dim_v + 8; }
constexpr int row_sums_bytes(const KvConfig& c) { return (sums_stride(c) + 2) * sum_size(c.element); }
constexpr int queries_bytes(const KvConfig& c) {
  return by_warpgroups(c) ? swizzled_bytes(c.tile_q, c.dim_qk) : tile_bytes(c.element, c.tile_q, c.dim_qk);
}
constexpr int shared_bytes(const KvConfig& c) {
  const int loop = c.stages * (stage_bytes(c) + stage_info_bytes(c)) + queries_bytes(c);
  const int end = c.key_warps * c.tile_q * row_sums_bytes(c);
  return loop > end ? loop : end;
}

constexpr int num_threads(const BackwardConfig& c) { return 32 * c.key_warps * c.column_warps; }
constexpr int bias_threads(const BackwardConfig& c) { return num_threads(c); }
constexpr int prepare_threads(const BackwardConfig&) { return 128; }
constexpr int finish_threads(const BackwardConfig&) { return 128; }
constexpr int sink_threads(const BackwardConfig&) { return 512; }
// LSE and delta of a tile's queries, and flags for non-finite values and large LSE; in units of Real.
constexpr int row_stats_size(const BackwardConfig& c) { return 2 * c.tile_q + 4; }
constexpr int row_stats_bytes(const BackwardConfig& c) {
  return row_stats_size(c) * (c.element == Element::f64 ? 8 : 4);
}
// Size of the row statistics in shared memory, rounded up to the alignment of a TMA destination.
constexpr int kTmaAlignment = 128;
constexpr int row_stats_stage_bytes(const BackwardConfig& c) {
  return (row_stats_bytes(c) + kTmaAlignment - 1) / kTmaAlignment * kTmaAlignment;
}
// P goes through shared memory only if other warps need it; dS always does.
constexpr int score_tiles(const BackwardConfig& c) { return c.column_warps > 1 || c.stages == 0 ? 2 : 1; }
// Task coordinates (TaskCoord) are kept in shared memory to save registers for the accumulators.
constexpr int kTaskBytes = 128;
constexpr int shared_bytes(const BackwardConfig& c) {
  const int sides = c.stages == 0 ? 1 : 2, copies = c.stages == 0 ? 1 : c.stages;
  const int widest = c.dim_qk > c.dim_v ? c.dim_qk : c.dim_v;
  const int keys = sides == 1 ? tile_bytes(c.element, c.tile_k, widest)
                              : tile_bytes(c.element, c.tile_k, c.dim_qk) + tile_bytes(c.element, c.tile_k, c.dim_v);
  const int queries = sides == 1 ? tile_bytes(c.element, c.tile_q, widest)
                                 : tile_bytes(c.element, c.tile_q, c.dim_qk) + tile_bytes(c.element, c.tile_q, c.dim_v);
  return keys + copies * (queries + row_stats_bytes(c)) + score_tiles(c) * tile_bytes(c.element, c.tile_k, c.tile_q) +
         kTaskBytes;
}

// The portable view of this config, for the prepare and finish kernels and for code shared with the portable kernel.
constexpr BackwardConfig portable_view(const Sm90BackwardConfig& c) {
  constexpr int kWarps = kWarpgroupThreads / 32;
  return {
      c.element,    c.dim_qk,  c.dim_v, c.tile_q, kWarpgroupRows * c.warpgroups, kWarps * c.warpgroups, 1, c.stages, 1,
      kCopyVectors, c.options, 0,       0};
}
constexpr int tile_k_of(const Sm90BackwardConfig& c) { return kWarpgroupRows * c.warpgroups; }
// Whether two consumer warpgroups share 64 keys, one for dV and one for dK (sm90/backward/split_dk_dv.h). Such configs
// have warpgroups == 1 and no dQ.
constexpr bool split_dk_dv(const Sm90BackwardConfig& c) { return c.warpgroups == 1 && c.dq == kNoDq; }
// CTAs with one consumer warpgroup share an SM: while one waits for its loads, products or stores, another computes.
constexpr int ctas_per_sm(const Sm90BackwardConfig& c) {
  if (c.warpgroups != 1 || c.dq == kNoDq) return 1;
  return c.dim_qk == 32 && c.dim_v == 32 && c.options == 0 ? 3 : 2;
}
constexpr int consumer_warpgroups(const Sm90BackwardConfig& c) { return split_dk_dv(c) ? 2 : c.warpgroups; }
constexpr bool keeps_dq(const Sm90BackwardConfig& c) { return c.dq == kKeepsDq; }
constexpr bool stores_dq(const Sm90BackwardConfig& c) { return c.dq == kStoresDq || keeps_dq(c); }
// Options beyond ALiBi take registers of the consumers.
constexpr bool takes_registers(int options) { return (options & ~kAlibi) != 0; }
// Whether the producer only loads, and another warpgroup computes dQ. Registers suffice for four warpgroups if two of
// them have keys. With ALiBi the consumers lack one register, and a product of 96 columns needs more than kDqRegisters.
constexpr bool has_loader(const Sm90BackwardConfig& c) {
  return c.dq && c.warpgroups == 2 && c.options == 0 && c.dim_qk == 128;
}
constexpr int num_threads(const Sm90BackwardConfig& c) {
  return kWarpgroupThreads * (consumer_warpgroups(c) + (has_loader(c) ? 2 : 1));
}
// setmaxnreg divides 504 registers among three warpgroups, or 512 among four. With dQ, limits of 208 and 144 make ptxas
// overlay the registers of S and dP; with 8 more it allocates both separately and runs out. Options need still more;
// the producer can spare them if it computes 32 columns of dQ at a time. If it stores dQ it needs 72. Two CTAs per SM
// have 256 registers for both of their warpgroups, three have 160.
constexpr bool has_small_producer(const Sm90BackwardConfig& c) { return !split_dk_dv(c) && takes_registers(c.options); }
constexpr int consumer_registers(const Sm90BackwardConfig& c) {
  if (ctas_per_sm(c) == 3) return 112;
  if (ctas_per_sm(c) == 2) return has_small_producer(c) ? 184 : 160;
  if (stores_dq(c) && has_small_producer(c)) return 216;
  if (c.warpgroups == 3) return has_small_producer(c) ? 152 : 144;
  if (!c.dq || has_small_producer(c)) return 224;
  return 208;
}
constexpr int producer_registers(const Sm90BackwardConfig& c) {
  if (has_loader(c)) return 32;
  if (ctas_per_sm(c) > 1) return 2 * (256 / ctas_per_sm(c) / 8 * 8) - consumer_registers(c);
  if (stores_dq(c) && has_small_producer(c)) return 72;
  if (!c.dq || has_small_producer(c)) return 56;
  return c.warpgroups == 2 ? 88 : 80;
}
constexpr int kDqRegisters = 64;  // registers of the dQ warpgroup in a kernel with a loader
// Columns of dQ in one product. Every product reads dS again, so fewer products are faster. 128 columns would need 96
// registers.
constexpr int dq_columns(const Sm90BackwardConfig& c) {
  return has_small_producer(c) || c.dim_qk == 32 ? 32 : c.dim_qk == 96 ? 96 : kPanelColumns;
}
// dS buffers in shared memory. Without dQ one buffer holds P of tiles whose dV is accumulated with a select.
constexpr int kDsStages = 2;
constexpr int num_ds_tiles(const Sm90BackwardConfig& c) { return c.dq ? kDsStages : split_dk_dv(c) ? 0 : 1; }
// Buffers of P between the two warpgroups of split_dk_dv.
constexpr int num_p_tiles(const Sm90BackwardConfig& c) { return split_dk_dv(c) ? kDsStages : 0; }
// A bias tile per stage, with one row per query, as a dS tile has.
constexpr int bias_tile_bytes(const Sm90BackwardConfig& c) {
  return (c.options & kBias) != 0 ? swizzled_bytes(c.tile_q, tile_k_of(c)) : 0;
}
// Bits of the mask tensor per stage, in boxes of 128 keys: 192 keys are in two of them.
constexpr bool reads_mask(const Sm90BackwardConfig& c) { return (c.options & kMaskTensor) != 0; }
constexpr int mask_boxes(const Sm90BackwardConfig& c) { return (c.warpgroups + 1) / 2; }
constexpr int mask_bytes(const Sm90BackwardConfig& c) { return reads_mask(c) ? mask_boxes(c) * kMaskBitsBytes : 0; }
// A copy of K with non-finite elements zeroed. In a kernel with a loader, another stage is the better use of that
// memory.
constexpr int finite_k_bytes(const Sm90BackwardConfig& c) {
  return c.dq && !has_loader(c) ? swizzled_bytes(tile_k_of(c), c.dim_qk) : 0;
}
// Task coordinates of the current key tile, of the next one, and of the previous one, whose epilogue may still run.
constexpr int kTaskSlots = 3;
constexpr int num_barriers(const Sm90BackwardConfig& c) { return 4 + 3 * c.stages + (has_loader(c) ? 1 : 0); }
// Row statistics of all stages. In a kernel with a loader the last stage is not padded: four stages of 128 columns fill
// all but a few bytes of shared memory.
constexpr int stats_bytes(const Sm90BackwardConfig& c) {
  const BackwardConfig portable = portable_view(c);
  const int last = has_loader(c) ? row_stats_bytes(portable) : row_stats_stage_bytes(portable);
  return (c.stages - 1) * row_stats_stage_bytes(portable) + last;
}
constexpr int shared_bytes(const Sm90BackwardConfig& c) {
  const int tile_k = tile_k_of(c);
  return swizzled_bytes(tile_k, c.dim_qk) + swizzled_bytes(tile_k, c.dim_v) + finite_k_bytes(c) +
         c.stages * (swizzled_bytes(c.tile_q, c.dim_qk) + swizzled_bytes(c.tile_q, c.dim_v)) +
         (num_p_tiles(c) + num_ds_tiles(c)) * swizzled_bytes(c.tile_q, tile_k) +
         c.stages * (bias_tile_bytes(c) + mask_bytes(c)) + stats_bytes(c) + kTaskSlots * kTaskBytes +
         num_barriers(c) * 8;
}

// The portable view of this config, for the layout of its row statistics.
constexpr BackwardConfig portable_view(const Sm90DqConfig& c) {
  return {c.element, c.dim_qk, c.dim_v, kWarpgroupRows, c.tile_k, 0, 0, 0, 0, kCopyVectors, c.options, 0, 0};
}
constexpr bool reads_mask(const Sm90DqConfig& c) { return (c.options & kMaskTensor) != 0; }
constexpr bool splits_keys(const Sm90DqConfig&) { return false; }
constexpr bool packs_heads(const Sm90DqConfig&) { return false; }
constexpr bool ends_with_full_tile(const Sm90DqConfig&) { return false; }
constexpr bool aligns_tiles_to_mask(const Sm90DqConfig&) { return false; }
constexpr bool has_full_run(const Sm90DqConfig&) { return false; }
constexpr bool halves_first_tile(const Sm90DqConfig&) { return false; }
constexpr int tile_q_of(const Sm90DqConfig& c) { return kWarpgroupRows * c.warpgroups; }
constexpr int num_threads(const Sm90DqConfig& c) { return kWarpgroupThreads * (c.warpgroups + 1); }
constexpr int consumer_registers(const Sm90DqConfig& c) { return c.warpgroups == 2 ? 232 : 160; }
constexpr int producer_registers(const Sm90DqConfig& c) { return c.warpgroups == 2 ? 40 : 32; }
constexpr int num_tile_infos(const Sm90DqConfig& c) { return 2 + c.query_stages; }
// A bias tile of every consumer warpgroup per stage of K.
constexpr int bias_tile_bytes(const Sm90DqConfig& c) {
  return (c.options & kBias) != 0 ? swizzled_bytes(kWarpgroupRows, c.tile_k) : 0;
}
constexpr int num_barriers(const Sm90DqConfig& c) {
  return 2 * (c.key_stages + c.value_stages + c.warpgroups * c.query_stages);
}
// Bits of the mask tensor per stage of K and consumer warpgroup, and the listed tile of every such stage.
constexpr int mask_tile_bytes(const Sm90DqConfig& c) { return reads_mask(c) ? kMaskBitsBytes : 0; }
constexpr int listed_tile_bytes(const Sm90DqConfig& c) { return reads_mask(c) ? (c.key_stages + 1) / 2 * 8 : 0; }
constexpr int shared_bytes(const Sm90DqConfig& c) {
  const int queries = swizzled_bytes(kWarpgroupRows, c.dim_qk) + swizzled_bytes(kWarpgroupRows, c.dim_v) +
                      row_stats_stage_bytes(portable_view(c));
  return c.query_stages * c.warpgroups * queries +
         c.key_stages *
             (swizzled_bytes(c.tile_k, c.dim_qk) + c.warpgroups * (bias_tile_bytes(c) + mask_tile_bytes(c))) +
         c.value_stages * swizzled_bytes(c.tile_k, c.dim_v) + num_tile_infos(c) * c.warpgroups * kTileInfoBytes +
         num_barriers(c) * 8 + listed_tile_bytes(c);
}

// A visit is a query tile of one head: its Q and K are loaded first, then its dO and V. The sums are those of the
// tile's queries, or their total if all queries share a row of the bias.
constexpr int tile_q_of(const Sm90DbiasConfig& c) { return kWarpgroupRows * c.warpgroups; }
// CTAs with one consumer warpgroup share an SM.
constexpr int ctas_per_sm(const Sm90DbiasConfig& c) { return c.warpgroups == 1 ? 2 : 1; }
// Steps whose coordinates, row statistics and mask are in shared memory at the same time.
constexpr int kDbiasSteps = 2;
constexpr int kDbiasTasks = 3, kDbiasTaskBytes = 24;  // see DbiasTask
// The config under which sm90/dq/scores.h computes P of 64 keys.
constexpr Sm90DqConfig score_config(const Sm90DbiasConfig& c) {
  return {c.element, c.dim_qk, c.dim_v, c.warpgroups, 64, 2, 1, 1, 0, c.options};
}
constexpr int num_threads(const Sm90DbiasConfig& c) { return kWarpgroupThreads * (c.warpgroups + 1); }
constexpr int consumer_registers(const Sm90DbiasConfig& c) {
  return c.warpgroups == 1 ? 184 : c.tile_k == 64 ? 216 : 224;
}
constexpr int producer_registers(const Sm90DbiasConfig& c) {
  return c.tile_k == 64 ? 72 : 56;
}  // its only active thread finds all work
constexpr int dbias_stage_bytes(const Sm90DbiasConfig& c) {
  const int widest = c.dim_qk > c.dim_v ? c.dim_qk : c.dim_v;
  return swizzled_bytes(tile_q_of(c), widest) + swizzled_bytes(c.tile_k, widest);
}
// The tile of the bias is the same for all visits.
constexpr int bias_tile_bytes(const Sm90DbiasConfig& c) { return swizzled_bytes(kWarpgroupRows, c.tile_k); }
constexpr int mask_bytes(const Sm90DbiasConfig& c) {
  return (c.options & kMaskTensor) != 0 ? c.warpgroups * kMaskBitsBytes : 0;
}
constexpr int num_barriers(const Sm90DbiasConfig& c) { return 2 * (c.stages + kDbiasSteps + 1); }
constexpr int shared_bytes(const Sm90DbiasConfig& c) {
  const int step =
      mask_bytes(c) + c.warpgroups * (row_stats_stage_bytes(portable_view(score_config(c))) + kTileInfoBytes);
  return c.stages * dbias_stage_bytes(c) + c.warpgroups * bias_tile_bytes(c) + kDbiasSteps * step +
         kDbiasTasks * kDbiasTaskBytes + num_barriers(c) * 8;
}

}  // namespace cuflash
