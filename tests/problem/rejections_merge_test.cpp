// Every rule of merge_states, and what it must serve.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "tests/problem/rejections_merge.h"

namespace cuflash::rejections {
namespace {

void for_each_kind(const std::function<void(DType, bool packed)>& visit) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const bool packed : {false, true}) visit(dtype, packed);
}

void expect_refused(const std::string& what, const std::function<Refusal(MergeCall&)>& broken) {
  for_each_kind([&](DType dtype, bool packed) {
    MergeCall call(dtype, packed);
    const Refusal expected = broken(call);
    const cuflash_status status = call.run();
    EXPECT_EQ(why_not_refused(call.untouched(), expected, "the call", status), "")
        << what << " " << cuflash::name_of(dtype) << (packed ? " packed" : "");
  });
}

const std::vector<std::string> kNames = {"o_a", "lse_a", "o_b", "lse_b", "o", "lse"};

TEST(MergeRejections, EveryTensor) {
  for (const std::string& name : kNames) {
    const auto add = [&](const char* what, const std::function<Refusal(const Slot&)>& broken) {
      expect_refused(name + " " + what, [&](MergeCall& call) { return broken(call.slot(name)); });
    };
    if (name != "lse")
      add("is missing", [&](const Slot& slot) {
        slot.remove();
        return Refusal{name, {"missing"}};
      });
    add("has no data", [&](const Slot& slot) {
      slot.set_data(nullptr);
      return Refusal{name, {"NULL"}};
    });
    add("is misaligned", [&](const Slot& slot) {
      slot.set_data(static_cast<const char*>(slot.data) + 1);
      return Refusal{name, {"aligned"}};
    });
    add("has another type", [&](const Slot& slot) {
      *slot.dtype = CUFLASH_I32;
      return Refusal{name, {"i32"}};
    });
    add("has an unknown type", [&](const Slot& slot) {
      *slot.dtype = 77;
      return Refusal{name, {"77"}};
    });
    add("has another rank", [&](const Slot& slot) {
      *slot.rank = 1;
      return Refusal{name, {"rank", "1"}};
    });
    add("has a negative stride", [&](const Slot& slot) {
      slot.stride[0] = -4;
      return Refusal{name, {"stride", "-4"}};
    });
    add("has rows with gaps", [&](const Slot& slot) {
      slot.stride[slot.last()] = 2;
      return Refusal{name, {"contiguous"}};
    });
    if (name == "o_a") continue;  // it decides the shape
    for (const int d : {0, 1})
      add("has another extent", [&](const Slot& slot) {
        slot.shape[d] -= 1;
        return Refusal{name, {text(slot.shape[d]), text(slot.shape[d] + 1)}};
      });
  }
  for (const char* name : {"o", "lse"})
    expect_refused("overlaps itself", [&](MergeCall& call) {
      call.slot(name).stride[0] = 0;
      return Refusal{name, {"share"}};
    });
}

TEST(MergeRejections, PartsOfTwoTypes) {
  expect_refused("o_b of another type", [](MergeCall& call) {
    call.tensors.o_b.dtype = call.dtype == DType::f32 ? CUFLASH_F64 : CUFLASH_F32;
    return Refusal{"o_b", {call.slot("o_b").type_name(), call.slot("o_a").type_name()}};
  });
  for (const char* name : {"lse_a", "lse_b", "lse"})
    expect_refused("state of another type", [&](MergeCall& call) {
      *call.slot(name).dtype = call.dtype == DType::f64 ? CUFLASH_F32 : CUFLASH_F64;
      return Refusal{name, {call.slot(name).type_name()}};
    });
}

TEST(MergeRejections, SharedMemory) {
  const auto same = [](const char* name, const char* other) {
    expect_refused(std::string(name) + " at " + other, [&](MergeCall& call) {
      call.slot(name).set_data(call.slot(other).data);
      return Refusal{name, {other, "same"}};
    });
  };
  same("o", "lse_a"), same("o", "lse_b"), same("o", "lse"), same("lse", "o_a"), same("lse", "o_b");
  // An input that becomes the output must be the same view.
  for (const char* other : {"o_a", "o_b"})
    expect_refused("o in another order", [&](MergeCall& call) {
      const Slot slot = call.slot("o");
      slot.set_data(call.slot(other).data);
      if (call.packed) slot.stride[0] = 3, slot.stride[1] = 15;
      else slot.stride[1] = 3, slot.stride[2] = 12;
      return Refusal{"o", {other, "same"}};
    });
  for (const char* other : {"lse_a", "lse_b"})
    expect_refused("lse with gaps", [&](MergeCall& call) {
      const Slot slot = call.slot("lse");
      slot.set_data(call.slot(other).data);
      for (int d = 0; d < slot.last(); ++d) slot.stride[d] *= 2;
      return Refusal{"lse", {other, "same"}};
    });
}

TEST(MergeRejections, Structs) {
  constexpr size_t kSize = sizeof(cuflash_merge_tensors);
  for (const size_t size : {size_t{0}, size_t{8}, kSize - 1})
    expect_refused("size", [&](MergeCall& call) {
      call.tensors.struct_size = size;
      return Refusal{"merge_tensors", {"struct_size", text(size), text(kSize)}};
    });
  expect_refused("NULL", [](MergeCall& call) {
    call.argument = nullptr;
    return Refusal{"merge_tensors", {"NULL"}};
  });
  struct Longer {
    cuflash_merge_tensors known;
    int64_t unknown;
  };
  Longer longer;
  expect_refused("an unknown field", [&](MergeCall& call) {
    call.tensors.struct_size = sizeof longer;
    longer = {call.tensors, 5};
    call.argument = &longer.known;
    return Refusal{"merge_tensors", {"struct_size", text(sizeof longer), text(kSize)}};
  });
  MergeCall call(DType::f32, false);
  call.tensors.struct_size = sizeof longer;
  longer = {call.tensors, 0};
  call.argument = &longer.known;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

TEST(MergeRejections, AValidCallIsServed) {
  for_each_kind([](DType dtype, bool packed) {
    MergeCall call(dtype, packed);
    EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
    EXPECT_FALSE(call.untouched());

    MergeCall wide(dtype, packed);  // o may be f32
    std::vector<float> o(5 * 4 * 3 * 2);
    wide.tensors.o.data = o.data(), wide.tensors.o.dtype = CUFLASH_F32;
    EXPECT_EQ(wide.run(), CUFLASH_OK) << cuflash_last_error();

    MergeCall in_place(dtype, packed);
    in_place.slot("o").set_data(in_place.slot("o_b").data), in_place.slot("lse").set_data(in_place.slot("lse_a").data);
    EXPECT_EQ(in_place.run(), CUFLASH_OK) << cuflash_last_error();

    MergeCall without_lse(dtype, packed);
    without_lse.slot("lse").remove();
    EXPECT_EQ(without_lse.run(), CUFLASH_OK) << cuflash_last_error();
  });
}

}  // namespace
}  // namespace cuflash::rejections
