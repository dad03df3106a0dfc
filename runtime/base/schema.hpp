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

/// One option: a field of a struct with the description that a command line, a file of options, a list of chosen
/// options and a range check need. Schema::add() makes it; the functions below extend its description.
class Option {
 public:
  /// The name of the field: "clip_norm". A command line spells it --clip-norm (spelled()).
  std::string name;
  std::string help;   ///< description; the part up to the first "; " is enough in a short list
  std::string group;  ///< name given by Schema::group()
  /// Form of a value: "INT", "on|off|auto". Empty: a flag, which takes no value.
  std::string type;
  std::string first;                    ///< text() at the time of add(); empty: none
  bool common = false;                  ///< most runs need this option
  bool list = false;                    ///< takes several values, separated by commas
  bool kept = true;                     ///< belongs to the run, so that a repeat has it too; false: only to this start
  bool given = false;                   ///< chosen by read(); false: a default
  bool numbers = false;                 ///< decides a run's numbers: unless the default, part of its identity
  bool shared = false;                  ///< must be equal on all ranks, as must options that decide numbers
  std::string negation{};               ///< name that switches a flag off: "decay_norm"
  std::vector<std::string> not_with{};  ///< options that this one replaces; a file's values for them then do not count

  Option& is_common();
  Option& of_this_start();
  Option& decides_numbers();
  Option& equal_on_ranks();
  Option& looks_like(std::string value_type);
  Option& by_default(std::string text);  ///< default that --help shows
  Option& instead_of(std::string other);
  Option& taken_back_by(std::string name_of_negation);
  // Requirements on a value, if it has one; all of these refuse NaN and infinity.
  Option& at_least(double least);
  Option& at_most(double most);
  Option& above(double bound);
  Option& between(double least, double most);
  Option& fraction();  ///< 0 <= value < 1
  Option& one_of(std::vector<std::string> words);
  /// Refuses an empty text: an unset variable in a script must not start another run.
  Option& path();

  /// Reads a value from a command line or a file. UsageError, with the option, the text and what was expected, leaves
  /// the old value. check() checks the range.
  void read(const std::string& given_text);
  [[nodiscard]] std::string text() const { return text_(); }  ///< in the form that read() takes; empty: no value
  [[nodiscard]] std::string spelled() const { return spelled(name); }  ///< "--clip-norm"
  /// Returns the spelled negation: "--decay-norm"; empty without a negation.
  [[nodiscard]] std::string negated() const { return negation.empty() ? "" : spelled(negation); }
  /// UsageError when the value breaks a rule of the description.
  void check() const;

 private:
  friend class Schema;
  struct Rule {
    std::function<bool()> holds;
    std::string expected;
  };
  std::function<std::string()> text_;
  std::function<bool(const std::string&)> read_;
  std::function<std::optional<double>()> number_;  ///< empty unless the value is a number
  std::string expected_;                           ///< expected form, for errors of read()
  std::vector<Rule> rules_;
  bool path_ = false;

  Option& rule(std::function<bool(double)> holds, std::string expected);
  [[nodiscard]] static std::string spelled(const std::string& field);
};

/// The options of a program or a struct, bound to variables that outlive it. A struct describes itself once:
///
///   void describe(Schema& schema, ClipOptions& o) {
///     schema.add("clip_norm", o.clip_norm, "scale gradients down to this norm; 0: off").at_least(0);
///   }
///
/// so that no other code lists its fields.
class Schema {
 public:
  /// The following options belong to this group: "Training".
  Schema& group(std::string name);

  /// Adds an option. T: bool (a flag), int, std::int64_t, std::uint64_t, double, std::string, std::optional of one of
  /// these, or std::vector<double>, <float>, <std::int64_t> or <std::string>.
  template <class T>
  Option& add(const std::string& name, T& value, const std::string& help);
  /// Adds a value of an enum; each of its values is given by a word.
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
  /// Adds a value with names: `name_of` returns its name; `parse` reads a name, or throws a UsageError that lists the
  /// names.
  template <class T, class NameOf, class Parse>
  Option& named(const std::string& name, T& value, NameOf name_of, Parse parse, const std::string& help) {
    return own(
        name, "NAME", help, [&value, name_of] { return std::string(name_of(value)); },
        [&value, parse](const std::string& given) {
          value = parse(given);
          return true;
        });
  }
  /// Adds a value with its own stored form. text: in the form that `read` takes; read: false for an unknown text.
  /// `type` says what is expected.
  Option& own(std::string name, std::string type, std::string help, std::function<std::string()> text,
              std::function<bool(const std::string&)> read);

  [[nodiscard]] std::deque<Option>& options() { return options_; }
  [[nodiscard]] const std::deque<Option>& options() const { return options_; }
  [[nodiscard]] Option* find(std::string_view name);  ///< nullptr: no such option
  /// Calls Option::check() of all options, in the order of their description.
  void check() const;
  /// Returns the chosen values by name, as read() takes them. `kept_only`: without options of only this start.
  [[nodiscard]] std::map<std::string, std::string> given(bool kept_only = false) const;

 private:
  std::deque<Option> options_;  ///< a deque, so that addresses stay valid
  std::string group_;
};

}  // namespace lockstep
