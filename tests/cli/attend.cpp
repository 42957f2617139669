// `cuflash attend` as a program: its outputs are compared with the oracle, its failures are one sentence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <tuple>

#include "check/cases/random.h"
#include "cli/arguments/exit.h"
#include "dtype.h"
#include "files/npy/npy.h"
#include "files/tensors/array_file.h"
#include "files/tensors/convert.h"
#include "reference/oracle.h"
#include "tests/cli/program.h"

namespace cuflash::cli {
namespace {

using namespace files;
using Shape = std::vector<int64_t>;

Array array_of(const Shape& shape, const std::vector<double>& values) {
  Array array{ElementType::f64, shape, std::vector<std::byte>(values.size() * sizeof(double))};
  if (!values.empty()) std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}
template <class Integer>
Array integers(ElementType type, const std::vector<Integer>& values) {
  Array array{type, {static_cast<int64_t>(values.size())}, std::vector<std::byte>(values.size() * sizeof(Integer))};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}
Array normal(const Shape& shape, uint64_t seed) {
  check::Random random(seed);
  std::vector<double> values(static_cast<size_t>(Array{ElementType::f64, shape, {}}.count()));
  for (double& value : values) value = random.normal();
  return array_of(shape, values);
}
std::vector<double> values_of(const Array& array) {
  const std::vector<std::byte> bytes = convert(array, DType::f64);
  std::vector<double> values(static_cast<size_t>(array.count()));
  load_row(bytes.data(), DType::f64, 0, array.count(), values.data());
  return values;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t n = 0; n < actual.size(); ++n) {
    if (actual[n] == expected[n]) continue;  // -inf too
    ASSERT_NEAR(actual[n], expected[n], tolerance) << what << " at " << n;
  }
}

constexpr int64_t kBatch = 2, kHeadsQ = 4, kHeadsK = 2, kLenQ = 5, kLenK = 7, kDim = 8, kDimV = 6;

// The files of a problem, and the same tensors for the oracle.
class Attend : public testing::Test {
 protected:
  Attend() {
    attention.q = dense("q.npy", kHeadsQ, kLenQ, kDim);
    attention.k = dense("k.npy", kHeadsK, kLenK, kDim);
    attention.v = dense("v.npy", kHeadsK, kLenK, kDimV);
    dout = dense("do.npy", kHeadsQ, kLenQ, kDimV);
  }

  ConstTensor dense(const std::string& name, int64_t heads, int64_t length, int64_t dim) {
    return values(name, {kBatch, heads, length, dim});
  }
  ConstTensor values(const std::string& name, const Shape& shape) {
    return file(name, normal(shape, ++seed_), DType::f64);
  }
  // Writes the array to a file and returns a contiguous view of the same elements in the library's type.
  ConstTensor file(const std::string& name, const Array& array, DType type) {
    write_arrays({{dir.file(name), array}});
    if (type == DType::i32) {
      const std::vector<int32_t> lengths = to_int32(array);
      memory_.emplace_back(lengths.size() * sizeof(int32_t));
      std::memcpy(memory_.back().data(), lengths.data(), memory_.back().size());
    } else {
      memory_.push_back(type == DType::boolean ? to_bool(array) : convert(array, type));
    }
    ConstTensor view{memory_.back().data(), type, static_cast<int32_t>(array.shape.size()), {}, {}};
    int64_t stride = 1;
    for (size_t d = array.shape.size(); d-- > 0;) {
      view.shape[d] = array.shape[d], view.stride[d] = stride;
      stride *= array.shape[d];
    }
    return view;
  }

  std::vector<double> output(const std::string& name) { return values_of(read_npy(dir.file(name))); }

  // Runs forward and backward with these flags and compares everything it wrote with the oracle on `attention`.
  void expect_oracle(const std::string& flags) {
    const Outcome outcome = run(dir,
                                "attend --q q.npy --k k.npy --v v.npy -o o.npy --lse lse.npy --grad-out do.npy "
                                "--dq dq.npy --dk dk.npy --dv dv.npy " +
                                    flags);
    ASSERT_EQ(outcome.code, kExitOk) << flags << ": " << outcome.err;
    EXPECT_EQ(outcome.err, "") << flags;
    constexpr double kTolerance = 1e-11;
    const reference::Forward forward = reference::oracle_forward(attention);
    const reference::Backward backward = reference::oracle_backward(attention, dout, dlse);
    expect_near(output("o.npy"), forward.o, kTolerance, flags + ": o");
    expect_near(output("lse.npy"), forward.lse, kTolerance, flags + ": lse");
    expect_near(output("dq.npy"), backward.dq, kTolerance, flags + ": dq");
    expect_near(output("dk.npy"), backward.dk, kTolerance, flags + ": dk");
    expect_near(output("dv.npy"), backward.dv, kTolerance, flags + ": dv");
    if (flags.find("--dbias") != std::string::npos)
      expect_near(output("dbias.npy"), backward.dbias, kTolerance, flags + ": dbias");
    if (flags.find("--dsink") != std::string::npos)
      expect_near(output("dsink.npy"), backward.dsink, kTolerance, flags + ": dsink");
  }

  // The tool must fail with one sentence that contains `reason`, and write nothing.
  void expect_failure(const std::string& words, int code, const std::string& reason) {
    const Outcome outcome = run(dir, words);
    EXPECT_EQ(outcome.code, code) << words << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << words << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << words << ": " << outcome.err;
    for (const char* name : {"o.npy", "lse.npy", "dq.npy"}) EXPECT_FALSE(dir.has(name)) << words << " wrote " << name;
  }

  test::TempDir dir;
  Attention attention{};
  ConstTensor dout, dlse{};

 private:
  std::deque<std::vector<std::byte>> memory_;
  uint64_t seed_ = 0;
};

TEST_F(Attend, plain) { expect_oracle(""); }
TEST_F(Attend, threads_and_device) { expect_oracle("--threads 2 --device cpu"); }
TEST_F(Attend, causal) {
  attention.causal = true;
  expect_oracle("--causal");
  expect_oracle("--causal --align bottom-right");
}
TEST_F(Attend, causal_top_left) {
  attention.causal = true;
  attention.alignment = Alignment::top_left;
  expect_oracle("--causal --align top-left");
}
TEST_F(Attend, window) {
  attention.window_left = 2, attention.window_right = 1;
  expect_oracle("--window 2,1");
  attention.window_left = -1, attention.window_right = 0;
  expect_oracle("--window -1,0");
  attention.window_left = 1, attention.window_right = -1;
  expect_oracle("--window=1,-1");
}
TEST_F(Attend, softcap_and_scale) {
  attention.softcap = 1.5;
  attention.scale = 0.75;
  expect_oracle("--softcap 1.5 --scale 0.75");
}
TEST_F(Attend, alibi) {
  attention.alibi_slopes = file("slopes.npy", array_of({kHeadsQ}, {0.5, 0.25, 0.125, 1}), DType::f32);
  expect_oracle("--alibi slopes.npy");
}
TEST_F(Attend, bias_and_its_gradient) {
  attention.bias = values("bias.npy", {1, kHeadsQ, kLenQ, kLenK});
  expect_oracle("--bias bias.npy --dbias dbias.npy");
  EXPECT_EQ(read_npy(dir.file("dbias.npy")).shape, (Shape{1, kHeadsQ, kLenQ, kLenK}));
}
TEST_F(Attend, bias_of_fewer_dimensions) {
  ConstTensor bias = values("bias.npy", {kLenQ, kLenK});
  attention.bias = contiguous(bias.data, DType::f64, 1, 1, kLenQ, kLenK);
  expect_oracle("--bias bias.npy --dbias dbias.npy");
  EXPECT_EQ(read_npy(dir.file("dbias.npy")).shape, (Shape{kLenQ, kLenK}));
}
TEST_F(Attend, mask) {
  check::Random random(5);
  std::vector<uint8_t> bits(kBatch * kLenK);
  for (uint8_t& bit : bits) bit = random.below(3) != 0;
  Array mask = integers(ElementType::boolean, bits);
  mask.shape = {kBatch, 1, 1, kLenK};
  attention.mask = file("mask.npy", mask, DType::boolean);
  expect_oracle("--mask mask.npy");
}
TEST_F(Attend, sink_and_its_gradient) {
  attention.sink = values("sink.npy", {kHeadsQ});
  expect_oracle("--sink sink.npy --dsink dsink.npy");
}
TEST_F(Attend, dropout) {
  attention.dropout_p = 0.3;
  attention.dropout_seed = 18446744073709551615u, attention.dropout_offset = 9;
  expect_oracle("--dropout 0.3 --seed 18446744073709551615 --offset 9");
}
TEST_F(Attend, padded_lengths_of_any_integer_type) {
  attention.seqlens_q = file("lq.npy", integers<int64_t>(ElementType::i64, {5, 0}), DType::i32);
  attention.seqlens_k = file("lk.npy", integers<uint8_t>(ElementType::u8, {3, 7}), DType::i32);
  expect_oracle("--seqlens-q lq.npy --seqlens-k lk.npy");
}
TEST_F(Attend, gradient_of_lse) {
  dlse = values("dlse.npy", {kBatch, kHeadsQ, kLenQ});
  expect_oracle("--grad-lse dlse.npy");
}
TEST_F(Attend, packed) {
  attention.q = values("q.npy", {9, kHeadsQ, kDim});
  attention.k = values("k.npy", {11, kHeadsK, kDim});
  attention.v = values("v.npy", {11, kHeadsK, kDimV});
  dout = values("do.npy", {9, kHeadsQ, kDimV});
  attention.cu_seqlens_q = file("cq.npy", integers<int32_t>(ElementType::i32, {0, 3, 3, 9}), DType::i32);
  attention.cu_seqlens_k = file("ck.npy", integers<uint16_t>(ElementType::u16, {0, 4, 6, 11}), DType::i32);
  expect_oracle("--cu-seqlens-q cq.npy --cu-seqlens-k ck.npy");
  EXPECT_EQ(read_npy(dir.file("lse.npy")).shape, (Shape{kHeadsQ, 9}));
}

// [B, S, H, D] files of the same numbers give the same numbers.
Array heads_and_rows_swapped(const Array& array) {
  const Shape& s = array.shape;
  const std::vector<double> from = values_of(array);
  std::vector<double> to(from.size());
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t x = 0; x < s[1]; ++x)
      for (int64_t y = 0; y < s[2]; ++y)
        for (int64_t d = 0; d < s[3]; ++d)
          to[static_cast<size_t>(((b * s[2] + y) * s[1] + x) * s[3] + d)] =
              from[static_cast<size_t>(((b * s[1] + x) * s[2] + y) * s[3] + d)];
  return array_of({s[0], s[2], s[1], s[3]}, to);
}
TEST_F(Attend, layout_bshd) {
  attention.causal = true;
  expect_oracle("--causal");
  for (const char* name : {"q.npy", "k.npy", "v.npy", "do.npy"}) {
    write_arrays({{dir.file(name), heads_and_rows_swapped(read_npy(dir.file(name)))}});
  }
  const Outcome outcome = run(dir,
                              "attend --q q.npy --k k.npy --v v.npy --grad-out do.npy --causal --layout bshd "
                              "-o o2.npy --lse lse2.npy --dq dq2.npy --dk dk2.npy --dv dv2.npy");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_EQ(output("lse2.npy"), output("lse.npy"));
  for (const char* name : {"o", "dq", "dk", "dv"}) {
    const Array swapped = read_npy(dir.file(std::string(name) + "2.npy"));
    expect_near(values_of(heads_and_rows_swapped(swapped)), output(std::string(name) + ".npy"), 1e-14, name);
  }
}

TEST_F(Attend, dtype_decides_the_type_whatever_the_files_hold) {
  const reference::Forward expected = reference::oracle_forward(attention);
  for (const auto& [name, type, tolerance] : {std::tuple{"f64", DType::f64, 1e-12},
                                              {"f32", DType::f32, 1e-5},
                                              {"f16", DType::f16, 1e-2},
                                              {"bf16", DType::bf16, 6e-2}}) {
    const Outcome outcome = run(dir, std::string("attend --q q.npy --k k.npy --v v.npy -o o.npy --dtype ") + name);
    ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
    const Array o = read_npy(dir.file("o.npy"));
    EXPECT_EQ(o.type, type == DType::f64 ? ElementType::f64 : ElementType::f32) << name;
    expect_near(values_of(o), expected.o, tolerance, name);
    const std::vector<std::byte> stored = convert(o, type);
    std::vector<double> again(static_cast<size_t>(o.count()));
    load_row(stored.data(), type, 0, o.count(), again.data());
    EXPECT_EQ(values_of(o), again) << name << ": the output is not made of numbers of the type";
    if (type != DType::f64) {
      EXPECT_NE(values_of(o), expected.o) << name << ": it was computed in another type";
    }
  }
}

// The numbers of q.npy, k.npy, v.npy and do.npy, rounded to bf16, as tensors of one file.
void write_bf16_inputs(const test::TempDir& dir) {
  std::vector<ArrayOutput> tensors;
  for (const char* name : {"q", "k", "v", "do"}) {
    Array array = read_npy(dir.file(std::string(name) + ".npy"));
    array.bytes = convert(array, DType::bf16);
    array.type = ElementType::bf16;
    tensors.push_back({dir.file("in.safetensors"), array, name});
  }
  write_arrays(tensors);
}

TEST_F(Attend, safetensors_give_what_npy_files_give) {
  write_bf16_inputs(dir);
  const char* flags = "--causal --softcap 30 ";
  // NumPy has no bf16: --dtype selects it for the computation, and the output is float32.
  const Outcome npy = run(dir, std::string("attend --q q.npy --k k.npy --v v.npy --grad-out do.npy --dtype bf16 ") +
                                   flags + "-o o.npy --lse lse.npy --dq dq.npy --dk dk.npy --dv dv.npy");
  ASSERT_EQ(npy.code, kExitOk) << npy.err;
  const Outcome outcome =
      run(dir, std::string("attend --q in.safetensors --k in.safetensors --v in.safetensors:v ") +
                   "--grad-out in.safetensors:do -o out.safetensors --lse out.safetensors --dq out.safetensors:query " +
                   "--dk gradients.safetensors --dv dv2.npy " + flags);
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_EQ(outcome.out,
            "out.safetensors:out bfloat16 [2, 4, 5, 6]\nout.safetensors:lse float32 [2, 4, 5]\n"
            "out.safetensors:query bfloat16 [2, 4, 5, 8]\ngradients.safetensors:dk bfloat16 [2, 2, 7, 8]\n"
            "dv2.npy float32 [2, 2, 7, 6]\n");
  for (const auto& [place, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{"out.safetensors:out", "o.npy"},
                                                                  {"out.safetensors:lse", "lse.npy"},
                                                                  {"out.safetensors:query", "dq.npy"},
                                                                  {"gradients.safetensors:dk", "dk.npy"},
                                                                  {"dv2.npy", "dv.npy"}}) {
    const Array written = read_array("--x", dir.file(place));
    EXPECT_EQ(written.shape, read_npy(dir.file(name)).shape) << place;
    EXPECT_EQ(values_of(written), output(name)) << place;
  }
  const std::vector<double> lse = output("lse.npy");
  EXPECT_TRUE(std::any_of(lse.begin(), lse.end(), [](double value) { return value != 0; }));
}

TEST_F(Attend, safetensors_hold_every_kind_of_tensor) {
  const Array mask{ElementType::boolean, {kLenK}, std::vector<std::byte>(kLenK, std::byte{1})};
  const std::string file = dir.file("extra.safetensors");
  write_arrays({{file, integers<int32_t>(ElementType::i32, {5, 2}), "seqlens_q"},
                {file, integers<uint8_t>(ElementType::u8, {3, 7}), "seqlens_k"},
                {file, normal({kLenQ, kLenK}, 20), "bias"},
                {file, normal({kHeadsQ}, 21), "sink"},
                {file, normal({kHeadsQ}, 22), "alibi"},
                {file, mask, "mask"}});
  for (const char* name : {"seqlens_q", "seqlens_k", "bias", "sink", "alibi", "mask"})
    write_arrays({{dir.file(std::string(name) + ".npy"), read_array("--x", file + ":" + name)}});
  std::string as_npy, as_tensors;
  for (const char* flag : {"seqlens-q", "seqlens-k", "bias", "sink", "alibi", "mask"}) {
    std::string name = flag;
    std::replace(name.begin(), name.end(), '-', '_');
    as_npy += std::string(" --") + flag + " " + name + ".npy";
    as_tensors += std::string(" --") + flag + " extra.safetensors";
  }
  const std::string common = "attend --q q.npy --k k.npy --v v.npy --grad-out do.npy";
  const Outcome npy = run(dir, common + as_npy + " -o o.npy --dbias dbias.npy --dsink dsink.npy");
  ASSERT_EQ(npy.code, kExitOk) << npy.err;
  const std::string results = "out.safetensors";
  const Outcome outcome =
      run(dir, common + as_tensors + " -o " + results + " --dbias " + results + " --dsink " + results);
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const auto& [tensor, name] : {std::pair{"out", "o.npy"}, {"dbias", "dbias.npy"}, {"dsink", "dsink.npy"}})
    EXPECT_EQ(values_of(read_array("--x", dir.file(results + ":" + tensor))), output(name)) << tensor;
}

TEST_F(Attend, safetensors_fail_with_one_sentence_and_no_file) {
  write_bf16_inputs(dir);
  const std::string before = dir.read("in.safetensors");
  dir.write("cut.safetensors", before.substr(0, before.size() - 1));
  std::filesystem::create_symlink("in.safetensors", dir.file("link.safetensors"));
  const std::string good = "attend --q in.safetensors --k in.safetensors --v in.safetensors ";
  expect_failure("attend --q cut.safetensors --k k.npy --v v.npy -o o.npy", kExitUsage, "cut off");
  expect_failure("attend --q q.npy --k in.safetensors:keys --v v.npy -o o.npy", kExitUsage, "no tensor 'keys'");
  expect_failure("attend --q q.npy --k in.safetensors: --v v.npy -o o.npy", kExitUsage, "no tensor name");
  expect_failure(good + "--grad-out in.safetensors --dq dq.npy", kExitUsage, "no tensor 'grad_out'");
  expect_failure(good + "--mask in.safetensors:q -o o.npy", kExitUsage, "bfloat16");
  expect_failure("attend --q q.npy --k k.npy --v v.npy -o in.safetensors --lse in.safetensors:out --dq dq.npy",
                 kExitUsage, "--grad-out");
  expect_failure("attend --q q.npy --k k.npy --v v.npy -o in.safetensors --lse in.safetensors:out", kExitUsage,
                 "same name");
  for (const char* output : {"in.safetensors", "./in.safetensors:o", "link.safetensors"})
    expect_failure(good + "--lse lse.npy -o " + output, kExitUsage, "would be overwritten");
  expect_failure(good + "-o o.npy --lse nowhere/x.safetensors", kExitUsage, "nowhere");
  EXPECT_EQ(dir.read("in.safetensors"), before);
}

TEST_F(Attend, integers_need_a_dtype) {
  for (const char* name : {"q.npy", "k.npy"}) {
    Array ones{ElementType::i8, {1, 1, 2, 2}, std::vector<std::byte>(4, std::byte{1})};
    write_arrays({{dir.file(name), ones}});
  }
  write_arrays({{dir.file("v.npy"), Array{ElementType::i8, {1, 1, 2, 1}, {std::byte{2}, std::byte{4}}}}});
  expect_failure("attend --q q.npy --k k.npy --v v.npy -o o.npy", kExitUsage, "--dtype");
  ASSERT_EQ(run(dir, "attend --q q.npy --k k.npy --v v.npy -o o.npy --dtype f32").code, kExitOk);
  EXPECT_EQ(output("o.npy"), (std::vector<double>{3, 3}));
}

TEST_F(Attend, fails_with_one_sentence_and_no_file) {
  const std::string files = "attend --q q.npy --k k.npy --v v.npy ";
  dir.write("cut.npy", dir.read("q.npy").substr(0, 300));
  write_arrays({{dir.file("scalar.npy"), array_of({}, {1})},
                {dir.file("flat.npy"), normal({5, 8}, 1)},
                {dir.file("five.npy"), normal({1, 1, 1, 1, 2}, 1)},
                {dir.file("heads.npy"), normal({kBatch, 3, kLenK, kDim}, 1)},
                {dir.file("large.npy"), integers<int64_t>(ElementType::i64, {int64_t{1} << 40, 1})}});
  expect_failure("attend --q cut.npy --k k.npy --v v.npy -o o.npy", kExitUsage, "cut off");
  expect_failure("attend --q q.npy --k missing.npy --v v.npy -o o.npy --lse lse.npy", kExitUsage, "No such file");
  expect_failure("attend --q scalar.npy --k k.npy --v v.npy -o o.npy", kExitUsage, "a single number");
  expect_failure("attend --q flat.npy --k k.npy --v v.npy -o o.npy", kExitUsage, "[B, H, S, D]");
  expect_failure("attend --q five.npy --k k.npy --v v.npy -o o.npy", kExitUsage, "4 dimensions");
  expect_failure(files + "-o o.npy --seqlens-k large.npy", kExitUsage, "32 bits");
  expect_failure(files + "-o o.npy --mask q.npy", kExitUsage, "--bias");
  expect_failure(files + "-o nowhere/o.npy --lse lse.npy", kExitUsage, "nowhere");
  expect_failure(files + "-o o.npy --lse o.npy", kExitUsage, "same name");
  expect_failure(files + "-o . --lse lse.npy", kExitUsage, "not a regular file");
  expect_failure(files, kExitUsage, "--out");
  expect_failure(files + "-o o.npy --dq dq.npy", kExitUsage, "--grad-out");
  expect_failure(files + "-o o.npy --grad-out do.npy", kExitUsage, "--dq");
  expect_failure(files + "-o o.npy --grad-lse do.npy", kExitUsage, "--grad-out");
  expect_failure(files + "--grad-out do.npy --dq dq.npy --dbias o.npy", kExitUsage, "--bias");
  expect_failure(files + "--grad-out do.npy --dq dq.npy --dsink o.npy", kExitUsage, "--sink");
  expect_failure(files + "-o o.npy --cu-seqlens-q large.npy", kExitUsage, "--cu-seqlens-k");
  expect_failure("attend --q q.npy --k heads.npy --v v.npy -o o.npy", kExitFailed, "multiple of the 3 heads");
  expect_failure(files + "-o o.npy --grad-out q.npy --dq dq.npy", kExitFailed, "dout");
  expect_failure(files + "-o o.npy --dropout 1", kExitFailed, "dropout");
  expect_failure(files + "-o o.npy --softcap nan", kExitFailed, "softcap");
  expect_failure(files + "-o o.npy --window -2,0", kExitFailed, "window_left");
  expect_failure(files + "-o o.npy --device cuda", kExitFailed, "CUDA");
}

TEST_F(Attend, usage_errors_are_one_sentence) {
  const std::string files = "attend --q q.npy --k k.npy --v v.npy -o o.npy ";
  expect_failure("", kExitUsage, "command is needed");
  expect_failure("atend", kExitUsage, "atend");
  expect_failure("attend --q q.npy --k k.npy -o o.npy", kExitUsage, "--v");
  expect_failure(files + "--dtype f8", kExitUsage, "f8");
  expect_failure(files + "--window 1", kExitUsage, "--window");
  expect_failure(files + "--window 1,x", kExitUsage, "--window");
  expect_failure(files + "--threads 0", kExitUsage, "--threads");
  expect_failure(files + "--seed -1", kExitUsage, "--seed");
  expect_failure(files + "--seed 18446744073709551616", kExitUsage, "--seed");
  expect_failure(files + "--nonsense", kExitUsage, "--nonsense");
}

}  // namespace
}  // namespace cuflash::cli
