// Rules about sequence lengths: padded (seqlens) and packed (cu_seqlens).
#include <gtest/gtest.h>

#include <limits>

#include "tests/problem/rejections.h"
#include "tests/properties/property.h"

namespace cuflash::rejections {
namespace {

using Result = std::optional<Refusal>;

std::string other_side(const std::string& side) { return side == "q" ? "k" : "q"; }
int64_t length(const Call& call, const std::string& side) { return side == "q" ? call.sizes.len_q : call.sizes.len_k; }
int64_t total(const Call& call, const std::string& side) {
  return (side == "q" ? call.attention.q : call.attention.k).shape[0];
}

void add_packed_rules(std::vector<Rule>& rules, const std::string& side) {
  const std::string name = "cu_seqlens_" + side;
  const auto add = [&](const std::string& what, std::function<Refusal(Call&, Choices&)> broken) {
    rules.push_back({name + " " + what, [broken](Call& call, Choices& choices) -> Result {
                       if (!call.packed()) return std::nullopt;
                       return broken(call, choices);
                     }});
  };
  add("does not start with 0", [=](Call& call, Choices& choices) {
    const int32_t first = choices.one_of<int32_t>({1, -1, std::numeric_limits<int32_t>::min()});
    call.lengths(name)[0] = first;
    return Refusal{name, {text(first), "0"}};
  });
  add("decreases", [=](Call& call, Choices& choices) {
    const int64_t b = choices.between(1, call.sizes.batch - 1);
    int32_t* cumulative = call.lengths(name);
    const int32_t before = cumulative[b];
    cumulative[b + 1] = choices.one_of<int32_t>({before - 1, -1, std::numeric_limits<int32_t>::min()});
    return Refusal{name, {text(before), text(cumulative[b + 1])}};
  });
  add("ends beyond the rows there are", [=](Call& call, Choices& choices) {
    int32_t& last = call.lengths(name)[call.sizes.batch];
    last = static_cast<int32_t>(total(call, side)) + static_cast<int32_t>(choices.between(1, 9));
    return Refusal{name, {text(last), text(total(call, side))}};
  });
  add("has no element", [=](Call& call, Choices&) {
    call.slot(name).shape[0] = 0;
    return Refusal{name, {side == "q" ? "no elements" : "0"}};
  });
  add("comes with seqlens", [=](Call& call, Choices&) {
    const std::string used = "seqlens_" + side;
    cuflash_tensor& t = side == "q" ? call.attention.seqlens_q : call.attention.seqlens_k;
    t = side == "q" ? call.attention.cu_seqlens_q : call.attention.cu_seqlens_k;
    t.shape[0] -= 1;
    return Refusal{used, {name}};
  });
  add("holds more than max_seqlen", [=](Call& call, Choices& choices) {
    const int64_t given = choices.between(1, length(call, side) - 1);
    (side == "q" ? call.attention.max_seqlen_q : call.attention.max_seqlen_k) = given;
    return Refusal{"max_seqlen_" + side, {text(given), name, text(length(call, side))}};
  });
  add("goes with a negative or huge max_seqlen", [=](Call& call, Choices& choices) {
    const int64_t given = choices.one_of<int64_t>({-1, int64_t{1} << 31, std::numeric_limits<int64_t>::min()});
    (side == "q" ? call.attention.max_seqlen_q : call.attention.max_seqlen_k) = given;
    return Refusal{"max_seqlen_" + side, {text(given)}};
  });
}

// Each length must be between 0 and the extent of the dense tensor.
void add_padded_rules(std::vector<Rule>& rules, const std::string& side) {
  const std::string name = "seqlens_" + side;
  rules.push_back({name + " is out of range", [=](Call& call, Choices& choices) -> Result {
                     if (!call.padded()) return std::nullopt;
                     const int64_t b = choices.between(0, call.sizes.batch - 1);
                     const int32_t beyond = static_cast<int32_t>(length(call, side)) + 1;
                     const int32_t bad = choices.one_of<int32_t>(
                         {beyond, -1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()});
                     call.lengths(name)[b] = bad;
                     return Refusal{name, {text(b), text(bad), text(length(call, side))}};
                   }});
  rules.push_back({"max_seqlen_" + side + " of dense tensors", [=](Call& call, Choices& choices) -> Result {
                     if (call.packed()) return std::nullopt;
                     const int64_t given = choices.between(1, 9);
                     (side == "q" ? call.attention.max_seqlen_q : call.attention.max_seqlen_k) = given;
                     return Refusal{"max_seqlen_" + side, {text(given), "cu_seqlens_" + side}};
                   }});
}

std::vector<Rule> length_rules() {
  std::vector<Rule> rules;
  for (const std::string side : {"q", "k"}) {
    add_packed_rules(rules, side);
    add_padded_rules(rules, side);
  }
  rules.push_back({"packed tensors without cu_seqlens", [](Call& call, Choices&) -> Result {
                     if (!call.packed()) return std::nullopt;
                     call.slot("cu_seqlens_q").remove();
                     call.slot("cu_seqlens_k").remove();
                     return Refusal{"q", {"3", "4"}};
                   }});
  rules.push_back({"dense tensors with cu_seqlens", [](Call& call, Choices&) -> Result {
                     if (!call.padded()) return std::nullopt;
                     call.attention.cu_seqlens_q = call.attention.seqlens_q;
                     call.attention.cu_seqlens_k = call.attention.seqlens_k;
                     return Refusal{"q", {"4", "3"}};
                   }});
  return rules;
}

TEST(LengthRejections, EveryRule) { expect_all_refused(length_rules()); }

TEST(LengthRejections, RandomInvalidLengthsAreRefused) {
  const std::vector<Rule> rules = length_rules();
  test::property("invalid lengths are refused", 1000, [&](Choices& choices) { return random_refusal(rules, choices); });
}

TEST(LengthRejections, LegalEdgesAreAccepted) {
  for (const std::string side : {"q", "k"}) {
    Call padded(Sizes{.mode = Mode::padded});
    padded.lengths("seqlens_" + side)[0] = 0;
    padded.lengths("seqlens_" + side)[1] = static_cast<int32_t>(length(padded, side));
    padded.slot("seqlens_" + other_side(side)).remove();
    EXPECT_EQ(padded.run(), CUFLASH_OK) << side << ": " << cuflash_last_error();

    Call packed(Sizes{.mode = Mode::packed});
    int32_t* cumulative = packed.lengths("cu_seqlens_" + side);
    cumulative[1] = 0;  // an empty sequence, and rows of no sequence
    cumulative[2] = 1;
    packed.attention.max_seqlen_q = packed.sizes.len_q;
    EXPECT_EQ(packed.run(), CUFLASH_OK) << side << ": " << cuflash_last_error();
  }
}

TEST(LengthRejections, ABatchOfNoPackedSequencesIsLegal) {
  Call call(Sizes{.mode = Mode::packed});
  for (const char* name : {"cu_seqlens_q", "cu_seqlens_k"}) call.slot(name).shape[0] = 1;
  for (const char* name : {"bias", "mask", "alibi_slopes"}) call.slot(name).remove();
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
  EXPECT_TRUE(call.outputs_untouched());
}

}  // namespace
}  // namespace cuflash::rejections
