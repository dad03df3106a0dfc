#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/json.hpp>

#include <optional>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

template <class T>
void take(const Json& json) {
  (void)accepts<DataError>([&] { (void)json.as<T>("the value"); });
}

/// Checks that a text is safe to print on a terminal: no character below a space, no delete, valid UTF-8, no C1
/// control.
void check_printable(const std::string& shown) {
  for (const char c : shown) {
    check(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "printable() gives a control character");
  }
  const std::string text = Json(shown).text();  // replaces bytes that are no UTF-8
  check(parse_json(text, "text") == Json(shown), "printable() gives what is no UTF-8");
  for (std::size_t at = shown.find('\xc2'); at != std::string::npos; at = shown.find('\xc2', at + 1)) {
    check(static_cast<unsigned char>(shown.at(at + 1)) >= 0xa0, "printable() gives a C1 control");
  }
}

}  // namespace

void json(Input input) {
  const std::string text = text_of(input);
  check_printable(printable(text));
  std::optional<Json> value;
  (void)accepts<DataError>([&] { (void)parse_json(text, "input", {.depth = 3, .values = 20}); });
  if (!accepts<DataError>([&] { value = parse_json(text, "input"); })) {
    return;
  }
  check(parse_json(value->text(), "text") == *value, "differs when it is read again");
  check(parse_json(value->text(2), "text") == *value, "differs when it is read again with its indents");
  check(value->text().find('\n') == std::string::npos, "more than one line");
  take<bool>(*value);
  take<int>(*value);
  take<std::int64_t>(*value);
  take<std::uint64_t>(*value);
  take<double>(*value);
  take<std::string>(*value);
  (void)accepts<DataError>([&] { (void)value->get<int>("key", "the value"); });
}

}  // namespace lockstep::fuzz
