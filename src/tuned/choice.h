// The results of `cuflash tune`: for a kind of problem, the legal config that was fastest on a device. A plan takes one
// as an argument; without it, it uses its own tables.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "problem/problem.h"

namespace cuflash::tuned {

enum class Direction { forward, backward, decode };
enum class Mask { none, causal, window };
// The options that a kernel is compiled for, as in kernels/config.h, and sinks, which every kernel supports. A kind has
// any set of them.
enum Options : int64_t { kSoftcap = 1, kAlibi = 2, kBias = 4, kMaskTensor = 8, kDropout = 16, kSinks = 64 };
inline constexpr std::array<std::pair<const char*, Options>, 6> kOptionNames{{{"softcap", kSoftcap},
                                                                              {"alibi", kAlibi},
                                                                              {"bias", kBias},
                                                                              {"mask", kMaskTensor},
                                                                              {"dropout", kDropout},
                                                                              {"sinks", kSinks}}};
// "softcap,alibi"; "" for none.
std::string options_text(int64_t options);
// Its inverse; nothing if the text has a word that is not an option, or no word.
std::optional<int64_t> parse_options(std::string_view text);

// Problems that share a choice. Lengths and heads are rounded up to powers of two: a measurement at 2048 serves 1025 to
// 2048.
struct Kind {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  Mask mask = Mask::none;
  int64_t dim_qk = 0, dim_v = 0;
  int64_t len_q = 0, len_k = 0;  // at most
  int64_t heads = 0;             // heads of the whole batch, at most; decode: key heads, exactly; 0: any number
  int64_t group = 0;             // query heads per key head
  int64_t page_size = 0;
  int64_t options = 0;  // forward and backward on CUDA

  auto operator<=>(const Kind&) const = default;
};

// Whether a kind has a number of heads. On the CPU a result must not depend on the rest of its batch, so a tile must
// not either.
enum class Heads { counted, any };
// The kind of a problem, or nothing for problems that are never tuned: with a scale that is not positive, with options
// over a cache or on the CPU, or with sequences of different lengths, except over a cache.
std::optional<Kind> kind_of(Direction direction, const Problem& problem, Heads heads);

// The members of a config that a tuner chooses; those that the family does not have are 0. Their names in files are
// those of kMembers.
struct Choice {
  // The kernels that the choice is for: "cpu", or the name of a family of CUDA kernels (cuda/families), such as "sm90".
  // "" stands for the plan's own tables.
  std::string family;
  int tile_q = 0, tile_k = 0;
  int row_warps = 0, key_warps = 0, column_warps = 0, warpgroups = 0;
  int stages = 0, ctas_per_sm = 0, schedule = 0;
  int splits = 0;   // 0: the plan decides
  int adds_dq = 0;  // backward: 1: the kernel of dK and dV adds dQ; 0: a separate kernel computes dQ

  bool operator==(const Choice&) const = default;
};

struct Member {
  const char* name;
  int Choice::*value;
};
inline constexpr std::array<Member, 11> kMembers{{{"tile_q", &Choice::tile_q},
                                                  {"tile_k", &Choice::tile_k},
                                                  {"row_warps", &Choice::row_warps},
                                                  {"key_warps", &Choice::key_warps},
                                                  {"column_warps", &Choice::column_warps},
                                                  {"warpgroups", &Choice::warpgroups},
                                                  {"stages", &Choice::stages},
                                                  {"ctas_per_sm", &Choice::ctas_per_sm},
                                                  {"order", &Choice::schedule},
                                                  {"splits", &Choice::splits},
                                                  {"adds_dq", &Choice::adds_dq}}};

// "forward bf16 causal dim_qk=128 dim_v=128 len_q=2048 ... options=softcap,alibi", "sm90 tile_k=80 warpgroups=3 ...".
std::string to_string(const Kind& kind);
std::string to_string(const Choice& choice);
// Their inverses; nothing if the text is malformed.
std::optional<Kind> parse_kind(std::string_view text);
std::optional<Choice> parse_choice(std::string_view text);

struct Measured {
  Choice choice;
  int gain = 0;  // percent of the built-in choice's time that it saves
};
// The choices of one device.
using Choices = std::map<Kind, Measured>;

// The choice for a problem: the forced one (below), that of the table, or null.
const Choice* choice_for(const Choices& choices, Direction direction, const Problem& problem,
                         Heads heads = Heads::counted);

// Used by the tuner: while an object of this type lives, every plan of the process gets this choice and uses it if it
// is legal.
class ScopedChoice {
 public:
  explicit ScopedChoice(const Choice& choice);
  ~ScopedChoice();
  ScopedChoice(const ScopedChoice&) = delete;
  ScopedChoice& operator=(const ScopedChoice&) = delete;

 private:
  const Choice choice_;
  const Choice* before_;
};

}  // namespace cuflash::tuned
