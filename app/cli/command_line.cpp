#include "command_line.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>

#include "app/cli/spellings.hpp"

namespace lockstep::cli {

namespace {

bool given(const std::string& option, const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == option || argument.starts_with(option + "=");
  });
}

/// Ways to say one thing, or things that exclude each other, two by two: where one of them is given, the other one of a
/// file beneath does not count.
constexpr std::array<std::array<std::string_view, 2>, 7> kAlternatives{{{"--batch-size", "--batch-per-rank"},
                                                                        {"--warmup-steps", "--warmup-epochs"},
                                                                        {"--no-decay-norm", "--decay-norm"},
                                                                        {"--no-decay-norm", "--norm-weight-decay"},
                                                                        {"--no-decay-norm", "--bias-weight-decay"},
                                                                        {"--pad", "--crop-scale"},
                                                                        {"--pad", "--crop-ratio"}}};

/// Whether an option of a file stands behind what these arguments say.
bool overruled(const std::string& option, const std::vector<std::string>& arguments) {
  return given(option, arguments) || std::any_of(kAlternatives.begin(), kAlternatives.end(), [&](const auto& pair) {
           const auto* found = std::find(pair.begin(), pair.end(), option);
           return found != pair.end() && given(std::string(pair[found == pair.begin() ? 1 : 0]), arguments);
         });
}

/// What to write instead of arguments that the app does not know, in brackets, with how to find more.
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

/// The command line, followed by the options that only the file gives, and by those that only the recipe gives.
std::vector<std::string> arguments_with(const ConfigFile& config, const CLI::App& app, int argc,
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
                 : advice(app, {option + "=" + entry.value}, "--help lists the options, here they have no dashes"));
      if (!overruled(option, own)) {
        arguments.push_back(option + "=" + entry.value);
      }
    }
  };
  add(config.name, config.text, false);
  add(config.recipe, config.recipe_text, true);
  return arguments;
}

/// Refuses numbers that CLI11 would read as others: 010 as 8, and what is too large as the largest.
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

/// The same for every number of the command line, also in lists.
void refuse_misread_numbers(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    const CLI::Option* option = name.starts_with("--") ? app.get_option_no_throw(name) : nullptr;
    if (option == nullptr || option->get_type_name().find("INT") == std::string::npos) {
      continue;
    }
    std::vector<std::string> values;  // of an option with a list all that follow, and what commas part
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

std::string parse_command_line(CLI::App& app, int argc, const char* const* argv, const ConfigFile& config) {
  app.set_version_flag("--version", lockstep::build_description());
  std::string config_name;  // parsed and ignored: read_config_file() has read the file
  app.add_option("--config", config_name,
                 "TOML file with options: key = value, without dashes; what is given here wins")
      ->type_name("FILE");
  try {
    std::vector<std::string> arguments = arguments_with(config, app, argc, argv);
    refuse_misread_numbers(app, arguments);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::CallForVersion&) {
    return lockstep::build_description() + "\n";
  } catch (const CLI::ExtrasError&) {  // CLI11's own text names them from last to first
    const std::vector<std::string> unknown = app.remaining();
    std::string text = "unknown on the command line:";
    for (const std::string& argument : unknown) {
      text += " " + argument;
    }
    throw UsageError(text + advice(app, unknown, "--help lists the options"));
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + " (--help lists the options)");
  }
  return {};
}

}  // namespace lockstep::cli
