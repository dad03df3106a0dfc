#include <lockstep/runtime/files/safetensors.hpp>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/files.hpp"

namespace lockstep::testing {
namespace {

using std::string_literals::operator""s;

Bytes little_endian(std::uint64_t value) {
  Bytes bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(value >> (8 * i));
  }
  return bytes;
}

Bytes file_of(const std::string& header, const Bytes& data) {
  return little_endian(header.size()) + header + data;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

class Safetensors : public ::testing::Test {
 protected:
  void open(const Bytes& bytes) {
    put_file(path_, bytes);
    const SafetensorsFile file(path_);
  }
  std::string error(const Bytes& bytes) {
    const std::string text = error_of<DataError>([&] { open(bytes); });
    expect_holds(text, path_);
    return text;
  }
  std::string error(const std::string& header, const Bytes& data) { return error(file_of(header, data)); }
  void write(const std::vector<SafetensorsTensor>& tensors, const std::map<std::string, std::string>& metadata = {}) {
    ::unlink(path_.c_str());
    write_safetensors(path_, tensors, metadata);
  }
  TemporaryFolder folder_;
  std::string path_ = folder_ / "model.safetensors";
};

// ---- writing

TEST_F(Safetensors, BytesAreThoseOfTheFormat) {
  write({});
  EXPECT_EQ(get_file(path_), "\x08\0\0\0\0\0\0\0{}      "s);
  const std::vector<float> a = {1, 2};
  const std::vector<std::int64_t> b = {-1};
  const std::vector<std::uint8_t> c = {7, 8, 9};
  const std::vector<float> d = {3};
  write({{"c", DType::u8, {3}, bytes_of(c), {}},
         {"b.n", DType::f32, {}, bytes_of(d), {}},
         {"a", DType::f32, {2, 1}, bytes_of(a), {}},
         {"z", DType::i64, {1}, bytes_of(b), {}}},
        {{"format", "pt"}, {"author", "x"}});
  // Order of the file: metadata first, then wider types before narrower ones, then by name. The header is padded to a
  // multiple of 8.
  std::string header =
      R"({"__metadata__":{"author":"x","format":"pt"},"z":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},"b.n":{"dtype":"F32","shape":[],"data_offsets":[16,20]},)"
      R"("c":{"dtype":"U8","shape":[3],"data_offsets":[20,23]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(get_file(path_), file_of(header, Bytes(8, '\xff') + "\0\0\x80?\0\0\0@\0\0@@\x07\x08\x09"s));
}

TEST_F(Safetensors, RoundTrip) {
  std::vector<double> a(1000);
  std::iota(a.begin(), a.end(), 0.5);
  const std::vector<std::uint16_t> half = {0x3f80, 0x7fc0};
  write({{"a", DType::f64, {10, 100}, bytes_of(a), {}},
         {"empty", DType::f64, {0, 5}, {}, {}},
         {"half", DType::bf16, {2}, bytes_of(half), {}},
         {"zwölf", DType::f16, {2}, bytes_of(half), {}}},
        {{"step", "12"}});
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.path(), path_);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"step", "12"}}));
  ASSERT_EQ(file.entries().size(), 4U);
  const TensorEntry* entry = file.find("a");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->shape, (std::vector<std::int64_t>{10, 100}));
  EXPECT_EQ(entry->type(), DType::f64);
  EXPECT_EQ(entry->offset % 8, 0U);
  std::vector<double> back(1000);
  file.read(*entry, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, a);
  std::vector<double> part(10);
  file.read(*entry, std::as_writable_bytes(std::span(part)), 990 * sizeof(double));
  EXPECT_EQ(part[9], 999.5);
  expect_holds(error_of<DataError>([&] { file.read(*entry, std::as_writable_bytes(std::span(part)), 7921); }),
               "expected within 8000");
  EXPECT_EQ(file.find("empty")->bytes, 0U);
  EXPECT_EQ(file.find("half")->type(), DType::bf16);
  EXPECT_NE(file.find("zwölf"), nullptr);
  EXPECT_EQ(file.find("none"), nullptr);
}

// A callback fills a tensor that is larger than the writer's buffer. The callback must get pieces of whole elements (8
// bytes each).
TEST_F(Safetensors, FillGivesTheSameBytes) {
  std::vector<double> a(300'001);
  std::iota(a.begin(), a.end(), -7.0);
  write({{"a", DType::f64, {300'001}, bytes_of(a), {}}});
  const Bytes reference = get_file(path_);
  int calls = 0;
  write({{"a", DType::f64, {300'001}, {}, [&](std::int64_t first, std::span<std::byte> out) {
            ++calls;
            ASSERT_EQ(out.size() % sizeof(double), 0U);
            std::memcpy(out.data(), a.data() + first, out.size());
          }}});
  EXPECT_GT(calls, 1);
  EXPECT_EQ(get_file(path_), reference);
}

TEST_F(Safetensors, WriterRefuses) {
  const std::vector<float> a = {1, 2};
  const auto fails = [&](const std::vector<SafetensorsTensor>& tensors) {
    const std::string text = error_of<DataError>([&] { write(tensors); });
    EXPECT_FALSE(file_exists(path_));
    return text;
  };
  const SafetensorsTensor good{"a", DType::f32, {2}, bytes_of(a), {}};
  expect_holds(fails({good, good}), "'a' stands twice");
  expect_holds(fails({good, {"a", DType::i32, {2}, bytes_of(a), {}}}), "'a' stands twice");
  expect_holds(fails({{"", DType::f32, {2}, bytes_of(a), {}}}), "1 to 1024 bytes");
  expect_holds(fails({{"a\nb", DType::f32, {2}, bytes_of(a), {}}}), "no control characters");
  expect_holds(fails({{"__metadata__", DType::f32, {2}, bytes_of(a), {}}}), "another name");
  expect_holds(fails({{"a", DType::f32, {3}, bytes_of(a), {}}}), "8 bytes of data, expected 12");
  expect_holds(fails({{"a", DType::f32, {-2}, bytes_of(a), {}}}), "extent is -2");
  expect_holds(fails({{"a", DType::f32, {INT64_MAX, INT64_MAX}, bytes_of(a), {}}}),
               "expected at least 0 and a size below 2^64 bytes");
  expect_holds(fails({{"a", DType::f32, std::vector<std::int64_t>(33, 1), bytes_of(a).first(4), {}}}), "33 dimensions");
  // A callback that throws leaves no file.
  try {
    write({{"a", DType::f32, {2}, {}, [](std::int64_t, std::span<std::byte>) { throw DataError("stop"); }}});
    ADD_FAILURE();
  } catch (const DataError&) {
  }
  EXPECT_FALSE(file_exists(path_));
  write({good});
  expect_holds(error_of<DataError>([&] { write_safetensors(path_, std::vector{good}); }), "File exists");
}

// ---- Reading files that other programs wrote

TEST_F(Safetensors, TolerantWhereTheFormatIs) {
  open(file_of("{}", ""));
  open(file_of("  {}\n\t ", ""));
  open(file_of(R"({"__metadata__":{}})", ""));
  open(file_of(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"extra":[1,2]}})", "x"));
  // The header may have any order, empty tensors anywhere, and types that DType does not have but the format has.
  put_file(path_, file_of(R"({"b":{"dtype":"BOOL","shape":[2],"data_offsets":[1,3]},)"
                          R"("e":{"dtype":"F32","shape":[0,9],"data_offsets":[1,1]},)"
                          R"("a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})",
                          "xyz"));
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.entries()[0].name, "a");
  EXPECT_EQ(file.entries()[2].name, "b");
  EXPECT_EQ(file.find("b")->type(), std::nullopt);
  std::array<std::byte, 2> out{};
  file.read(*file.find("b"), out);
  EXPECT_EQ(out[1], std::byte{'z'});
  open(file_of(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "x"));
}

// ---- hostile headers

TEST_F(Safetensors, LengthsAreChecked) {
  expect_holds(error(""), "0 bytes, expected at least 8");
  expect_holds(error("1234567"), "7 bytes");
  expect_holds(error(little_endian((1 << 24) + 1) + "{}"),
               "header would have 16777217 bytes, expected at most 16777216");
  expect_holds(error(little_endian(1 << 24) + "{}"), "expected at most the 2 bytes after byte 8");
  expect_holds(error(little_endian(~std::uint64_t{0}) + "{}"), "18446744073709551615");
  expect_holds(error(little_endian(3) + "{}"), "expected at most the 2 bytes after byte 8");
  expect_holds(error(little_endian(10'000'000)), "expected at most the 0 bytes after byte 8");
}

TEST_F(Safetensors, HeaderHasToBeOneJsonObject) {
  for (const std::string& header :
       {""s, "{"s, "[]"s, "7"s, "null"s, "{} x"s, "{}\0"s, "{}{}"s, "\xEF\xBB\xBF{}"s, "{\"\xff\":1}"s, "{a:1}"s,
        R"({"a":NaN})"s, "{}//"s, R"({"__metadata__":7})"s, R"({"__metadata__":{"a":7}})"s,
        R"({"__metadata__":{"a":{"b":"c"}}})"s, R"({"a":7})"s, R"({"a":[]})"s, R"({"a":null})"s}) {
    (void)error(header, "");
  }
  expect_holds(error(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "'a' stands twice");
  expect_holds(error(R"({"__metadata__":{},"__metadata__":{}})", ""), "'__metadata__' stands twice");
  expect_holds(error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],)"
                     R"("data_offsets":[0,1]}})",
                     "x"),
               "'a' stands twice");
  expect_holds(error(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x"),
               "'dtype' stands twice");
  expect_holds(error(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", "x"), "3 levels");
  expect_holds(error(std::string(100'000, '['), ""), "3 levels");
}

TEST_F(Safetensors, EntriesAreChecked) {
  const auto entry = [&](const std::string& dtype, const std::string& shape, const std::string& offsets,
                         const Bytes& data = "") {
    return error(R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data);
  };
  expect_holds(entry(R"("F33")", "[1]", "[0,4]", "1234"), "dtype 'F33'");
  expect_holds(entry(R"("f32")", "[1]", "[0,4]", "1234"), "dtype 'f32'");
  expect_holds(entry("32", "[1]", "[0,4]", "1234"), "'dtype' is an integer, expected a string");
  expect_holds(entry(R"("F32")", "[-1]", "[0,4]", "1234"), "'shape' is -1");
  expect_holds(entry(R"("F32")", "[1.0]", "[0,4]", "1234"), "'shape' is a number");
  expect_holds(entry(R"("F32")", R"(["1"])", "[0,4]", "1234"), "'shape' is a string");
  expect_holds(entry(R"("F32")", "1", "[0,4]", "1234"), "'shape' is an integer, expected an array");
  expect_holds(entry(R"("F32")", "{}", "[0,4]", "1234"), "'shape' is an object");
  expect_holds(entry(R"("F32")", "[1]", "[0]", "1234"), "expected an array of two");
  expect_holds(entry(R"("F32")", "[1]", "[0,4,8]", "1234"), "expected an array of two");
  expect_holds(entry(R"("F32")", "[1]", "4", "1234"), "'data_offsets' is an integer");
  expect_holds(entry(R"("F32")", "[1]", "[-4,0]", "1234"), "'data_offsets' is -4");
  expect_holds(entry(R"("F32")", "[1]", "[4,0]", "1234"), "data from byte 4 to 0");
  expect_holds(entry(R"("F32")", "[2]", "[0,4]", "1234"), "4 bytes of data, expected 8");
  expect_holds(entry(R"("F32")", "[]", "[0,8]", "12345678"), "8 bytes of data, expected 4");
  expect_holds(entry(R"("F4")", "[3]", "[0,2]", "12"), "12 bits");
  expect_holds(entry(R"("F6_E2M3")", "[1]", "[0,1]", "1"), "6 bits");
  expect_holds(entry(R"("U8")", "[4294967296,4294967296]", "[0,0]"), "shape overflows");
  expect_holds(entry(R"("U8")", "[4294967296,4294967296,0]", "[0,0]"), "shape overflows");
  expect_holds(entry(R"("U8")", "[18446744073709551615]", "[0,0]"), "shape overflows");
  expect_holds(entry(R"("U8")", "[99999999999999999999]", "[0,0]"), "'shape' is a number");
  expect_holds(entry(R"("F64")", "[2305843009213693952]", "[0,0]"), "bits overflows");
  std::string many = "[1";
  for (int i = 0; i < 32; ++i) {
    many += ",1";
  }
  expect_holds(entry(R"("U8")", many + "]", "[0,1]", "1"), "33 dimensions");
  expect_holds(error(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", "1"), "'dtype' is missing");
  expect_holds(error(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", "1"), "'shape' is missing");
  expect_holds(error(R"({"t":{"dtype":"U8","shape":[1]}})", "1"), "'data_offsets' is missing");
  expect_holds(error(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1"), "1 to 1024 bytes");
  expect_holds(error(R"({"a\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1"), "no control characters");
  expect_holds(error(R"({"a\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1"), "no control characters");
  expect_holds(error("{\"" + std::string(1025, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1"),
               "name of 1025 bytes");
}

TEST_F(Safetensors, DataHaveNoHolesAndNoOverlap) {
  const auto two = [](const std::string& a, const std::string& b, int na, int nb) {
    return R"({"a":{"dtype":"U8","shape":[)" + std::to_string(na) + R"(],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[)" + std::to_string(nb) + R"(],"data_offsets":)" + b + "}}";
  };
  open(file_of(two("[0,2]", "[2,4]", 2, 2), "1234"));
  expect_holds(error(two("[0,2]", "[3,4]", 2, 1), "1234"), "'b': data begin at byte 3, expected byte 2");
  expect_holds(error(two("[0,2]", "[1,3]", 2, 2), "123"), "'b': data begin at byte 1, expected byte 2");
  expect_holds(error(two("[0,2]", "[0,2]", 2, 2), "12"), "data begin at byte 0, expected byte 2");
  expect_holds(error(two("[1,2]", "[2,4]", 1, 2), "1234"), "'a': data begin at byte 1, expected byte 0");
  expect_holds(error(two("[0,2]", "[2,4]", 2, 2), "12345"), "5 bytes of data, expected 4");
  expect_holds(error(two("[0,2]", "[2,4]", 2, 2), "123"), "3 bytes of data, expected 4");
  expect_holds(error("{}", "x"), "1 bytes of data, expected 0");
  expect_holds(error(R"({"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[9223372036854775807,)"
                     R"(18446744073709551614]}})",
                     "1"),
               "overflow");
}

TEST_F(Safetensors, AFileThatBecomesShorterIsAnError) {
  const std::vector<float> a(1000, 1.0F);
  write({{"a", DType::f32, {1000}, bytes_of(a), {}}});
  const SafetensorsFile file(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 2000), 0);
  std::vector<float> back(1000);
  expect_holds(error_of<DataError>([&] { file.read(file.entries()[0], std::as_writable_bytes(std::span(back))); }),
               "ends at byte 2000");
}

// A change of one byte of a header must give an error or a file that is still consistent, but never a crash.
TEST_F(Safetensors, RandomDamageIsHarmless) {
  const Bytes good = file_of(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})",
                             Bytes(16, 'x'));
  Random random(3, RandomUse::test);
  for (int i = 0; i < 1000; ++i) {
    Bytes bad = good;
    for (std::uint32_t n = random.below(3) + 1; n > 0; --n) {
      bad[random.below(static_cast<std::uint32_t>(bad.size()))] = static_cast<char>(random.bits());
    }
    put_file(path_, bad);
    try {
      const SafetensorsFile file(path_);
      for (const auto& entry : file.entries()) {
        std::vector<std::byte> data(static_cast<std::size_t>(entry.bytes));
        file.read(entry, data);
      }
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
