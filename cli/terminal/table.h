// Tables for documents and for terminals.
#pragma once

#include <string>
#include <vector>

namespace cuflash::cli {

struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;

  std::string markdown() const;
  std::string text() const;  // columns padded to their widest cell
};

}  // namespace cuflash::cli
