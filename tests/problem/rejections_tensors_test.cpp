// Rules that hold for every tensor argument: presence, type, rank, extents, strides, address.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tests/problem/rejections.h"
#include "tests/properties/property.h"

namespace cuflash::rejections {
namespace {

using Values = std::optional<std::vector<std::string>>;
using Break = Values (*)(Call& call, const Slot& slot, Choices& choices);

const std::vector<std::string> kNames = {
    "q",   "k",    "v",    "alibi_slopes", "bias", "mask", "sink", "seqlens_q", "seqlens_k", "o",
    "lse", "dout", "dlse", "cu_seqlens_q", "dq",   "dk",   "dv",   "dbias",     "dsink",     "cu_seqlens_k"};

bool is_one_of(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int any_dimension(const Slot& slot, Choices& choices) {
  return static_cast<int>(choices.below(static_cast<uint32_t>(*slot.rank)));
}
int any_outer_dimension(const Slot& slot, Choices& choices) {
  return static_cast<int>(choices.below(static_cast<uint32_t>(slot.last())));
}

Values data_is_null(Call&, const Slot& slot, Choices&) {
  slot.set_data(nullptr);
  return {{"data", "NULL"}};
}

Values data_is_misaligned(Call&, const Slot& slot, Choices& choices) {
  const int64_t size = size_of(slot.type());
  if (size == 1) return std::nullopt;
  slot.set_data(static_cast<const char*>(slot.data) + choices.between(1, size - 1));
  return {{"aligned", text(size), slot.type_name()}};
}

Values type_is_unknown(Call&, const Slot& slot, Choices& choices) {
  *slot.dtype = choices.one_of<int32_t>({0, 7, -1, 1000, std::numeric_limits<int32_t>::min()});
  return {{text(*slot.dtype)}};
}

// A known type that this argument may not have.
Values type_is_wrong(Call& call, const Slot& slot, Choices& choices) {
  const DType q = call.sizes.dtype;
  std::vector<DType> allowed = {q, DType::f32};
  if (slot.name == "q") allowed = {DType::f64, DType::f32, DType::f16, DType::bf16};
  if (is_one_of(slot.name, {"k", "v"})) allowed = {q};
  if (is_one_of(slot.name, {"lse", "dlse"})) allowed = {state_type(q)};
  if (slot.name == "alibi_slopes") allowed = {DType::f32};
  if (slot.name == "mask") allowed = {DType::boolean};
  if (slot.name.find("seqlens") != std::string::npos) allowed = {DType::i32};
  std::vector<DType> wrong;
  for (const DType type : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::boolean})
    if (std::find(allowed.begin(), allowed.end(), type) == allowed.end()) wrong.push_back(type);
  *slot.dtype = static_cast<int32_t>(choices.one_of(wrong));
  return {{slot.type_name()}};
}

Values rank_is_wrong(Call&, const Slot& slot, Choices& choices) {
  const int32_t below = slot.name == "alibi_slopes" ? 0 : *slot.rank - 1;  // slopes may have rank 1 or 2
  *slot.rank = choices.one_of<int32_t>({*slot.rank + 1, below, 0, 5, -1, std::numeric_limits<int32_t>::max()});
  return {{"rank", text(*slot.rank)}};
}

Values extent_is_negative(Call&, const Slot& slot, Choices& choices) {
  const int64_t extent = choices.one_of<int64_t>({-1, -2, std::numeric_limits<int64_t>::min()});
  slot.shape[any_dimension(slot, choices)] = extent;
  return {{text(extent)}};
}

Values extent_is_beyond_31_bits(Call&, const Slot& slot, Choices& choices) {
  const int64_t limit = int64_t{1} << 31;
  const int64_t extent = choices.one_of<int64_t>({limit, 2 * limit + 4, std::numeric_limits<int64_t>::max()});
  slot.shape[any_dimension(slot, choices)] = extent;
  return {{text(extent), text(limit - 1)}};
}

// One more, far more or 0 where another argument decides the extent.
Values extent_does_not_match(Call& call, const Slot& slot, Choices& choices) {
  std::vector<int> dims(static_cast<size_t>(*slot.rank));
  for (int d = 0; d < *slot.rank; ++d) dims[static_cast<size_t>(d)] = d;
  if (is_one_of(slot.name, {"q", "cu_seqlens_q"})) return std::nullopt;  // these decide
  if (slot.name == "k") dims = call.packed() ? std::vector{2} : std::vector{0, 3};
  if (slot.name == "v") dims = call.packed() ? std::vector{0, 1} : std::vector{0, 1, 2};
  int64_t& extent = slot.shape[choices.one_of(dims)];
  extent = choices.one_of<int64_t>({extent + 1, extent + 1000, 0});
  return {{text(extent)}};
}

Values stride_is_negative(Call&, const Slot& slot, Choices& choices) {
  const int64_t stride = choices.one_of<int64_t>({-1, -7, std::numeric_limits<int64_t>::min()});
  slot.stride[any_dimension(slot, choices)] = stride;
  return {{"stride", text(stride)}};
}

Values last_dimension_is_not_contiguous(Call&, const Slot& slot, Choices& choices) {
  const int64_t stride = choices.one_of<int64_t>({2, 0, 64});
  slot.stride[slot.last()] = stride;
  return {{"contiguous", "stride", text(stride)}};
}

Values offsets_overflow(Call&, const Slot& slot, Choices& choices) {
  if (*slot.rank < 2) return std::nullopt;
  const int64_t stride = std::numeric_limits<int64_t>::max();
  slot.stride[any_outer_dimension(slot, choices)] = stride;
  return {{text(stride)}};
}

Values elements_of_an_output_overlap(Call&, const Slot& slot, Choices& choices) {
  if (!slot.is_output || *slot.rank < 2) return std::nullopt;
  const int64_t row = slot.shape[slot.last()];
  std::vector<int64_t> too_small = {row - 1, 1};
  if (slot.name != "dbias") too_small.push_back(0);  // there, stride 0 means summed
  const int64_t stride = choices.one_of(too_small);
  slot.stride[any_outer_dimension(slot, choices)] = stride;
  return {{"share memory", text(stride)}};
}

Values required_tensor_is_missing(Call& call, const Slot& slot, Choices&) {
  const bool required = is_one_of(slot.name, {"q", "k", "v", "o", "dout", "cu_seqlens_q", "cu_seqlens_k"}) ||
                        (slot.name == "lse" && call.backward());
  if (!required) return std::nullopt;
  slot.remove();
  return {{"missing"}};
}

// A rule for each tensor argument of either direction that `broken` can break.
void add_rules(std::vector<Rule>& rules, const std::string& what, Break broken, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    rules.push_back({name + " " + what, [=](Call& call, Choices& choices) -> std::optional<Refusal> {
                       for (const Slot& slot : call.slots()) {
                         if (slot.name != name) continue;
                         const Values values = broken(call, slot, choices);
                         if (values) return Refusal{name, *values};
                       }
                       return std::nullopt;
                     }});
  }
}

std::vector<std::string> names_without(const std::vector<std::string>& left_out) {
  std::vector<std::string> names;
  for (const std::string& name : kNames)
    if (!is_one_of(name, left_out)) names.push_back(name);
  return names;
}

std::vector<Rule> tensor_rules() {
  const std::vector<std::string> rank_one = {"sink", "dsink", "seqlens_q", "seqlens_k", "cu_seqlens_q", "cu_seqlens_k"};
  std::vector<Rule> rules;
  add_rules(rules, "data is NULL", data_is_null, kNames);
  add_rules(rules, "data is misaligned", data_is_misaligned, names_without({"mask"}));
  add_rules(rules, "type is unknown", type_is_unknown, kNames);
  add_rules(rules, "type is wrong", type_is_wrong, kNames);
  add_rules(rules, "rank is wrong", rank_is_wrong, kNames);
  add_rules(rules, "extent is negative", extent_is_negative, kNames);
  add_rules(rules, "extent is beyond 31 bits", extent_is_beyond_31_bits, kNames);
  add_rules(rules, "extent does not match", extent_does_not_match, names_without({"q", "cu_seqlens_q"}));
  add_rules(rules, "stride is negative", stride_is_negative, kNames);
  add_rules(rules, "last dimension is not contiguous", last_dimension_is_not_contiguous, kNames);
  add_rules(rules, "offsets overflow", offsets_overflow, names_without(rank_one));
  add_rules(rules, "elements overlap", elements_of_an_output_overlap, {"o", "lse", "dq", "dk", "dv", "dbias"});
  add_rules(rules, "is missing", required_tensor_is_missing,
            {"q", "k", "v", "o", "lse", "dout", "cu_seqlens_q", "cu_seqlens_k"});
  return rules;
}

TEST(TensorRejections, TheUnbrokenCallIsAcceptedAndWritesItsOutputs) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Mode mode : {Mode::dense, Mode::padded, Mode::packed}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
        const Sizes sizes{.direction = direction, .mode = mode, .dtype = dtype};
        const Call call(sizes);
        EXPECT_EQ(call.run(), CUFLASH_OK) << describe(sizes) << ": " << cuflash_last_error();
        EXPECT_FALSE(call.outputs_untouched()) << describe(sizes);
      }
    }
  }
}

TEST(TensorRejections, EveryRuleForEveryTensor) { expect_all_refused(tensor_rules()); }

TEST(TensorRejections, RandomInvalidTensorsAreRefused) {
  const std::vector<Rule> rules = tensor_rules();
  test::property("an invalid tensor is refused", 1000,
                 [&](Choices& choices) { return random_refusal(rules, choices); });
}

// Legal calls that look like one of the mistakes above.
TEST(TensorRejections, StridesThatAddressNothingAreFree) {
  Sizes sizes;
  sizes.dim = sizes.dim_v = 1;  // smaller than draw_sizes makes: the last stride steps nowhere
  Call call(sizes);
  call.attention.q.stride[3] = 17;
  call.outputs.o.stride[3] = 0;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

TEST(TensorRejections, InputsMayRepeatByStrideZero) {
  Call call(Sizes{});
  call.attention.k.stride[1] = 0;
  call.attention.v.stride[0] = 0;
  call.attention.bias.stride[2] = 0;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

TEST(TensorRejections, ATensorWithoutElementsNeedsNoMemory) {
  Call call(Sizes{});
  for (Slot& slot : call.slots()) {
    if (slot.name == "sink") continue;
    slot.shape[0] = 0;
    slot.set_data(nullptr);
  }
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
  EXPECT_TRUE(call.outputs_untouched());
}

}  // namespace
}  // namespace cuflash::rejections
