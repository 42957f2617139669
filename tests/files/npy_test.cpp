// .npy files: those of NumPy are read, hostile ones are refused with a sentence, and none is half-written.
#include "files/npy/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "check/cases/random.h"
#include "dtype.h"
#include "files/error.h"
#include "files/tensors/array_file.h"
#include "files/tensors/convert.h"
#include "fuzz/made_files.h"
#include "support/physical_memory.h"
#include "tests/shared/temp_dir.h"

namespace cuflash::files {
namespace {

using made::header, made::npy;
using test::TempDir;

// Bytes of a number in a given byte order, whatever this machine's is.
template <class T>
std::string bytes_of(T value, std::endian order) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  if (order != std::endian::native) std::reverse(bytes.begin(), bytes.end());
  return bytes;
}
template <class T>
std::string little(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) bytes += bytes_of(value, std::endian::little);
  return bytes;
}

std::vector<double> numbers(const Array& array) {
  const std::vector<std::byte> converted = convert(array, DType::f64);
  std::vector<double> values(static_cast<size_t>(array.count()));
  if (!values.empty()) std::memcpy(values.data(), converted.data(), converted.size());
  return values;
}

std::string read_error(const std::string& path) {
  try {
    read_npy(path);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int n = 0; n < times; ++n) all += text;
  return all;
}

struct Hostile {
  const char* name;
  std::string content;
  const char* reason;
};

std::vector<Hostile> hostile_files() {
  const std::string four = little<float>({1, 2, 3, 4});
  const std::string good = npy(header("<f4", "(2, 2)"), four);
  return {
      {"empty", "", "cut off"},
      {"magic", "\x93NUMPX" + good.substr(6), "not a .npy file"},
      {"zip", "PK\x03\x04" + good, "not a .npy file"},
      {"version 0", npy(header("<f4", "(2, 2)"), four, 0), "version"},
      {"version 4", npy(header("<f4", "(2, 2)"), four, 4), "version"},
      {"only magic", good.substr(0, 8), "cut off"},
      {"half a length", good.substr(0, 9), "cut off"},
      {"half a header", good.substr(0, 30), "cut off"},
      {"no data", good.substr(0, good.size() - 16), "cut off"},
      {"data short by a byte", good.substr(0, good.size() - 1), "cut off"},
      {"data long by a byte", good + "x", "has 1 more bytes after"},
      {"two arrays", good + good, "must hold one array"},
      {"header length lies", std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12) + header("<f4", "(1,)"), "cut off"},
      {"header too long", npy(std::string(2 << 20, ' '), "", 2), "at most"},
      {"header of zeros", npy(std::string(118, '\0'), four), "broken"},
      {"no header", npy("", four), "broken"},
      {"not closed", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)", four), "broken"},
      {"string not closed", npy("{'descr': '<f4", four), "does not end"},
      {"key missing", npy("{'descr': '<f4', 'shape': (2, 2)}", four), "'fortran_order' is missing"},
      {"key twice", npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}", four),
       "occurs twice"},
      {"key unknown", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), 'x': 1}", four), "unknown key"},
      {"text after", npy(header("<f4", "(2, 2)") + "import os", four), "after the dictionary"},
      {"nested", npy(header("<f4", std::string(60000, '(')), four), "broken"},
      {"shape is a number", npy(header("<f4", "4"), four), "broken"},
      {"shape of floats", npy(header("<f4", "(2.0, 2)"), four), "broken"},
      {"shape of words", npy(header("<f4", "(two, 2)"), four), "broken"},
      {"shape without commas", npy(header("<f4", "(2 2)"), four), "broken"},
      {"shape with a hole", npy(header("<f4", "(2,,2)"), four), "broken"},
      {"negative", npy(header("<f4", "(-2, -2)"), four), "negative"},
      {"beyond 64 bits", npy(header("<f4", "(99999999999999999999,)"), four), "63 bits"},
      {"beyond the file", npy(header("<f4", "(4611686018427387,)"), four), "cut off"},
      {"product overflows", npy(header("<f4", "(4294967296, 4294967296)"), four), "larger than any memory"},
      {"product wraps to 16", npy(header("<f4", "(4, 4611686018427387905)"), four), "larger than any memory"},
      {"overflow behind a zero", npy(header("<f4", "(0, 4294967296, 4294967296)"), ""), "larger than any memory"},
      {"65 dimensions", npy(header("<f4", "(" + repeated("1,", 65) + ")"), four), "64 dimensions"},
      {"order is a number", npy(header("<f4", "(2, 2)", "1"), four), "True or False"},
      {"objects", npy(header("|O", "(2, 2)"), four), "Python objects"},
      {"records", npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (4,)}", four), "structured"},
      {"complex", npy(header("<c8", "(2,)"), four), "not supported"},
      {"strings", npy(header("<U4", "(1,)"), four), "not supported"},
      {"bf16 as void", npy(header("|V2", "(8,)"), four), "--dtype bf16"},
      {"long double", npy(header("<f16", "(1,)"), four), "not supported"},
      {"no byte order", npy(header("f4", "(2, 2)"), four), "not supported"},
      {"order not said", npy(header("|f4", "(2, 2)"), four), "not supported"},
      {"no type", npy(header("", "(2, 2)"), four), "not supported"},
      {"escape codes", npy(header("\x1b[2J", "(2, 2)"), four), "\\x1b"}};
}

TEST(Npy, refuses_hostile_files_with_a_sentence) {
  const TempDir dir;
  for (const Hostile& file : hostile_files()) {
    const std::string message = read_error(dir.write("hostile.npy", file.content));
    EXPECT_NE(message.find(file.reason), std::string::npos) << file.name << ": '" << message << "'";
    EXPECT_NE(message.find("hostile.npy"), std::string::npos) << file.name << ": '" << message << "'";
    EXPECT_EQ(message.find('\x1b'), std::string::npos) << file.name;
  }
}

TEST(Npy, refuses_what_is_not_a_regular_file) {
  const TempDir dir;
  EXPECT_NE(read_error(dir.file("missing.npy")).find("No such file"), std::string::npos);
  EXPECT_NE(read_error(dir.file("")).find("it is a directory"), std::string::npos);
  EXPECT_NE(read_error("/dev/zero").find("not a regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo(dir.file("pipe.npy").c_str(), 0600), 0);
  EXPECT_NE(read_error(dir.file("pipe.npy")).find("not a regular file"), std::string::npos);
}

TEST(Npy, refuses_a_sparse_file_larger_than_the_memory) {
  const TempDir dir;
  const int64_t size = 2 * physical_memory();
  const std::string start = npy(header("|u1", "(" + std::to_string(size) + ",)"), "");
  const std::string path = dir.write("sparse.npy", start);
  std::error_code error;
  std::filesystem::resize_file(path, start.size() + static_cast<uintmax_t>(size), error);
  if (error) GTEST_SKIP() << "this file system has no file of " << size << " bytes: " << error.message();
  EXPECT_NE(read_error(path).find("does not fit"), std::string::npos);
}

// Any file made from a good one by changing bytes is read or refused, nothing else (the sanitizers watch).
TEST(Npy, survives_random_damage) {
  const TempDir dir;
  const std::string good = npy(header("<f4", "(2, 3)"), little<float>({1, 2, 3, 4, 5, 6}));
  check::Random random(7);
  size_t refused = 0;
  constexpr size_t kFiles = 1000;
  for (size_t n = 0; n < kFiles; ++n) {
    std::string file = good;
    for (uint64_t change = 0; change <= random.below(3); ++change) {
      file[static_cast<size_t>(random.below(file.size()))] = static_cast<char>(random.below(256));
    }
    file.resize(static_cast<size_t>(file.size() - (random.below(4) == 0 ? random.below(file.size()) : 0)));
    const std::string path = dir.write("damaged.npy", file);
    try {
      const Array array = read_npy(path);
      EXPECT_EQ(static_cast<int64_t>(array.bytes.size()), array.count() * size_of(array.type));
    } catch (const FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kFiles / 4);
  EXPECT_LT(refused, kFiles);  // damage to a value cannot be noticed
}

TEST(Npy, reads_every_version_and_every_way_to_write_a_header) {
  const TempDir dir;
  const std::string data = little<float>({1, 2, 3, 4});
  for (const char version : {1, 2, 3}) {
    EXPECT_EQ(numbers(read_npy(dir.write("v.npy", npy(header("<f4", "(4,)"), data, version)))),
              (std::vector<double>{1, 2, 3, 4}));
  }
  for (const char* text : {"{\"shape\":(2,2),\"fortran_order\":False,\"descr\":\"<f4\"}",
                           "  { 'shape' : ( 2L , 2L ) , 'descr' : '<f4' , 'fortran_order' : False , }   \n",
                           "{'descr':'<f4','fortran_order':False,'shape':(2,2,)}"}) {
    const Array array = read_npy(dir.write("h.npy", npy(text, data)));
    EXPECT_EQ(array.shape, (std::vector<int64_t>{2, 2})) << text;
  }
}

TEST(Npy, reads_every_element_type_in_both_byte_orders) {
  const TempDir dir;
  const auto expect = [&](const std::string& code, const auto& value, double expected) {
    for (const std::endian order : {std::endian::little, std::endian::big}) {
      const std::string descr = (order == std::endian::little ? "<" : ">") + code;
      const Array array = read_npy(dir.write("t.npy", npy(header(descr, "(1,)"), bytes_of(value, order))));
      EXPECT_EQ(numbers(array), std::vector<double>{expected}) << descr;
    }
  };
  expect("b1", uint8_t{1}, 1);
  expect("i1", int8_t{-3}, -3);
  expect("i2", int16_t{-300}, -300);
  expect("i4", int32_t{-70000}, -70000);
  expect("i8", int64_t{-5000000000}, -5000000000.0);
  expect("u1", uint8_t{200}, 200);
  expect("u2", uint16_t{0xc000}, 49152);
  expect("u4", uint32_t{4000000000}, 4000000000.0);
  expect("u8", uint64_t{5000000000}, 5000000000.0);
  expect("f2", uint16_t{0xc100}, -2.5);
  expect("f4", -0.1f, static_cast<double>(-0.1f));
  expect("f8", 1e300, 1e300);
}

TEST(Npy, reads_fortran_order_as_the_same_array) {
  const TempDir dir;
  // Element (a, b, c) is 100a + 10b + c; the first index runs fastest in the file.
  std::string data;
  std::vector<double> expected;
  for (int c = 0; c < 4; ++c)
    for (int b = 0; b < 3; ++b)
      for (int a = 0; a < 2; ++a) data += bytes_of(static_cast<int16_t>(100 * a + 10 * b + c), std::endian::little);
  for (int a = 0; a < 2; ++a)
    for (int b = 0; b < 3; ++b)
      for (int c = 0; c < 4; ++c) expected.push_back(100 * a + 10 * b + c);
  const Array array = read_npy(dir.write("f.npy", npy(header("<i2", "(2, 3, 4)", "True"), data)));
  EXPECT_EQ(array.shape, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(numbers(array), expected);
}

TEST(Npy, reads_arrays_without_dimensions_or_elements) {
  const TempDir dir;
  const Array scalar = read_npy(dir.write("0d.npy", npy(header("<f8", "()"), little<double>({2.5}))));
  EXPECT_TRUE(scalar.shape.empty());
  EXPECT_EQ(numbers(scalar), std::vector<double>{2.5});
  for (const char* order : {"False", "True"}) {
    const Array empty = read_npy(dir.write("empty.npy", npy(header("<f4", "(3, 0, 2)", order), "")));
    EXPECT_EQ(empty.shape, (std::vector<int64_t>{3, 0, 2}));
    EXPECT_EQ(empty.count(), 0);
  }
}

TEST(Npy, converts_with_one_rounding) {
  const TempDir dir;
  // Just above the midpoint of two bf16 numbers; rounded to float first, it would be the midpoint.
  const double above_a_tie = 1 + 0x1p-8 + 0x1p-40;
  const Array array = read_npy(dir.write("r.npy", npy(header("<f8", "(2,)"), little<double>({above_a_tie, -1e300}))));
  const std::vector<std::byte> bf16 = convert(array, DType::bf16);
  EXPECT_EQ(load_element(bf16.data(), DType::bf16, 0), 1 + 0x1p-7);
  EXPECT_EQ(load_element(bf16.data(), DType::bf16, 1), -std::numeric_limits<double>::infinity());
}

TEST(Npy, lengths_are_never_narrowed) {
  const TempDir dir;
  const auto lengths = [&](const std::string& descr, const std::string& data) {
    return to_int32(read_npy(dir.write("l.npy", npy(header(descr, "(1,)"), data))));
  };
  EXPECT_EQ(lengths("<i8", little<int64_t>({2147483647})), std::vector<int32_t>{2147483647});
  EXPECT_EQ(lengths("|u1", little<uint8_t>({255})), std::vector<int32_t>{255});
  EXPECT_EQ(lengths("<i2", little<int16_t>({-1})), std::vector<int32_t>{-1});  // left to the library to refuse
  EXPECT_THROW(lengths("<i8", little<int64_t>({2147483648})), FileError);
  EXPECT_THROW(lengths("<i8", little<int64_t>({int64_t{1} << 32})), FileError);
  EXPECT_THROW(lengths("<u4", little<uint32_t>({4294967295})), FileError);
  EXPECT_THROW(lengths("<u8", little<uint64_t>({uint64_t{1} << 63})), FileError);
  EXPECT_THROW(lengths("<f4", little<float>({3})), FileError);
  EXPECT_THROW(lengths("|b1", little<uint8_t>({1})), FileError);
}

TEST(Npy, masks_are_true_where_they_are_not_zero) {
  const TempDir dir;
  const Array ints = read_npy(dir.write("m.npy", npy(header("<i4", "(3,)"), little<int32_t>({0, 256, -1}))));
  EXPECT_EQ(to_bool(ints), (std::vector<std::byte>{std::byte{0}, std::byte{1}, std::byte{1}}));
  const Array bools = read_npy(dir.write("b.npy", npy(header("|b1", "(2,)"), std::string("\0\x02", 2))));
  EXPECT_EQ(to_bool(bools), (std::vector<std::byte>{std::byte{0}, std::byte{1}}));
  EXPECT_THROW(to_bool(read_npy(dir.write("f.npy", npy(header("<f4", "(1,)"), little<float>({0}))))), FileError);
}

Array counting(ElementType type, const std::vector<int64_t>& shape) {
  Array array{type, shape, {}};
  array.bytes.resize(static_cast<size_t>(array.count() * size_of(type)));
  for (size_t n = 0; n < array.bytes.size(); ++n) array.bytes[n] = static_cast<std::byte>(n * 37 % 251 & 1);
  return array;
}

TEST(NpyWriter, what_is_written_is_read_back) {
  const TempDir dir;
  for (const ElementType type :
       {ElementType::boolean, ElementType::i8, ElementType::i16, ElementType::i32, ElementType::i64, ElementType::u8,
        ElementType::u16, ElementType::u32, ElementType::u64, ElementType::f16, ElementType::f32, ElementType::f64}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {0}, {7}, {2, 3}, {1, 2, 3, 4}, {5, 0, 2}}) {
      const Array array = counting(type, shape);
      write_arrays({{dir.file("x.npy"), array}});
      const Array back = read_npy(dir.file("x.npy"));
      EXPECT_EQ(back.type, type);
      EXPECT_EQ(back.shape, shape);
      EXPECT_EQ(back.bytes, array.bytes);
    }
  }
  EXPECT_EQ(dir.entries(), 1u) << "a temporary file was left";
}

TEST(NpyWriter, writes_what_numpy_writes) {
  const TempDir dir;
  write_arrays({{dir.file("x.npy"), counting(ElementType::f32, {2, 3})}});
  const std::string file = dir.read("x.npy");
  EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\0", 8));
  EXPECT_EQ((file.size() - 2 * 3 * 4) % 64, 0u);
  const std::string order = std::endian::native == std::endian::little ? "<" : ">";
  EXPECT_EQ(file.find("{'descr': '" + order + "f4', 'fortran_order': False, 'shape': (2, 3, ), }"), 10u);
  EXPECT_EQ(file[file.size() - 2 * 3 * 4 - 1], '\n');
}

TEST(NpyWriter, writes_all_files_or_none) {
  const TempDir dir;
  const std::string before = dir.write("old.npy", "what was there");
  std::filesystem::create_directory(dir.file("directory"));
  const Array array = counting(ElementType::f32, {2});
  for (const std::string& bad :
       {dir.file("directory"), dir.file("no/such/place.npy"), dir.file("new.npy"), std::string("/dev/null")}) {
    EXPECT_THROW(write_arrays({{dir.file("new.npy"), array}, {before, array}, {bad, array}}), FileError) << bad;
    EXPECT_FALSE(dir.has("new.npy")) << bad;
    EXPECT_EQ(dir.read("old.npy"), "what was there") << bad;
    EXPECT_EQ(dir.entries(), 2u) << bad;
  }
}

TEST(NpyWriter, a_link_stays_a_link) {
  const TempDir dir;
  dir.write("target.npy", "old");
  std::filesystem::create_symlink("target.npy", dir.file("link.npy"));
  write_arrays({{dir.file("link.npy"), counting(ElementType::f32, {2})}});
  EXPECT_TRUE(std::filesystem::is_symlink(dir.file("link.npy")));
  EXPECT_EQ(read_npy(dir.file("target.npy")).shape, std::vector<int64_t>{2});
}

}  // namespace
}  // namespace cuflash::files
