// Tests files of torch.save, made by tests/support/torch_files.hpp and by torch itself (golden/): their contents, and
// the errors for files that are damaged or not allowed.
#include <lockstep/runtime/files/torch_file.hpp>

#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/support/files.hpp"
#include "tests/support/torch_files.hpp"

namespace lockstep::testing {
namespace {

using std::string_literals::operator""s;
using Extents = std::vector<std::int64_t>;

/// Returns the bytes of `count` floats: first, first + 1, ...
Bytes floats(std::size_t count, float first = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return torch::bytes_of(values);
}

/// Returns a tensor of all six floats of a storage.
Bytes six() {
  return torch::tensor(torch::storage("FloatStorage", "0", 6), 0, {6}, {1});
}

class TorchFiles : public ::testing::Test {
 protected:
  void put(const Bytes& bytes) { put_file(path_, bytes); }
  /// Returns the text of the error that reading this file gives. Expects that the text names the path.
  std::string error(const Bytes& bytes) {
    put(bytes);
    const std::string text = error_of<DataError>([&] { const TorchFile file(path_); });
    expect_holds(text, path_);
    return text;
  }
  /// Returns the error of a file with this pickle and one storage of six floats.
  std::string pickle_error(const Bytes& pickle) { return error(torch::zip(torch::records(pickle, {floats(6)}))); }
  std::string program_error(const Bytes& program) { return pickle_error(torch::program(program)); }
  /// Returns the error of a file with one storage of six floats and this tensor in its pickle.
  std::string tensor_error(std::int64_t offset, const Extents& shape, const Extents& strides) {
    return program_error(
        torch::dict({{"a", torch::tensor(torch::storage("FloatStorage", "0", 6), offset, shape, strides)}}));
  }
  template <class T = float>
  std::vector<T> read(const std::string& name) {
    const TensorFile file = open_tensor_file(path_);
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr) {
      ADD_FAILURE() << "no tensor " << name;
      return {};
    }
    std::vector<T> values(entry->bytes / sizeof(T));
    file.read(*entry, std::as_writable_bytes(std::span(values)));
    return values;
  }
  TemporaryFolder folder_;
  std::string path_ = folder_ / "model.pth";
};

std::vector<std::string> names_of(const TensorFile& file) {
  std::vector<std::string> names;
  for (const TensorEntry& entry : file.entries()) {
    names.push_back(entry.name);
  }
  return names;
}

// ---- what is read

TEST_F(TorchFiles, EveryType) {
  struct Type {
    const char* torch;
    const char* dtype;
    std::size_t bytes;
  };
  std::vector<torch::Plain> tensors;
  const std::vector<Type> types{{"Float", "F32", 4}, {"Double", "F64", 8}, {"Half", "F16", 2},  {"BFloat16", "BF16", 2},
                                {"Long", "I64", 8},  {"Int", "I32", 4},    {"Short", "I16", 2}, {"Char", "I8", 1},
                                {"Byte", "U8", 1},   {"Bool", "BOOL", 1}};
  for (const Type& type : types) {
    tensors.push_back({type.torch, type.torch, {2, 3}, Bytes(6 * type.bytes, static_cast<char>(type.torch[0]))});
  }
  put(torch::file_of(tensors));
  EXPECT_TRUE(is_torch_file(path_));
  const TensorFile file = open_tensor_file(path_);
  EXPECT_STREQ(file.format(), "torch");
  EXPECT_TRUE(file.metadata().empty());
  ASSERT_EQ(file.entries().size(), types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    const TensorEntry& entry = file.entries()[i];
    EXPECT_EQ(entry.name, types[i].torch);
    EXPECT_EQ(entry.dtype, types[i].dtype);
    EXPECT_EQ(entry.shape, (Extents{2, 3}));
    EXPECT_TRUE(entry.strides.empty());
    Bytes bytes(6 * types[i].bytes, '\0');
    file.read(entry, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, tensors[i].data);
  }
}

TEST_F(TorchFiles, AsPeopleSaveThem) {
  const std::vector<torch::Plain> tensors{{"module.a", "Float", {2}, floats(2)},
                                          {"module.b.c", "Float", {}, floats(1)}};
  const auto names = [&](const Bytes& bytes) {
    put(bytes);
    return names_of(TorchFile(path_));
  };
  const std::vector<std::string> expected{"a", "b.c"};
  EXPECT_EQ(names(torch::file_of(tensors)), expected);
  for (const char* key : {"state_dict", "model", "model_state_dict"}) {
    EXPECT_EQ(names(torch::file_of(tensors,
                                   [&](const Bytes& dict) {
                                     return torch::dict(
                                         {{"epoch", torch::integer(90)},
                                          {"arch", torch::text("resnet50")},
                                          {"big", "\x8a\x09" + Bytes(9, '\x01')},
                                          {"lr", "G" + Bytes(8, '\x40')},
                                          {"best", torch::tensor(torch::storage("FloatStorage", "0", 2), 1, {}, {})},
                                          {"list", "](K\x01N\x88"s + "e"},
                                          {key, dict}});
                                   })),
              expected);
  }
  // The prefix "module." stays unless all names begin with it.
  EXPECT_EQ(names(torch::file_of({tensors[0], {"b", "Float", {}, floats(1)}})),
            (std::vector<std::string>{"module.a", "b"}));
  EXPECT_EQ(names(torch::file_of({{"_orig_mod.module.x", "Float", {}, floats(1)}})), std::vector<std::string>{"x"});
  EXPECT_EQ(names(torch::file_of({{"module.", "Float", {}, floats(1)}})), std::vector<std::string>{"module."});
}

TEST_F(TorchFiles, SharedStoragesStridesAndParameters) {
  // The pickle puts the storage into its memo, and all other tensors take the storage from there.
  const Bytes storage = torch::storage("FloatStorage", "0", 24) + "q\x07"s;
  const Bytes again = "h\x07"s;
  put(torch::zip(torch::records(
      torch::program(torch::dict({{"whole", torch::parameter(torch::tensor(storage, 0, {2, 3, 4}, {12, 4, 1}))},
                                  {"part", torch::tensor(again, 6, {2, 3}, {3, 1})},
                                  {"turned", torch::tensor(again, 0, {4, 6}, {1, 4})},
                                  {"column", torch::tensor(again, 3, {6}, {4})},
                                  {"last", torch::tensor(again, 1, {2, 4, 3}, {11, 1, 4})},
                                  {"one", torch::tensor(again, 23, {1, 1}, {99, 7})},
                                  {"none", torch::tensor(again, 0, {3, 0}, {1, 1})}})),
      {floats(24)})));
  std::vector<float> expected(24);
  std::iota(expected.begin(), expected.end(), 0.0F);
  EXPECT_EQ(read("whole"), expected);
  EXPECT_EQ(read("part"), (std::vector<float>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(read("column"), (std::vector<float>{3, 7, 11, 15, 19, 23}));
  EXPECT_EQ(read("one"), std::vector<float>{23});
  EXPECT_TRUE(read("none").empty());
  std::vector<float> turned;
  for (int row = 0; row < 4; ++row) {
    for (int column = 0; column < 6; ++column) {
      turned.push_back(static_cast<float>(row + 4 * column));
    }
  }
  EXPECT_EQ(read("turned"), turned);
  std::vector<float> last;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int k = 0; k < 3; ++k) {
        last.push_back(static_cast<float>(1 + 11 * i + j + 4 * k));
      }
    }
  }
  EXPECT_EQ(read("last"), last);
  // Reads a part of a strided tensor. The part's begin and size are no multiples of an element's size.
  const TorchFile file(path_);
  Bytes part(10, '\0');
  file.read(*file.find("turned"), std::as_writable_bytes(std::span(part)), 7);
  EXPECT_EQ(part, torch::bytes_of(turned).substr(7, 10));
  expect_holds(
      error_of<DataError>([&] { file.read(*file.find("turned"), std::as_writable_bytes(std::span(part)), 87); }),
      "bytes 87 to 97, expected within 96");
}

TEST_F(TorchFiles, Zip64) {
  const Bytes pickle = torch::program(torch::dict({{"a", six()}}));
  put(torch::zip(torch::records(pickle, {floats(6)}), true));
  EXPECT_EQ(read("a"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
}

TEST_F(TorchFiles, OtherFilesAreNone) {
  put("PK");
  EXPECT_FALSE(is_torch_file(path_));
  expect_holds(error_of<DataError>([&] { static_cast<void>(open_tensor_file(path_)); }), "no safetensors file");
  expect_holds(error(""), "expected a file of torch.save");
  const std::vector<float> values{1};
  std::filesystem::remove(path_);
  write_safetensors(
      path_,
      std::vector<SafetensorsTensor>{
          {.name = "a", .dtype = DType::f32, .shape = {1}, .data = std::as_bytes(std::span(values)), .fill = {}}});
  EXPECT_FALSE(is_torch_file(path_));
  EXPECT_EQ(read("a"), values);
  EXPECT_STREQ(open_tensor_file(path_).format(), "safetensors");
  EXPECT_THROW(static_cast<void>(is_torch_file(path_ + "x")), DataError);
}

// ---- Files that are refused, and their errors

TEST_F(TorchFiles, TheFormBeforeTorch16) {
  const Bytes old = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03."s;
  expect_holds(error(old), "before torch 1.6");
  expect_holds(error(old), "safetensors.torch.save_file");
  EXPECT_TRUE(is_torch_file(path_));
  expect_holds(error_of<DataError>([&] { static_cast<void>(open_tensor_file(path_)); }), "before torch 1.6");
}

TEST_F(TorchFiles, TorchScript) {
  std::vector<torch::Record> records = torch::records(torch::program(torch::dict({})), {});
  records.push_back({"archive/constants.pkl", torch::program(")")});
  expect_holds(error(torch::zip(records)), "TorchScript");
  records.back() = {"archive/code/__torch__.py", "class A: pass"};
  expect_holds(error(torch::zip(records)), "safetensors.torch.save_file");
}

TEST_F(TorchFiles, CodeIsRefusedByItsNameAndNotRun) {
  const std::string made = folder_ / "made";
  const Bytes command = torch::tuple({torch::text("touch " + made)});
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"posix", "system"},
                                                        {"builtins", "eval"},
                                                        {"torch", "load"},
                                                        {"torch", "FloatTensor"},
                                                        {"torch.storage", "UntypedStorage"},
                                                        {"collections", "Counter"},
                                                        {"argparse", "Namespace"},
                                                        {"", ""},
                                                        {"collections\n.", "x"},
                                                        {"numpy.core.multiarray", "scalar"},
                                                        {"torch._utils", "_rebuild_sparse_tensor"}}) {
    const std::string text = program_error(torch::call(torch::global(module, name), command));
    expect_holds(text, module.find('\n') == std::string::npos ? "'" + module + "." + name + "'" : "'collections.");
    expect_holds(text, "nothing in the file is executed");
  }
  // Refuses an unknown object, even in a value that is not read.
  expect_holds(
      program_error(torch::dict(
          {{"a", six()}, {"b", torch::tuple({torch::tuple({torch::call(torch::global("os", "system"), command)})})}})),
      "'os.system'");
  EXPECT_FALSE(std::filesystem::exists(made));
  // Refuses a known name in a call that torch.save does not write.
  expect_holds(program_error(torch::call(torch::global("torch", "FloatStorage"), torch::tuple({torch::integer(3)}))),
               "calls 'FloatStorage'");
  expect_holds(program_error(torch::call(torch::text("os.system"), command)), "what is called is a text");
  expect_holds(program_error(torch::global("collections", "OrderedDict") + command + "R"),
               "an OrderedDict from 1 arguments");
  expect_holds(program_error(torch::global("torch", "FloatStorage") + "}b"),
               "what gets attributes is a function or class, expected a dict");
  expect_holds(program_error("}K\x01"s + "b"), "the value of attributes is an integer, expected a dict");
  // Refuses operations that make instances or read extensions, and operations of other pickle protocols.
  for (const char* operation : {"\x81", "\x82", "\x83", "\x84", "\x92", "\x93", "\x94", "\x95", "\x8c", "i", "o",
                                "P",    "2",    "0",    "1",    "S",    "U",    "B",    "C",    "d",    "l", "I",
                                "L",    "F",    "V",    "g",    "p",    "\x8b", "\x8e", "\x8f", "\xff"}) {
    expect_holds(program_error("))"s + operation), "dicts of plain tensors do not need");
  }
}

TEST_F(TorchFiles, PicklesThatAreNone) {
  expect_holds(pickle_error(""), "ends in the middle of an operation");
  expect_holds(pickle_error("\x80\x04}."), "no pickle of protocol 2");
  expect_holds(pickle_error("\x80\x02}"s), "ends in the middle of an operation");
  expect_holds(pickle_error("\x80\x02}.."s), "1 bytes after its end");
  expect_holds(program_error("}}"), "ends with 2 values");
  expect_holds(program_error("}("), "ends with 1 values");
  expect_holds(program_error(""), "ends with 0 values");
  expect_holds(program_error("Q"), "takes a value where there is none");
  expect_holds(program_error("}(Q"), "takes a value where there is none");
  expect_holds(program_error("}(s"), "takes a value where there is none");
  expect_holds(program_error("(q\x01"s), "keeps a value where there is none");
  expect_holds(program_error("u"), "after a mark where there is none");
  expect_holds(program_error("]}a}e"), "after a mark where there is none");
  expect_holds(program_error("h\x05"s), "the kept value 5, which there is not");
  expect_holds(program_error("j\xff\xff\xff\xff"s), "the kept value 4294967295");
  expect_holds(program_error("}(K\x01"s + "u"), "a key of a dict without a value");
  expect_holds(program_error("](K\x01K\x01"s + "u"), "is a list, expected a dict");
  expect_holds(program_error("}(K\x01"s + "e"), "is a dict, expected a list");
  expect_holds(program_error("ccollections"), "in the middle of a name");
  expect_holds(program_error("X\xff\xff\xff\xff"
                             "a"s),
               "ends in the middle of an operation");
  expect_holds(program_error("K\x01"s), "holds an integer, expected a dict of tensors");
  expect_holds(program_error("]"), "holds a list");
  expect_holds(program_error("}"), "a dict of nothing");
  expect_holds(program_error(torch::dict({{"net", "}"}, {"epoch", torch::integer(3)}})),
               "a dict of 'net' (a dict), 'epoch' (an integer), expected tensors");
}

TEST_F(TorchFiles, Cycles) {
  // A dict that contains itself must give a short error text. A nested list whose text would have 2^200 elements must
  // not prevent reading another member of the dict.
  expect_holds(program_error("}q\x01"s + "(" + torch::text("state_dict") + "h\x01u"s),
               "a dict of 'state_dict' (a dict)");
  Bytes doubled = "]q\x00"s;
  for (int i = 0; i < 200; ++i) {
    doubled += "](h"s + static_cast<char>(i) + "h" + static_cast<char>(i) + "eq" + static_cast<char>(i + 1);
  }
  put(torch::zip(torch::records(
      torch::program(torch::dict({{"bomb", "](" + doubled + "e"}, {"model", torch::dict({{"a", six()}})}})),
      {floats(6)})));
  EXPECT_EQ(read("a").size(), 6U);
  // Refuses a pickle with more values than are allowed.
  expect_holds(program_error("(" + Bytes(4'000'001, 'N') + "t"), "more than 4000000 values");
  // Refuses lists that are nested more deeply than any stack allows.
  expect_holds(program_error(Bytes(1'000'000, ']') + Bytes(999'999, 'a')), "holds a list");
}

TEST_F(TorchFiles, TensorsBeyondTheirStorage) {
  const std::string beyond = "reaches beyond its storage of 6 elements";
  expect_holds(tensor_error(0, {7}, {1}), beyond);
  expect_holds(tensor_error(1, {6}, {1}), beyond);
  expect_holds(tensor_error(6, {}, {}), beyond);
  expect_holds(tensor_error(0, {2, 2}, {5, 1}), beyond);
  expect_holds(tensor_error(0, {INT64_MAX, INT64_MAX}, {1, 1}), beyond);
  expect_holds(tensor_error(0, {INT64_MAX}, {INT64_MAX}), beyond);
  expect_holds(tensor_error(INT64_MAX, {2}, {INT64_MAX}), beyond);
  expect_holds(tensor_error(0, {1LL << 32, 1LL << 32}, {0, 0}), beyond);  // 2^64 elements
  expect_holds(tensor_error(0, {7}, {0}), "a tensor of 7 elements in a storage of 6, expanded");
  expect_holds(tensor_error(0, {1LL << 40}, {0}), "expanded");
  expect_holds(tensor_error(-1, {1}, {1}), "offset is -1");
  expect_holds(tensor_error(0, {-1}, {1}), "extent -1");
  expect_holds(tensor_error(5, {2}, {-1}), "stride -1");
  expect_holds(tensor_error(0, {2, 3}, {1}), "2 dimensions with 1 strides");
  expect_holds(tensor_error(0, Extents(33, 1), Extents(33, 1)), "33 dimensions");
  const auto storage_error = [&](const std::string& type, const std::string& key, std::int64_t numel) {
    return pickle_error(
        torch::program(torch::dict({{"a", torch::tensor(torch::storage(type, key, numel), 0, {1}, {1})}})));
  };
  expect_holds(storage_error("FloatStorage", "0", 7), "24 bytes of numbers, expected 28 for 7 of F32");
  expect_holds(storage_error("FloatStorage", "0", 5), "24 bytes of numbers, expected 20");
  expect_holds(storage_error("FloatStorage", "1", 6), "no record 'data/1'");
  expect_holds(storage_error("FloatStorage", "../../etc/passwd", 6), "no record 'data/../../etc/passwd'");
  expect_holds(storage_error("DoubleStorage", "0", INT64_MAX), "a storage of 9223372036854775807 elements");
  expect_holds(storage_error("DoubleStorage", "0", -3), "a storage of -3 elements");
  expect_holds(storage_error("OrderedDict", "0", 6), "'torch.OrderedDict'");
}

TEST_F(TorchFiles, ArgumentsOfAnotherKind) {
  const Bytes storage = torch::storage("FloatStorage", "0", 6);
  const Bytes shape = torch::tuple(Extents{6});
  const Bytes strides = torch::tuple(Extents{1});
  const auto refused = [&](const std::vector<Bytes>& arguments) {
    return program_error(torch::dict(
        {{"a", torch::call(torch::global("torch._utils", "_rebuild_tensor_v2"), torch::tuple(arguments))}}));
  };
  expect_holds(refused({storage, "K\0"s, shape, strides, "\x89"}), "a tensor from 5 arguments");
  expect_holds(refused({shape, "K\0"s, shape, strides, "\x89", "}"}), "a tensor's data is a tuple, expected a storage");
  expect_holds(refused({storage, "N", shape, strides, "\x89", "}"}), "a tensor's offset is None");
  expect_holds(refused({storage, "K\0"s, "]", strides, "\x89", "}"}), "a tensor's shape is a list");
  expect_holds(refused({storage, "K\0"s, shape, "N", "\x89", "}"}), "a tensor's strides is None");
  expect_holds(refused({storage, "K\0"s, torch::tuple({storage}), strides, "\x89", "}"}),
               "an extent of a tensor is a storage");
  expect_holds(refused({storage, "K\0"s, shape, torch::tuple({"\x88"s}), "\x89", "}"}),
               "a stride of a tensor is a bool");
  expect_holds(refused({storage, "K\0"s, torch::tuple({"\x8a\x09"s + Bytes(9, '\x01')}), strides, "\x89", "}"}),
               "an extent of a tensor is a float");
  expect_holds(program_error(torch::parameter("N")), "a parameter's data is None");
  const auto persistent = [&](const std::vector<Bytes>& parts) { return program_error(torch::tuple(parts) + "Q"); };
  const Bytes type = torch::global("torch", "FloatStorage");
  expect_holds(persistent({torch::text("module"), type, torch::text("0"), torch::text("cpu"), torch::integer(6)}),
               "no storage");
  expect_holds(persistent({torch::text("storage"), type, torch::text("0"), torch::text("cpu")}), "no storage");
  expect_holds(
      persistent({torch::text("storage"), torch::text("x"), torch::text("0"), torch::text("cpu"), torch::integer(6)}),
      "a storage's type is a text");
  expect_holds(persistent({torch::text("storage"), torch::global("collections", "OrderedDict"), torch::text("0"),
                           torch::text("cpu"), torch::integer(6)}),
               "expected one as FloatStorage");
  expect_holds(persistent({torch::text("storage"), type, torch::integer(0), torch::text("cpu"), torch::integer(6)}),
               "a storage's key is an integer");
}

TEST_F(TorchFiles, NamesAndOtherValues) {
  const Bytes tensor = six();
  const auto refused = [&](const Bytes& items) { return program_error("}(" + items + "u"); };
  expect_holds(refused(torch::text("a") + tensor + torch::text("a") + tensor), "'a' stands twice");
  expect_holds(refused(torch::text("a") + tensor + torch::text("b") + "K\x01"s),
               "'b' is an integer, expected a tensor");
  expect_holds(refused(torch::text("a") + tensor + "K\x01"s + tensor), "with an integer for a name");
  expect_holds(refused(torch::text("") + tensor), "1 to 1024 bytes");
  expect_holds(refused(torch::text(Bytes(1025, 'a')) + tensor), "1 to 1024 bytes");
  expect_holds(refused(torch::text("a\x1b[31m") + tensor), "no control characters");
  expect_holds(refused(torch::text("a\xff") + tensor), "valid UTF-8");
}

TEST_F(TorchFiles, TheArchive) {
  const Bytes pickle = torch::program(torch::dict({{"a", six()}}));
  const std::vector<torch::Record> good = torch::records(pickle, {floats(6)});
  put(torch::zip(good));
  EXPECT_EQ(read("a").size(), 6U);
  const auto with = [&](const std::function<void(std::vector<torch::Record>&)>& change) {
    std::vector<torch::Record> records = good;
    change(records);
    return error(torch::zip(records));
  };
  expect_holds(with([](auto& r) { r[0].method = 8; }), "'archive/data.pkl': is compressed");
  expect_holds(with([](auto& r) { r[2].method = 8; }), "'archive/data/0': is compressed");
  expect_holds(with([](auto& r) { r[2].flags = 1; }), "'archive/data/0': is encrypted");
  expect_holds(with([](auto& r) { r[1].data = "big"; }), "in the order 'big'");
  expect_holds(with([](auto& r) { r[1].data = Bytes(17, 'x'); }), "has 17 bytes, expected at most 16");
  expect_holds(with([](auto& r) { r[0].name = "data.pkl"; }), "without a record FOLDER/data.pkl");
  expect_holds(with([](auto& r) { r.push_back({"other/data.pkl", ""}); }), "two records data.pkl");
  expect_holds(with([](auto& r) { r.push_back(r[2]); }), "'archive/data/0' stands twice");
  expect_holds(with([](auto& r) { r[2].name = "elsewhere/data/0"; }), "no record 'data/0'");
  // Refuses wrong numbers in the directory of the zip archive.
  const Bytes file = torch::zip(good);
  const std::size_t directory = file.find("PK\x01\x02"s);
  const auto patched = [&](std::size_t at, const Bytes& bytes) {
    Bytes changed = file;
    changed.replace(at, bytes.size(), bytes);
    return error(changed);
  };
  expect_holds(patched(directory + 42, torch::little(file.size(), 4)), "lies outside");
  expect_holds(patched(directory + 42, torch::little(1, 4)), "another name in front of its data");
  expect_holds(patched(directory + 20, torch::little(7, 4)), "damaged sizes");
  expect_holds(patched(directory + 20, torch::little(0xfffffff0, 4) + torch::little(0xfffffff0, 4)), "lies outside");
  expect_holds(patched(directory + 20, torch::little(0xffffffff, 4)), "damaged sizes");
  expect_holds(patched(directory + 28, torch::little(0xffff, 2)), "damaged zip directory");
  expect_holds(patched(directory, "PK\x01\x03"), "damaged zip directory");
  expect_holds(patched(30, "X"), "another name in front of its data");
  expect_holds(patched(file.size() - 12, torch::little(1, 2)), "after the last entry of the zip directory");
  expect_holds(patched(file.size() - 12, torch::little(6, 2)), "damaged zip directory");
  expect_holds(patched(file.size() - 10, torch::little(0xffff, 4)), "zip directory of 65535 bytes");
  expect_holds(patched(file.size() - 10, torch::little(20, 4)),
               "5 records, expected at most 0 in a zip directory of 20 bytes");
  expect_holds(patched(file.size() - 6, torch::little(3, 4)), "damaged zip directory");
  expect_holds(patched(file.size() - 2, torch::little(1, 2)), "ends without the directory of a zip archive");
  expect_holds(error(file + "x"), "ends without the directory of a zip archive");
  // Refuses a record whose bytes are a part of another record.
  std::vector<torch::Record> records = good;
  records[2].data = floats(6);
  Bytes inside = torch::zip({{"archive/data/0", floats(6)}});
  inside.resize(inside.find("PK\x01\x02"s));
  records.push_back({"archive/more", inside});
  Bytes overlapping = torch::zip(records);
  const std::size_t second = overlapping.find("PK\x03\x04"s, overlapping.find("archive/more"));
  const std::size_t entry = overlapping.find("archive/data/0", overlapping.find("PK\x01\x02"s)) - 46;
  overlapping.replace(entry + 42, 4, torch::little(second, 4));
  expect_holds(error(overlapping), "overlaps");
}

TEST_F(TorchFiles, CutAnywhere) {
  for (const bool zip64 : {false, true}) {
    const Bytes file = torch::zip(
        torch::records(torch::program(torch::dict(
                           {{"a", torch::tensor(torch::storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1})}})),
                       {floats(6)}),
        zip64);
    for (std::size_t length = 0; length < file.size(); length += zip64 ? 7 : 2) {
      static_cast<void>(error(file.substr(0, length)));
    }
  }
}

// Changes one bit of every byte. The file must be refused or give the same numbers, for example if the bit is in an
// unused field.
TEST_F(TorchFiles, FlippedAnywhere) {
  const Bytes file = torch::file_of({{"a", "Float", {2, 3}, floats(6)}, {"b", "Float", {2}, floats(2, 7)}});
  int refused = 0;
  int read_all = 0;
  for (std::size_t at = 0; at < file.size(); ++at) {
    Bytes changed = file;
    changed[at] = static_cast<char>(static_cast<unsigned char>(changed[at]) ^ (1U << (at % 8)));
    put(changed);
    try {
      const TensorFile opened = open_tensor_file(path_);
      std::vector<float> a(6);
      ASSERT_NE(opened.find("a"), nullptr) << at;
      opened.read(*opened.find("a"), std::as_writable_bytes(std::span(a)));
      ASSERT_EQ(torch::bytes_of(a), floats(6)) << at;
      ++read_all;
    } catch (const DataError& e) {
      EXPECT_NE(std::string(e.what()).find(path_), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(refused, 100) << "of " << file.size() << " bytes";
  EXPECT_GT(read_all, 100) << "dates, padding, records that nobody reads";
}

TEST_F(TorchFiles, MadeByTorch) {
  // The script golden/torch_files.py wrote these files with torch 1.13.
  const std::string golden = LOCKSTEP_GOLDEN;
  std::vector<float> expected(24);
  std::iota(expected.begin(), expected.end(), -3.0F);
  const auto values_of = [&](const TensorFile& file, const std::string& name) {
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr || entry->dtype != "F32") {
      return std::vector<float>();
    }
    std::vector<float> values(entry->bytes / sizeof(float));
    file.read(*entry, std::as_writable_bytes(std::span(values)));
    return values;
  };
  for (const char* name : {"plain.pth", "wrapped.pth"}) {
    const TensorFile file = open_tensor_file(golden + "/" + name);
    EXPECT_STREQ(file.format(), "torch");
    ASSERT_NE(file.find("conv.weight"), nullptr) << name;
    EXPECT_EQ(file.find("conv.weight")->shape, (Extents{2, 3, 2, 2}));
    EXPECT_EQ(values_of(file, "conv.weight"), expected) << name;
    EXPECT_EQ(values_of(file, "turned"), expected) << name;
    EXPECT_EQ(file.find("turned")->strides, (Extents{1, 4})) << name;
    EXPECT_FALSE(file.find("conv.weight")->strides.empty()) << name << ": channels last";
    EXPECT_EQ(values_of(file, "tied"), expected) << name;
    EXPECT_EQ(file.find("norm.num_batches_tracked")->dtype, "I64");
    EXPECT_EQ(file.find("in_half")->dtype, "F16");
    EXPECT_EQ(file.find("in_bfloat16")->dtype, "BF16");
  }
  expect_holds(error_of<DataError>([&] { TorchFile(golden + "/old.pth"); }), "before torch 1.6");
  expect_holds(error_of<DataError>([&] { TorchFile(golden + "/script.pt"); }), "TorchScript");
  expect_holds(error_of<DataError>([&] { TorchFile(golden + "/module.pth"); }), "nothing in the file is executed");
}

}  // namespace
}  // namespace lockstep::testing
