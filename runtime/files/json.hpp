#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

/// A JSON value: for config.json, state.json, lines of metrics.jsonl and the header of safetensors files. Integers are
/// stored separately from other numbers, so that 64-bit seeds survive.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json>;  ///< sorted keys: equal values have equal text

  // Values convert, so that an object is written as Json::Object{{"epoch", 3}, {"loss", 0.5}}.
  // NOLINTBEGIN(google-explicit-constructor)
  Json() = default;  ///< null
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value) {  // one form for equal values: int64_t if it fits
    if (value <= static_cast<std::uint64_t>(INT64_MAX)) {
      value_ = static_cast<std::int64_t>(value);
    } else {
      value_ = value;
    }
  }
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  [[nodiscard]] const char* kind() const;  ///< "a string", "an object", ...: for error texts

  /// Returns this value as T: bool, int, std::int64_t, std::uint64_t, double (any number), std::string, Array or
  /// Object. DataError("SOURCE is a string, expected an integer") when it has another kind or does not fit.
  template <class T>
  [[nodiscard]] T as(const std::string& source) const;
  /// Returns member `key` of this object as T. DataError, with source and key, when it is missing or of another kind.
  template <class T>
  [[nodiscard]] T get(const std::string& key, const std::string& source) const {
    return member(key, source).as<T>(source + ": '" + key + "'");
  }
  [[nodiscard]] const Json& member(const std::string& key, const std::string& source) const;
  [[nodiscard]] bool has(const std::string& key) const;  ///< false unless this is an object

  /// Pointers into this value; nullptr when it is of another kind.
  [[nodiscard]] const std::string* if_text() const { return std::get_if<std::string>(&value_); }
  [[nodiscard]] const Array* if_array() const { return std::get_if<Array>(&value_); }
  [[nodiscard]] const Object* if_object() const { return std::get_if<Object>(&value_); }

  /// Formats this value as JSON. Keys are sorted, and doubles have few digits that read back as the same value. NaN and
  /// infinities become null (JSON cannot write them), bytes that are not UTF-8 become U+FFFD. indent < 0: one line;
  /// otherwise that many spaces per level.
  [[nodiscard]] std::string text(int indent = -1) const;

  friend bool operator==(const Json&, const Json&) = default;

 private:
  friend struct JsonAccess;
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int depth = 32;                   ///< nested arrays and objects
  std::size_t values = 10'000'000;  ///< values in all
};

/// Parses strictly: one value, valid UTF-8, only white space around it, no key twice in an object. DataError with
/// source and place. Integers outside 64 bits are read as doubles; numbers outside the range of double are an error.
[[nodiscard]] Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});

/// Reads a whole file of at most 64 MiB. The source in error texts is the path.
[[nodiscard]] Json read_json(const std::string& path);

}  // namespace lockstep
