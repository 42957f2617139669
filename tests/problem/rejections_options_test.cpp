// Rules about heads, head sizes, numbers and the requested gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/problem/rejections.h"
#include "tests/properties/property.h"

namespace cuflash::rejections {
namespace {

using Result = std::optional<Refusal>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();

struct BadNumber {
  double value;
  const char* text;
};

Rule number_rule(const char* argument, double cuflash_attention::*field, std::vector<BadNumber> bad) {
  return {argument, [=](Call& call, Choices& choices) -> Result {
            const BadNumber number = choices.one_of(bad);
            call.attention.*field = number.value;
            return Refusal{argument, {number.text}};
          }};
}

Rule window_rule(const char* argument, int64_t cuflash_attention::*field) {
  return {argument, [=](Call& call, Choices& choices) -> Result {
            call.attention.*field = choices.one_of<int64_t>({-2, -3, -1000, kLowest});
            return Refusal{argument, {text(call.attention.*field), "-1"}};
          }};
}

std::vector<Rule> number_rules() {
  return {
      number_rule("scale", &cuflash_attention::scale,
                  {{kNan, "nan"}, {kInf, "inf"}, {-kInf, "-inf"}, {3e38, "3e+38"}, {-2.36e38, "-2.36e+38"}}),
      number_rule("softcap", &cuflash_attention::softcap, {{-1, "-1"}, {kNan, "nan"}, {kInf, "inf"}, {-kInf, "-inf"}}),
      number_rule("dropout_p", &cuflash_attention::dropout_p,
                  {{1, "1"}, {-0.5, "-0.5"}, {1.5, "1.5"}, {kNan, "nan"}, {kInf, "inf"}}),
      window_rule("window_left", &cuflash_attention::window_left),
      window_rule("window_right", &cuflash_attention::window_right),
      {"alignment",
       [](Call& call, Choices& choices) -> Result {
         call.attention.alignment = choices.one_of<int32_t>({2, -1, 1000});
         return Refusal{"alignment", {text(call.attention.alignment)}};
       }},
  };
}

constexpr int kHeads = 1;  // the dimension: dense [B, H, S, D] and packed [T, H, D] alike

void set_heads_k(Call& call, int64_t heads) {
  call.attention.k.shape[kHeads] = heads;
  call.attention.v.shape[kHeads] = heads;
}

std::vector<Rule> head_rules() {
  return {
      {"the heads of q are not a multiple of the heads of k",
       [](Call& call, Choices& choices) -> Result {
         const int64_t heads_k = call.sizes.heads_q() + choices.between(1, 5);
         set_heads_k(call, heads_k);
         return Refusal{"q", {"has " + text(call.sizes.heads_q()) + " heads", text(heads_k) + " heads of k"}};
       }},
      {"q has no heads",
       [](Call& call, Choices&) -> Result {
         call.attention.q.shape[kHeads] = 0;
         return Refusal{"q", {"0", "heads"}};
       }},
      {"k has no heads",
       [](Call& call, Choices&) -> Result {
         set_heads_k(call, 0);
         return Refusal{"k", {"0", "heads"}};
       }},
      {"D is 0",
       [](Call& call, Choices&) -> Result {
         Slot q = call.slot("q");
         q.shape[q.last()] = 0;
         return Refusal{"q", {"D", "0"}};
       }},
      {"Dv is 0",
       [](Call& call, Choices&) -> Result {
         Slot v = call.slot("v");
         v.shape[v.last()] = 0;
         return Refusal{"v", {"Dv", "0"}};
       }},
      {"v is shorter than k",
       [](Call& call, Choices&) -> Result {
         int64_t& length = call.attention.v.shape[call.packed() ? 0 : 2];
         length -= 1;
         return Refusal{"v", {text(length), text(length + 1)}};
       }},
  };
}

std::vector<Rule> gradient_rules() {
  return {
      {"dbias without bias",
       [](Call& call, Choices&) -> Result {
         if (!call.backward()) return std::nullopt;
         call.slot("bias").remove();
         return Refusal{"dbias", {"bias"}};
       }},
      {"dbias is summed where bias does not repeat",
       [](Call& call, Choices& choices) -> Result {
         if (!call.backward()) return std::nullopt;
         const size_t d = choices.below(3);
         const bool by_stride = choices.chance(2);
         (by_stride ? call.tensors.dbias.stride : call.tensors.dbias.shape)[d] = by_stride ? 0 : 1;
         return Refusal{"dbias", {text(d), "1", text(call.attention.bias.shape[d])}};
       }},
      {"dbias is not summed where bias repeats",
       [](Call& call, Choices& choices) -> Result {
         if (!call.backward()) return std::nullopt;
         const size_t d = choices.below(3);
         const bool by_stride = choices.chance(2);
         (by_stride ? call.attention.bias.stride : call.attention.bias.shape)[d] = by_stride ? 0 : 1;
         return Refusal{"dbias", {text(d), "1", text(call.tensors.dbias.shape[d])}};
       }},
      {"dsink without sink",
       [](Call& call, Choices&) -> Result {
         if (!call.backward()) return std::nullopt;
         call.slot("sink").remove();
         return Refusal{"dsink", {"sink"}};
       }},
      {"no gradient is requested",
       [](Call& call, Choices&) -> Result {
         if (!call.backward()) return std::nullopt;
         for (const Slot& slot : call.slots())
           if (slot.is_output) slot.remove();
         return Refusal{"dq", {"no gradient", "dk", "dv", "dbias", "dsink"}};
       }},
  };
}

std::vector<Rule> option_rules() {
  std::vector<Rule> rules = number_rules();
  for (const auto& more : {head_rules(), gradient_rules()}) rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

TEST(OptionRejections, EveryRule) { expect_all_refused(option_rules()); }

TEST(OptionRejections, RandomInvalidOptionsAreRefused) {
  const std::vector<Rule> rules = option_rules();
  test::property("an invalid option is refused", 1000,
                 [&](Choices& choices) { return random_refusal(rules, choices); });
}

// The extreme values that the rules above allow.
TEST(OptionRejections, LegalEdgesAreAccepted) {
  Call call(Sizes{});
  call.attention.scale = kNan, call.attention.has_scale = 0;  // not used
  call.attention.softcap = 0;
  call.attention.dropout_p = std::nextafter(1.0, 0.0);
  call.attention.window_left = std::numeric_limits<int64_t>::max();
  call.attention.window_right = std::numeric_limits<int64_t>::max();
  call.attention.alignment = CUFLASH_TOP_LEFT;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
  call.attention.scale = -1, call.attention.has_scale = 1;
  call.attention.dropout_p = 0;
  call.attention.window_left = call.attention.window_right = 0;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

TEST(OptionRejections, AnyOneGradientIsEnough) {
  for (const char* wanted : {"dq", "dk", "dv", "dbias", "dsink"}) {
    Call call(Sizes{.direction = Direction::backward});
    for (const Slot& slot : call.slots())
      if (slot.is_output && slot.name != wanted) slot.remove();
    EXPECT_EQ(call.run(), CUFLASH_OK) << wanted << ": " << cuflash_last_error();
    EXPECT_FALSE(call.outputs_untouched()) << wanted;
  }
}

TEST(OptionRejections, DbiasMayRepeatAsBiasDoesByExtentOrByStride) {
  for (const bool bias_by_stride : {false, true}) {
    for (const bool dbias_by_stride : {false, true}) {
      Call call(Sizes{.direction = Direction::backward});
      (bias_by_stride ? call.attention.bias.stride : call.attention.bias.shape)[2] = bias_by_stride ? 0 : 1;
      (dbias_by_stride ? call.tensors.dbias.stride : call.tensors.dbias.shape)[2] = dbias_by_stride ? 0 : 1;
      EXPECT_EQ(call.run(), CUFLASH_OK) << bias_by_stride << dbias_by_stride << ": " << cuflash_last_error();
    }
  }
}

}  // namespace
}  // namespace cuflash::rejections
