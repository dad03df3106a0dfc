#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep {

/// Reads the pickle of a file of torch.save (protocol 2), as far as dicts of plain tensors need it. A pickle is a
/// program for a small stack machine, and may call any Python function by name. This class accepts only thirteen names
/// and executes no Python code. Three of the names (OrderedDict, torch._utils._rebuild_tensor_v2 and
/// _rebuild_parameter) stand for functions that this class computes itself. The other ten names are classes of
/// storages, and only give an element type. Any other name, any other operation and any wrong argument is a DataError.
/// Values refer to each other by index, so cyclic or deeply nested values cause no endless recursion.
/// The limits are 4,000,000 values and 100,000 tensors.
class TorchPickle {
 public:
  using Id = std::uint32_t;

  enum class Kind : unsigned char {
    none,
    boolean,
    integer,
    real,  ///< floating-point number, or an integer of more than 64 bits
    text,
    tuple,
    list,
    dict,
    global,  ///< a function or class; Value::number is its index among the known names
    storage,
    tensor
  };
  struct Value {
    Kind kind = Kind::none;
    std::int64_t number = 0;  ///< an integer's or boolean's value; a storage's or tensor's index
    std::string_view text{};  ///< characters of a text, inside the pickle's bytes
    std::vector<Id> items{};  ///< items of a tuple or list; key, value, key, value, ... of a dict
  };
  /// Description of the archive's record data/KEY, which holds a storage's elements.
  struct Storage {
    std::string_view key;
    std::string_view dtype;  ///< name of the element type in safetensors files
    std::uint64_t numel = 0;
    std::uint64_t element = 1;  ///< size of an element in bytes
  };
  /// A view of a storage. All elements of the tensor are inside the storage.
  struct Tensor {
    std::size_t storage = 0;
    std::uint64_t offset = 0;  ///< offset of the tensor's first element in the storage, in elements
    std::uint64_t numel = 0;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
  };

  /// Reads the pickle in `bytes`. `source` is the file's name for error texts.
  TorchPickle(std::string bytes, std::string source);
  TorchPickle(const TorchPickle&) = delete;
  TorchPickle& operator=(const TorchPickle&) = delete;

  [[nodiscard]] const Value& result() const { return values_[result_]; }
  [[nodiscard]] const Value& operator[](Id id) const { return values_[id]; }
  [[nodiscard]] const Storage& storage(std::size_t index) const { return storages_[index]; }
  [[nodiscard]] const Tensor& tensor(std::size_t index) const { return tensors_[index]; }
  /// Returns `kind` in words for error texts: "a tuple", "a tensor", ...
  [[nodiscard]] static const char* name_of(Kind kind);

 private:
  [[noreturn]] void fail(const std::string& what) const;
  template <class... Parts>
  void need(bool holds, const Parts&... parts) const;

  // These functions read and run the pickle's program.
  std::string_view take(std::size_t count);
  std::uint64_t number(std::size_t count);
  std::string_view line();
  void run();
  bool step(unsigned operation);   ///< runs one operation; returns false if the program has ended
  void value(unsigned operation);  ///< runs an operation that pushes a new value

  // These functions work on the machine's stack.
  Id add(Value value);
  void push(Value value);
  Id pop();
  Value& top(Kind kind, const char* what);
  std::vector<Id> pop_to_mark();
  const Value& get(Id id, Kind kind, const char* what) const;

  // These functions are the machine's operations.
  void integer(std::string_view bytes);
  void global();
  void tuple(std::size_t count);
  void remember(std::uint64_t place);
  void recall(std::uint64_t place);
  void append(const std::vector<Id>& items);
  void put_items(const std::vector<Id>& items);
  void persistent();
  void reduce();
  Value rebuild_tensor(const std::vector<Id>& arguments);

  std::string bytes_;
  std::string source_;
  std::size_t at_ = 0;
  std::vector<Value> values_;
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Id> memo_;
  std::vector<Storage> storages_;
  std::vector<Tensor> tensors_;
  Id result_ = 0;
};

}  // namespace lockstep
