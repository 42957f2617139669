#include "tuned/choice.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <utility>
#include <vector>

#include "error.h"

namespace cuflash::tuned {
namespace {

constexpr std::array<std::pair<const char*, Direction>, 3> kDirections{
    {{"forward", Direction::forward}, {"backward", Direction::backward}, {"decode", Direction::decode}}};
constexpr std::array<std::pair<const char*, Mask>, 3> kMasks{
    {{"full", Mask::none}, {"causal", Mask::causal}, {"window", Mask::window}}};
constexpr std::array<std::pair<const char*, DType>, 4> kTypes{
    {{"f64", DType::f64}, {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}}};

struct Size {
  const char* name;
  int64_t Kind::*value;
};
constexpr std::array<Size, 7> kSizes{{{"dim_qk", &Kind::dim_qk},
                                      {"dim_v", &Kind::dim_v},
                                      {"len_q", &Kind::len_q},
                                      {"len_k", &Kind::len_k},
                                      {"heads", &Kind::heads},
                                      {"group", &Kind::group},
                                      {"page_size", &Kind::page_size}}};
constexpr std::string_view kOptionsWord = "options=";

template <class Names, class Value>
const char* name_in(const Names& names, Value value) {
  for (const auto& [name, one] : names)
    if (one == value) return name;
  return "built_in";
}

template <class Names, class Value>
bool read_name(const Names& names, std::string_view word, Value& value) {
  for (const auto& [name, one] : names)
    if (word == name) return value = one, true;
  return false;
}

std::vector<std::string_view> words_of(std::string_view text, char between = ' ') {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(between), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// "name=12", with one of the names and a number that is not negative.
template <class Object, class Members>
bool read_member(std::string_view word, const Members& members, Object& object) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) return false;
  for (const auto& member : members) {
    if (word.substr(0, equals) != member.name) continue;
    auto& value = object.*member.value;
    const auto [end, error] = std::from_chars(word.data() + equals + 1, word.data() + word.size(), value);
    return error == std::errc() && end == word.data() + word.size() && value >= 0;
  }
  return false;
}

template <class Object, class Members>
std::string members_text(const Object& object, const Members& members) {
  std::string text;
  for (const auto& member : members)
    if (object.*member.value != 0) text += join(" ", member.name, "=", object.*member.value);
  return text;
}

// Plans ignore a choice of a family that they do not know.
bool is_family(std::string_view word) {
  return word != "built_in" && std::all_of(word.begin(), word.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

int64_t up_to(int64_t size) { return size <= 0 ? 0 : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size))); }

std::atomic<const Choice*> forced = nullptr;

}  // namespace

std::optional<Kind> kind_of(Direction direction, const Problem& p, Heads heads) {
  const bool decode = direction == Direction::decode;
  const bool uneven = p.packed() || p.used_q || (!decode && (p.used_k || p.cache));
  const auto bit = [](bool given, Options option) { return given ? int64_t{option} : 0; };
  const int64_t options = bit(p.softcap > 0, kSoftcap) | bit(bool{p.slopes}, kAlibi) | bit(bool{p.bias}, kBias) |
                          bit(p.has_mask(), kMaskTensor) | bit(p.dropout.p > 0, kDropout) | bit(bool{p.sink}, kSinks);
  const bool never = !(p.scale > 0) || (options != 0 && (decode || heads == Heads::any));
  if (never || uneven) return std::nullopt;
  Kind kind{direction, p.dtype};
  kind.options = options;
  if (p.window_left < kUnbounded) kind.mask = Mask::window;
  else if (p.window_right < kUnbounded) kind.mask = p.window_right == 0 ? Mask::causal : Mask::window;
  if (decode && p.len_q == 1 && kind.mask == Mask::causal) kind.mask = Mask::none;  // the last position sees all keys
  kind.dim_qk = p.dim_qk, kind.dim_v = p.dim_v;
  kind.len_q = up_to(p.len_q), kind.len_k = up_to(p.len_k);
  // Splits are distributed over SMs, so their number depends on every head.
  if (heads == Heads::counted) kind.heads = decode ? p.batch * p.heads_k : up_to(p.batch * p.heads_q);
  kind.group = p.group();
  kind.page_size = p.cache.page_size;
  return kind;
}

std::string options_text(int64_t options) {
  std::string text;
  for (const auto& [name, bit] : kOptionNames)
    if ((options & bit) != 0) text += join(text.empty() ? "" : ",", name);
  return text;
}

std::optional<int64_t> parse_options(std::string_view text) {
  int64_t options = 0;
  if (text.ends_with(',')) return std::nullopt;
  for (const std::string_view word : words_of(text, ',')) {
    Options option{};
    if (!read_name(kOptionNames, word, option)) return std::nullopt;
    options |= option;
  }
  return options != 0 ? std::optional(options) : std::nullopt;
}

std::string to_string(const Kind& kind) {
  return join(name_in(kDirections, kind.direction), " ", name_in(kTypes, kind.dtype), " ", name_in(kMasks, kind.mask),
              members_text(kind, kSizes), kind.options != 0 ? join(" ", kOptionsWord, options_text(kind.options)) : "");
}

std::string to_string(const Choice& choice) {
  return (choice.family.empty() ? "built_in" : choice.family) + members_text(choice, kMembers);
}

std::optional<Kind> parse_kind(std::string_view text) {
  const std::vector<std::string_view> words = words_of(text);
  Kind kind;
  if (words.size() < 3 || !read_name(kDirections, words[0], kind.direction) ||
      !read_name(kTypes, words[1], kind.dtype) || !read_name(kMasks, words[2], kind.mask))
    return std::nullopt;
  for (size_t n = 3; n < words.size(); ++n) {
    if (words[n].starts_with(kOptionsWord)) {
      const std::optional<int64_t> options = parse_options(words[n].substr(kOptionsWord.size()));
      if (!options) return std::nullopt;
      kind.options = *options;
    } else if (!read_member(words[n], kSizes, kind)) {
      return std::nullopt;
    }
  }
  return kind;
}

std::optional<Choice> parse_choice(std::string_view text) {
  const std::vector<std::string_view> words = words_of(text);
  Choice choice;
  if (words.empty() || !is_family(words[0])) return std::nullopt;
  choice.family = words[0];
  for (size_t n = 1; n < words.size(); ++n)
    if (!read_member(words[n], kMembers, choice)) return std::nullopt;
  return choice;
}

const Choice* choice_for(const Choices& choices, Direction direction, const Problem& problem, Heads heads) {
  if (const Choice* choice = forced.load(std::memory_order_acquire)) return choice->family.empty() ? nullptr : choice;
  if (choices.empty()) return nullptr;
  const std::optional<Kind> kind = kind_of(direction, problem, heads);
  if (!kind) return nullptr;
  const auto found = choices.find(*kind);
  return found == choices.end() ? nullptr : &found->second.choice;
}

ScopedChoice::ScopedChoice(const Choice& choice) : choice_(choice), before_(forced.exchange(&choice_)) {}
ScopedChoice::~ScopedChoice() { forced.store(before_); }

}  // namespace cuflash::tuned
