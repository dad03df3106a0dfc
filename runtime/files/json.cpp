#include <lockstep/runtime/files/json.hpp>

#include <limits>
#include <type_traits>

#include <nlohmann/json.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep {

struct JsonAccess {
  static auto& value(Json& json) { return json.value_; }
  static const auto& value(const Json& json) { return json.value_; }
};

// nlohmann/json calls this function for a Json, and for the elements of an Array or Object.
static void to_json(nlohmann::json& out, const Json& json) {
  std::visit(
      [&](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) {
          out = nullptr;
        } else {
          out = value;
        }
      },
      JsonAccess::value(json));
}

namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{64} << 20;

// Builds a Json from the parser's events, because nlohmann::json would silently keep the last of two equal keys.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const std::string& source, const JsonLimits& limits) : source_(source), limits_(limits) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(std::int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(std::uint64_t{value})); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*count*/) override { return open(Json(Json::Object())); }
  bool start_array(std::size_t /*count*/) override { return open(Json(Json::Array())); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto& object = std::get<Json::Object>(JsonAccess::value(*open_.back()));
    const auto [place, added] = object.try_emplace(std::move(name));
    require<DataError>(added, source_, ": key ", printable(place->first), " stands twice, expected every key once");
    member_ = &place->second;
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    // The parser's text is "[json.exception.parse_error.101] parse error at line 1, column 5: ...".
    std::string_view text = error.what();
    if (const std::size_t end = text.find("] "); end != std::string_view::npos) {
      text.remove_prefix(end + 2);
    }
    throw DataError(concat(source_, ": is not valid JSON: ", printable(text)));
  }

  Json take() { return std::move(root_); }

 private:
  // Stores a value at the parser's position: as the root, at the end of the open array, or as the last key's member.
  Json* put(Json value) {
    require<DataError>(++values_ <= limits_.values, source_, ": holds too many JSON values, expected at most ",
                       limits_.values);
    Json* place = &root_;
    if (!open_.empty()) {
      if (auto* array = std::get_if<Json::Array>(&JsonAccess::value(*open_.back()))) {
        place = &array->emplace_back();
      } else {
        place = member_;
      }
    }
    *place = std::move(value);
    return place;
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool open(Json container) {
    require<DataError>(open_.size() < static_cast<std::size_t>(limits_.depth), source_,
                       ": JSON is nested too deep, expected at most ", limits_.depth, " levels");
    open_.push_back(put(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& source_;
  const JsonLimits& limits_;
  Json root_;
  // Arrays and objects that have not ended. The pointers stay valid, because only the innermost one gets new members.
  std::vector<Json*> open_;
  Json* member_ = nullptr;
  std::size_t values_ = 0;
};

template <class T>
[[noreturn]] void refuse(const Json& json, const std::string& source, const T& expected) {
  throw DataError(concat(source, " is ", json.kind(), ", expected ", expected));
}

}  // namespace

const char* Json::kind() const {
  static constexpr const char* kNames[] = {"null",     "a boolean", "an integer", "an integer",
                                           "a number", "a string",  "an array",   "an object"};
  return kNames[value_.index()];
}

template <>
bool Json::as<bool>(const std::string& source) const {
  if (const bool* value = std::get_if<bool>(&value_)) {
    return *value;
  }
  refuse(*this, source, "true or false");
}

template <>
std::int64_t Json::as<std::int64_t>(const std::string& source) const {
  if (const std::int64_t* value = std::get_if<std::int64_t>(&value_)) {
    return *value;
  }
  if (std::holds_alternative<std::uint64_t>(value_)) {
    throw DataError(concat(source, " is ", std::get<std::uint64_t>(value_), ", expected at most ",
                           std::numeric_limits<std::int64_t>::max()));
  }
  refuse(*this, source, "an integer");
}

template <>
int Json::as<int>(const std::string& source) const {
  const auto value = as<std::int64_t>(source);
  require<DataError>(value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max(), source,
                     " is ", value, ", expected ", std::numeric_limits<int>::min(), " to ",
                     std::numeric_limits<int>::max());
  return static_cast<int>(value);
}

template <>
std::uint64_t Json::as<std::uint64_t>(const std::string& source) const {
  if (const std::uint64_t* value = std::get_if<std::uint64_t>(&value_)) {
    return *value;
  }
  if (const std::int64_t* value = std::get_if<std::int64_t>(&value_)) {
    require<DataError>(*value >= 0, source, " is ", *value, ", expected an integer of at least 0");
    return static_cast<std::uint64_t>(*value);
  }
  refuse(*this, source, "an integer of at least 0");
}

template <>
double Json::as<double>(const std::string& source) const {
  if (const double* value = std::get_if<double>(&value_)) {
    return *value;
  }
  if (const std::int64_t* value = std::get_if<std::int64_t>(&value_)) {
    return static_cast<double>(*value);
  }
  if (const std::uint64_t* value = std::get_if<std::uint64_t>(&value_)) {
    return static_cast<double>(*value);
  }
  refuse(*this, source, "a number");
}

template <>
std::string Json::as<std::string>(const std::string& source) const {
  if (const std::string* value = if_text()) {
    return *value;
  }
  refuse(*this, source, "a string");
}

template <>
Json::Array Json::as<Json::Array>(const std::string& source) const {
  if (const Array* value = if_array()) {
    return *value;
  }
  refuse(*this, source, "an array");
}

template <>
Json::Object Json::as<Json::Object>(const std::string& source) const {
  if (const Object* value = if_object()) {
    return *value;
  }
  refuse(*this, source, "an object");
}

const Json& Json::member(const std::string& key, const std::string& source) const {
  const Object* object = if_object();
  if (object == nullptr) {
    refuse(*this, source, "an object");
  }
  const auto found = object->find(key);
  require<DataError>(found != object->end(), source, ": '", key, "' is missing, expected this key");
  return found->second;
}

bool Json::has(const std::string& key) const {
  const Object* object = if_object();
  return object != nullptr && object->count(key) != 0;
}

std::string Json::text(int indent) const {
  return nlohmann::json(*this).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  // These checks are needed, because nlohmann/json would skip a byte order mark and would treat a zero byte as the end.
  require<DataError>(text.find('\0') == std::string_view::npos, source, ": holds a zero byte, expected JSON");
  require<DataError>(text.substr(0, 3) != "\xEF\xBB\xBF", source, ": begins with a byte order mark, expected JSON");
  Builder builder(source, limits);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

Json read_json(const std::string& path) {
  return parse_json(read_file(path, kMaxFileBytes), path);
}

}  // namespace lockstep
