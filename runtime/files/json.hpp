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

/// A JSON value, used for config.json, state.json, lines of metrics.jsonl and the header of safetensors files. Integers
/// are stored separately from other numbers, so that 64-bit seeds stay exact.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json>;  ///< has sorted keys, so equal values have equal text

  // Values convert implicitly, so an object can be written as Json::Object{{"epoch", 3}, {"loss", 0.5}}.
  // NOLINTBEGIN(google-explicit-constructor)
  Json() = default;  ///< makes a JSON null
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value) {  // stores the number as int64_t if it fits, so that equal numbers have one form
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
  /// Kind of this value in words, for error texts: "a string", "an object", ...
  [[nodiscard]] const char* kind() const;

  /// Returns this value as T: bool, int, std::int64_t, std::uint64_t, double (any number), std::string, Array or
  /// Object. Throws DataError("SOURCE is a string, expected an integer") if the value has another kind or does not fit.
  template <class T>
  [[nodiscard]] T as(const std::string& source) const;
  /// Returns the member `key` of this object as T. Throws DataError, with source and key, if the member is missing or
  /// of another kind.
  template <class T>
  [[nodiscard]] T get(const std::string& key, const std::string& source) const {
    return member(key, source).as<T>(source + ": '" + key + "'");
  }
  [[nodiscard]] const Json& member(const std::string& key, const std::string& source) const;
  [[nodiscard]] bool has(const std::string& key) const;  ///< true if this is an object with a member `key`

  /// The three functions below return a pointer into this value, or nullptr if the value is of another kind.
  [[nodiscard]] const std::string* if_text() const { return std::get_if<std::string>(&value_); }
  [[nodiscard]] const Array* if_array() const { return std::get_if<Array>(&value_); }
  [[nodiscard]] const Object* if_object() const { return std::get_if<Object>(&value_); }

  /// Formats this value as JSON. Keys are sorted. Doubles have enough digits to read back as the same value. NaN and
  /// infinities become null, because JSON cannot write them. Bytes that are not UTF-8 become U+FFFD. indent < 0 gives
  /// one line; otherwise `indent` is the number of spaces for each level.
  [[nodiscard]] std::string text(int indent = -1) const;

  friend bool operator==(const Json&, const Json&) = default;

 private:
  friend struct JsonAccess;
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int depth = 32;                   ///< greatest number of levels of nested arrays and objects
  std::size_t values = 10'000'000;  ///< greatest number of values in the whole text
};

/// Parses strictly: one value, valid UTF-8, only white space around the value, no duplicate keys in an object. Throws
/// DataError with the source and the position of the error. An integer outside 64 bits becomes a double; a number
/// outside double's range is an error.
[[nodiscard]] Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});

/// Reads a file of at most 64 MiB and parses it with parse_json(). Error texts name the path.
[[nodiscard]] Json read_json(const std::string& path);

}  // namespace lockstep
