// Every rule of a call over a KV cache: breaking it is refused with a sentence that names the argument, and neither an output
// nor the cache is touched.
#include "tests/problem/rejections_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/problem/first_size.h"

namespace cuflash::rejections {
namespace {

using Result = std::optional<Refusal>;
using K = CacheKind;

const std::vector<std::string> kNames = {
    "q",     "alibi_slopes",   "sink",        "cu_seqlens_q", "seqlens_q",  "k",
    "v",     "seqlens",        "block_table", "batch_idx",    "leftpad",    "k_new",
    "v_new", "cu_seqlens_new", "seqlens_new", "rotary_cos",   "rotary_sin", "o",
    "lse"};

class Rules {
 public:
  // The rule applies to calls that have all of `needed`.
  void add(const std::string& name, const std::vector<std::string>& needed,
           const std::function<Refusal(CacheCall&)>& broken) {
    rules.push_back({name, [=](CacheCall& call) -> Result {
                       for (const std::string& tensor : needed)
                         if (!call.slot(tensor)) return std::nullopt;
                       return broken(call);
                     }});
  }
  std::vector<CacheRule> rules;
};

// Dimensions whose extent another argument decides.
std::vector<int> decided_dimensions(const CacheCall& call, const std::string& name) {
  const bool packed_q = call.kind.queries == Mode::packed, packed_new = call.kind.new_rows == NewRows::packed;
  if (name == "q" || name == "cu_seqlens_q" || name == "rotary_cos") return {};
  if (name == "k") return {3};
  if (name == "v") return {0, 1, 2};
  if (name == "block_table") return {0};
  if (name == "k_new") return packed_new ? std::vector{1, 2} : std::vector{0, 1, 3};
  if (name == "v_new") return packed_new ? std::vector{0, 1, 2} : std::vector{0, 1, 2, 3};
  if (name == "o") return packed_q ? std::vector{0, 1, 2} : std::vector{0, 1, 2, 3};
  if (name == "lse") return packed_q ? std::vector{0, 1} : std::vector{0, 1, 2};
  if (name == "rotary_sin" || name == "alibi_slopes") return {0, 1};
  return {0};
}

DType wrong_type(const std::string& name) {
  const bool integers =
      name.find("seqlens") != std::string::npos || name == "leftpad" || name == "batch_idx" || name == "block_table";
  return integers ? DType::f32 : DType::i32;
}

void add_tensor_rules(Rules& all, const std::string& name) {
  const auto add = [&](const char* what, const std::function<Refusal(CacheCall&, const Slot&)>& broken) {
    all.add(name + " " + what, {name}, [=](CacheCall& call) { return broken(call, *call.slot(name)); });
  };
  add("has no data", [=](CacheCall&, const Slot& slot) {
    slot.set_data(nullptr);
    return Refusal{name, {"data", "NULL"}};
  });
  add("is misaligned", [=](CacheCall&, const Slot& slot) {
    slot.set_data(static_cast<const char*>(slot.data) + 1);
    return Refusal{name, {"aligned", slot.type_name()}};
  });
  add("has an unknown type", [=](CacheCall&, const Slot& slot) {
    *slot.dtype = 99;
    return Refusal{name, {"99"}};
  });
  add("has another type", [=](CacheCall&, const Slot& slot) {
    *slot.dtype = static_cast<int32_t>(wrong_type(name));
    return Refusal{name, {slot.type_name()}};
  });
  add("has another rank", [=](CacheCall&, const Slot& slot) {
    *slot.rank += 1;
    return Refusal{name, {"rank", text(*slot.rank)}};
  });
  add("has a negative extent", [=](CacheCall&, const Slot& slot) {
    slot.shape[slot.last()] = -3;
    return Refusal{name, {"-3"}};
  });
  add("has an extent beyond 31 bits", [=](CacheCall&, const Slot& slot) {
    slot.shape[0] = int64_t{1} << 31;
    return Refusal{name, {text(int64_t{1} << 31)}};
  });
  add("has a negative stride", [=](CacheCall&, const Slot& slot) {
    slot.stride[0] = -7;
    return Refusal{name, {"stride", "-7"}};
  });
  add("has rows with gaps", [=](CacheCall&, const Slot& slot) {
    slot.stride[slot.last()] = 2;
    return Refusal{name, {"contiguous", "2"}};
  });
  for (size_t n = 0; n < 4; ++n)
    for (const int64_t more : {int64_t{1}, int64_t{-1}}) {
      const std::string rule = name + " is not as large as it must be, " + text(n) + ", " + text(more);
      const CacheRule sized{rule, [=](CacheCall& call) -> Result {
                              const std::optional<Slot> slot = call.slot(name);
                              if (!slot) return std::nullopt;
                              const std::vector<int> dims = decided_dimensions(call, name);
                              if (n >= dims.size()) return std::nullopt;
                              int64_t& extent = slot->shape[dims[n]];
                              extent += more;
                              return Refusal{name, {text(extent)}};
                            }};
      CacheCall probe({.queries = name == "seqlens_q" ? Mode::padded : Mode::dense,
                       .new_rows = name == "cu_seqlens_new" ? NewRows::packed
                                   : name == "seqlens_new"  ? NewRows::padded
                                                            : NewRows::dense,
                       .paged = name == "block_table"});
      if (n < decided_dimensions(probe, name).size()) all.rules.push_back(sized);
    }
}

TEST(CacheRejections, EveryTensor) {
  Rules all;
  for (const std::string& name : kNames) add_tensor_rules(all, name);
  expect_all_refused(all.rules);
}

TEST(CacheRejections, WhatACallWithoutACacheHas) {
  Rules all;
  const auto given = [&](const char* name, cuflash_tensor cuflash_attention::*tensor) {
    all.add(name, {}, [=](CacheCall& call) {
      call.attention.*tensor = call.attention.q;
      return Refusal{name, {"cache"}};
    });
  };
  given("k", &cuflash_attention::k), given("v", &cuflash_attention::v);
  given("cu_seqlens_k", &cuflash_attention::cu_seqlens_k), given("seqlens_k", &cuflash_attention::seqlens_k);
  given("bias", &cuflash_attention::bias), given("mask", &cuflash_attention::mask);
  all.add("max_seqlen_k", {}, [](CacheCall& call) {
    call.attention.max_seqlen_k = 5;
    return Refusal{"max_seqlen_k", {"cache"}};
  });
  for (const double p : {0.25, 1.0, -0.5, std::nan("")})
    all.add("dropout_p " + text(p), {}, [=](CacheCall& call) {
      call.attention.dropout_p = p;
      return Refusal{"dropout_p", {"cache"}};
    });
  all.add("alignment", {}, [](CacheCall& call) {
    call.attention.alignment = CUFLASH_TOP_LEFT;
    return Refusal{"alignment", {"cache"}};
  });
  expect_all_refused(all.rules);
}

TEST(CacheRejections, ScoresAndSplits) {
  Rules all;
  all.add("alignment is unknown", {}, [](CacheCall& call) {
    call.attention.alignment = 7;
    return Refusal{"alignment", {"7"}};
  });
  all.add("scale is no number", {}, [](CacheCall& call) {
    call.attention.scale = std::nan("");
    return Refusal{"scale", {"nan"}};
  });
  all.add("softcap is negative", {}, [](CacheCall& call) {
    call.attention.softcap = -2;
    return Refusal{"softcap", {"-2"}};
  });
  all.add("window_left is below -1", {}, [](CacheCall& call) {
    call.attention.window_left = -2;
    return Refusal{"window_left", {"-2"}};
  });
  all.add("window_right is below -1", {}, [](CacheCall& call) {
    call.attention.window_right = -9;
    return Refusal{"window_right", {"-9"}};
  });
  for (const int32_t splits : {-1, kMin})
    all.add("num_splits " + text(splits), {}, [=](CacheCall& call) {
      call.cache.num_splits = splits;
      return Refusal{"num_splits", {text(splits)}};
    });
  expect_all_refused(all.rules);
}

TEST(CacheRejections, MissingTensors) {
  Rules all;
  for (const char* name : {"q", "k", "v", "seqlens", "o", "rotary_cos", "rotary_sin", "v_new"})
    all.add(name, {name}, [=](CacheCall& call) {
      call.slot(name)->remove();
      return Refusal{name, {"missing"}};
    });
  all.add("k_new alone", {"k_new"}, [](CacheCall& call) {
    call.slot("k_new")->remove();
    return Refusal{"v_new", {"k_new"}};
  });
  const auto without_rows = [](CacheCall& call) { call.slot("k_new")->remove(), call.slot("v_new")->remove(); };
  all.add("new rows of a packed append", {"cu_seqlens_new"}, [=](CacheCall& call) {
    without_rows(call);
    return Refusal{"cu_seqlens_new", {"k_new"}};
  });
  all.add("new rows of a padded append", {"seqlens_new"}, [=](CacheCall& call) {
    without_rows(call);
    return Refusal{"seqlens_new", {"k_new"}};
  });
  all.add("new rows with a bound", {"cu_seqlens_new"}, [=](CacheCall& call) {
    without_rows(call);
    call.slot("cu_seqlens_new")->remove();
    return Refusal{"max_seqlen_new", {"k_new", text(K::kNew)}};
  });
  expect_all_refused(all.rules);
}

TEST(CacheRejections, Shapes) {
  Rules all;
  all.add("q without heads", {}, [](CacheCall& call) {
    call.attention.q.shape[1] = 0;
    return Refusal{"q", {"0", "heads"}};
  });
  all.add("q without elements in a head", {}, [](CacheCall& call) {
    call.attention.q.shape[call.attention.q.rank - 1] = 0;
    return Refusal{"q", {"0", "D"}};
  });
  all.add("heads that do not divide", {}, [](CacheCall& call) {
    call.attention.q.shape[1] = 3;
    return Refusal{"q", {"3", text(K::kHeadsK)}};
  });
  all.add("k without heads", {}, [](CacheCall& call) {
    call.cache.k.shape[1] = 0;
    return Refusal{"k", {"0", "heads"}};
  });
  all.add("v without elements in a head", {}, [](CacheCall& call) {
    call.cache.v.shape[3] = 0;
    return Refusal{"v", {"0", "Dv"}};
  });
  all.add("pages without rows", {"block_table"}, [](CacheCall& call) {
    call.cache.k.shape[2] = call.cache.v.shape[2] = 0;
    return Refusal{"k", {"0", "page"}};
  });
  all.add("entries for a part of the batch", {"batch_idx"}, [](CacheCall& call) {
    call.slot("batch_idx")->remove();
    call.cache.k.shape[0] = call.cache.v.shape[0] = 1;
    return Refusal{"k", {"1", "2", "batch_idx"}};
  });
  all.add("more rotated elements than there are", {}, [](CacheCall& call) {
    call.cache.rotary_cos.shape[1] = call.cache.rotary_sin.shape[1] = K::kDim / 2 + 1;
    call.cache.rotary_cos.shape[0] = call.cache.rotary_sin.shape[0] = 1;
    return Refusal{"rotary_cos", {text(K::kDim / 2 + 1), text(K::kDim)}};
  });
  all.add("cos and sin of two types", {}, [](CacheCall& call) -> Refusal {
    const bool f32 = call.kind.dtype == DType::f32;
    call.cache.rotary_sin.dtype = static_cast<int32_t>(f32 ? DType::f64 : DType::f32);
    return Refusal{"rotary_sin", {call.slot("rotary_sin")->type_name(), call.slot("rotary_cos")->type_name()}};
  });
  for (const char* name : {"o", "lse"})
    all.add(std::string(name) + " overlaps itself", {}, [=](CacheCall& call) {
      call.slot(name)->stride[0] = 1;
      return Refusal{name, {"share"}};
    });
  for (const char* name : {"k", "v"})
    all.add(std::string("a written ") + name + " overlaps itself", {"k_new"}, [=](CacheCall& call) {
      call.slot(name)->stride[0] = 0;
      return Refusal{name, {"share"}};
    });
  expect_all_refused(all.rules);
}

TEST(CacheRejections, SharedMemory) {
  Rules all;
  const auto same = [&](const char* name, const char* other, const std::vector<std::string>& needed = {}) {
    all.add(std::string(name) + " at " + other, needed, [=](CacheCall& call) {
      call.slot(name)->set_data(call.slot(other)->data);
      return Refusal{name, {other, "same"}};
    });
  };
  for (const char* other : {"q", "k", "v", "lse"}) same("o", other);
  for (const char* other : {"q", "k", "v"}) same("lse", other);
  for (const char* name : {"o", "lse", "k", "v"})
    for (const char* other : {"k_new", "v_new"}) same(name, other, {other});
  same("k", "q", {"k_new"}), same("v", "q", {"k_new"});  // a cache that is only read may be that of the queries
  same("v", "k", {"k_new"});                             // its rows are shorter and would start elsewhere: no slice
  all.add("v_new for a slice of k", {"k_new"}, [](CacheCall& call) {
    call.cache.v.data = call.cache.k.data;
    std::memcpy(call.cache.v.stride, call.cache.k.stride, sizeof call.cache.k.stride);
    return Refusal{"v_new", {"slice"}};
  });
  expect_all_refused(all.rules);
}

void add_cumulative_rules(Rules& all, const std::string& name, const std::string& bound, const std::string& used,
                          const std::string& rows) {
  const auto add = [&](const char* what, const std::function<Refusal(CacheCall&, int32_t*)>& broken) {
    all.add(name + " " + what, {name}, [=](CacheCall& call) { return broken(call, call.integers(name)); });
  };
  const auto max_seqlen = [=](CacheCall& call) -> int64_t& {
    return bound == "max_seqlen_q" ? call.attention.max_seqlen_q : call.cache.max_seqlen_new;
  };
  add("does not start with 0", [=](CacheCall&, int32_t* cu) {
    cu[0] = 1;
    return Refusal{name, {"1", "0"}};
  });
  add("decreases", [=](CacheCall&, int32_t* cu) {
    cu[2] = cu[1] - 1;
    return Refusal{name, {text(cu[1]), text(cu[2])}};
  });
  add("ends beyond the rows", [=](CacheCall& call, int32_t* cu) {
    cu[2] = static_cast<int32_t>(call.slot(rows)->shape[0]) + 1;
    return Refusal{name, {text(cu[2]), text(cu[2] - 1)}};
  });
  add("holds more than the bound", [=](CacheCall& call, int32_t*) {
    max_seqlen(call) = 1;
    return Refusal{bound, {"1", name}};
  });
  for (const int64_t value : {int64_t{-1}, int64_t{1} << 31})
    add(("has a bound of " + text(value)).c_str(), [=](CacheCall& call, int32_t*) {
      max_seqlen(call) = value;
      return Refusal{bound, {text(value)}};
    });
  add("comes with lengths", [=](CacheCall& call, int32_t*) {
    cuflash_tensor& lengths = used == "seqlens_q" ? call.attention.seqlens_q : call.cache.seqlens_new;
    lengths = call.cache.seqlens;
    return Refusal{used, {name}};
  });
}

void add_used_rules(Rules& all, const std::string& name, const std::string& bound, int64_t most) {
  for (const int64_t length : {int64_t{-1}, most + 1, int64_t{kMin}, int64_t{kMax}})
    all.add(name + " " + text(length), {name}, [=](CacheCall& call) {
      call.integers(name)[1] = static_cast<int32_t>(length);
      return Refusal{name, {"1", text(length), text(most)}};
    });
  const std::string cu = name == "seqlens_q" ? "cu_seqlens_q" : "cu_seqlens_new";
  all.add(bound + " without " + cu, {name}, [=](CacheCall& call) {
    (bound == "max_seqlen_q" ? call.attention.max_seqlen_q : call.cache.max_seqlen_new) = 2;
    return Refusal{bound, {"2", cu}};
  });
}

TEST(CacheRejections, LengthsOfQueriesAndNewRows) {
  Rules all;
  add_cumulative_rules(all, "cu_seqlens_q", "max_seqlen_q", "seqlens_q", "q");
  add_cumulative_rules(all, "cu_seqlens_new", "max_seqlen_new", "seqlens_new", "k_new");
  add_used_rules(all, "seqlens_q", "max_seqlen_q", K::kQueries);
  add_used_rules(all, "seqlens_new", "max_seqlen_new", K::kNew);
  all.add("cu_seqlens_q has no element", {"cu_seqlens_q"}, [](CacheCall& call) {
    call.attention.cu_seqlens_q.shape[0] = 0;
    return Refusal{"cu_seqlens_q", {"no elements"}};
  });
  expect_all_refused(all.rules);
}

TEST(CacheRejections, RowsOfTheCache) {
  Rules all;
  for (const int32_t rows : {-1, kMin, kMax})
    all.add("seqlens " + text(rows), {}, [=](CacheCall& call) {
      call.integers("seqlens")[1] = rows;
      return Refusal{"seqlens", {"1", text(rows), text(call.kind.room())}};
    });
  all.add("more rows than there is room", {}, [](CacheCall& call) {
    const int64_t rows = call.kind.room() + 1;
    call.integers("seqlens")[0] = static_cast<int32_t>(rows);
    return Refusal{"seqlens", {"0", text(rows), text(rows - 1)}};
  });
  all.add("no room for new rows", {"k_new"}, [](CacheCall& call) {
    call.integers("seqlens")[0] = static_cast<int32_t>(call.kind.room() - 1);
    return Refusal{"k_new", {"2", text(call.kind.room() + 1), text(call.kind.room())}};
  });
  for (const int32_t pad : {-1, kMin, 5, kMax})  // the sequence has 4 rows
    all.add("leftpad " + text(pad), {}, [=](CacheCall& call) {
      call.integers("leftpad")[1] = pad;
      return Refusal{"leftpad", {"1", text(pad), "4"}};
    });
  all.add("batch_idx for pages", {"block_table"}, [](CacheCall& call) {
    call.cache.batch_idx = call.cache.seqlens;
    return Refusal{"batch_idx", {"block_table"}};
  });
  for (const int32_t entry : {-1, static_cast<int32_t>(K::kEntries), kMin, kMax})
    all.add("batch_idx " + text(entry), {"batch_idx"}, [=](CacheCall& call) {
      call.integers("batch_idx")[1] = entry;
      return Refusal{"batch_idx", {"1", text(entry), text(K::kEntries - 1)}};
    });
  all.add("two sequences append to one entry", {"batch_idx", "k_new"}, [](CacheCall& call) {
    call.integers("batch_idx")[1] = call.integers("batch_idx")[0];
    return Refusal{"batch_idx", {"0", "1", "2"}};
  });
  for (const int silent : {0, 1})  // whichever of them it is
    all.add("a sequence appends to the entry of another, " + text(silent), {"batch_idx", "seqlens_new"},
            [=](CacheCall& call) {
              call.integers("batch_idx")[1] = call.integers("batch_idx")[0];
              call.integers("seqlens_new")[silent] = 0;
              return Refusal{"batch_idx", {"0", "1", "2"}};
            });
  for (const int32_t page : {-1, static_cast<int32_t>(K::kPages), kMin, kMax})
    for (const int b : {0, 1})
      all.add("block_table " + text(page) + " of " + text(b), {"block_table"}, [=](CacheCall& call) {
        call.integers("block_table")[b * K::kColumns] = page;
        return Refusal{"block_table", {text(b), "0", text(page), text(K::kPages - 1)}};
      });
  // Entries of new rows are written even if no query sees them.
  all.add("block_table of new rows", {"block_table", "k_new", "seqlens_q"}, [](CacheCall& call) {
    call.integers("seqlens_q")[0] = 0;
    call.integers("block_table")[1] = kMax;
    return Refusal{"block_table", {"0", "1", text(kMax)}};
  });
  all.add("too few positions", {}, [](CacheCall& call) {
    call.cache.rotary_cos.shape[0] = call.cache.rotary_sin.shape[0] = 3;
    return Refusal{"rotary_cos", {"3", "0"}};
  });
  all.rules.push_back({"queries before the first key are to be rotated", [](CacheCall& call) -> Result {
                         call.integers("seqlens")[1] = call.appends() ? 0 : 1;
                         const int64_t keys = call.kind.new_rows == NewRows::dense ? 2 : 1;
                         const int64_t queries = call.kind.queries == Mode::dense ? 3 : 2;
                         if (queries <= keys) return std::nullopt;
                         return Refusal{"q", {"1", text(queries), text(keys)}};
                       }});
  expect_all_refused(all.rules);
}

TEST(CacheRejections, Structs) {
  Rules all;
  const auto add = [&]<class Struct>(const std::string& name, Struct CacheCall::*value,
                                     const Struct* CacheCall::*argument) {
    for (const size_t size : {size_t{0}, size_t{1}, first_size<Struct>() - 1})
      all.add(name + " of size " + text(size), {}, [=](CacheCall& call) {
        (call.*value).struct_size = size;
        return Refusal{name, {"struct_size", text(size), text(first_size<Struct>())}};
      });
    all.add(name + " is NULL", {}, [=](CacheCall& call) {
      call.*argument = nullptr;
      return Refusal{name, {"NULL"}};
    });
    all.add(name + " has an unknown field that is set", {}, [=](CacheCall& call) {
      std::byte* longer = call.scratch(sizeof(Struct) + 8);
      (call.*value).struct_size = sizeof(Struct) + 8;
      std::memcpy(longer, &(call.*value), sizeof(Struct));
      longer[sizeof(Struct) + 3] = std::byte{1};
      call.*argument = reinterpret_cast<const Struct*>(longer);
      return Refusal{name, {"struct_size", text(sizeof(Struct) + 8), text(sizeof(Struct))}};
    });
  };
  add("attention", &CacheCall::attention, &CacheCall::attention_argument);
  add("cache_tensors", &CacheCall::cache, &CacheCall::cache_argument);
  expect_all_refused(all.rules);
}

}  // namespace
}  // namespace cuflash::rejections
