// Safetensors files: valid files are read, hostile ones are refused with a sentence, and our own are read back.
#include "files/safetensors/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>

#include "dtype.h"
#include "error.h"
#include "files/error.h"
#include "files/tensors/array_file.h"
#include "files/tensors/convert.h"
#include "fuzz/made_files.h"
#include "support/physical_memory.h"
#include "tests/shared/temp_dir.h"

namespace cuflash::files {
namespace {

using made::length_text, made::object, made::safetensors, made::tensor;
using test::TempDir;
using Shape = std::vector<int64_t>;

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}
std::vector<double> numbers(const Array& array) {
  const std::vector<std::byte> converted = convert(array, DType::f64);
  std::vector<double> values(static_cast<size_t>(array.count()));
  if (!values.empty()) std::memcpy(values.data(), converted.data(), converted.size());
  return values;
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}
// The message for a file from which tensor x is requested.
std::string read_error(const std::string& path) {
  return error_of([&] { read_array("--x", path); });
}
#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "'" << (text) << "'"

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

// Files that are not safetensors, or whose header is not the required JSON.
std::vector<Hostile> broken_files() {
  const std::string four = bytes_of<float>({1, 2, 3, 4});
  const std::string good_header = object({tensor("x", "F32", "[2,2]", "[0,16]")});
  const std::string good = safetensors(good_header, four);
  const auto header = [&](const std::string& text) { return safetensors(text, four); };
  const auto shape = [&](const std::string& text) { return header(object({tensor("x", "F32", text, "[0,16]")})); };
  const auto name = [&](const std::string& text) { return header(object({tensor(text, "F32", "[2,2]", "[0,16]")})); };
  const auto offsets = [&](const std::string& text) { return header(object({tensor("x", "F32", "[2,2]", text)})); };
  return {
      {"empty", "", "cut off"},
      {"half a length", good.substr(0, 7), "cut off"},
      {"no header", good.substr(0, 8), "cut off"},
      {"half a header", good.substr(0, 20), "cut off"},
      {"header length beyond the file", length_text(good.size()) + good_header + four, "cut off"},
      {"header longer than 100 MB", length_text(100'000'001) + good_header + four, "at most 100000000"},
      {"header length negative", length_text(~uint64_t{0}) + good_header + four, "18446744073709551615"},
      {"npy", std::string("\x93NUMPY\x01\0", 8) + good, "not a safetensors file"},
      {"header of no bytes", header(""), "must begin with '{'"},
      {"header of zeros", header(std::string(64, '\0')), "must begin with '{'"},
      {"space before the header", header(" " + good_header), "must begin with '{'"},
      {"an array", header("[]"), "must begin with '{'"},
      {"not closed", header(good_header.substr(0, good_header.size() - 1)), "expected '}'"},
      {"tensor not closed", header(good_header.substr(0, good_header.size() - 2)), "expected '}'"},
      {"name not closed", header("{\"x"), "does not end"},
      {"text after", header(good_header + " x"), "text after"},
      {"two objects", header(good_header + "{}"), "text after"},
      {"comma at the end", header(good_header.substr(0, good_header.size() - 1) + ",}"), "expected '\"'"},
      {"no colon", header("{\"x\" {}}"), "expected ':'"},
      {"deep objects", header(repeated("{\"x\":", 20000)), "unknown key"},
      {"deep arrays", shape(std::string(60000, '[')), "whole number"},
      {"deep metadata", header("{\"__metadata__\":" + repeated("{\"x\":", 20000)), "expected '\"'"},
      {"tensor is a number", header("{\"x\":1}"), "expected '{'"},
      {"tensor is null", header("{\"x\":null}"), "expected '{'"},
      {"metadata is a string", header("{\"__metadata__\":\"x\"}"), "expected '{'"},
      {"metadata of numbers", header("{\"__metadata__\":{\"x\":1}}"), "expected '\"'"},
      {"tensor without keys", header("{\"x\":{}}"), "needs all of dtype, shape and data_offsets"},
      {"dtype missing", header(R"({"x":{"shape":[2,2],"data_offsets":[0,16]}})"), "needs all"},
      {"shape missing", header(R"({"x":{"dtype":"F32","data_offsets":[0,16]}})"), "needs all"},
      {"offsets missing", header(R"({"x":{"dtype":"F32","shape":[2,2]}})"), "needs all"},
      {"unknown key", header(R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16],"y":1}})"), "unknown key 'y'"},
      {"key twice", header(R"({"x":{"dtype":"F32","dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})"),
       "'dtype' occurs twice"},
      {"dtype is a number", header(R"({"x":{"dtype":4,"shape":[2,2],"data_offsets":[0,16]}})"), "expected '\"'"},
      {"shape is a number", shape("4"), "expected '['"},
      {"shape not closed", shape("[2,2 x"), "expected ']'"},
      {"shape with a hole", shape("[2,,2]"), "whole number"},
      {"shape ends in a comma", shape("[2,2,]"), "whole number"},
      {"shape of words", shape("[two,2]"), "whole number"},
      {"negative", shape("[-2,-2]"), "negative"},
      {"negative zero", shape("[-0]"), "negative"},
      {"fraction", shape("[2.0,2]"), "digits only"},
      {"exponent", shape("[4e0]"), "digits only"},
      {"large exponent", shape("[2,2E0]"), "digits only"},
      {"leading zero", shape("[02,2]"), "digits only"},
      {"two zeros", shape("[00]"), "digits only"},
      {"hexadecimal", shape("[0x4]"), "expected ']'"},
      {"beyond 64 bits", shape("[99999999999999999999]"), "63 bits"},
      {"beyond 63 bits", shape("[9223372036854775808]"), "63 bits"},
      {"65 dimensions", shape("[" + repeated("1,", 64) + "4]"), "more than 64"},
      {"no offset", offsets("[]"), "two numbers"},
      {"one offset", offsets("[16]"), "two numbers"},
      {"three offsets", offsets("[0,8,16]"), "more than 2"},
      {"offset negative", offsets("[-16,0]"), "negative"},
      {"offset a fraction", offsets("[0,16.0]"), "digits only"},
      {"offset huge", offsets("[0,18446744073709551632]"), "63 bits"},
      {"byte that is no character", name("\xff"), "not UTF-8"},
      {"character cut off", name("\xe2\x82"), "not UTF-8"},
      {"surrogate in UTF-8", name("\xed\xa0\x80"), "not UTF-8"},
      {"bad UTF-8 in metadata", header("{\"__metadata__\":{\"x\":\"\xc0\xaf\"}}"), "not UTF-8"},
      {"bad UTF-8 in dtype", header(object({tensor("x", "\xf5", "[2,2]", "[0,16]")})), "not UTF-8"},
      {"line feed in a name", name("a\nb"), "control character"},
      {"zero byte in a name", name(std::string("a\0b", 3)), "control character"},
      {"unknown escape", name("\\x41"), "unknown escape"},
      {"escape at the end", header("{\"\\"), "unknown escape"},
      {"short escape", name("\\u00e"), "four hexadecimal digits"},
      {"escape without digits", header("{\"\\u"), "four hexadecimal digits"},
      {"escape with a sign", name("\\u-001"), "four hexadecimal digits"},
      {"high surrogate alone", name("\\ud83d"), "surrogate"},
      {"low surrogate alone", name("\\ude00"), "surrogate"},
      {"high surrogate twice", name("\\ud83d\\ud83d"), "surrogate"},
  };
}

// Files whose header is JSON but contradictory.
std::vector<Hostile> lying_files() {
  const std::string four = bytes_of<float>({1, 2, 3, 4});
  const auto one = [&](const std::string& shape, const std::string& offsets) {
    return safetensors(object({tensor("x", "F32", shape, offsets)}), four);
  };
  const auto two = [&](const std::string& first, const std::string& second) {
    return safetensors(object({first, second}), four);
  };
  const std::string half = tensor("x", "F32", "[2]", "[0,8]");
  const std::string good = one("[2,2]", "[0,16]");
  return {
      {"name twice", two(half, tensor("x", "F32", "[2]", "[8,16]")), "'x' occurs twice"},
      {"name twice, once escaped", two(half, tensor("\\u0078", "F32", "[2]", "[8,16]")), "'x' occurs twice"},
      {"metadata twice", safetensors("{\"__metadata__\":{},\"__metadata__\":{}}", ""), "occurs twice"},
      {"metadata key twice", safetensors("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", ""), "'a' occurs twice"},
      {"data short by a byte", good.substr(0, good.size() - 1), "cut off"},
      {"no data", good.substr(0, good.size() - 16), "cut off"},
      {"data long by a byte", good + "x", "has 1 more bytes after"},
      {"data of no tensor", safetensors("{}", "x"), "has 1 more bytes after"},
      {"shape smaller than offsets", one("[3]", "[0,16]"), "is 16 bytes, but F32 [3] needs 12"},
      {"shape larger than offsets", one("[5]", "[0,16]"), "needs 20"},
      {"empty shape, bytes there", one("[2,0]", "[0,16]"), "needs 0"},
      {"number without dimensions", one("[]", "[0,16]"), "needs 4"},
      {"ends before it begins", one("[2,2]", "[16,0]"), "begin before it ends"},
      {"beyond the file", one("[4611686018427387]", "[0,18446744073709548]"), "cut off"},
      {"product overflows", one("[4294967296,4294967296]", "[0,16]"), "larger than any memory"},
      {"product wraps to 16", one("[4,4611686018427387905]", "[0,16]"), "larger than any memory"},
      {"overflow behind a zero", one("[0,4294967296,4294967296]", "[0,0]"), "larger than any memory"},
      {"gap at the start", one("[3]", "[4,16]"), "gap"},
      {"gap in the middle", two(tensor("a", "F32", "[1]", "[12,16]"), half), "gap"},
      {"gap before an empty tensor", two(half, tensor("a", "F32", "[0]", "[16,16]")), "gap"},
      {"overlap", two(half, tensor("a", "F32", "[3]", "[4,16]")), "overlap"},
      {"the same bytes twice", two(tensor("x", "F32", "[4]", "[0,16]"), tensor("a", "F32", "[4]", "[0,16]")),
       "overlap"},
      {"empty tensor inside another", two(tensor("x", "F32", "[4]", "[0,16]"), tensor("a", "F32", "[0]", "[8,8]")),
       "overlap"},
      {"overlap of an unknown type", two(half, tensor("a", "F4", "[9]", "[0,16]")), "overlap"},
      {"escape codes", safetensors(object({tensor("x\\u001b[2J", "F32", "[3]", "[0,16]")}), four), "\\x1b"},
  };
}

TEST(Safetensors, refuses_hostile_files_with_a_sentence) {
  const TempDir dir;
  std::vector<Hostile> files = broken_files();
  for (Hostile& file : lying_files()) files.push_back(std::move(file));
  for (const Hostile& file : files) {
    const std::string message = read_error(dir.write("hostile.safetensors", file.content));
    EXPECT_NE(message.find(file.reason), std::string::npos) << file.name << ": '" << message << "'";
    EXPECT_NE(message.find("hostile.safetensors"), std::string::npos) << file.name << ": '" << message << "'";
    EXPECT_EQ(message.find_first_of("\x1b\n"), std::string::npos) << file.name;
    EXPECT_LT(message.size(), 600u) << file.name;
  }
}

TEST(Safetensors, refuses_what_is_not_a_regular_file) {
  const TempDir dir;
  EXPECT_HAS(read_error(dir.file("missing.safetensors")), "No such file");
  ASSERT_EQ(::mkfifo(dir.file("pipe.safetensors").c_str(), 0600), 0);
  EXPECT_HAS(read_error(dir.file("pipe.safetensors")), "not a regular file");
  std::filesystem::create_directory(dir.file("directory.safetensors"));
  EXPECT_HAS(read_error(dir.file("directory.safetensors")), "it is a directory");
}

TEST(Safetensors, refuses_a_sparse_tensor_larger_than_the_memory_and_reads_its_neighbour) {
  const TempDir dir;
  const int64_t size = 2 * physical_memory();
  const std::string start = safetensors(object({tensor("large", "U8", join("[", size, "]"), join("[2,", size + 2, "]")),
                                                tensor("x", "U8", "[2]", "[0,2]")}),
                                        "\1\2");
  const std::string path = dir.write("sparse.safetensors", start);
  std::error_code error;
  std::filesystem::resize_file(path, start.size() + static_cast<uintmax_t>(size), error);
  if (error) GTEST_SKIP() << "this file system has no file of " << size << " bytes: " << error.message();
  EXPECT_HAS(read_error(path + ":large"), "does not fit");
  EXPECT_EQ(numbers(read_array("--x", path)), (std::vector<double>{1, 2}));
}

TEST(Safetensors, reads_every_element_type) {
  const TempDir dir;
  const auto expect = [&](const std::string& dtype, const auto& value, ElementType type, double expected) {
    const std::string bytes = bytes_of({value});
    const std::string offsets = join("[0,", bytes.size(), "]");
    const Array array =
        read_array("--x", dir.write("t.safetensors", safetensors(object({tensor("x", dtype, "[1]", offsets)}), bytes)));
    EXPECT_EQ(array.type, type) << dtype;
    EXPECT_EQ(numbers(array), std::vector<double>{expected}) << dtype;
  };
  expect("BOOL", uint8_t{1}, ElementType::boolean, 1);
  expect("I8", int8_t{-3}, ElementType::i8, -3);
  expect("I16", int16_t{-300}, ElementType::i16, -300);
  expect("I32", int32_t{-70000}, ElementType::i32, -70000);
  expect("I64", int64_t{-5000000000}, ElementType::i64, -5000000000.0);
  expect("U8", uint8_t{200}, ElementType::u8, 200);
  expect("U16", uint16_t{0xc000}, ElementType::u16, 49152);
  expect("U32", uint32_t{4000000000}, ElementType::u32, 4000000000.0);
  expect("U64", uint64_t{5000000000}, ElementType::u64, 5000000000.0);
  expect("F16", uint16_t{0xc100}, ElementType::f16, -2.5);
  expect("BF16", uint16_t{0xc020}, ElementType::bf16, -2.5);
  expect("BF16", uint16_t{0x7f7f}, ElementType::bf16, 0x1.fep127);  // far beyond f16
  expect("F32", -0.1f, ElementType::f32, static_cast<double>(-0.1f));
  expect("F64", 1e300, ElementType::f64, 1e300);
}

TEST(Safetensors, bf16_is_neither_a_mask_nor_a_length) {
  const Array array{ElementType::bf16, {1}, std::vector<std::byte>(2)};
  EXPECT_HAS(error_of([&] { to_bool(array); }), "bfloat16");
  EXPECT_HAS(error_of([&] { to_int32(array); }), "bfloat16");
}

TEST(Safetensors, reads_every_way_to_write_a_header) {
  const TempDir dir;
  const std::string data = bytes_of<int16_t>({1, 2, 3, 4});
  for (const char* header :
       {R"({"x":{"dtype":"I16","shape":[2,2],"data_offsets":[0,8]}})",
        R"({"x":{"data_offsets":[0,8],"shape":[2,2],"dtype":"I16"}}       )",
        "{ \"x\" : {\n\t\"dtype\" : \"I16\" ,\r\n \"shape\" : [ 2 , 2 ] , \"data_offsets\" : [ 0 , 8 ] } }\n",
        R"({"__metadata__":{"a":"b","\u20ac":"\ud83d\ude00"},"x":{"dtype":"I16","shape":[2,2],"data_offsets":[0,8]}})",
        R"({"x":{"dtype":"I16","shape":[2,2],"data_offsets":[0,8]},"__metadata__":{}})",
        R"({"\u0078":{"dt\u0079pe":"I16","shape":[2,2],"data_offsets":[0,8]}})"}) {
    const Array array = read_array("--x", dir.write("h.safetensors", safetensors(header, data)));
    EXPECT_EQ(array.shape, (Shape{2, 2})) << header;
    EXPECT_EQ(numbers(array), (std::vector<double>{1, 2, 3, 4})) << header;
  }
}

TEST(Safetensors, reads_tensors_without_dimensions_or_elements_in_any_order) {
  const TempDir dir;
  const std::string header = object({tensor("last", "F64", "[]", "[6,14]"), tensor("empty", "F32", "[3,0,2]", "[6,6]"),
                                     tensor("none", "I64", "[0]", "[0,0]"), tensor("first", "BF16", "[3,1]", "[0,6]")});
  const std::string path = dir.write(
      "o.safetensors", safetensors(header, bytes_of<uint16_t>({0x3f80, 0x4000, 0x4040}) + bytes_of<double>({2.5})));
  EXPECT_EQ(numbers(read_array("--x", path + ":first")), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(numbers(read_array("--x", path + ":last")), std::vector<double>{2.5});
  EXPECT_TRUE(read_array("--x", path + ":last").shape.empty());
  EXPECT_EQ(read_array("--x", path + ":empty").shape, (Shape{3, 0, 2}));
  EXPECT_EQ(read_array("--x", path + ":none").count(), 0);
  std::vector<std::string> names;
  const SafetensorsReader reader(path);
  for (const SafetensorsTensor& t : reader.tensors()) names.push_back(t.name);
  EXPECT_EQ(names, (std::vector<std::string>{"none", "first", "empty", "last"}));
}

TEST(Safetensors, names_are_any_text) {
  const TempDir dir;
  const std::string data = bytes_of<uint8_t>({7});
  const auto expect = [&](const std::string& json, const std::string& name) {
    const std::string path =
        dir.write("n.safetensors", safetensors(object({tensor(json, "U8", "[1]", "[0,1]")}), data));
    EXPECT_EQ(SafetensorsReader(path).tensors().at(0).name, name) << json;
    if (!name.empty()) {
      EXPECT_EQ(numbers(read_array("--x", join(path, ":", name))), std::vector<double>{7}) << json;
    }
  };
  expect("", "");
  expect("model.layers.0.q_proj:0/weight", "model.layers.0.q_proj:0/weight");
  expect("a.safetensors:b", "a.safetensors:b");
  expect("\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t");
  expect("\\u0041\\u00e9\\u20AC\\ud83d\\ude00", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  expect("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  expect("\\udbff\\udfff", "\xf4\x8f\xbf\xbf");
}

TEST(Safetensors, a_type_that_is_not_known_leaves_the_other_tensors_of_the_file) {
  const TempDir dir;
  const std::string path = dir.write(
      "f8.safetensors",
      safetensors(object({tensor("w", "F8_E4M3", "[3]", "[0,3]"), tensor("x", "U8", "[1]", "[3,4]")}), "\1\2\3\4"));
  EXPECT_EQ(numbers(read_array("--x", path)), std::vector<double>{4});
  const std::string message = read_error(path + ":w");
  for (const char* part : {"f8.safetensors", "'w'", "'F8_E4M3'", "BF16"}) EXPECT_HAS(message, part);
}

TEST(Safetensors, no_name_reaches_the_terminal_as_it_is) {
  const TempDir dir;
  const std::string path =
      dir.write("\x1b[2J.safetensors", safetensors(object({tensor("\\u001b[2J", "F4", "[1]", "[0,1]")}), "x"));
  const Array array{ElementType::u8, {0}, {}};
  for (const std::string& message :
       {read_error(path), read_error(path + ":\x1b[3J"), read_error(path + ":"),
        read_error(dir.file("missing\x1b.safetensors")), read_error(dir.file("missing\x1b.npy")), error_of([&] {
          write_arrays({{dir.file("\x1b/x.safetensors"), array, "x"}});
        }),
        error_of([&] {
          write_arrays({{path, array, "\x1b\xff"}});
        })}) {
    EXPECT_NE(message.find("\\x1b"), std::string::npos) << message;
    EXPECT_EQ(message.find('\x1b'), std::string::npos) << message;
  }
}

// The tensor that a flag means.
TEST(ArrayFile, a_place_is_a_file_or_a_tensor_in_it) {
  const auto expect = [](const char* text, const char* path, const char* name, FileFormat format) {
    const ArrayPlace place = array_place(text);
    EXPECT_EQ(place.path, path);
    EXPECT_EQ(place.tensor, name);
    EXPECT_EQ(format_of(place.path), format);
    EXPECT_EQ(text_of(place), text);
  };
  expect("q.npy", "q.npy", "", FileFormat::npy);
  expect("q", "q", "", FileFormat::npy);
  expect("a:b.npy", "a:b.npy", "", FileFormat::npy);
  expect("a.safetensors", "a.safetensors", "", FileFormat::safetensors);
  expect("dir/a.safetensors:q", "dir/a.safetensors", "q", FileFormat::safetensors);
  expect("a.safetensors:b:0", "a.safetensors", "b:0", FileFormat::safetensors);
  expect("a.safetensors:b.safetensors:c", "a.safetensors", "b.safetensors:c", FileFormat::safetensors);
  EXPECT_HAS(error_of([] { array_place("a.safetensors:"); }), "no tensor name");
  EXPECT_EQ(output_place("--dq", "a.safetensors").tensor, "dq");
  EXPECT_EQ(output_place("--dq", "a.safetensors:x").tensor, "x");
  EXPECT_EQ(output_place("--dq", "a.npy").tensor, "");
}

TEST(ArrayFile, a_tensor_without_a_name_is_that_of_the_flag_or_the_only_one) {
  const TempDir dir;
  const std::string path = dir.write(
      "two.safetensors",
      safetensors(object({tensor("grad_out", "U8", "[1]", "[0,1]"), tensor("other", "U8", "[1]", "[1,2]")}), "\1\2"));
  EXPECT_EQ(numbers(read_array("--grad-out", path)), std::vector<double>{1});
  EXPECT_EQ(numbers(read_array("--grad-out", path + ":other")), std::vector<double>{2});
  const std::string message = error_of([&] { read_array("--q", path); });
  for (const char* part :
       {"--q", "two.safetensors", "no tensor 'q'", "'grad_out' [1], 'other' [1]", "FILE.safetensors:TENSOR"})
    EXPECT_HAS(message, part);
  EXPECT_HAS(error_of([&] { read_array("--grad-out", path + ":q"); }), "no tensor 'q'");

  const std::string one =
      dir.write("one.safetensors", safetensors(object({tensor("other", "U8", "[1]", "[0,1]")}), "\3"));
  EXPECT_EQ(numbers(read_array("--q", one)), std::vector<double>{3});
  EXPECT_HAS(error_of([&] { read_array("--q", one + ":q"); }), "no tensor 'q'");
  EXPECT_HAS(error_of([&] { read_array("--q", dir.write("none.safetensors", safetensors("{}", ""))); }), "no tensors");
}

TEST(ArrayFile, a_long_list_of_tensors_is_cut) {
  const TempDir dir;
  std::vector<std::string> tensors;
  for (int n = 10; n < 30; ++n) tensors.push_back(tensor(join("t", n), "U8", "[0]", "[0,0]"));
  const std::string message =
      error_of([&] { read_array("--q", dir.write("many.safetensors", safetensors(object(tensors), ""))); });
  EXPECT_HAS(message, "'t17' [0] and 12 more");
  EXPECT_EQ(message.find("t18"), std::string::npos);
}

Array counting(ElementType type, const Shape& shape) {
  Array array{type, shape, {}};
  array.bytes.resize(static_cast<size_t>(array.count() * size_of(type)));
  for (size_t n = 0; n < array.bytes.size(); ++n) array.bytes[n] = static_cast<std::byte>(n * 37 % 251);
  return array;
}
void expect_same(const Array& actual, const Array& expected, const std::string& what) {
  EXPECT_EQ(actual.type, expected.type) << what;
  EXPECT_EQ(actual.shape, expected.shape) << what;
  EXPECT_EQ(actual.bytes, expected.bytes) << what;
}

TEST(SafetensorsWriter, what_is_written_is_read_back) {
  const TempDir dir;
  std::vector<ArrayOutput> outputs;
  for (const ElementType type :
       {ElementType::boolean, ElementType::i8, ElementType::i16, ElementType::i32, ElementType::i64, ElementType::u8,
        ElementType::u16, ElementType::u32, ElementType::u64, ElementType::f16, ElementType::bf16, ElementType::f32,
        ElementType::f64}) {
    for (const Shape& shape : std::vector<Shape>{{}, {0}, {7}, {2, 3}, {1, 2, 3, 4}, {5, 0, 2}}) {
      const std::string name = std::string(name_of(type)) + " \"\\\n\x01\xe2\x82\xac " + std::to_string(outputs.size());
      outputs.push_back({dir.file("all.safetensors"), counting(type, shape), name});
    }
  }
  write_arrays(outputs);
  EXPECT_EQ(dir.entries(), 1u) << "a temporary file was left";
  const SafetensorsReader reader(dir.file("all.safetensors"));
  EXPECT_EQ(reader.tensors().size(), outputs.size());
  const size_t data_begin = dir.read("all.safetensors").size() - static_cast<size_t>(reader.tensors().back().end);
  for (const ArrayOutput& output : outputs) {
    const SafetensorsTensor* tensor = reader.find(output.tensor);
    ASSERT_NE(tensor, nullptr) << output.tensor;
    expect_same(reader.read(*tensor), output.array, output.tensor);
    EXPECT_EQ((data_begin + static_cast<size_t>(tensor->begin)) % static_cast<size_t>(size_of(output.array.type)), 0u)
        << output.tensor << " is not aligned";
  }
}

TEST(SafetensorsWriter, writes_what_the_format_says) {
  const TempDir dir;
  const Array small{ElementType::bf16, {1, 3}, std::vector<std::byte>(6, std::byte{1})};
  const Array large{ElementType::f32, {}, std::vector<std::byte>(4, std::byte{2})};
  write_arrays({{dir.file("x.safetensors"), small, "a\"b"}, {dir.file("x.safetensors"), large, "lse"}});
  std::string header = R"({"lse":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                       R"("a\"b":{"dtype":"BF16","shape":[1,3],"data_offsets":[4,10]}})";
  while (header.size() % 8 != 0) header += ' ';
  EXPECT_EQ(dir.read("x.safetensors"), safetensors(header, "\2\2\2\2\1\1\1\1\1\1"));
}

TEST(SafetensorsWriter, a_file_of_no_bytes_of_data) {
  const TempDir dir;
  write_arrays({{dir.file("x.safetensors"), counting(ElementType::f32, {2, 0}), "x"}});
  EXPECT_EQ(read_array("--x", dir.file("x.safetensors")).shape, (Shape{2, 0}));
}

TEST(SafetensorsWriter, writes_all_files_or_none) {
  const TempDir dir;
  const std::string before = dir.write("old.safetensors", "what was there");
  std::filesystem::create_symlink("old.safetensors", dir.file("link.npy"));
  std::filesystem::create_directory(dir.file("directory.safetensors"));
  const Array array = counting(ElementType::bf16, {2});
  const std::string fresh = dir.file("new.safetensors");
  for (const ArrayOutput& bad : std::vector<ArrayOutput>{{dir.file("directory.safetensors"), array, "x"},
                                                         {dir.file("no/such/place.safetensors"), array, "x"},
                                                         {fresh, array, "x"},
                                                         {dir.file("./new.safetensors"), array, "x"},
                                                         {dir.file("link.npy"), array},  // a file of two formats
                                                         {dir.file("bf16.npy"), array},  // NumPy has no such type
                                                         {fresh, array, "__metadata__"},
                                                         {fresh, array, "\xff"}}) {
    EXPECT_THROW(write_arrays({{fresh, array, "x"}, {before, array, "x"}, bad}), FileError) << bad.path << bad.tensor;
    EXPECT_FALSE(dir.has("new.safetensors")) << bad.path;
    EXPECT_EQ(dir.read("old.safetensors"), "what was there") << bad.path;
    EXPECT_EQ(dir.entries(), 3u) << bad.path;
  }
}

TEST(SafetensorsWriter, one_file_under_two_names_is_shared) {
  const TempDir dir;
  dir.write("x.safetensors", "old");
  std::filesystem::create_symlink("x.safetensors", dir.file("link.safetensors"));
  write_arrays({{dir.file("link.safetensors"), counting(ElementType::u8, {2}), "a"},
                {dir.file("./x.safetensors"), counting(ElementType::u8, {3}), "b"}});
  EXPECT_TRUE(std::filesystem::is_symlink(dir.file("link.safetensors")));
  EXPECT_EQ(SafetensorsReader(dir.file("x.safetensors")).tensors().size(), 2u);
}

}  // namespace
}  // namespace cuflash::files
