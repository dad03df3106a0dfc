#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// One option: a field of a struct, with a description. The command line, option files, lists of chosen options and
/// range checks use this description. Schema::add() makes the option; the member functions below extend its
/// description.
class Option {
 public:
  /// Name of the struct's field, for example "clip_norm". A command line has "--clip-norm" (spelled()).
  std::string name;
  std::string help;   ///< description; the part up to the first "; " is enough for a short list
  std::string group;  ///< name of the option's group, set by Schema::group()
  /// Form of a value, for example "INT" or "on|off|auto". Empty for a flag, which takes no value.
  std::string type;
  std::string first;    ///< default value: text() at the time of add(); empty if the option had no value
  bool common = false;  ///< true if most users need this option
  bool list = false;    ///< true if the option takes several values, separated by commas
  bool kept = true;     ///< true if resumed runs keep the option; false if only the current start uses the option
  bool given = false;   ///< true if read() set the value; false for a default
  /// True if the option changes the numbers that a run computes. Checkpoints store the values of such options
  /// (RunIdentity), except default values.
  bool numbers = false;
  /// True if the option must be equal on all ranks. An option with `numbers` must be equal even if `shared` is false.
  bool shared = false;
  std::string negation{};  ///< option name that switches a flag off: "decay_norm"; empty if there is none
  /// Names of other options. If any of these is on a command line, a file's value for this option is ignored.
  std::vector<std::string> not_with{};

  Option& is_common();
  Option& of_this_start();
  Option& decides_numbers();
  Option& equal_on_ranks();
  Option& looks_like(std::string value_type);
  Option& by_default(std::string text);  ///< sets the default that --help shows
  Option& instead_of(std::string other);
  Option& taken_back_by(std::string name_of_negation);
  // The functions below add requirements that check() tests if the option has a value. All of these
  // requirements refuse NaN and infinity.
  Option& at_least(double least);
  Option& at_most(double most);
  Option& above(double bound);
  Option& between(double least, double most);
  Option& fraction();  ///< requires 0 <= value < 1
  Option& one_of(std::vector<std::string> words);
  /// Marks the value as a path and refuses an empty text. An empty text usually comes from an unset variable of a
  /// script.
  Option& path();

  /// Reads the value from the text of a command line or a file. On UsageError the old value stays; the error names the
  /// option, the text and the expected form. check() checks the range.
  void read(const std::string& given_text);
  /// Returns the value in the form that read() takes; empty if the option has no value.
  [[nodiscard]] std::string text() const { return text_(); }
  [[nodiscard]] std::string spelled() const { return spelled(name); }  ///< returns "--clip-norm"
  /// Returns the negation as the command line has it: "--decay-norm"; empty if the option has no negation.
  [[nodiscard]] std::string negated() const { return negation.empty() ? "" : spelled(negation); }
  /// Throws UsageError if the value is outside the range that at_least(), at_most() and similar calls have set.
  void check() const;

 private:
  friend class Schema;
  struct Rule {
    std::function<bool()> holds;
    std::string expected;
  };
  std::function<std::string()> text_;
  std::function<bool(const std::string&)> read_;
  std::function<std::optional<double>()> number_;  ///< returns the value; empty unless the value is a number
  std::string expected_;                           ///< expected form of the text, for errors of read()
  std::vector<Rule> rules_;
  bool path_ = false;

  Option& rule(std::function<bool(double)> holds, std::string expected);
  [[nodiscard]] static std::string spelled(const std::string& field);
};

/// The options of a program or a struct, bound to variables that outlive the Schema. A struct describes its fields
/// once, in one function:
///
///   void describe(Schema& schema, ClipOptions& o) {
///     schema.add("clip_norm", o.clip_norm, "scale gradients down to this norm; 0: off").at_least(0);
///   }
///
/// No other code lists the fields.
class Schema {
 public:
  /// Puts the options that are added from now on into the group `name`, for example "Training".
  Schema& group(std::string name);

  /// Adds an option that sets `value`. T is bool (a flag), int, std::int64_t, std::uint64_t, double, std::string, a
  /// std::optional of one of these types, or std::vector<double>, <float>, <std::int64_t> or <std::string>.
  template <class T>
  Option& add(const std::string& name, T& value, const std::string& help);
  /// Adds an option that sets `value`, an enum. `words` has a word for each enumerator.
  template <class E>
  Option& choice(const std::string& name, E& value, const std::vector<std::pair<std::string, E>>& words,
                 const std::string& help) {
    std::string type;
    for (const auto& [word, ignored] : words) {
      type += (type.empty() ? "" : "|") + word;
    }
    const auto text = [&value, words] {
      for (const auto& [word, meant] : words) {
        if (meant == value) {
          return word;
        }
      }
      return std::string();
    };
    const auto read = [&value, words](const std::string& given) {
      for (const auto& [word, meant] : words) {
        if (word == given) {
          value = meant;
          return true;
        }
      }
      return false;
    };
    return own(name, std::move(type), help, text, read);
  }
  /// Adds an option whose value is given by name. `name_of` returns the value's name. `parse` reads a name; for an
  /// unknown name, it throws a UsageError that lists the names.
  template <class T, class NameOf, class Parse>
  Option& named(const std::string& name, T& value, NameOf name_of, Parse parse, const std::string& help) {
    return own(
        name, "NAME", help, [&value, name_of] { return std::string(name_of(value)); },
        [&value, parse](const std::string& given) {
          value = parse(given);
          return true;
        });
  }
  /// Adds an option whose value has its own text form. `text` returns the value in the form that `read` takes; `read`
  /// returns false for an invalid text. `type` describes the expected form.
  Option& own(std::string name, std::string type, std::string help, std::function<std::string()> text,
              std::function<bool(const std::string&)> read);

  [[nodiscard]] std::deque<Option>& options() { return options_; }
  [[nodiscard]] const std::deque<Option>& options() const { return options_; }
  [[nodiscard]] Option* find(std::string_view name);  ///< returns nullptr if there is no such option
  /// Calls Option::check() of all options, in the order in which they were added.
  void check() const;
  /// Returns the options that read() set: names, and values in the form that read() takes. With `kept_only`, leaves out
  /// the options whose `kept` is false.
  [[nodiscard]] std::map<std::string, std::string> given(bool kept_only = false) const;

 private:
  std::deque<Option> options_;  ///< deque, because the addresses of its elements stay valid
  std::string group_;
};

}  // namespace lockstep
