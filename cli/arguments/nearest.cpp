#include "cli/arguments/nearest.h"

#include <algorithm>
#include <array>
#include <vector>

namespace cuflash::cli {

namespace {

// "--head-dim" is compared as "head-dim": the dashes that all flags share would hide a difference.
std::string_view without_dashes(std::string_view word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows n - 2, n - 1 and n of the table of distances between prefixes of a and of b.
  std::array<std::vector<size_t>, 3> rows;
  for (auto& row : rows) row.resize(b.size() + 1);
  for (size_t n = 0; n <= a.size(); ++n) {
    auto &row = rows[n % 3], &above = rows[(n + 2) % 3], &above_that = rows[(n + 1) % 3];
    for (size_t m = 0; m <= b.size(); ++m) {
      if (n == 0 || m == 0) {
        row[m] = n + m;
        continue;
      }
      row[m] = std::min({above[m] + 1, row[m - 1] + 1, above[m - 1] + (a[n - 1] != b[m - 1])});
      if (n > 1 && m > 1 && a[n - 1] == b[m - 2] && a[n - 2] == b[m - 1])
        row[m] = std::min(row[m], above_that[m - 2] + 1);
    }
  }
  return rows[a.size() % 3][b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> known) {
  constexpr size_t kLongest = 40;  // a longer word is not a misspelling, and would take long to compare
  const std::string_view wanted = without_dashes(word);
  if (wanted.empty() || wanted.size() > kLongest) return "";
  std::string best;
  size_t least = std::min(std::max<size_t>(1, wanted.size() / 3), wanted.size() - 1);  // a third may be wrong
  for (const std::string& name : known) {
    const size_t distance = edit_distance(wanted, without_dashes(name));
    if (distance < least || (distance == least && best.empty())) best = name, least = distance;
  }
  if (!best.empty()) return best;
  // Other tools say --length, --seqlen, --num-heads or --batch-size for --len, --heads and --batch.
  constexpr size_t kShortest = 3;
  for (const std::string& name : known) {
    const std::string_view part = without_dashes(name);
    if (part.size() >= std::max(kShortest, without_dashes(best).size() + 1) && wanted.find(part) != wanted.npos)
      best = name;
  }
  return best;
}

}  // namespace cuflash::cli
