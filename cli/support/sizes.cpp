// Tables by type and head size.
#include <numeric>

#include "cli/support/cache.h"
#include "cli/support/question.h"
#include "cli/support/tables.h"

namespace cuflash::cli {

namespace {

using Cells = std::vector<std::string>;

// Head sizes up to these limits are asked about: beyond the largest of the kernels, which is 256, or 576 over a cache.
constexpr int64_t kLargestAsked = 320, kLargestOfCache = 640;

// One row for each run of sizes in `dims` with the same answers everywhere.
template <class CellsOf>
void add_ranges(Table& table, const std::vector<int64_t>& dims, const std::string& words, CellsOf cells_of) {
  for (size_t begin = 0; begin < dims.size();) {
    const Cells cells = cells_of(dims[begin]);
    size_t end = begin + 1;
    while (end < dims.size() && cells_of(dims[end]) == cells) ++end;
    const std::string up_to = end == dims.size() ? " and above" : end == begin + 1 ? "" : join(" to ", dims[end - 1]);
    Cells row{join(words, words.empty() ? "" : " ", dims[begin], up_to)};
    row.insert(row.end(), cells.begin(), cells.end());
    table.rows.push_back(row);
    begin = end;
  }
}

// The head sizes of this type up to `largest` whose rows consist of 16-byte vectors, or those whose rows do not.
std::vector<int64_t> dims_of(DType type, bool vectors, int64_t largest) {
  std::vector<int64_t> dims;
  for (int64_t dim = 1; dim <= largest; ++dim)
    if ((dim * size_of(type) % 16 == 0) == vectors) dims.push_back(dim);
  return dims;
}

// A table of all types and of head sizes up to `largest`. Types with the same answers share their rows.
template <class CellsOf>
Table by_size(const Cells& answers, int64_t largest, CellsOf cells_of) {
  Table table{{"type", "head size"}, {}};
  table.head.insert(table.head.end(), answers.begin(), answers.end());
  std::string names;
  std::vector<Cells> before;
  const auto finish = [&] {
    for (Cells& row : before) row.insert(row.begin(), names);
    table.rows.insert(table.rows.end(), before.begin(), before.end());
  };
  for (const DType type : kSupportTypes) {
    Table own;
    for (const bool vectors : {true, false}) {
      const std::string words = vectors ? join("multiples of ", 16 / size_of(type), ",") : "others,";
      add_ranges(own, dims_of(type, vectors, largest), words, [&](int64_t dim) { return cells_of(type, dim); });
    }
    const bool same = own.rows == before;
    if (!same) finish();
    names = same ? join(names, ", ", name_of(type)) : name_of(type);
    before = own.rows;
  }
  finish();
  return table;
}

}  // namespace

std::string cell(const Answer& answer) {
  if (!answer.served) return "no";
  return answer.tiles.empty() ? "yes" : join(answer.tiles, answer.by_tma ? ", TMA" : "");
}

Table head_sizes(bool backward) {
  return by_size({std::begin(kSupportPlaces), std::end(kSupportPlaces)}, kLargestAsked, [&](DType type, int64_t dim) {
    Cells cells;
    for (const char* place : kSupportPlaces) cells.push_back(cell(ask(plain_question(type, dim, backward), place)));
    return cells;
  });
}

Table hopper_sizes() {
  return by_size({"forward", "backward"}, kLargestAsked, [](DType type, int64_t dim) {
    return Cells{ask_hopper(plain_question(type, dim, false)), ask_hopper(plain_question(type, dim, true))};
  });
}

Table cache_sizes() {
  return by_size({std::begin(kSupportPlaces), std::end(kSupportPlaces)}, kLargestOfCache, [](DType type, int64_t dim) {
    Cells cells;
    for (const char* place : kSupportPlaces)
      cells.push_back(cell(ask(CacheQuestion{.dtype = type, .dim = dim}, place)));
    return cells;
  });
}

Table cache_rows() {
  const std::vector<CacheQuestion> questions = {
      {.dim = 64}, {.dim = 128}, {.dim = 256}, {.dim = 576, .dim_v = 512, .change = take_values_from_keys}};
  Table table{{"query heads of a key head"}, {}};
  for (const CacheQuestion& q : questions)
    for (const char* place : {"sm_80", "sm_90a"})
      table.head.push_back(join("D = ", q.dim, q.dim_v ? join(", Dv = ", *q.dim_v) : "", ", ", place));
  std::vector<int64_t> heads(128);
  std::iota(heads.begin(), heads.end(), 1);
  add_ranges(table, heads, "", [&](int64_t count) {
    Cells cells;
    for (CacheQuestion q : questions) {
      q.heads = count, q.heads_k = 1;
      for (const char* place : {"sm_80", "sm_90a"}) cells.push_back(cell(ask(q, place)));
    }
    return cells;
  });
  return table;
}

}  // namespace cuflash::cli
