#include "tests/pages/page_pool_model.h"

#include <algorithm>

#include "error.h"

namespace cuflash::test {

ModelledPool::ModelledPool(const PagePoolConfig& config)
    : config_(config), pool_(config), memory_(static_cast<size_t>(config.pages * config.page_size), 0) {}

std::map<int32_t, int> ModelledPool::holders() const {
  std::map<int32_t, int> holders;
  for (const Modelled& sequence : sequences_)
    for (const int32_t page : pool_.pages(sequence.handle)) ++holders[page];
  return holders;
}

std::string ModelledPool::adopt(const std::optional<CachedSequence>& handle, Modelled modelled) {
  const bool room = size() < static_cast<size_t>(config_.max_sequences);
  if (handle.has_value() != room) return join(room ? "no room for" : "more than max_sequences with", " a new sequence");
  if (!handle) return "";
  modelled.handle = *handle;
  sequences_.push_back(std::move(modelled));
  return "";
}

std::string ModelledPool::start() { return adopt(pool_.start(), {}); }

// A cut removes tokens; the next token gets the position of the first removed one.
void ModelledPool::cut(Modelled& sequence, int64_t tokens) const {
  const auto kept = static_cast<size_t>(tokens);
  if (kept == sequence.tokens.size()) return;
  sequence.position = sequence.tokens[kept].position;
  sequence.tokens.resize(kept);
}

std::string ModelledPool::fork(size_t parent, int64_t tokens) {
  Modelled child = sequences_[parent];
  if (tokens >= 0) cut(child, tokens);
  return adopt(pool_.fork(sequences_[parent].handle, tokens), child);
}

Append ModelledPool::expected(size_t n, int64_t tokens) const {
  const std::vector<int32_t> pages = pool_.pages(sequences_[n].handle);
  const int64_t after = this->tokens(n) + tokens, page_size = config_.page_size;
  const int64_t most = config_.max_pages_per_sequence ? config_.max_pages_per_sequence : config_.pages;
  if (after > most * page_size)
    return {.fit = Fit::sequence_full, .missing_pages = (after + page_size - 1) / page_size - most};
  auto held = holders();
  const bool copies = tokens > 0 && this->tokens(n) % page_size != 0 && held[pages.back()] > 1;
  const int64_t needed = (after + page_size - 1) / page_size - static_cast<int64_t>(pages.size()) + copies;
  const int64_t missing = needed - (config_.pages - static_cast<int64_t>(held.size()));
  Append answer{.pages = static_cast<int32_t>(needed)};
  if (missing > 0) answer.fit = Fit::pool_full, answer.missing_pages = missing;
  else if (copies) answer.copy = PageCopy{pages.back(), 0, static_cast<int32_t>(this->tokens(n) % page_size)};
  return answer;
}

std::string ModelledPool::append(size_t n, int64_t tokens) {
  const Append wanted = expected(n, tokens);
  const Append got = pool_.append(sequences_[n].handle, tokens);
  if (got.fit != wanted.fit || got.pages != wanted.pages || got.missing_pages != wanted.missing_pages)
    return join("append answered fit ", static_cast<int>(got.fit), ", ", got.pages, " pages, ", got.missing_pages,
                " missing instead of ", static_cast<int>(wanted.fit), ", ", wanted.pages, ", ", wanted.missing_pages);
  if (got.copy.has_value() != wanted.copy.has_value()) return "append copies what is its own, or not what is shared";
  if (!got) return "";
  if (got.copy) {
    if (got.copy->source != wanted.copy->source || got.copy->tokens != wanted.copy->tokens)
      return join("a copy of ", got.copy->tokens, " tokens of page ", got.copy->source);
    std::copy_n(&memory_[static_cast<size_t>(got.copy->source * config_.page_size)], got.copy->tokens,
                &memory_[static_cast<size_t>(got.copy->destination * config_.page_size)]);
  }
  auto held = holders();
  const std::vector<int32_t> pages = pool_.pages(sequences_[n].handle);
  auto& list = sequences_[n].tokens;
  for (int64_t written = 0; written < tokens; ++written) {
    const auto t = static_cast<int64_t>(list.size());
    const int32_t page = pages.at(static_cast<size_t>(t / config_.page_size));
    if (held[page] != 1) return join("page ", page, " is written while ", held[page], " hold it");
    memory_[static_cast<size_t>(page * config_.page_size + t % config_.page_size)] = next_id_;
    list.push_back({sequences_[n].position++, next_id_++});
  }
  return "";
}

std::string ModelledPool::truncate(size_t n, int64_t tokens) {
  pool_.truncate(sequences_[n].handle, tokens);
  cut(sequences_[n], tokens);
  return "";
}

// Drops each page without a wanted token, unless that would leave a second gap.
std::string ModelledPool::trim(size_t n, int64_t sinks, int64_t window) {
  Modelled& sequence = sequences_[n];
  const int64_t before = tokens(n), page_size = config_.page_size;
  const CachedSequenceState state = pool_.state(sequence.handle);
  const bool refused = state.dropped > 0 && sinks > state.sinks;
  std::vector<Token> kept;
  int gaps = 0;
  int64_t next = 0;
  for (const Token& token : sequence.tokens) {
    const int64_t first = token.position / page_size * page_size, last = first + page_size - 1;
    if (first >= sinks && last < sequence.position - window) continue;
    gaps += token.position != next;
    next = token.position + 1;
    kept.push_back(token);
  }
  if (kept.size() < sequence.tokens.size()) gaps += next != sequence.position;
  if (gaps > 1) kept = sequence.tokens;
  try {
    const Trim got = pool_.trim(sequence.handle, sinks, window);
    if (refused) return "trim gave back sinks that are gone";
    if (got.pages * page_size != before - static_cast<int64_t>(kept.size()))
      return join("trim dropped ", got.pages, " pages, ", before, " tokens were to become ", kept.size());
    sequence.tokens = kept;
  } catch (const FlashAttentionError& error) {
    if (!refused) return error.what();
  }
  return "";
}

std::string ModelledPool::release(size_t n) {
  pool_.release(sequences_[n].handle);
  released_.push_back(sequences_[n].handle);
  sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(n));
  return "";
}

std::string ModelledPool::use_released() const {
  for (const CachedSequence& handle : released_) {
    try {
      pool_.state(handle);
      return "a released sequence is alive";
    } catch (const FlashAttentionError&) {}
  }
  return "";
}

std::string ModelledPool::check_tokens(const Modelled& sequence) const {
  const CachedSequenceState state = pool_.state(sequence.handle);
  const std::vector<int32_t> pages = pool_.pages(sequence.handle);
  if (state.tokens != static_cast<int64_t>(sequence.tokens.size()) || state.position != sequence.position)
    return join("a sequence has ", state.tokens, " tokens up to ", state.position, " instead of ",
                sequence.tokens.size(), " up to ", sequence.position);
  for (int64_t t = 0; t < state.tokens; ++t) {
    const Token& token = sequence.tokens[static_cast<size_t>(t)];
    const int32_t page = pages.at(static_cast<size_t>(t / config_.page_size));
    const int64_t id = memory_[static_cast<size_t>(page * config_.page_size + t % config_.page_size)];
    if (id != token.id) return join("token ", t, " reads ", id, " instead of ", token.id);
    const int64_t position = t < state.sinks ? t : t + state.dropped;
    if (position != token.position) return join("token ", t, " is said to be ", position, ", is ", token.position);
  }
  return "";
}

std::string ModelledPool::check_statistics() const {
  const PagePoolStats stats = pool_.statistics();
  int64_t tokens = 0, entries = 0, shared = 0;
  std::vector<bool> read(memory_.size());
  for (const Modelled& sequence : sequences_) {
    const std::vector<int32_t> pages = pool_.pages(sequence.handle);
    entries += static_cast<int64_t>(pages.size());
    for (size_t t = 0; t < sequence.tokens.size(); ++t, ++tokens) {
      const auto page_size = static_cast<size_t>(config_.page_size);
      read[static_cast<size_t>(pages[t / page_size]) * page_size + t % page_size] = true;
    }
  }
  const auto held = holders();
  for (const auto& [page, count] : held) shared += count > 1;
  const auto used = static_cast<int64_t>(held.size());
  const int64_t wasted = used * config_.page_size - std::count(read.begin(), read.end(), true);
  const bool right = stats.pages == config_.pages && stats.used_pages == used &&
                     stats.free_pages == config_.pages - used && stats.shared_pages == shared &&
                     stats.table_entries == entries && stats.sequences == static_cast<int64_t>(size()) &&
                     stats.tokens == tokens && stats.wasted_tokens == wasted;
  if (right) return "";
  return join("statistics say used ", stats.used_pages, ", shared ", stats.shared_pages, ", entries ",
              stats.table_entries, ", tokens ", stats.tokens, ", wasted ", stats.wasted_tokens, "; counted ", used,
              ", ", shared, ", ", entries, ", ", tokens, ", ", wasted);
}

std::string ModelledPool::check() const {
  try {
    pool_.check();
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
  for (const Modelled& sequence : sequences_)
    if (const std::string wrong = check_tokens(sequence); !wrong.empty()) return wrong;
  return check_statistics();
}

}  // namespace cuflash::test
