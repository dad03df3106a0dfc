#include "config_file.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include <toml++/toml.h>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::cli {
namespace {

/// Returns the last value that the command line gives to `option`, or an empty text if there is none. If `option` is
/// the last argument, throws a UsageError that says what is `expected` after it.
std::string last_of(const std::string& option, const char* expected, int argc, const char* const* argv) {
  std::string name;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == option) {
      require<UsageError>(i + 1 < argc, option, " has no value, expected ", expected);
      name = argv[++i];
    } else if (argument.starts_with(option + "=")) {
      name = argument.substr(option.size() + 1);
    }
  }
  return name;
}

/// Returns the path of the file of recipe `name`. If there is none, throws a UsageError that lists the known recipes.
std::string recipe_path(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return name;
  }
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path programs = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::set<std::string> names;
  // Builds and installations with CMake's default folders have recipes in the first folder. Installations with other
  // folders have recipes in the second folder.
  for (const char* from_programs : {"../share/lockstep/recipes", LOCKSTEP_RECIPES}) {
    const fs::path folder = (programs / from_programs).lexically_normal();
    const fs::path path = folder / (name + ".toml");
    if (fs::is_regular_file(path, error)) {
      return path.string();
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() == ".toml") {
        names.insert(entry.path().stem().string());
      }
    }
  }
  std::string known;
  for (const std::string& each : names) {
    known += each + ", ";
  }
  throw UsageError(concat("--recipe is ", printable(name), ", expected ", known, "or a path of a file, as ./my.toml"));
}

/// Largest size in bytes of a file of options, so that a large data file, named by mistake, is not read into memory.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

/// Returns true if `byte` is the second or a later byte of a UTF-8 character.
bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

/// Returns the offset in bytes of the character in column `column` of `line`. Columns count characters and begin at 1.
std::size_t offset_of(const std::string& line, std::size_t column) {
  std::size_t at = 0;
  for (std::size_t character = 1; character < column && at < line.size(); ++character) {
    do {
      ++at;
    } while (at < line.size() && continues(line[at]));
  }
  return at;
}

/// Returns the number `node` as `lines` (the file's lines) spell it, so that 1.0 does not become 1.
std::string source_text(const toml::node& node, const std::vector<std::string>& lines) {
  const toml::source_region& at = node.source();
  const std::string& line = lines.at(at.begin.line - 1);
  const std::size_t begin = offset_of(line, at.begin.column);
  return line.substr(begin, offset_of(line, at.end.column) - begin);
}

/// Returns the position after the closing quotes of the text that begins at `at`. If they are missing, returns the end
/// of the line or, for text in three quotes, of `toml`. Returns npos if a backslash precedes a non-ASCII character.
std::size_t end_of_quoted(const std::string& toml, std::size_t at) {
  const char quote = toml[at];
  const std::string three(3, quote);
  const std::string close = toml.compare(at, 3, three) == 0 ? three : std::string(1, quote);
  for (at += close.size(); at < toml.size(); ++at) {
    if (toml.compare(at, close.size(), close) == 0) {
      at += close.size();
      for (int more = 0; more < 2 && close.size() == 3 && at < toml.size() && toml[at] == quote; ++more) {
        ++at;  // the text may end with up to two quotes before the closing three
      }
      return at;
    }
    if (toml[at] == '\n' && close.size() == 1) {
      return at;
    }
    if (quote == '"' && toml[at] == '\\') {
      // Skips white space, because a backslash at the end of a line continues the text on the next line.
      const std::size_t next = toml.find_first_not_of(" \t\r\n", at + 1);
      if (next < toml.size() && static_cast<unsigned char>(toml[next]) >= 0x80) {
        return std::string::npos;
      }
      ++at;
    }
  }
  return toml.size();
}

/// Returns true if `word`, a value without quotes, may be a number, true or false; the parser makes the final decision.
/// Signs may only be in front or after an exponent's e.
bool plain_word(std::string_view word) {
  for (std::size_t i = 0; i < word.size(); ++i) {
    const bool sign = word[i] == '+' || word[i] == '-';
    const bool letter = std::isalnum(static_cast<unsigned char>(word[i])) != 0 || word[i] == '_' || word[i] == '.';
    if (!letter && !(sign && (i == 0 || word[i - 1] == 'e' || word[i - 1] == 'E'))) {
      return false;
    }
  }
  return true;
}

/// Checks the text `toml` of the file `name` before the parser reads it. Throws DataError unless each value is a quoted
/// text, a number, true, false or a list of these. Throws DataError, too, if a character outside of quotes and comments
/// is not printable ASCII. Options need no other characters, and some versions of the parser abort or have undefined
/// behaviour for damaged UTF-8.
void require_plain(const std::string& toml, const std::string& name) {
  int line = 1;
  const auto expect = [&](bool right, const char* what) { require<DataError>(right, name, ":", line, ": ", what); };
  bool list = false;
  char last = '\n';  // last character outside of comments that is not a space; a line end counts, too, except in lists
  for (std::size_t at = 0; at < toml.size();) {
    const std::size_t begin = at;
    const char c = toml[at];
    const bool space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    const bool value = last == '=' || last == '[' || last == ',';
    if (c == '#') {
      at = std::min(toml.find('\n', at), toml.size());
    } else if (c == '"' || c == '\'') {
      expect(value || last == '\n' || last == '.', "a quote within a word");
      at = end_of_quoted(toml, at);
      expect(at != std::string::npos, "a backslash before a character that is not ASCII");
      last = c;
    } else if (value && !space && c != '[' && c != ']' && c != ',') {
      at = std::min(toml.find_first_of(" \t\r\n,]#", at), toml.size());
      const std::string_view word = std::string_view(toml).substr(begin, at - begin);
      require<DataError>(plain_word(word), name, ":", line, ": a value is ", printable(word),
                         ", expected text in quotes, a number, true, false or a list of these");
      last = c;
    } else {
      ++at;
      expect(space || (c > 0x20 && c < 0x7f), "a character outside of quotes that no option has, expected ASCII");
      expect(c != '[' || last != '\n', "a table, expected options as key = value");
      expect((c != '[' || (last == '=' && !list)) && (c != ']' || list), "brackets, expected lists as [1, 3]");
      list = c == '[' || (list && c != ']');
      last = space && (c != '\n' || list) ? last : c;
    }
    line += static_cast<int>(std::count(toml.begin() + static_cast<std::ptrdiff_t>(begin),
                                        toml.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  }
}

std::string scalar_text(const toml::node& node, const std::vector<std::string>& lines, const std::string& where) {
  if (const auto text = node.value_exact<std::string>()) {
    require<DataError>(text->find('\0') == std::string::npos, where, "holds a zero byte, expected text without one");
    return *text;
  }
  if (const auto flag = node.value_exact<bool>()) {
    return *flag ? "true" : "false";
  }
  require<DataError>(node.is_number(), where, "is a ", concat(node.type()),
                     ", expected text, a number, true, false or a list of these");
  if (const auto* whole = node.as_integer()) {  // TOML also writes integers as 1_000 and 0o20
    return std::to_string(whole->get());
  }
  std::string text = source_text(node, lines);
  std::erase(text, '_');
  return text;
}

std::string text_of_file(const char* option, const std::string& name) {
  // Pipes and folders are refused. Several processes read the file, and a pipe would be empty for the second process.
  // libstdc++ would open a folder as an empty file.
  std::error_code unknown;
  require<DataError>(!std::filesystem::exists(name, unknown) || std::filesystem::is_regular_file(name, unknown), option,
                     ' ', name, ": is no regular file, expected a file that several processes can read");
  std::ifstream file(name, std::ios::binary);
  require<DataError>(file.is_open(), option, ' ', name, ": cannot be read, expected a file that this user may read");
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  require<DataError>(!file.bad(), option, ' ', name, ": cannot be read, expected a file that this user may read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  require<DataError>(text.size() <= kMostBytes, option, ' ', name, ": is longer than ", kMostBytes,
                     " bytes, expected a file of options");
  return text;
}

}  // namespace

ConfigFile read_config_file(int argc, const char* const* argv, Recipes recipes) {
  ConfigFile config;
  config.name = last_of("--config", "the name of a file, TOML or the config.json of a run", argc, argv);
  if (!config.name.empty()) {
    config.text = text_of_file("--config", config.name);
  }
  if (recipes == Recipes::no) {
    return config;
  }
  config.recipe = last_of("--recipe", "the name of a recipe", argc, argv);
  if (config.recipe.empty() && !config.name.empty()) {
    for (const ConfigValue& entry : parse_config(config)) {
      config.recipe = entry.key == "recipe" ? entry.value : config.recipe;
    }
  }
  if (!config.recipe.empty()) {
    config.recipe = recipe_path(config.recipe);
    config.recipe_text = text_of_file("--recipe", config.recipe);
  }
  return config;
}

ConfigFile read_config_file(lockstep::comm::Session& session, int argc, const char* const* argv, Recipes recipes) {
  ConfigFile config;
  session.agree([&] {
    if (session.rank() == 0) {
      config = read_config_file(argc, argv, recipes);
    }
  });
  for (std::string* text : {&config.name, &config.text, &config.recipe, &config.recipe_text}) {
    *text = lockstep::comm::broadcast_text(session.control(), *text);
  }
  return config;
}

/// Returns the options in a config.json that TrainingProgram has written.
static std::vector<ConfigValue> parse_run_config(const std::string& name, const std::string& text) {
  const Json config = parse_json(text, name);
  std::vector<ConfigValue> values;
  for (const auto& [key, value] : config.get<Json::Object>("chosen", name)) {
    const std::string chosen = value.as<std::string>(concat(name, ": '", key, "'"));
    require<DataError>(chosen.find('\0') == std::string::npos, name, ": '", key,
                       "' holds a zero byte, expected text without one");
    const auto at = static_cast<std::ptrdiff_t>(std::min(text.find("\"" + key + "\""), text.size()));
    values.push_back({key, chosen, static_cast<int>(std::count(text.begin(), text.begin() + at, '\n')) + 1});
  }
  return values;
}

std::vector<ConfigValue> parse_config(const std::string& name, const std::string& given) {
  if (name.ends_with(".json")) {
    return parse_run_config(name, given);
  }
  std::vector<std::string> lines;
  // Skips the byte-order mark that editors on Windows write.
  const std::string text = given.substr(given.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  require_plain(text, name);
  constexpr std::ptrdiff_t kMostDots = 10'000;  // limit, because toml++ recurses once for each dot of a key
  require<DataError>(std::count(text.begin(), text.end(), '.') <= kMostDots, name, ": has more than ", kMostDots,
                     " dots, expected plain names of options");
  toml::table table;
  try {
    table = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw DataError(concat(name, ":", error.source().begin.line, ": ", error.description()));
  }
  std::vector<ConfigValue> values;
  for (const auto& [key, node] : table) {
    const std::string option(key.str());
    const auto line = static_cast<int>(key.source().begin.line);
    const std::string where = concat(name, ":", line, ": ", option, " ");
    std::string value;
    if (const toml::array* list = node.as_array()) {
      value = "[" + joined(*list, ",", [&](const toml::node& entry) { return scalar_text(entry, lines, where); }) + "]";
    } else {
      value = scalar_text(node, lines, where);
    }
    values.push_back({option, value, line});
  }
  std::sort(values.begin(), values.end(), [](const ConfigValue& a, const ConfigValue& b) { return a.line < b.line; });
  return values;
}

}  // namespace lockstep::cli
