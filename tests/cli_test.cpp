// The cuflash program from the outside: what it writes against the oracle, and how it fails.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>
#include <tuple>

#include "check/random.h"
#include "cli/array_file.h"
#include "cli/bench_grid.h"
#include "cli/bench_measure.h"
#include "cli/bench_report.h"
#include "cli/check.h"
#include "cli/exit.h"
#include "cli/ncu.h"
#include "cli/npy.h"
#include "cuda/binaries.h"
#include "cuda/compile.h"
#include "cuda/typical.h"
#include "dtype.h"
#include "nvrtc.h"
#include "reference/oracle.h"
#include "temp_dir.h"

namespace cuflash::cli {
namespace {

using Shape = std::vector<int64_t>;

struct Outcome {
  int code;
  std::string out, err;
};

// Runs the program in the test's directory. In a sanitized build the search for leaks takes seconds at the end of every
// process, of which there are a hundred here; the tests that call the library in their own process search for them.
Outcome run(const test::TempDir& dir, const std::string& words, const std::string& environment = "") {
  const std::string command = "cd '" + dir.file("") + "' && ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" " +
                              environment + " '" CUFLASH_CLI_PATH "' " + words + " >stdout 2>stderr";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, dir.read("stdout"), dir.read("stderr")};
}

// Two GPUs that do not exist, of Hopper.
std::string fake_cuda_environment(const test::TempDir& dir) {
  return "LD_LIBRARY_PATH='" CUFLASH_FAKE_CUDA_PATH "' CUFLASH_CACHE_DIR='" + dir.file("cache") + "'";
}

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
  // Leaves the array in a file and returns a contiguous view of the same elements as the library's type.
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

  // The program must fail with one sentence that holds `reason`, and write nothing.
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
  // NumPy has no bf16: it is computed in where --dtype says so, and written as float32.
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
  expect_failure("attend --q q.npy --k in.safetensors: --v v.npy -o o.npy", kExitUsage, "no tensor's name");
  expect_failure(good + "--grad-out in.safetensors --dq dq.npy", kExitUsage, "no tensor 'grad_out'");
  expect_failure(good + "--mask in.safetensors:q -o o.npy", kExitUsage, "bfloat16");
  expect_failure("attend --q q.npy --k k.npy --v v.npy -o in.safetensors --lse in.safetensors:out --dq dq.npy",
                 kExitUsage, "--grad-out");
  expect_failure("attend --q q.npy --k k.npy --v v.npy -o in.safetensors --lse in.safetensors:out", kExitUsage,
                 "same name");
  for (const char* output : {"in.safetensors", "./in.safetensors:o", "link.safetensors"})
    expect_failure(good + "--lse lse.npy -o " + output, kExitUsage, "would be lost");
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
  expect_failure("attend --q q.npy --k heads.npy --v v.npy -o o.npy", kExitFailed, "multiple of heads");
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

class Commands : public testing::Test {
 protected:
  test::TempDir dir;
};

TEST_F(Commands, help_and_version) {
  for (const char* command :
       {"", "attend", "explain", "check", "demo", "bench", "info", "cache", "cache list", "pack"}) {
    const Outcome outcome = run(dir, std::string(command) + " --help");
    EXPECT_EQ(outcome.code, kExitOk) << command;
    EXPECT_NE(outcome.out.find("Usage"), std::string::npos) << command;
  }
  EXPECT_EQ(run(dir, "--version").out, std::string(cuflash_version()) + "\n");
}

TEST_F(Commands, info_names_version_threads_and_devices) {
  const Outcome outcome = run(dir, "info");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {cuflash_version(), "threads", "libcuda", "libnvrtc", "CUFLASH_NUM_THREADS"}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
  }
  ::setenv("CUFLASH_NUM_THREADS", "3", 1);
  EXPECT_NE(run(dir, "info").out.find("threads      3"), std::string::npos);
  ::unsetenv("CUFLASH_NUM_THREADS");
}

TEST_F(Commands, info_says_what_is_wrong_with_cache_and_pack) {
  dir.write("pack", "not a pack, but long enough to be looked at as if it were one of them");
  std::filesystem::create_directory(dir.file("open"));
  std::filesystem::permissions(dir.file("open"), std::filesystem::perms::all);
  const Outcome outcome = run(dir, "info", "CUFLASH_CACHE_DIR=open CUFLASH_PACK=pack");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {"open can be written by others", "pack is not a pack of kernels"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
}

TEST_F(Commands, info_measures_a_compile_and_a_load) {
  if (!test::nvrtc_missing().empty()) GTEST_SKIP() << test::nvrtc_missing();
  const Outcome outcome = run(dir, "info --measure", "CUFLASH_CACHE_DIR=cache");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  const size_t at = outcome.out.find("compile      ");
  ASSERT_NE(at, std::string::npos) << outcome.out;
  double cold = 0, warm = 0;
  ASSERT_EQ(std::sscanf(outcome.out.c_str() + at, "compile %lf s cold, %lf ms from disk", &cold, &warm), 2);
  EXPECT_GT(cold, 0.1);
  EXPECT_GT(warm, 0);
  EXPECT_LT(warm, 100 * cold) << "loading must be much faster than compiling";
}

TEST_F(Commands, cache_lists_and_clears) {
  const cuda::ArchiveEntry entry{cuda::sha256("key"), "a kernel", "its code"};
  cuda::DiskCache(dir.file("cache")).store(entry);
  const std::string environment = "CUFLASH_CACHE_DIR=cache";
  const Outcome listed = run(dir, "cache list", environment);
  EXPECT_EQ(listed.code, kExitOk) << listed.err;
  for (const char* word : {"a kernel", "1 kernels"}) EXPECT_NE(listed.out.find(word), std::string::npos) << listed.out;
  const Outcome cleared = run(dir, "cache clear", environment);
  EXPECT_EQ(cleared.code, kExitOk) << cleared.err;
  EXPECT_NE(cleared.out.find("removed 1 kernels"), std::string::npos) << cleared.out;
  EXPECT_NE(run(dir, "cache list", environment).out.find("0 kernels"), std::string::npos);
  EXPECT_EQ(run(dir, "cache", environment).code, kExitUsage);
  const Outcome unusable = run(dir, "cache list", "CUFLASH_CACHE_DIR=/proc/cuflash");
  EXPECT_EQ(unusable.code, kExitUsage);
  EXPECT_NE(unusable.err.find("cannot be made"), std::string::npos) << unusable.err;
}

TEST_F(Commands, pack_writes_a_file_that_serves_without_a_compiler) {
  if (!test::nvrtc_missing().empty()) GTEST_SKIP() << test::nvrtc_missing();
  const cuda::KernelKey key =
      cuda::plan_forward(cuda::forward_of({.dim_qk = 64, .dim_v = 64}), cuda::arch_named("sm_80")).launch.kernel;
  const std::string name = cuda::name_of(key);
  const Outcome packed = run(dir, "pack --kernel " + name + " -o kernels.pack", "CUFLASH_CACHE_DIR=cache");
  ASSERT_EQ(packed.code, kExitOk) << packed.err;
  EXPECT_NE(packed.out.find("1 kernels"), std::string::npos) << packed.out;
  cuda::Binaries binaries({"", dir.file("kernels.pack"), "off"});
  const cuda::Binary binary = binaries.get(cuda::program_of(key));
  EXPECT_EQ(binary.origin, cuda::Origin::pack);
  EXPECT_EQ(binary.cubin.substr(1, 3), "ELF");
  const Outcome info = run(dir, "info", "CUFLASH_PACK=kernels.pack CUFLASH_CACHE_DIR=cache");
  EXPECT_NE(info.out.find("kernels.pack: 1 kernels"), std::string::npos) << info.out;
}

TEST_F(Commands, pack_fails_with_one_sentence_and_no_file) {
  for (const auto& [words, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {"-o x", "--arch or --kernel"},
           {"--arch sm_90a", "--out is required"},
           {"--arch sm_70 -o x", "sm_80, sm_86"},
           {"--kernel forward -o x", "must be <family>"},
           {"--kernel forward:sm_80:f16,64,64,128,64,4,1,2,2,0,0 -o nowhere/x", "nowhere/x"}}) {
    const Outcome outcome = run(dir, std::string("pack ") + words, "CUFLASH_CACHE_DIR=cache");
    EXPECT_NE(outcome.code, kExitOk) << words;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << words << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << words << ": " << outcome.err;
    EXPECT_FALSE(dir.has("x")) << words;
  }
}

TEST_F(Commands, explain_allocates_nothing_and_refuses_nonsense) {
  const std::string large =
      "explain --batch 64 --heads 32 --heads-k 8 --seq-q 1000000 --seq-k 1000001 --dim 128 --dim-v 64 --dtype bf16 ";
  for (const char* flags :
       {"", "--backward", "--lse --causal --window 4,4 --align top-left --layout bshd",
        "--alibi --bias --mask --sink --backward --softcap 30 --dropout 0.1 --seed 1 --device cpu"}) {
    const Outcome outcome = run(dir, large + flags);
    EXPECT_EQ(outcome.code, kExitOk) << flags << ": " << outcome.err;
    EXPECT_GT(outcome.out.size(), 20u) << flags;
  }
  EXPECT_EQ(run(dir, "explain --heads 3 --heads-k 2").code, kExitFailed);
  EXPECT_EQ(run(dir, "explain --seq-q -1").code, kExitUsage);
  EXPECT_EQ(run(dir, "explain --batch 2000000000 --heads 2000000000 --seq-q 2000000000").code, kExitUsage);
}

TEST_F(Commands, check_runs_and_repeats_problems) {
  const Outcome outcome = run(dir, "check --count 50 --seed 3 --first 10 --threads 2");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("50 problems"), std::string::npos) << outcome.out;
  const Outcome one = run(dir, "check --seed 3 --only 12");
  EXPECT_EQ(one.code, kExitOk) << one.err;
  EXPECT_NE(one.out.find("1 problems"), std::string::npos) << one.out;
  const Outcome cache = run(dir, "check --cache --count 20 --seed 3 --threads 2");
  EXPECT_EQ(cache.code, kExitOk) << cache.err;
  EXPECT_NE(cache.out.find("20 calls over a cache"), std::string::npos) << cache.out;
  EXPECT_NE(run(dir, "check --cache --seed 3 --only 12").out.find("num_splits"), std::string::npos);
  EXPECT_EQ(run(dir, "check --count 0").code, kExitUsage);
  EXPECT_EQ(run(dir, "check --first 18446744073709551615 --count 2").code, kExitUsage);
}

TEST_F(Commands, check_goes_on_until_its_time_is_over_or_a_signal_comes) {
  const Outcome timed = run(dir, "check --forever --minutes 0.005 --seed 3 --first 7 --threads 2");
  EXPECT_EQ(timed.code, kExitOk) << timed.err;
  EXPECT_NE(timed.out.find("seed 3, from problem 7"), std::string::npos) << timed.out;
  // The next problem is the one behind those that were checked.
  uint64_t checked = 0, next = 0;
  const size_t summary = timed.out.find('\n') + 1, resume = timed.out.find("--first ");
  ASSERT_NE(resume, std::string::npos) << timed.out;
  checked = std::stoull(timed.out.substr(summary)), next = std::stoull(timed.out.substr(resume + 8));
  EXPECT_GT(checked, 0u);
  EXPECT_EQ(next, 7 + checked);

  for (const std::string signal : {"INT", "TERM"}) {
    // The shell waits for the program's first words, and passes its exit code on.
    const std::string command = "cd '" + dir.file("") +
                                "' && : >stdout && { '" CUFLASH_CLI_PATH
                                "' check --forever --cache --threads 1 >stdout 2>stderr & } && "
                                "while ! test -s stdout; do sleep 0.02; done; kill -" +
                                signal + " $!; wait $!";
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status)) << signal;
    EXPECT_EQ(WEXITSTATUS(status), kExitOk) << signal;
    const std::string out = dir.read("stdout");
    EXPECT_NE(out.find("resume with: cuflash check --forever --seed 1 --first"), std::string::npos) << out;
    EXPECT_NE(out.find(" --cache\n"), std::string::npos) << out;
  }
  for (const char* flags :
       {"--minutes nan", "--minutes 0", "--minutes 1e300", "--max-growth -1", "--count 3", "--only 1"})
    EXPECT_EQ(run(dir, std::string("check --forever ") + flags).code, kExitUsage) << flags;
  EXPECT_EQ(run(dir, "check --minutes 1").code, kExitUsage);
}

// A driver that does not run its kernels: nothing of a result is written.
TEST_F(Commands, check_forever_ends_at_a_mismatch_with_its_reproduction) {
  const Outcome outcome = run(dir, "check --forever --device cuda --head-sizes 1 --threads 1 --seed 5 --first 40",
                              fake_cuda_environment(dir));
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_NE(outcome.out.find("1 problems (seed 5, from 40, cuda)"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("--seed 5 --first 41 --device cuda --head-sizes 1"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("reproduce: cuflash check --seed 5 --only 40 --device cuda --head-sizes 1"),
            std::string::npos)
      << outcome.err;
}

// Memory that somebody takes meanwhile and never gives back ends a soak.
TEST_F(Commands, check_forever_sees_memory_that_grows) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<std::vector<char>> leaked;
  std::atomic<bool> ended = false;
  std::thread leak([&] {
    while (!ended && leaked.size() < 400) {
      leaked.emplace_back(kPiece, 'x');
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  CheckOptions options;
  options.forever = true, options.minutes = 5, options.max_growth = 2, options.threads = 1;
  const int code = run_soak(options, 3);
  ended = true;
  leak.join();
  const std::string out = testing::internal::GetCapturedStdout(), err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, kExitFailed) << out;
  EXPECT_NE(err.find("resident memory grew by "), std::string::npos) << err;
}

TEST_F(Commands, io_tells_bytes_and_operations_without_a_gpu) {
  const std::string nothing = "LD_LIBRARY_PATH='" + dir.file("") + "'";
  const Outcome outcome = run(dir, "io --head-dim 128 --len 512,1024 --causal --arch sm_80 --json io.json", nothing);
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {"sm_80", "forward", "backward", "1024", "naive/tiles", "not measured"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << " in " << outcome.out;
  const std::string json = dir.read("io.json");
  EXPECT_EQ(json.find("{\"format\": \"cuflash-io-1\", \"version\": "), 0u) << json;
  for (const char* member : {"\"direction\": \"forward\", \"len_q\": 1024, \"len_k\": 1024", "\"dram_read\": null",
                             "\"direction\": \"backward\", \"len_q\": 512", "\"causal\": true, \"window\": [-1, -1]"})
    EXPECT_NE(json.find(member), std::string::npos) << member << " in " << json;
  // A tile of 128 queries sees the 64 keys before its first one, and those beside it: 95 of 2048 tiles are visited.
  EXPECT_NE(run(dir, "io --len 4096 --window 64,0 --arch sm_90a", nothing).out.find("95.4%"), std::string::npos);
  for (const char* flags :
       {"--len 0", "--len 99999999999", "--heads 0", "--batch 1000000 --heads 1000000", "--heads 1000 --len 16000000",
        "--len x", "--json /no/such/place", "--launch sideways", "--launch forward --len 1,2"})
    EXPECT_EQ(run(dir, std::string("io ") + flags, nothing).code, kExitUsage) << flags;
  EXPECT_EQ(run(dir, "io --arch sm_1", nothing).code, kExitFailed);
  EXPECT_EQ(run(dir, "io --head-dim 300", nothing).code, kExitFailed);
}

// A profiler that runs what it is given on a GPU that does not exist, and says what two kernels moved.
TEST_F(Commands, io_shows_what_ncu_measured) {
  const auto profiler = [&](const std::string& body) {
    std::ofstream(dir.file("ncu")) << "#!/bin/sh\nshift 7\n" << body;
    std::filesystem::permissions(dir.file("ncu"), std::filesystem::perms::owner_all);
  };
  const std::string environment = fake_cuda_environment(dir) + " PATH='" + dir.file("") + "':\"$PATH\"";
  const std::string table =
      "cat <<'END'\n==PROF== Connected\n\"ID\",\"Kernel "
      "Name\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\",\"lts__t_bytes."
      "sum\"\n\"\",\"\",\"byte\",\"byte\",\"byte\"\n\"0\",\"f(int, \"\"x\"\")\",\"1,000,000\",\"24\",\"7.5\"\n"
      "\"1\",\"g\",\"1\",\"2\",\"3\"\nEND\n";
  const std::string words = "io --len 200 --heads 2 --heads-k 1 --causal --window 5,-1 --json io.json";
  profiler("echo \"$@\" >>commands\n\"$@\" || exit 1\n" + table);
  const Outcome outcome = run(dir, words, environment);
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("DRAM by ncu"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("not measured"), std::string::npos) << outcome.out;
  const std::string json = dir.read("io.json"), commands = dir.read("commands");
  EXPECT_NE(json.find("\"dram_read\": 1000001, \"dram_written\": 26, \"l2_bytes\": 10"), std::string::npos) << json;
  EXPECT_NE(commands.find("--launch forward"), std::string::npos) << commands;
  EXPECT_NE(commands.find("--launch backward --dtype bf16 --batch 1 --heads 2 --head-dim 128 --len 200 --heads-k 1 "
                          "--causal --window=5,-1"),
            std::string::npos)
      << commands;

  const auto expect_reason = [&](const std::string& body, const std::string& reason) {
    profiler(body);
    const Outcome failed = run(dir, words, environment);
    EXPECT_EQ(failed.code, kExitOk) << failed.err;
    EXPECT_NE(failed.out.find("not measured: ncu: "), std::string::npos) << failed.out;
    EXPECT_NE(failed.out.find(reason), std::string::npos) << reason << " in " << failed.out;
  };
  expect_reason("echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1\n", "ERR_NVGPUCTRPERM");
  expect_reason("exit 3\n", "ended with status");
  expect_reason("exit 0\n", "printed no kernel");
  EXPECT_NE(run(dir, words + " --arch sm_80", environment).out.find("the GPU is of sm_90a, not of sm_80"),
            std::string::npos);
}

TEST(Ncu, refuses_what_is_no_table_of_bytes) {
  const std::string head =
      "\"ID\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\",\"lts__t_bytes.sum\"\r\n\"\",\"byte\",\"byte\","
      "\"byte\"\n";
  const Measured measured = measured_in(head + "\"0\",\"1\",\"2\",\"3\"");
  EXPECT_EQ(measured.dram_read + 10 * measured.dram_written + 100 * measured.l2, 321);
  std::string kilobytes = head;
  kilobytes.replace(kilobytes.rfind("byte"), 4, "Kbyte");
  for (const std::string& text :
       {std::string(), head, head + "\"0\",\"1\",\"2\"", head + "\"0\",\"1\",\"2\",\"3\",\"4\"",
        head + "\"0\",\"1\",\"2\",\"n/a\"", head + "\"0\",\"1\",\"2\",\"-3\"", head + "\"0\",\"1\",\"2\",\"1e300\"",
        head + "\"0\",\"1\",\"2\",\"nan\"", head + "\"0\",\"1\",\"2\",\"3", head.substr(30) + "\"0\",\"1\",\"2\",\"3\"",
        kilobytes + "\"0\",\"1\",\"2\",\"3\""})
    EXPECT_THROW(measured_in(text), std::runtime_error) << text;
}

TEST_F(Commands, memory_tells_what_is_saved) {
  const Outcome outcome = run(dir, "memory --len 1024 --arch sm_90a --json memory.json");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("79.9%"), std::string::npos) << outcome.out;
  // Q, K, V; O and LSE; nothing; scores and probabilities of 16 heads.
  EXPECT_NE(dir.read("memory.json")
                .find("\"direction\": \"forward\", \"len_q\": 1024, \"len_k\": 1024, \"inputs\": "
                      "12582912, \"outputs\": 4259840, \"workspace\": 0, \"naive_matrices\": 67108864"),
            std::string::npos);
  EXPECT_NE(run(dir, "memory --len 64").out.find("on cpu"), std::string::npos);
  EXPECT_EQ(run(dir, "memory --len -5").code, kExitUsage);
  EXPECT_EQ(run(dir, "memory --heads 3 --heads-k 2").code, kExitFailed);
}

TEST_F(Commands, demo_is_exact_and_short) {
  const Outcome outcome = run(dir, "demo --max-seq 256");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {"threads", "f32", "bf16", "dk", "256"}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(run(dir, "demo --max-seq 0").code, kExitUsage);
}

BenchFile some_results() {
  BenchFile file;
  file.command = "cuflash bench \"x\"\n", file.version = "1", file.date = "2026-01-02T03:04:05Z", file.cpu = "a cpu";
  file.ceilings["cpu"]["f32_tflops"] = 0.25;
  BenchResult result;
  result.contestant = kCuflash;
  result.point = {"cpu", kForward, "f32", 2, 4, 2, 5, 7, 16, 8, true, 0};
  result.ms = 1.5, result.ms_low = 1.25, result.ms_high = 2, result.tflops = 1e-9, result.extra_bytes = 3e9;
  file.results = {result, result};
  file.results[1].contestant = kNaive, file.results[1].ms = 1.75;
  return file;
}

TEST(BenchFiles, are_read_as_they_were_written) {
  BenchFile file = some_results();
  const std::string json = bench_json(file);
  const BenchFile read = parse_bench_json(json);
  EXPECT_EQ(bench_json(read), json);
  EXPECT_EQ(read.command, file.command);
  EXPECT_EQ(read.gpu, std::nullopt);
  ASSERT_EQ(read.results.size(), 2u);
  EXPECT_EQ(read.results[0].point, file.results[0].point);
  EXPECT_EQ(read.results[1].ms, 1.75);
  EXPECT_EQ(read.results[0].share, std::nullopt);
  EXPECT_NE(json.find("\"extra_bytes\": 3000000000}"), std::string::npos) << json;
  // What a later version adds is passed over.
  const std::string extended =
      "{\"new\": [{\"a\": [1, -2.5e3], \"b\": {}}, [], null, true, \"\\u00e9]\"], " + json.substr(1);
  EXPECT_EQ(bench_json(parse_bench_json(extended)), json);
  file.gpu = "a gpu", file.results.clear();
  EXPECT_EQ(parse_bench_json(bench_json(file)).gpu, "a gpu");
}

TEST(BenchFiles, that_are_broken_are_refused) {
  const std::string json = bench_json(some_results());
  for (size_t length = 0; length + 2 < json.size(); ++length)
    EXPECT_THROW(parse_bench_json(json.substr(0, length)), UsageError) << length;
  for (const auto& [from, to, reason] : std::initializer_list<std::tuple<const char*, const char*, const char*>>{
           {"cuflash-bench-1", "other", "its format is 'other'"},
           {"\"ms\": 1.5", "\"ms\": 0", "ms must be larger than 0"},
           {"\"ms\": 1.5", "\"ms\": -1", "ms must be larger than 0"},
           {"\"ms\": 1.5", "\"ms\": nan", "ms must be a number"},
           {"\"ms\": 1.5", "\"ms\": 1e999", "ms must be a number"},
           {"\"ms\": 1.5", "\"ms\": \"1.5\"", "ms must be a number"},
           {"\"ms\": 1.5", "\"ms\": 9", "in this order"},
           {"\"ms\": 1.5", "\"ns\": 1.5", "no member 'ms'"},
           {"\"ms\": 1.5", "\"ms\": 1.5, \"ms\": 1.5", "stands twice"},
           {"\"batch\": 2", "\"batch\": 2.5", "whole number"},
           {"\"batch\": 2", "\"batch\": 99999999999999999999", "63 bits"},
           {"\"share\": null", "\"share\": -1", "share is negative"},
           {"\"causal\": true", "\"causal\": 1", "true or false"},
           {"\"threads\": 1", "\"threads\": {", "number"},
           {"\"results\": [", "\"results\": {", "before the results"},
           {"a cpu", "a \xff", "UTF-8"},
           {"]}\n", "]} {}", "text after"}}) {
    std::string broken = json;
    ASSERT_NE(broken.find(from), std::string::npos) << from;
    broken.replace(broken.find(from), std::strlen(from), to);
    try {
      parse_bench_json(broken);
      ADD_FAILURE() << to << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << to << ": " << error.what();
    }
  }
}

TEST(BenchComparison, is_slower_beyond_tolerance_and_noise_alone) {
  const BenchFile old_file = some_results();
  const auto slower = [&](double ms, double ms_low, double tolerance) {
    BenchFile now = old_file;
    for (BenchResult& result : now.results) result.ms = ms, result.ms_low = ms_low, result.ms_high = 2 * ms;
    const Comparison comparison = compare(old_file, now, tolerance);
    EXPECT_EQ(comparison.matched, 2u);
    return comparison.slower;
  };
  EXPECT_EQ(slower(1.5, 1.25, 0.05), 0u);
  EXPECT_EQ(slower(2.2, 2.1, 0.05), 1u) << "cuflash's, and not that of naive";
  EXPECT_EQ(slower(2.2, 1.9, 0.05), 0u) << "the middle halves overlap";
  EXPECT_EQ(slower(2.2, 2.1, 0.5), 0u) << "within the tolerance";
  BenchFile other = old_file;
  other.results[0].point.len_k = 8;
  EXPECT_EQ(compare(old_file, other, 0.05).matched, 1u);
  EXPECT_EQ(compare(old_file, other, 0.05).missing, 1u);
}

TEST(BenchGrid, has_every_combination_once) {
  BenchOptions options;
  options.preset = "paper";
  const auto paper = bench_grid(options, "cuda");
  EXPECT_EQ(paper.size(), 2u * 3 * 2 * 6);
  for (const BenchPoint& point : paper) {
    EXPECT_EQ(point.batch * point.len_k, 16384);
    EXPECT_EQ(point.heads_q * point.head_dim, 2048);
    EXPECT_EQ(point.dtype, "bf16");
  }
  options.preset = "training";
  EXPECT_EQ(bench_grid(options, "cpu").size(), 2u * 4 * 4 * 4);
  options.preset = "decode", options.len = {100, 100}, options.batch = {3};
  const auto decode = bench_grid(options, "cpu");
  ASSERT_EQ(decode.size(), 2u);  // flags go before the preset, and a length that stands twice is one
  EXPECT_EQ(decode[1], (BenchPoint{"cpu", kDecode, "f32", 3, 32, 8, 1, 100, 128, 128, false, 64}));
  EXPECT_EQ(key_value_bytes(decode[1]), 3.0 * 8 * 100 * 256 * 4);

  BenchPoint point{"cpu", kForward, "f32", 2, 3, 3, 10, 10, 8, 8, false, 0};
  EXPECT_EQ(useful_operations(point), 4.0 * 2 * 3 * 10 * 10 * 8);
  point.causal = true, point.direction = kBackward;
  EXPECT_EQ(useful_operations(point), 2.5 * 2 * 2 * 3 * 10 * 10 * 8);
  point.len_q = 4;
  EXPECT_EQ(useful_operations(point), 2.5 * 4 * 2 * 3 * (4 * 10 - 8) * 8);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.25), 1.75);
  EXPECT_EQ(quantile({5}, 0.75), 5);
}

TEST_F(Commands, bench_measures_stores_and_compares) {
  const std::string grid =
      "bench --device cpu --direction forward,backward,decode --len 9 --heads 2 --head-dim 8 --page-size 0,4 "
      "--dtype f32,bf16 --causal 1 --seconds 0.001 --threads 2 ";
  const Outcome outcome = run(dir, grid + "--json now.json --csv now.csv --markdown now.md");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  const BenchFile file = read_bench_file(dir.file("now.json"));
  ASSERT_EQ(file.results.size(), 2u * (4 + 3));  // naive has no pages
  for (const BenchResult& result : file.results) {
    EXPECT_LE(result.ms_low, result.ms);
    EXPECT_EQ(result.gbs.has_value(), result.point.direction == kDecode);
    EXPECT_GT(result.extra_bytes.value_or(0), 0) << point_text(result.point);
  }
  EXPECT_EQ(file.command.substr(0, 27), "cuflash bench --device cpu ");
  EXPECT_GT(file.ceilings.at("cpu").at("read_gbs"), 0);
  EXPECT_EQ(std::count_if(outcome.out.begin(), outcome.out.end(), [](char c) { return c == '\n'; }),
            1 + 14 + static_cast<int64_t>(file.ceilings.at("cpu").size()));
  const std::string csv = dir.read("now.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 15);
  EXPECT_NE(dir.read("now.md").find("| problem |"), std::string::npos);

  const Outcome same = run(dir, grid + "--contestant cuflash --compare now.json --tolerance 100");
  EXPECT_EQ(same.code, kExitOk) << same.err;
  EXPECT_NE(same.out.find("8 points compared, 0 slower"), std::string::npos) << same.out;
  BenchFile fast = file;
  for (BenchResult& result : fast.results) result.ms_low = result.ms = result.ms_high = 1e-9;
  dir.write("fast.json", bench_json(fast));
  const Outcome slower = run(dir, grid + "--contestant cuflash --compare fast.json");
  EXPECT_EQ(slower.code, kExitFailed) << slower.err;
  EXPECT_NE(slower.out.find("8 slower by more than 5%"), std::string::npos) << slower.out;
  EXPECT_EQ(run(dir, "bench --len 3 --seconds 0.001 --compare now.json").code, kExitUsage);
}

// In f32, for which no cuBLAS is asked: a real one may not survive a driver that is none.
TEST_F(Commands, bench_measures_on_a_gpu) {
  const std::string environment = "LD_LIBRARY_PATH=" CUFLASH_FAKE_CUDA_PATH " CUFLASH_CACHE_DIR=cache";
  const Outcome outcome =
      run(dir,
          "bench --direction forward,backward,decode --len 64 --head-dim 64 --page-size 0,16 --dtype f32 "
          "--seconds 0.001 --json now.json",
          environment);
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  const BenchFile file = read_bench_file(dir.file("now.json"));
  ASSERT_EQ(file.results.size(), 4u);
  EXPECT_EQ(file.gpu, "Fake");
  EXPECT_GT(file.ceilings.at("cuda").at("read_gbs"), 0);
  EXPECT_EQ(file.results[0].point.device, "cuda");
  EXPECT_EQ(file.results[0].extra_bytes, 0);
  EXPECT_GT(file.results[1].extra_bytes, 0) << "backward needs a workspace";
  EXPECT_EQ(run(dir, "bench --contestant naive", environment).code, kExitUsage);
}

TEST(BenchClock, is_counted_by_a_kernel_that_compiles) {
  if (!test::nvrtc_missing().empty()) GTEST_SKIP() << test::nvrtc_missing();
  cuda::Program program;
  program.name = "clock", program.arch = cuda::arch_named("sm_90a"), program.source = kClockSource;
  const cuda::Compiled compiled = cuda::compile(program);
  EXPECT_EQ(compiled.cubin.substr(1, 3), "ELF");
  EXPECT_NE(compiled.cubin.find(cuda::kEntryName), std::string::npos);
  EXPECT_EQ(cuda::read_use(compiled.log).warnings, std::vector<std::string>{});
}

TEST_F(Commands, bench_fails_with_one_sentence_and_no_file) {
  dir.write("foreign.json", "{\"format\": 1}");
  for (const auto& [words, code, reason] : std::initializer_list<std::tuple<const char*, int, const char*>>{
           {"--len 0", kExitUsage, "--len has 0"},
           {"--len 99999999999", kExitUsage, "--len has 99999999999"},
           {"--causal 2", kExitUsage, "--causal has 2"},
           {"--hidden 100", kExitUsage, "--hidden 100 is no multiple"},
           {"--heads 4 --hidden 64", kExitUsage, "excludes"},
           {"--heads-k 3", kExitUsage, "--heads-k 3 does not divide"},
           {"--preset fast", kExitUsage, "--preset"},
           {"--direction sideways", kExitUsage, "--direction"},
           {"--seconds 0", kExitUsage, "--seconds is 0"},
           {"--tolerance -1 --compare foreign.json", kExitUsage, "--tolerance is -1"},
           {"--compare foreign.json", kExitUsage, "cannot read 'foreign.json'"},
           {"--compare missing.json", kExitUsage, "No such file"},
           {"--json nowhere/x", kExitUsage, "nowhere"},
           {"--json x --csv ./x", kExitUsage, "two outputs"},
           {"--device cuda", kExitFailed, "cuda"}}) {
    const Outcome outcome = run(dir, std::string("bench ") + words + (words[2] == 'j' ? "" : " --json x"));
    EXPECT_EQ(outcome.code, code) << words << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << words << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << words << ": " << outcome.err;
    EXPECT_FALSE(dir.has("x")) << words;
  }
  const Outcome huge = run(dir, "bench --device cpu --batch 100000 --heads 100000 --len 100000 --json x");
  EXPECT_EQ(huge.code, kExitFailed);
  EXPECT_NE(huge.err.find("left out"), std::string::npos) << huge.err;
  EXPECT_FALSE(dir.has("x"));
}

TEST_F(Commands, a_full_disk_is_an_error) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string command = "'" CUFLASH_CLI_PATH "' info >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kExitUsage);
}

}  // namespace
}  // namespace cuflash::cli
