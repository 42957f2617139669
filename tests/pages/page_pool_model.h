// A page pool together with a plain model: every sequence is a list of token ids, and appends and copies write ids into the
// pages. Each function returns "", or what is wrong.
#pragma once

#include <cuflash/page_pool.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cuflash::test {

class ModelledPool {
 public:
  explicit ModelledPool(const PagePoolConfig& config);

  size_t size() const { return sequences_.size(); }
  int64_t tokens(size_t n) const { return static_cast<int64_t>(sequences_[n].tokens.size()); }
  int64_t position(size_t n) const { return sequences_[n].position; }

  std::string start();
  std::string fork(size_t parent, int64_t tokens);  // -1: all
  std::string append(size_t n, int64_t tokens);
  std::string truncate(size_t n, int64_t tokens);
  std::string trim(size_t n, int64_t sinks, int64_t window);
  std::string release(size_t n);
  std::string use_released() const;  // every released handle is refused

  std::string check() const;  // all tokens are where they should be, all counts add up

 private:
  struct Token {
    int64_t position, id;
  };
  struct Modelled {
    CachedSequence handle;
    std::vector<Token> tokens;
    int64_t position = 0;  // position of the next token
  };

  std::map<int32_t, int> holders() const;  // the number of sequences that hold each used page
  Append expected(size_t n, int64_t tokens) const;
  void cut(Modelled& sequence, int64_t tokens) const;
  std::string adopt(const std::optional<CachedSequence>& handle, Modelled modelled);
  std::string check_tokens(const Modelled& sequence) const;
  std::string check_statistics() const;

  PagePoolConfig config_;
  PagePool pool_;
  std::vector<int64_t> memory_;  // [pages, page_size]
  std::vector<Modelled> sequences_;
  std::vector<CachedSequence> released_;
  int64_t next_id_ = 1;
};

}  // namespace cuflash::test
