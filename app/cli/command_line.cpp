#include "command_line.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/version.hpp>

#include "app/cli/spellings.hpp"

namespace lockstep::cli {

namespace {

/// Returns true if `option` is among `arguments`. Returns false if `option` is empty, as for an option without a
/// negation.
bool given(const std::string& option, const std::vector<std::string>& arguments) {
  return !option.empty() && std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == option || argument.starts_with(option + "=");
  });
}

/// Returns true if `arguments` contain `option` (an option of a file), its negation, or an option that replaces it.
bool overruled(const std::string& option, const std::vector<std::string>& arguments, Schema* schema) {
  if (given(option, arguments)) {
    return true;
  }
  if (schema == nullptr) {
    return false;
  }
  for (const Option& described : schema->options()) {
    if (described.spelled() != option && described.negated() != option) {
      continue;
    }
    const auto replaces = [&](const std::string& name) {
      const Option* other = schema->find(name);
      return other != nullptr && given(other->spelled(), arguments);  // a negation replaces no other option
    };
    return given(described.spelled(), arguments) || given(described.negated(), arguments) ||
           (described.spelled() == option &&
            std::any_of(described.not_with.begin(), described.not_with.end(), replaces));
  }
  return false;
}

/// Returns advice in brackets: how to write the `unknown` arguments correctly, if this is known, and the text `more`,
/// which says how to find all options.
std::string advice(const CLI::App& app, const std::vector<std::string>& unknown, const std::string& more) {
  if (const std::string here = spelled_here(app, unknown); !here.empty()) {
    return concat(" (write ", here, "; ", more, ", docs/coming_from.md has words of other programs)");
  }
  for (const std::string& argument : unknown) {
    const std::string nearest = argument.starts_with("-") ? nearest_option(app, argument) : "";
    if (!nearest.empty()) {
      return concat(" (did you mean ", nearest, "? ", more, ')');
    }
  }
  return concat(" (", more, ')');
}

/// Returns the command line's arguments, followed by the options of the --config file that the command line does not
/// give. The recipe's options follow, except options that the command line or the file gives.
std::vector<std::string> arguments_with(const ConfigFile& config, const CLI::App& app, Schema* schema, int argc,
                                        const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto add = [&](const std::string& name, const std::string& text, bool recipe) {
    const std::vector<std::string> own = arguments;
    for (const ConfigValue& entry : name.empty() ? std::vector<ConfigValue>() : parse_config(name, text)) {
      const std::string option = "--" + entry.key;
      require<UsageError>(
          app.get_option_no_throw(option) != nullptr && entry.key != "config" && !(recipe && entry.key == "recipe"),
          name, ":", entry.line, ": ", entry.key, " is no option",
          recipe ? concat(" of ", app.get_name(), ": the recipe is another program's, or is mistaken")
                 : advice(app, {option + "=" + entry.value},
                          schema != nullptr ? "--help all lists the options, here they have no dashes"
                                            : "--help lists the options, here they have no dashes"));
      if (!overruled(option, own, schema)) {
        if (entry.value.empty()) {  // CLI11 would read `--option=` as if the next argument were the value
          arguments.insert(arguments.end(), {option, ""});
        } else {
          arguments.push_back(option + "=" + entry.value);
        }
      }
    }
  };
  add(config.name, config.text, false);
  add(config.recipe, config.recipe_text, true);
  return arguments;
}

/// Throws UsageError if CLI11 would misread `value`: CLI11 reads 010 as 8, and a too large number as the largest one.
void refuse_misread_number(const std::string& name, const std::string& value, bool is_unsigned) {
  const std::string digits = value.substr(value.starts_with('-') || value.starts_with('+') ? 1 : 0);
  require<UsageError>(
      digits.size() < 2 || digits[0] != '0' || digits.find_first_not_of("0123456789") != std::string::npos, name,
      " is '", value, "', expected a decimal number without a 0 in front");
  std::int64_t number = 0;
  std::uint64_t positive = 0;
  const char* end = value.data() + value.size();
  const std::errc error =
      is_unsigned ? std::from_chars(value.data(), end, positive).ec : std::from_chars(value.data(), end, number).ec;
  require<UsageError>(error != std::errc::result_out_of_range, name, " is '", value, "', expected at most ",
                      is_unsigned ? std::numeric_limits<std::uint64_t>::max()
                                  : std::uint64_t{std::numeric_limits<std::int64_t>::max()});
}

/// Returns the `value` of the flag `name` as "true" or "false". All releases of CLI11 understand these two words, but
/// some releases read "on" as off.
std::string flag_value(const std::string& name, std::string value) {
  const std::string given_value = value;
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 6> kYes{"true", "on", "yes", "enable", "t", "1"};
  constexpr std::array<std::string_view, 6> kNo{"false", "off", "no", "disable", "f", "0"};
  const bool yes = std::ranges::find(kYes, value) != kYes.end();
  require<UsageError>(yes || std::ranges::find(kNo, value) != kNo.end(), name, " is ", printable(given_value),
                      ", expected true, false or no value");
  return yes ? "true" : "false";
}

void settle_flag_values(const Schema& schema, std::vector<std::string>& arguments) {
  for (std::string& argument : arguments) {
    const std::size_t equals = argument.find('=');
    if (equals == std::string::npos) {
      continue;
    }
    const std::string name = argument.substr(0, equals);
    for (const Option& option : schema.options()) {
      if (option.type.empty() && (name == option.spelled() || name == option.negated())) {
        argument = name + "=" + flag_value(name, argument.substr(equals + 1));
        break;
      }
    }
  }
}

/// Calls refuse_misread_number() for every number of the command line, also for numbers in lists.
void refuse_misread_numbers(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    const CLI::Option* option = name.starts_with("--") ? app.get_option_no_throw(name) : nullptr;
    if (option == nullptr || option->get_type_name().find("INT") == std::string::npos) {
      continue;
    }
    std::vector<std::string> values;  // numbers that are given to `option`; a list is divided at its commas
    const auto take = [&values](const std::string& list) {
      std::istringstream parts(list);
      for (std::string part; std::getline(parts, part, ',');) {
        values.push_back(part);
      }
    };
    if (equals != std::string::npos) {
      take(arguments[i].substr(equals + 1));
    } else {
      const std::size_t most = static_cast<std::size_t>(std::max(option->get_items_expected_max(), 1));
      for (std::size_t next = i + 1; next < arguments.size() && next - i <= most && !arguments[next].starts_with("--");
           ++next) {
        take(arguments[next]);
      }
    }
    for (const std::string& value : values) {
      refuse_misread_number(name, value, option->get_type_name().find("UINT") != std::string::npos);
    }
  }
}

}  // namespace

void prepare(CLI::App& app, const std::string& footer) {
  app.footer(footer);
  app.option_defaults()->always_capture_default();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.get_formatter()->column_width(32);
}

void add_options(CLI::App& app, Schema& schema) {
  for (Option& option : schema.options()) {
    CLI::Option* added = nullptr;
    if (option.type.empty()) {
      const std::string names = option.spelled() + (option.negation.empty() ? "" : ",!" + option.negated());
      added = app.add_flag_function(
                     names, [&option](std::int64_t count) { option.read(count > 0 ? "true" : "false"); }, option.help)
                  ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    } else if (option.list) {
      const auto read = [&option](const std::vector<std::string>& parts) { option.read(joined(parts, ",")); };
      added = app.add_option_function<std::vector<std::string>>(option.spelled(), read, option.help)
                  ->delimiter(',')
                  ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    } else {
      added = app.add_option_function<std::string>(
          option.spelled(), [&option](const std::string& text) { option.read(text); }, option.help);
    }
    added->type_name(option.type)->group(option.group);
    if (!option.type.empty()) {
      added->default_str(option.first);
    }
  }
}

namespace {

constexpr std::size_t kWidth = 100;  ///< columns after which the text of --help is wrapped

/// Breaks text into lines of at most `width` columns, with `line_end` between them.
std::string wrapped(const std::string& text, std::size_t width, const std::string& line_end) {
  std::istringstream words(text);
  std::string out;
  std::size_t used = 0;  // columns of the last line
  for (std::string word; words >> word; used += word.size()) {
    const bool fits = used + 1 + word.size() <= width;
    if (!out.empty()) {
      out += fits ? " " : line_end;
      used = fits ? used + 1 : 0;
    }
    out += word;
  }
  return out;
}

/// Appends `line`, and then `text` in lines that begin at `column`. `line` is shorter than `column`, so the first line
/// of `text` begins on the same line.
void wrap(std::string line, const std::string& text, std::size_t column, std::string& out) {
  line.resize(column, ' ');
  out += line + wrapped(text, kWidth - column, "\n" + std::string(column, ' ')) + "\n";
}

std::string topic_of(const std::string& group) {
  std::string topic = group.substr(0, group.find(' '));
  std::ranges::transform(topic, topic.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return topic;
}

void describe_option(const Option& option, bool brief, std::string& out) {
  constexpr std::size_t kColumn = 30;
  std::string name = "  " + option.spelled() + (option.negation.empty() ? "" : ", " + option.negated());
  name += option.type.empty() ? "" : " " + option.type;
  std::string text = brief ? option.help.substr(0, option.help.find("; ")) : option.help;
  if (!option.type.empty() && !option.first.empty()) {
    text += " [" + option.first + "]";
  }
  if (name.size() + 1 > kColumn) {
    out += name + "\n";
    name.clear();
  }
  wrap(name, text, kColumn, out);
}

/// Returns the text of --help. `topic` is a group's name in small letters, "all", or empty for the common options. If
/// all options fit on kMostLines lines, an empty topic shows all of them.
std::string help_text(const ProgramText& program, const Schema& schema, const std::string& topic) {
  std::vector<std::string> groups;
  for (const Option& option : schema.options()) {
    if (std::ranges::find(groups, option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  const std::string known = joined(groups, ", ", topic_of);
  require<UsageError>(topic.empty() || topic == "all" || std::ranges::find(groups, topic, topic_of) != groups.end(),
                      "--help is ", printable(topic), ", expected nothing after it, all, or one of: ", known);
  constexpr std::ptrdiff_t kMostLines = 60;
  if (topic.empty()) {
    std::string all = help_text(program, schema, "all");
    if (std::ranges::count(all, '\n') <= kMostLines) {
      return all;
    }
  }
  std::string out = topic.empty() || topic == "all" ? program.about : "";
  for (const std::string& group : groups) {
    std::string lines;
    for (const Option& option : schema.options()) {
      if (option.group == group && (topic.empty() ? option.common : topic == "all" || topic == topic_of(group))) {
        describe_option(option, topic.empty(), lines);
      }
    }
    out += lines.empty() ? "" : (topic.empty() ? "" : "\n") + group + ":\n" + lines;
  }
  if (topic.empty()) {
    wrap("More:", "--help GROUP (" + known + "); --help all, with files and exit codes; --version", 6, out);
  } else if (topic == "all" && !program.footer.empty()) {
    out += "\n" + program.footer + "\n";
  }
  return out;
}

/// Returns the topic that follows --help, or an empty text if none follows.
std::string help_topic(int argc, const char* const* argv) {
  constexpr std::string_view kWithTopic = "--help=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kWithTopic)) {
      return std::string(argument.substr(kWithTopic.size()));
    }
    if ((argument == "--help" || argument == "-h") && i + 1 < argc && argv[i + 1][0] != '-') {
      return argv[i + 1];
    }
  }
  return "";
}

std::string parse(CLI::App& app, Schema* schema, int argc, const char* const* argv, const ConfigFile& config,
                  const std::function<std::string()>& help) {
  app.set_version_flag("--version", lockstep::build_description());
  const std::string where = schema != nullptr ? "--help all lists the options" : "--help lists the options";
  try {
    std::vector<std::string> arguments = arguments_with(config, app, schema, argc, argv);
    refuse_misread_numbers(app, arguments);
    if (schema != nullptr) {
      settle_flag_values(*schema, arguments);
    }
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes the arguments in reverse order
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return help();
  } catch (const CLI::CallForVersion&) {
    return lockstep::build_description() + "\n";
  } catch (const CLI::ExtrasError&) {  // replaced, as CLI11's own text lists the unknown arguments from last to first
    const std::vector<std::string> unknown = app.remaining();
    throw UsageError("unknown on the command line: " + joined(unknown, " ") + advice(app, unknown, where));
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + " (" + where + ")");
  }
  return {};
}

constexpr const char* kConfigHelp =
    "TOML file of options; lines are key = value, keys are option names without dashes; options of the command line "
    "win";
constexpr const char* kRunConfigHelp =
    "TOML file of options, or the config.json of a run to repeat; TOML lines are key = value, keys are option names "
    "without dashes; options of the command line win";

}  // namespace

void wrap_descriptions(CLI::App& app) {
  const std::size_t column = app.get_formatter()->get_column_width();
  for (CLI::Option* option : app.get_options()) {
    option->description(wrapped(option->get_description(), kWidth - column, "\n"));  // CLI11 indents after '\n'
  }
}

std::string parse_command_line(CLI::App& app, int argc, const char* const* argv, const ConfigFile& config) {
  std::string config_name;  // parsed and ignored, because read_config_file() has already read the file
  app.add_option("--config", config_name, kConfigHelp)->type_name("FILE");
  return parse(app, nullptr, argc, argv, config, [&app] {
    wrap_descriptions(app);
    return app.help();
  });
}

std::string parse_command_line(const ProgramText& program, Schema& schema, int argc, const char* const* argv,
                               const ConfigFile& config) {
  std::string config_name;
  schema.add("config", config_name, program.has_runs ? kRunConfigHelp : kConfigHelp)
      .looks_like("FILE")
      .of_this_start()
      .is_common();
  CLI::App app(program.about, program.name);
  prepare(app, program.footer);
  add_options(app, schema);
  const std::string text =
      parse(app, &schema, argc, argv, config, [&] { return help_text(program, schema, help_topic(argc, argv)); });
  if (text.empty()) {
    schema.check();
  }
  return text;
}

}  // namespace lockstep::cli
