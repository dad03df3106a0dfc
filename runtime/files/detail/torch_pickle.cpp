#include <lockstep/runtime/files/detail/torch_pickle.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep {

namespace {

constexpr std::size_t kMostValues = 4'000'000;

/// A name that a pickle may use: a function, or a class of storages together with the type of their elements.
struct Known {
  std::string_view module;
  std::string_view name;
  std::string_view dtype{};
  unsigned element = 0;  ///< size of an element in bytes
};
constexpr std::array kKnown{Known{"collections", "OrderedDict"},          Known{"torch._utils", "_rebuild_tensor_v2"},
                            Known{"torch._utils", "_rebuild_parameter"},  Known{"torch", "FloatStorage", "F32", 4},
                            Known{"torch", "DoubleStorage", "F64", 8},    Known{"torch", "HalfStorage", "F16", 2},
                            Known{"torch", "BFloat16Storage", "BF16", 2}, Known{"torch", "LongStorage", "I64", 8},
                            Known{"torch", "IntStorage", "I32", 4},       Known{"torch", "ShortStorage", "I16", 2},
                            Known{"torch", "CharStorage", "I8", 1},       Known{"torch", "ByteStorage", "U8", 1},
                            Known{"torch", "BoolStorage", "BOOL", 1}};
enum Function : std::int64_t { kOrderedDict, kRebuildTensor, kRebuildParameter, kStorages };

/// Operations of a pickle, as Python's pickletools describes them.
enum Operation : unsigned char {
  kMark = '(',
  kStop = '.',
  kAppend = 'a',
  kAppends = 'e',
  kBuild = 'b',
  kGlobal = 'c',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kFloat = 'G',
  kInt4 = 'J',
  kInt1 = 'K',
  kInt2 = 'M',
  kNone = 'N',
  kPersistent = 'Q',
  kReduce = 'R',
  kSetItem = 's',
  kSetItems = 'u',
  kTuple = 't',
  kText = 'X',
  kGet = 'h',
  kLongGet = 'j',
  kPut = 'q',
  kLongPut = 'r',
  kProtocol = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTrue = 0x88,
  kFalse = 0x89,
  kLong1 = 0x8a
};

}  // namespace

const char* TorchPickle::name_of(Kind kind) {
  static constexpr const char* kNames[] = {"None",   "a bool", "an integer",          "a float",   "a text",  "a tuple",
                                           "a list", "a dict", "a function or class", "a storage", "a tensor"};
  return kNames[static_cast<std::size_t>(kind)];
}

TorchPickle::TorchPickle(std::string bytes, std::string source) : bytes_(std::move(bytes)), source_(std::move(source)) {
  run();
}

void TorchPickle::fail(const std::string& what) const {
  throw DataError(concat(source_, ", byte ", at_, ": ", what));
}

template <class... Parts>
void TorchPickle::need(bool holds, const Parts&... parts) const {
  if (!holds) {
    fail(concat(parts...));
  }
}

// ---- reading the program

std::string_view TorchPickle::take(std::size_t count) {
  need(count <= bytes_.size() - at_, "ends in the middle of an operation");
  const std::string_view taken = std::string_view(bytes_).substr(at_, count);
  at_ += count;
  return taken;
}

std::uint64_t TorchPickle::number(std::size_t count) {
  const std::string_view bytes = take(count);
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::string_view TorchPickle::line() {
  const std::size_t end = bytes_.find('\n', at_);
  need(end != std::string::npos, "ends in the middle of a name");
  const std::string_view text = take(end - at_);
  ++at_;
  return text;
}

void TorchPickle::run() {
  need(number(1) == kProtocol && number(1) == 2,
       "no pickle of protocol 2, which torch.save writes when it is not told another");
  while (step(static_cast<unsigned>(number(1)))) {
  }
  need(stack_.size() == 1 && marks_.empty(), "ends with ", stack_.size(), " values, expected one");
  need(at_ == bytes_.size(), bytes_.size() - at_, " bytes after its end");
  result_ = stack_[0];
}

bool TorchPickle::step(unsigned operation) {
  switch (operation) {
    case kStop:
      return false;
    case kMark:
      marks_.push_back(stack_.size());
      break;
    case kAppend:
      append({pop()});
      break;
    case kAppends:
      append(pop_to_mark());
      break;
    case kSetItem: {
      const Id value = pop();
      const Id key = pop();
      put_items({key, value});
      break;
    }
    case kSetItems:
      put_items(pop_to_mark());
      break;
    case kGet:
    case kLongGet:
      recall(number(operation == kGet ? 1 : 4));
      break;
    case kPut:
    case kLongPut:
      remember(number(operation == kPut ? 1 : 4));
      break;
    case kPersistent:
      persistent();
      break;
    case kReduce:
      reduce();
      break;
    case kBuild:  // sets attributes of an OrderedDict: state_dict() stores versions there
      static_cast<void>(get(pop(), Kind::dict, "the value of attributes"));
      static_cast<void>(top(Kind::dict, "what gets attributes"));
      break;
    default:
      value(operation);
  }
  return true;
}

void TorchPickle::value(unsigned operation) {
  switch (operation) {
    case kNone:
      return push({});
    case kTrue:
    case kFalse:
      return push({.kind = Kind::boolean, .number = operation == kTrue ? 1 : 0});
    case kInt1:
    case kInt2:
      return push({.kind = Kind::integer, .number = static_cast<std::int64_t>(number(operation == kInt1 ? 1 : 2))});
    case kInt4:
      return integer(take(4));
    case kLong1:
      return integer(take(static_cast<std::size_t>(number(1))));
    case kFloat:
      take(8);
      return push({.kind = Kind::real});
    case kText:
      return push({.kind = Kind::text, .text = take(static_cast<std::size_t>(number(4)))});
    case kEmptyDict:
      return push({.kind = Kind::dict});
    case kEmptyList:
      return push({.kind = Kind::list});
    case kEmptyTuple:
      return push({.kind = Kind::tuple});
    case kTuple1:
    case kTuple2:
    case kTuple3:
      return tuple(operation - kTuple1 + 1);
    case kTuple:
      return push({.kind = Kind::tuple, .items = pop_to_mark()});
    case kGlobal:
      return global();
    default:
      fail(concat("operation ", operation,
                  ", which dicts of plain tensors do not need; nothing in the file is executed"));
  }
}

// ---- the stack

TorchPickle::Id TorchPickle::add(Value value) {
  need(values_.size() < kMostValues, "more than ", kMostValues, " values");
  values_.push_back(std::move(value));
  return static_cast<Id>(values_.size() - 1);
}

void TorchPickle::push(Value value) {
  stack_.push_back(add(std::move(value)));
}

TorchPickle::Id TorchPickle::pop() {
  need(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "takes a value where there is none");
  const Id id = stack_.back();
  stack_.pop_back();
  return id;
}

TorchPickle::Value& TorchPickle::top(Kind kind, const char* what) {
  need(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "takes a value where there is none");
  static_cast<void>(get(stack_.back(), kind, what));
  return values_[stack_.back()];
}

std::vector<TorchPickle::Id> TorchPickle::pop_to_mark() {
  need(!marks_.empty(), "takes values after a mark where there is none");
  const auto mark = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Id> items(mark, stack_.end());
  stack_.erase(mark, stack_.end());
  marks_.pop_back();
  return items;
}

const TorchPickle::Value& TorchPickle::get(Id id, Kind kind, const char* what) const {
  const Value& value = values_[id];
  need(value.kind == kind, what, " is ", name_of(value.kind), ", expected ", name_of(kind));
  return value;
}

// ---- operations

void TorchPickle::integer(std::string_view bytes) {
  if (bytes.size() > sizeof(std::int64_t)) {
    push({.kind = Kind::real});
    return;
  }
  std::uint64_t value = 0;
  for (std::size_t i = sizeof value; i-- > 0;) {  // the loop sign-extends the given bytes
    const bool inside = i < bytes.size();
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
    const unsigned byte = inside ? static_cast<unsigned char>(bytes[i]) : (negative ? 0xffU : 0U);
    value = value << 8 | byte;
  }
  push({.kind = Kind::integer, .number = static_cast<std::int64_t>(value)});
}

void TorchPickle::global() {
  const std::string_view module = line();
  const std::string_view name = line();
  const auto* known = std::find_if(kKnown.begin(), kKnown.end(),
                                   [&](const Known& each) { return each.module == module && each.name == name; });
  need(known != kKnown.end(), "asks for ", printable(concat(module, '.', name)),
       ", which is no part of plain tensors: refused, nothing in the file is executed. In Python, where you trust the "
       "file: safetensors.torch.save_file(STATE_DICT, \"model.safetensors\")");
  push({.kind = Kind::global, .number = known - kKnown.begin()});
}

void TorchPickle::tuple(std::size_t count) {
  std::vector<Id> items(count);
  for (std::size_t i = count; i-- > 0;) {
    items[i] = pop();
  }
  push({.kind = Kind::tuple, .items = std::move(items)});
}

void TorchPickle::remember(std::uint64_t place) {
  need(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "keeps a value where there is none");
  memo_[place] = stack_.back();
}

void TorchPickle::recall(std::uint64_t place) {
  const auto found = memo_.find(place);
  need(found != memo_.end(), "takes the kept value ", place, ", which there is not");
  stack_.push_back(found->second);
}

void TorchPickle::append(const std::vector<Id>& items) {
  std::vector<Id>& list = top(Kind::list, "what is appended to").items;
  list.insert(list.end(), items.begin(), items.end());
}

void TorchPickle::put_items(const std::vector<Id>& items) {
  need(items.size() % 2 == 0, "a key of a dict without a value");
  std::vector<Id>& dict = top(Kind::dict, "what gets keys and values").items;
  dict.insert(dict.end(), items.begin(), items.end());
}

void TorchPickle::persistent() {
  const std::vector<Id>& parts = get(pop(), Kind::tuple, "a persistent id").items;
  need(parts.size() == 5 && get(parts[0], Kind::text, "a persistent id's kind").text == "storage",
       "a persistent id that is no storage");
  const std::int64_t type = get(parts[1], Kind::global, "a storage's type").number;
  need(type >= kStorages, "a storage's type is ", printable(kKnown[static_cast<std::size_t>(type)].name),
       ", expected one as FloatStorage");
  const Known& known = kKnown[static_cast<std::size_t>(type)];
  const std::int64_t numel = get(parts[4], Kind::integer, "a storage's size").number;
  need(numel >= 0 && numel <= INT64_MAX / known.element, "a storage of ", numel, " elements");
  storages_.push_back({.key = get(parts[2], Kind::text, "a storage's key").text,
                       .dtype = known.dtype,
                       .numel = static_cast<std::uint64_t>(numel),
                       .element = known.element});
  push({.kind = Kind::storage, .number = static_cast<std::int64_t>(storages_.size() - 1)});
}

void TorchPickle::reduce() {
  const std::vector<Id> arguments = get(pop(), Kind::tuple, "the arguments of a call").items;
  const std::int64_t function = get(pop(), Kind::global, "what is called").number;
  switch (function) {
    case kOrderedDict:
      need(arguments.empty(), "an OrderedDict from ", arguments.size(), " arguments, expected none");
      push({.kind = Kind::dict});
      break;
    case kRebuildTensor:
      push(rebuild_tensor(arguments));
      break;
    case kRebuildParameter:
      need(arguments.size() == 3, "a parameter from ", arguments.size(), " arguments, expected 3");
      static_cast<void>(get(arguments[0], Kind::tensor, "a parameter's data"));
      stack_.push_back(arguments[0]);
      break;
    default:
      fail(concat("calls ", printable(kKnown[static_cast<std::size_t>(function)].name),
                  ": refused, nothing in the file is executed"));
  }
}

TorchPickle::Value TorchPickle::rebuild_tensor(const std::vector<Id>& arguments) {
  need(arguments.size() == 6 || arguments.size() == 7, "a tensor from ", arguments.size(),
       " arguments, expected 6 or 7");
  need(tensors_.size() < kMostTensors, "more than ", kMostTensors, " tensors");
  Tensor tensor{.storage = static_cast<std::size_t>(get(arguments[0], Kind::storage, "a tensor's data").number)};
  const std::uint64_t room = storages_[tensor.storage].numel;
  const std::int64_t offset = get(arguments[1], Kind::integer, "a tensor's offset").number;
  const std::vector<Id>& shape = get(arguments[2], Kind::tuple, "a tensor's shape").items;
  const std::vector<Id>& strides = get(arguments[3], Kind::tuple, "a tensor's strides").items;
  need(shape.size() == strides.size() && shape.size() <= kMostTensorDims, "a tensor of ", shape.size(),
       " dimensions with ", strides.size(), " strides, expected as many and at most ", kMostTensorDims);
  need(offset >= 0, "a tensor's offset is ", offset);
  tensor.offset = static_cast<std::uint64_t>(offset);
  tensor.numel = 1;
  bool fits = true;
  std::uint64_t last = tensor.offset;  // index of the tensor's last element in the storage
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const std::int64_t extent = get(shape[axis], Kind::integer, "an extent of a tensor").number;
    const std::int64_t stride = get(strides[axis], Kind::integer, "a stride of a tensor").number;
    need(extent >= 0 && stride >= 0, "a tensor with extent ", extent, " and stride ", stride, ", expected at least 0");
    tensor.shape.push_back(extent);
    tensor.strides.push_back(stride);
    std::uint64_t length = 0;
    fits = fits && !__builtin_mul_overflow(tensor.numel, static_cast<std::uint64_t>(extent), &tensor.numel);
    fits = fits && (extent == 0 || (!__builtin_mul_overflow(static_cast<std::uint64_t>(extent - 1),
                                                            static_cast<std::uint64_t>(stride), &length) &&
                                    !__builtin_add_overflow(last, length, &last)));
  }
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  need(empty || (fits && last < room), "a tensor reaches beyond its storage of ", room, " elements");
  tensor.numel = empty ? 0 : tensor.numel;
  need(tensor.numel <= room, "a tensor of ", tensor.numel, " elements in a storage of ", room,
       ", expanded along an axis; save it after .contiguous()");
  tensors_.push_back(std::move(tensor));
  return {.kind = Kind::tensor, .number = static_cast<std::int64_t>(tensors_.size() - 1)};
}

}  // namespace lockstep
