#include <lockstep/runtime/base/schema.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <system_error>
#include <type_traits>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep {

namespace {

template <class T>
bool read_value(const std::string& text, T& value) {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+';
  const char* const begin = text.data() + (plus ? 1 : 0);
  const char* const end = text.data() + text.size();
  T read{};
  const auto [stop, error] = std::from_chars(begin, end, read);
  if (error != std::errc() || stop != end) {
    return false;
  }
  value = read;
  return true;
}
bool read_value(const std::string& text, bool& value) {
  const bool yes = text == "true";
  const bool known = yes || text == "false";
  value = known ? yes : value;
  return known;
}
bool read_value(const std::string& text, std::string& value) {
  value = text;
  return true;
}
template <class T>
bool read_value(const std::string& text, std::optional<T>& value) {
  T read{};
  if (!read_value(text, read)) {
    return false;
  }
  value = read;
  return true;
}
template <class T>
bool read_value(const std::string& text, std::vector<T>& value) {
  std::vector<T> read;
  const std::size_t open = text.starts_with('[') && text.ends_with(']') ? 1 : 0;
  std::istringstream parts(text.substr(open, text.size() - 2 * open));
  for (std::string part; std::getline(parts, part, ',');) {
    part.erase(0, part.find_first_not_of(' '));
    if (T one{}; read_value(part, one)) {
      read.push_back(one);
    } else {
      return false;
    }
  }
  value = std::move(read);
  return true;
}

template <class T>
std::string text_of(const T& value) {
  constexpr std::size_t kLongest = 32;
  char text[kLongest];
  if constexpr (std::is_floating_point_v<T>) {
    return {text, std::to_chars(text, text + kLongest, value, std::chars_format::general).ptr};
  } else {
    return {text, std::to_chars(text, text + kLongest, value).ptr};
  }
}
std::string text_of(const bool& value) {
  return value ? "true" : "false";
}
std::string text_of(const std::string& value) {
  return value;
}
template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : std::string();
}
template <class T>
std::string text_of(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) {
    text += (text.empty() ? "" : ",") + text_of(value);
  }
  return text;
}

/// Words for the type of a value: `type` for --help, `expected` for error texts.
struct Words {
  const char* type;
  const char* expected;
};
template <class T>
constexpr Words words_of(const T* /*unused*/) {
  if constexpr (std::is_same_v<T, bool>) {
    return {"", "true or false"};
  } else if constexpr (std::is_floating_point_v<T>) {
    return {"FLOAT", "a decimal number"};
  } else if constexpr (std::is_unsigned_v<T>) {
    return {"UINT", "a whole decimal number of at least 0"};
  } else if constexpr (std::is_integral_v<T>) {
    return {"INT", "a whole decimal number"};
  } else {
    return {"TEXT", "text"};
  }
}
template <class T>
constexpr Words words_of(const std::optional<T>* /*unused*/) {
  return words_of(static_cast<const T*>(nullptr));
}
template <class T>
constexpr Words words_of(const std::vector<T>* /*unused*/) {
  const Words words = words_of(static_cast<const T*>(nullptr));
  return {words.type, std::is_arithmetic_v<T> ? "numbers with commas between them" : words.expected};
}

template <class T>
std::optional<double> number_of(const T& value) {
  return static_cast<double>(value);
}
template <class T>
std::optional<double> number_of(const std::optional<T>& value) {
  return value ? number_of(*value) : std::nullopt;
}

template <class T>
inline constexpr bool kNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
template <class T>
inline constexpr bool kNumber<std::optional<T>> = kNumber<T>;
template <class T>
inline constexpr bool kList = false;
template <class T>
inline constexpr bool kList<std::vector<T>> = true;

}  // namespace

template <class T>
Option& Schema::add(const std::string& name, T& value, const std::string& help) {
  const Words words = words_of(static_cast<const T*>(nullptr));
  Option& option = own(
      name, words.type, help, [&value] { return text_of(value); },
      [&value](const std::string& text) { return read_value(text, value); });
  option.expected_ = words.expected;
  option.list = kList<T>;
  if constexpr (kNumber<T>) {
    option.number_ = [&value] { return number_of(value); };
  }
  return option;
}
template Option& Schema::add(const std::string&, bool&, const std::string&);
template Option& Schema::add(const std::string&, int&, const std::string&);
template Option& Schema::add(const std::string&, std::int64_t&, const std::string&);
template Option& Schema::add(const std::string&, std::uint64_t&, const std::string&);
template Option& Schema::add(const std::string&, double&, const std::string&);
template Option& Schema::add(const std::string&, std::string&, const std::string&);
template Option& Schema::add(const std::string&, std::optional<bool>&, const std::string&);
template Option& Schema::add(const std::string&, std::optional<std::int64_t>&, const std::string&);
template Option& Schema::add(const std::string&, std::optional<double>&, const std::string&);
template Option& Schema::add(const std::string&, std::vector<std::int64_t>&, const std::string&);
template Option& Schema::add(const std::string&, std::vector<float>&, const std::string&);
template Option& Schema::add(const std::string&, std::vector<double>&, const std::string&);
template Option& Schema::add(const std::string&, std::vector<std::string>&, const std::string&);

Schema& Schema::group(std::string name) {
  group_ = std::move(name);
  return *this;
}

Option& Schema::own(std::string name, std::string type, std::string help, std::function<std::string()> text,
                    std::function<bool(const std::string&)> read) {
  require<StateError>(find(name) == nullptr, "schema: '", name,
                      "' is described a second time, expected each name once");
  Option& option = options_.emplace_back();
  option.name = std::move(name);
  option.type = std::move(type);
  option.help = std::move(help);
  option.group = group_;
  option.text_ = std::move(text);
  option.read_ = std::move(read);
  option.expected_ = option.type;
  option.first = option.text();
  return option;
}

Option* Schema::find(std::string_view name) {
  const auto found = std::ranges::find(options_, name, &Option::name);
  return found == options_.end() ? nullptr : &*found;
}

void Schema::check() const {
  for (const Option& option : options_) {
    option.check();
  }
}

std::map<std::string, std::string> Schema::given(bool kept_only) const {
  std::map<std::string, std::string> texts;
  for (const Option& option : options_) {
    if (option.given && (option.kept || !kept_only)) {
      texts[option.name] = option.text();
    }
  }
  return texts;
}

Option& Option::is_common() {
  common = true;
  return *this;
}
Option& Option::of_this_start() {
  kept = false;
  return *this;
}
Option& Option::decides_numbers() {
  numbers = shared = true;
  return *this;
}
Option& Option::equal_on_ranks() {
  shared = true;
  return *this;
}
Option& Option::looks_like(std::string value_type) {
  type = std::move(value_type);
  return *this;
}
Option& Option::by_default(std::string text) {
  first = std::move(text);
  return *this;
}
Option& Option::instead_of(std::string other) {
  not_with.push_back(std::move(other));
  return *this;
}
Option& Option::taken_back_by(std::string name_of_negation) {
  negation = std::move(name_of_negation);
  return *this;
}

Option& Option::rule(std::function<bool(double)> holds, std::string expected) {
  rules_.push_back({[number = number_, holds = std::move(holds)] {
                      const std::optional<double> value = number();
                      return !value || (std::isfinite(*value) && holds(*value));
                    },
                    std::move(expected)});
  return *this;
}
Option& Option::at_least(double least) {
  return rule([least](double value) { return value >= least; }, "at least " + text_of(least));
}
Option& Option::at_most(double most) {
  return rule([most](double value) { return value <= most; }, "at most " + text_of(most));
}
Option& Option::above(double bound) {
  return rule([bound](double value) { return value > bound; }, "above " + text_of(bound));
}
Option& Option::between(double least, double most) {
  return rule([least, most](double value) { return value >= least && value <= most; },
              text_of(least) + " to " + text_of(most));
}
Option& Option::fraction() {
  return rule([](double value) { return value >= 0 && value < 1; }, "0 <= value < 1");
}
Option& Option::path() {
  path_ = true;
  type = "PATH";
  return *this;
}
Option& Option::one_of(std::vector<std::string> words) {
  type = expected_ = {};
  for (std::size_t i = 0; i < words.size(); ++i) {
    type += (i == 0 ? "" : "|") + words[i];
    expected_ += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  rules_.push_back(
      {[text = text_, words = std::move(words)] { return std::ranges::find(words, text()) != words.end(); },
       expected_});
  return *this;
}
std::string Option::spelled(const std::string& field) {
  std::string text = "--" + field;
  std::ranges::replace(text, '_', '-');
  return text;
}

void Option::read(const std::string& given_text) {
  require<UsageError>(!path_ || !given_text.empty(), spelled(), " is empty, expected a path");
  std::string expected = expected_;
  bool taken = false;
  try {
    taken = read_(given_text);
  } catch (const UsageError& error) {  // the parser does not know the option's name, so its error lacks the name
    const std::string text = error.what();
    const std::size_t at = text.find(", expected ");
    require<UsageError>(at != std::string::npos, spelled(), ": ", text);
    expected = text.substr(at + std::string_view(", expected ").size());
  }
  require<UsageError>(taken, spelled(), " is ", printable(given_text), ", expected ", expected);
  given = true;
}

void Option::check() const {
  for (const Rule& rule : rules_) {
    require<UsageError>(rule.holds(), spelled(), " is ", number_ ? text() : printable(text()), ", expected ",
                        rule.expected);
  }
}

}  // namespace lockstep
