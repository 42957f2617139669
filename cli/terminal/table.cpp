#include "cli/terminal/table.h"

#include <algorithm>

namespace cuflash::cli {

std::string Table::markdown() const {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + cell + " |";
    return text + "\n";
  };
  std::string text = line(head) + line(std::vector<std::string>(head.size(), "---"));
  for (const auto& row : rows) text += line(row);
  return text;
}

std::string Table::text() const {
  std::vector<size_t> widths(head.size());
  const auto widen = [&](const std::vector<std::string>& cells) {
    for (size_t n = 0; n < cells.size(); ++n) widths[n] = std::max(widths[n], cells[n].size());
  };
  widen(head);
  for (const auto& row : rows) widen(row);
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t n = 0; n < cells.size(); ++n)
      text += n + 1 < cells.size() ? cells[n] + std::string(widths[n] + 2 - cells[n].size(), ' ') : cells[n];
    return text + "\n";
  };
  std::string text = line(head);
  for (const auto& row : rows) text += line(row);
  return text;
}

}  // namespace cuflash::cli
