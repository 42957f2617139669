#include "check/cases/cache_case.h"

#include <algorithm>

#include "dtype.h"
#include "error.h"

namespace cuflash::check {

int64_t CacheCase::count_new(int64_t b) const {
  if (new_rows == NewRows::none) return 0;
  return new_rows == NewRows::dense ? len_new : lengths_new[static_cast<size_t>(b)];
}

int64_t CacheCase::longest() const {
  int64_t longest = 0;
  for (int64_t b = 0; b < plain.batch; ++b) longest = std::max(longest, after(b));
  return longest;
}

bool CacheCase::key_is_seen(int64_t b, int64_t j) const {
  for (int64_t i = 0; i < plain.length_q(b); ++i)
    if (plain.sees(b, i, j)) return true;
  return false;
}

namespace {

const char* const kNewRows[] = {"none", "dense", "padded", "packed"};
const char* const kRotaryNames[] = {"none", "halves", "interleaved"};

std::string describe_keys(const CacheCase& c) {
  std::string text = c.page_size ? join(" pages of ", c.page_size, " columns=", c.room, " table_gap=", c.table_gap)
                                 : join(" room=", c.room);
  text += join(" rows=", describe(c.rows), " spare=", c.spare);
  if (!c.leftpad.empty()) text += " leftpad=" + describe(c.leftpad);
  if (c.batch_idx) text += " batch_idx";
  if (c.shared) text += " shared";
  if (c.v_in_k) text += join(" v_in_k=", c.v_column);
  return text;
}

std::string describe_new(const CacheCase& c) {
  if (c.new_rows == NewRows::none) return "";
  std::string text = join(" new=", kNewRows[static_cast<size_t>(c.new_rows)], ":", c.len_new);
  if (!c.lengths_new.empty()) text += describe(c.lengths_new);
  if (c.new_rows == NewRows::packed)
    text += join(" slack_new=", c.slack_new, c.give_max_new ? " max_seqlen_new given" : "");
  return text + join(" k_new=", describe(c.k_new), " v_new=", describe(c.v_new));
}

std::string describe_rotary(const CacheCase& c) {
  if (c.rotary == Rotary::none) return "";
  return join(" rotary=", kRotaryNames[static_cast<size_t>(c.rotary)], ":", c.rotary_dim, ":", name_of(c.rotary_dtype),
              "+positions", c.spare_positions, "+gap", c.rotary_gap, c.one_position ? " one_position" : "");
}

}  // namespace

std::string describe(const CacheCase& c) {
  return join("cache:", describe_keys(c), describe_new(c), describe_rotary(c), " num_splits=", c.num_splits,
              c.alone >= 0 ? join(" alone=", c.alone) : "", " attention: ", describe(c.plain));
}

}  // namespace cuflash::check
