// Tables by type and head size.
#include "cli/support_question.h"
#include "cli/support_tables.h"

namespace cuflash::cli {

namespace {

using Cells = std::vector<std::string>;

constexpr int64_t kLargestAsked = 320;  // head sizes above 256 are asked for, too

std::string cell(const Answer& answer) {
  if (!answer.served) return "no";
  return answer.tiles.empty() ? "yes" : answer.tiles;
}

// Rows of the sizes `dims`, one for each run of sizes with the same answers everywhere.
template <class CellsOf>
void add_ranges(Table& table, const std::vector<int64_t>& dims, const std::string& words, CellsOf cells_of) {
  for (size_t begin = 0; begin < dims.size();) {
    const Cells cells = cells_of(dims[begin]);
    size_t end = begin + 1;
    while (end < dims.size() && cells_of(dims[end]) == cells) ++end;
    const std::string up_to = end == dims.size() ? " and above" : end == begin + 1 ? "" : join(" to ", dims[end - 1]);
    Cells row{join(words, " ", dims[begin], up_to)};
    row.insert(row.end(), cells.begin(), cells.end());
    table.rows.push_back(row);
    begin = end;
  }
}

// Rows of 16-byte vectors, or rows that are not.
std::vector<int64_t> dims_of(DType type, bool vectors) {
  std::vector<int64_t> dims;
  for (int64_t dim = 1; dim <= kLargestAsked; ++dim)
    if ((dim * size_of(type) % 16 == 0) == vectors) dims.push_back(dim);
  return dims;
}

// A table of all types and head sizes. Types with the same answers share their rows.
template <class CellsOf>
Table by_size(const Cells& answers, CellsOf cells_of) {
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
      add_ranges(own, dims_of(type, vectors), words, [&](int64_t dim) { return cells_of(type, dim); });
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

Table head_sizes(bool backward) {
  return by_size({std::begin(kSupportPlaces), std::end(kSupportPlaces)}, [&](DType type, int64_t dim) {
    Cells cells;
    for (const char* place : kSupportPlaces) cells.push_back(cell(ask(plain_question(type, dim, backward), place)));
    return cells;
  });
}

Table hopper_sizes() {
  return by_size({"forward", "backward"}, [](DType type, int64_t dim) {
    return Cells{ask_hopper(plain_question(type, dim, false)), ask_hopper(plain_question(type, dim, true))};
  });
}

}  // namespace cuflash::cli
