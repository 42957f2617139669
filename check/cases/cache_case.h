// A call over a KV cache as plain values: the equivalent attention, and the layout of the cache.
#pragma once

#include <cuflash/cached_attention.h>

#include "check/cases/case.h"

namespace cuflash::check {

enum class NewRows { none, dense, padded, packed };
enum class Rotary { none, halves, interleaved };

struct CacheCase {
  // The equivalent attention over gathered keys: lengths_k counts them after the append, without left padding. The
  // layouts of k and v are those of the caches.
  Case plain;

  std::vector<int32_t> rows;     // [batch]: rows in the cache before the append
  std::vector<int32_t> leftpad;  // [batch]; empty: absent
  int64_t room = 0;              // rows per entry, or columns of the block table
  int64_t page_size = 0;         // 0: contiguous
  int64_t spare = 0;             // unused entries or pages
  int64_t table_gap = 0;         // unused elements between the rows of the table
  bool batch_idx = false;        // contiguous: entries in another order
  bool shared = false;           // sequences may share full pages, or entries if nothing is appended
  bool v_in_k = false;           // rows of v are rows of k from v_column on
  int64_t v_column = 0;

  NewRows new_rows = NewRows::none;
  int64_t len_new = 0;               // length of the dense tensor; packed: max_seqlen_new
  std::vector<int32_t> lengths_new;  // [batch], padded or packed
  int64_t slack_new = 0;             // packed: rows beyond cu_seqlens_new[B]
  bool give_max_new = false;
  Layout k_new, v_new;

  Rotary rotary = Rotary::none;
  int64_t rotary_dim = 0;  // elements of a row, even
  bool one_position = false;
  DType rotary_dtype = DType::f32;
  int64_t spare_positions = 0, rotary_gap = 0;

  int32_t num_splits = 0;
  int64_t alone = -1;  // >= 0: this sequence is also computed alone and must give the same bits

  int64_t count_new(int64_t b) const;
  int64_t pad(int64_t b) const { return leftpad.empty() ? 0 : leftpad[static_cast<size_t>(b)]; }
  int64_t before(int64_t b) const { return rows[static_cast<size_t>(b)]; }
  int64_t after(int64_t b) const { return before(b) + count_new(b); }
  int64_t shift(int64_t b) const { return plain.length_k(b) - plain.length_q(b); }  // the position of the first query
  int64_t longest() const;                                                          // the largest of after()
  bool key_is_seen(int64_t b, int64_t j) const;
};

CacheCase draw_cache_case(Choices& choose, const Limits& limits = {});

// All values in one line.
std::string describe(const CacheCase& c);

}  // namespace cuflash::check
