// What a kernel is compiled for: the plan's answer, the template argument, the cache key and the log line in one struct.
// Host and device share this file, so it includes nothing. Every config is an Element followed by ints: the host writes
// it into the generated program and into cache keys without knowing its fields.
#pragma once

namespace cuflash {

enum class Element : int { f64 = 1, f32 = 2, f16 = 3, bf16 = 4 };  // numbered as cuflash_dtype

constexpr int size_of(Element e) { return e == Element::f64 ? 8 : e == Element::f32 ? 4 : 2; }

// What changes a score beside scale, lengths and window. A kernel compiled with a bit still asks its params whether the
// option is given: a problem with several options gets the one kernel that has them all.
enum OptionBits : int {
  kSoftcap = 1,
  kAlibi = 2,
  kBias = 4,
  kMaskTensor = 8,
  kDropout = 16,
  kScaleFirst = 32,  // the scale is not positive: it cannot be folded into the exponent
  kAllOptions = 63,
};

// How rows travel from global to shared memory.
enum CopyMode : int {
  kCopyVectors = 0,   // 16 bytes at a time, asynchronously: every row starts on a 16-byte boundary
  kCopyElements = 1,  // one element at a time, converted on the way: any alignment, any stored type
  kCopyWhole = 2,     // as kCopyVectors, and rows have exactly the padded size: nothing is left to be zero
  kCopyTma = 3,       // boxes of a TensorMap, by a warp that does nothing else (Hopper, 16 bits)
};

struct ForwardConfig {
  Element element;
  int dim_qk, dim_v;  // padded: multiples of 16, up to 256
  int tile_q, tile_k;
  int row_warps;     // share the tile's queries
  int column_warps;  // share dim_v; each computes the scores of its queries again
  int stages;        // tiles of keys and values in shared memory
  int ctas_per_sm;   // what the register budget is chosen for
  int copy;          // CopyMode
  int options;       // OptionBits
};

// How the warpgroups of the Hopper kernel overlap products with other work.
enum ForwardSchedule : int {
  kPingPong = 1,     // they issue products in turns, so that one computes weights while another multiplies
  kPinWait = 2,      // the compiler is kept from waiting for products before weights are computed under them
  kStoreBySmem = 4,  // outputs leave by copies from shared memory, under the next tile
  kPrefetchQ = 8,    // the next queries come while these are used
};

// Forward on Hopper: one warpgroup copies, the others have 64 queries each.
struct Sm90ForwardConfig {
  Element element;    // f16 or bf16
  int dim_qk, dim_v;  // padded: multiples of 16, dim_v of 32, up to 256
  int warpgroups;     // that compute
  int tile_k;
  int stages;    // tiles of keys, and tiles of values, in shared memory
  int schedule;  // ForwardSchedule
  int options;   // OptionBits
};

// Attention over a KV cache. A row is a pair of a query and a head of the group that shares keys.
struct KvConfig {
  Element element;
  int dim_qk, dim_v;  // padded: multiples of 32, up to 576
  int tile_q;         // rows
  int tile_k;
  int row_warps;     // share the tile's rows, 16 each; of large tiles 16 of each block: see row_blocks
  int key_warps;     // share the tile's keys; what they sum is added up at the end
  int column_warps;  // share dim_v; each computes the scores of its rows and keys again
  int stages;        // at least 2
  int ctas_per_sm;
  int copy;     // CopyMode
  int options;  // OptionBits
  int v_in_k;   // 1: values are columns of keys, and are not copied again
  // 1: no row is new or turned, sequences differ in nothing but the length of their part of the cache, which begins with the
  // first row, and pieces of queries and of the output, which has their type, lie on 16 bytes. Code that is not there need not be fetched.
  int fast_decode;
  // 1: all CTAs run at one time, and splits wait for each other: see cache/posted_sums.h.
  int l2_exchange;
};

// Two partial results become one.
struct MergeConfig {
  Element element;
  int lanes;  // that share a row
};

// One CTA keeps tile_k keys and walks over tiles of queries.
struct BackwardConfig {
  Element element;
  int dim_qk, dim_v;
  int tile_q, tile_k;
  int key_warps;     // share the tile's keys
  int column_warps;  // share the columns of dK and dV, and the queries whose scores they compute for each other
  int stages;        // tiles of queries and dO in shared memory; 0: K and V, Q and dO take turns in one place each
  int ctas_per_sm;
  int copy;
  int options;
  int ordered;        // 1: dQ is summed in the order of the keys, bitwise reproducible
  int all_gradients;  // 1: dQ, dK and dV are wanted, all of them: the kernel is one stretch of products without questions
};

// Backward on Hopper: some warpgroups have 64 keys each, one more brings queries and computes dQ.
struct Sm90BackwardConfig {
  Element element;    // f16 or bf16
  int dim_qk, dim_v;  // padded: multiples of 32
  int tile_q;         // 64
  int warpgroups;     // that have keys; 1: two share them, one of which has dV and the other dK
  int stages;         // tiles of queries and dO in shared memory, at least 2
  int dq;             // 1: dQ is added to sums, of two warpgroups or more; 0: nobody wants it, or another kernel has it
};

// dQ alone on Hopper: some warpgroups have 64 queries each and walk over the keys that these see, one more copies.
struct Sm90DqConfig {
  Element element;               // f16 or bf16
  int dim_qk, dim_v;             // padded: multiples of 32
  int warpgroups;                // that compute
  int tile_k;                    // a multiple of 16
  int key_stages, value_stages;  // tiles of each in shared memory: of keys at least 2, one is used twice
  int query_stages;              // 2: the next queries come while these are used
  int ping_pong;  // 1: warpgroups issue scores and sums in turns, so that one computes while another multiplies
};

constexpr int kExchangeColumns = 32;  // of a row, that a warp adds up over all splits

// Shared memory rows are padded so that eight (f64: four) consecutive rows fall into different banks.
constexpr int row_padding_bytes(Element e) { return e == Element::f64 ? 32 : 16; }
constexpr int row_stride(Element e, int columns) { return columns + row_padding_bytes(e) / size_of(e); }  // elements
constexpr int tile_bytes(Element e, int rows, int columns) { return rows * row_stride(e, columns) * size_of(e); }

constexpr int num_threads(const ForwardConfig& c) { return 32 * c.row_warps * c.column_warps; }
constexpr int shared_bytes(const ForwardConfig& c) {
  const int output = tile_bytes(c.element, c.tile_q, c.dim_v);  // on its way out, in the place of all others
  const int inputs = tile_bytes(c.element, c.tile_q, c.dim_qk) +
                     c.stages * (tile_bytes(c.element, c.tile_k, c.dim_qk) + tile_bytes(c.element, c.tile_k, c.dim_v)) +
                     (c.options & kMaskTensor ? c.tile_k : 0);  // which keys somebody sees
  return output > inputs ? output : inputs;
}

constexpr int kWarpgroupRows = 64, kWarpgroupThreads = 128;
constexpr int tile_q_of(const Sm90ForwardConfig& c) { return kWarpgroupRows * c.warpgroups; }
constexpr int num_threads(const Sm90ForwardConfig& c) { return kWarpgroupThreads * (c.warpgroups + 1); }
// A multiprocessor has 512 registers for each of 128 lanes; what is launched gets equal shares and deals them out anew.
// Who cleans values reads the mask tensor, too, and needs some more for it.
constexpr bool cleans_by_mask(const Sm90ForwardConfig& c) { return c.warpgroups <= 2 && (c.options & kMaskTensor); }
constexpr int consumer_registers(const Sm90ForwardConfig& c) {
  if (c.warpgroups <= 2) return cleans_by_mask(c) ? 224 : 232;
  return c.warpgroups == 3 ? 160 : 112;
}
constexpr int producer_registers(const Sm90ForwardConfig& c) {
  return c.warpgroups > 2 ? 32 : cleans_by_mask(c) ? 56 : 40;
}
// Tiles in the layout of tile/swizzled.h.
constexpr int kPanelColumns = 64, kPanelRowBytes = 128;
constexpr int num_panels(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
constexpr int swizzled_bytes(int rows, int columns) { return rows * kPanelRowBytes * num_panels(columns); }
constexpr int query_stages(const Sm90ForwardConfig& c) { return (c.schedule & kPrefetchQ) != 0 ? 2 : 1; }
constexpr int num_barriers(const Sm90ForwardConfig& c) { return 5 * c.stages + 2 * c.warpgroups * query_stages(c); }
// What a warpgroup has to know of a tile of queries. A note is written before there is room for its queries, while those
// of the tile before it wait to be used, and the output of the one before that may be on its way out.
constexpr int kTileInfoBytes = 64;
constexpr int num_tile_infos(const Sm90ForwardConfig& c) { return 2 + query_stages(c); }
constexpr int staged_columns(const Sm90ForwardConfig& c) { return c.dim_v < 128 ? c.dim_v : 128; }  // at a time
constexpr int staged_bytes(const Sm90ForwardConfig& c) {
  return (c.schedule & kStoreBySmem) != 0 ? swizzled_bytes(tile_q_of(c), staged_columns(c)) : 0;
}
constexpr int shared_bytes(const Sm90ForwardConfig& c) {
  return query_stages(c) * swizzled_bytes(tile_q_of(c), c.dim_qk) + staged_bytes(c) +
         c.stages * (swizzled_bytes(c.tile_k, c.dim_qk) + swizzled_bytes(c.tile_k, c.dim_v)) +
         num_tile_infos(c) * c.warpgroups * kTileInfoBytes + num_barriers(c) * 8;
}

constexpr int sum_size(Element e) { return e == Element::f64 ? 8 : 4; }  // of sums and softmax state
constexpr int consumer_threads(const KvConfig& c) { return 32 * c.row_warps * c.key_warps * c.column_warps; }
// Large tiles of rows are multiplied by whole warpgroups. Their blocks lie one after the other, each with 16 rows of every
// warp, so that those of a warpgroup lie side by side.
constexpr bool by_warpgroups(const KvConfig& c) { return c.copy == kCopyTma && c.tile_q > kWarpgroupRows; }
constexpr int block_rows(const KvConfig& c) { return 16 * c.row_warps; }
constexpr int row_blocks(const KvConfig& c) { return c.tile_q / block_rows(c); }
// Nine warps could have 168 registers each, too few for sums of two blocks of rows. Three warps more, which do nothing, make
// the copying one a warpgroup, and that can leave registers to the two that compute.
constexpr bool uses_setmaxnreg(const KvConfig& c) { return by_warpgroups(c) && row_blocks(c) > 1; }
constexpr int consumer_registers(const KvConfig&) { return 240; }
constexpr int producer_registers(const KvConfig&) { return 24; }
// With the copying warp, which waits for nothing but what these have read.
constexpr int active_threads(const KvConfig& c) { return consumer_threads(c) + 32; }
constexpr int num_threads(const KvConfig& c) {
  if (uses_setmaxnreg(c)) return consumer_threads(c) + kWarpgroupThreads;
  return c.copy == kCopyTma ? active_threads(c) : consumer_threads(c);
}
constexpr int num_threads(const MergeConfig&) { return 128; }
constexpr int keys_bytes(const KvConfig& c, int columns) {
  return c.copy == kCopyTma ? swizzled_bytes(c.tile_k, columns) : tile_bytes(c.element, c.tile_k, columns);
}
// Keys, and values where these are not columns of keys.
constexpr int parts_of_tile(const KvConfig& c) { return c.v_in_k ? 1 : 2; }
constexpr int stage_bytes(const KvConfig& c) {
  return keys_bytes(c, c.dim_qk) + (c.v_in_k ? 0 : keys_bytes(c, c.dim_v));
}
// Where each key of a stage lies, the offsets of its row in K and in V; for boxes the barriers of a stage.
constexpr int stage_info_bytes(const KvConfig& c) { return c.copy == kCopyTma ? 24 : c.tile_k * 16; }
// At the end every key warp's sums, maxima and sums of weights take the place of all others; eight more columns keep
// neighbouring rows in different banks.
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
// LSE and delta of a tile's queries, and whether one of them holds something that is not finite; in Reals.
constexpr int row_stats_size(const BackwardConfig& c) { return 2 * c.tile_q + 4; }
constexpr int row_stats_bytes(const BackwardConfig& c) {
  return row_stats_size(c) * (c.element == Element::f64 ? 8 : 4);
}
// Where a tensor copy brings them.
constexpr int kCopyAlignment = 128;
constexpr int row_stats_room(const BackwardConfig& c) {
  return (row_stats_bytes(c) + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}
// P travels through shared memory only where other warps need it; dS always does.
constexpr int score_tiles(const BackwardConfig& c) { return c.column_warps > 1 || c.stages == 0 ? 2 : 1; }
// Where a CTA works and what it visits: numbers that would take registers from the sums.
constexpr int kPlaceBytes = 128;
constexpr int shared_bytes(const BackwardConfig& c) {
  const int sides = c.stages == 0 ? 1 : 2, copies = c.stages == 0 ? 1 : c.stages;
  const int widest = c.dim_qk > c.dim_v ? c.dim_qk : c.dim_v;
  const int keys = sides == 1 ? tile_bytes(c.element, c.tile_k, widest)
                              : tile_bytes(c.element, c.tile_k, c.dim_qk) + tile_bytes(c.element, c.tile_k, c.dim_v);
  const int queries = sides == 1 ? tile_bytes(c.element, c.tile_q, widest)
                                 : tile_bytes(c.element, c.tile_q, c.dim_qk) + tile_bytes(c.element, c.tile_q, c.dim_v);
  return keys + copies * (queries + row_stats_bytes(c)) + score_tiles(c) * tile_bytes(c.element, c.tile_k, c.tile_q) +
         kPlaceBytes;
}

// What the kernels before and behind it, and the code that it shares with the portable one, know of it.
constexpr BackwardConfig shared_config(const Sm90BackwardConfig& c) {
  constexpr int kWarps = kWarpgroupThreads / 32;
  return {
      c.element,    c.dim_qk, c.dim_v, c.tile_q, kWarpgroupRows * c.warpgroups, kWarps * c.warpgroups, 1, c.stages, 1,
      kCopyVectors, 0,        0,       0};
}
constexpr int tile_k_of(const Sm90BackwardConfig& c) { return kWarpgroupRows * c.warpgroups; }
constexpr bool splits_sums(const Sm90BackwardConfig& c) { return c.warpgroups == 1; }
constexpr int summing_warpgroups(const Sm90BackwardConfig& c) { return splits_sums(c) ? 2 : c.warpgroups; }
constexpr int num_threads(const Sm90BackwardConfig& c) { return kWarpgroupThreads * (summing_warpgroups(c) + 1); }
// As above, of 504 registers of three warpgroups or 512 of four. Beside dQ, with 208 and 144 the assembler lays S and dP over
// each other; with 8 more it gives each its own registers, of which there are too few then.
constexpr int key_registers(const Sm90BackwardConfig& c) {
  if (!c.dq) return c.warpgroups == 3 ? 144 : 224;
  return c.warpgroups == 2 ? 208 : 144;
}
constexpr int query_registers(const Sm90BackwardConfig& c) {
  if (!c.dq) return 56;
  return c.warpgroups == 2 ? 88 : 80;
}
// Tiles of dS in shared memory. Without dQ one holds weights where dV is summed by a selection.
constexpr int kGradientTiles = 2;
constexpr int gradient_tiles(const Sm90BackwardConfig& c) { return c.dq ? kGradientTiles : splits_sums(c) ? 0 : 1; }
// Tiles of P on their way from one warpgroup to the other.
constexpr int weight_tiles(const Sm90BackwardConfig& c) { return splits_sums(c) ? kGradientTiles : 0; }
// A copy of K without elements that are not finite.
constexpr int finite_keys_bytes(const Sm90BackwardConfig& c) {
  return c.dq ? swizzled_bytes(tile_k_of(c), c.dim_qk) : 0;
}
// One tile of keys is worked on, the next is known, and of the one before sums may be on their way out.
constexpr int kPlaces = 3;
constexpr int num_barriers(const Sm90BackwardConfig& c) { return 4 + 3 * c.stages; }
constexpr int shared_bytes(const Sm90BackwardConfig& c) {
  const int tile_k = tile_k_of(c);
  return swizzled_bytes(tile_k, c.dim_qk) + swizzled_bytes(tile_k, c.dim_v) + finite_keys_bytes(c) +
         c.stages * (swizzled_bytes(c.tile_q, c.dim_qk) + swizzled_bytes(c.tile_q, c.dim_v)) +
         (weight_tiles(c) + gradient_tiles(c)) * swizzled_bytes(c.tile_q, tile_k) +
         c.stages * row_stats_room(shared_config(c)) + kPlaces * kPlaceBytes + num_barriers(c) * 8;
}

// Of its statistics.
constexpr BackwardConfig shared_config(const Sm90DqConfig& c) {
  return {c.element, c.dim_qk, c.dim_v, kWarpgroupRows, c.tile_k, 0, 0, 0, 0, kCopyVectors, 0, 0, 0};
}
constexpr int tile_q_of(const Sm90DqConfig& c) { return kWarpgroupRows * c.warpgroups; }
constexpr int num_threads(const Sm90DqConfig& c) { return kWarpgroupThreads * (c.warpgroups + 1); }
constexpr int consumer_registers(const Sm90DqConfig& c) { return c.warpgroups == 2 ? 232 : 160; }
constexpr int producer_registers(const Sm90DqConfig& c) { return c.warpgroups == 2 ? 40 : 32; }
constexpr int num_tile_infos(const Sm90DqConfig& c) { return 2 + c.query_stages; }
constexpr int num_barriers(const Sm90DqConfig& c) {
  return 2 * (c.key_stages + c.value_stages + c.warpgroups * c.query_stages);
}
constexpr int shared_bytes(const Sm90DqConfig& c) {
  const int queries = swizzled_bytes(kWarpgroupRows, c.dim_qk) + swizzled_bytes(kWarpgroupRows, c.dim_v) +
                      row_stats_room(shared_config(c));
  return c.query_stages * c.warpgroups * queries + c.key_stages * swizzled_bytes(c.tile_k, c.dim_qk) +
         c.value_stages * swizzled_bytes(c.tile_k, c.dim_v) + num_tile_infos(c) * c.warpgroups * kTileInfoBytes +
         num_barriers(c) * 8;
}

}  // namespace cuflash
