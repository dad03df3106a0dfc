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

/// One option: a field of a struct, with all that a command line, a file of options, a list of what a run was given and
/// a check of its range need to know of it. Made by Schema::add(); the functions below add to its description.
class Option {
 public:
  /// The name of the field: "clip_norm". A command line spells it --clip-norm (spelled()).
  std::string name;
  std::string help;   ///< what it does; the part up to the first "; " is enough in a short list
  std::string group;  ///< of Schema::group()
  /// What a value looks like: "INT", "on|off|auto". Empty: a flag, which takes no value.
  std::string type;
  std::string first;       ///< text() when it was described; empty: none
  bool common = false;     ///< one that most runs need
  bool list = false;       ///< takes several values, with commas between them
  bool kept = true;        ///< of a run, so that a repeat has it too; false: of this start alone
  bool given = false;      ///< chosen by read(); false: a default
  bool numbers = false;    ///< decides the numbers of a run: a part of its identity where it is not the default
  bool shared = false;     ///< has to be equal on all ranks; what decides numbers has to, too
  std::string negation{};  ///< the name that takes a flag back: "decay_norm"
  std::vector<std::string> not_with{};  ///< options in whose place it stands: given one, a file's other does not count

  Option& is_common();
  Option& of_this_start();
  Option& decides_numbers();
  Option& equal_on_ranks();
  Option& looks_like(std::string value_type);
  Option& by_default(std::string text);  ///< what --help says is the default
  Option& instead_of(std::string other);
  Option& taken_back_by(std::string name_of_negation);
  // What a value has to be, where there is one; NaN and infinity are refused by all of these.
  Option& at_least(double least);
  Option& at_most(double most);
  Option& above(double bound);
  Option& between(double least, double most);
  Option& fraction();  ///< 0 <= value < 1
  Option& one_of(std::vector<std::string> words);
  /// An empty text is refused: an unset variable in a script must not start another run.
  Option& path();

  /// Takes the value that a command line or a file gives. UsageError naming the option, the text and what was expected;
  /// then the value is as before. The range is looked at by check().
  void read(const std::string& given_text);
  [[nodiscard]] std::string text() const { return text_(); }           ///< as read() takes it; empty: no value
  [[nodiscard]] std::string spelled() const { return spelled(name); }  ///< "--clip-norm"
  /// "--decay-norm"; empty without a negation.
  [[nodiscard]] std::string negated() const { return negation.empty() ? "" : spelled(negation); }
  /// UsageError where the value is not what the description allows.
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
  std::string expected_;                           ///< by read()
  std::vector<Rule> rules_;
  bool path_ = false;

  Option& rule(std::function<bool(double)> holds, std::string expected);
  [[nodiscard]] static std::string spelled(const std::string& field);
};

/// The options of a program or a struct, bound to their variables, which outlive it. A struct describes itself once:
///
///   void describe(Schema& schema, ClipOptions& o) {
///     schema.add("clip_norm", o.clip_norm, "scale gradients down to this norm; 0: off").at_least(0);
///   }
///
/// and nobody else has a list of its fields.
class Schema {
 public:
  /// The options that follow belong to this group: "Training".
  Schema& group(std::string name);

  /// T: bool (a flag), int, std::int64_t, std::uint64_t, double, std::string, std::optional of one of these, or
  /// std::vector<double>, <float>, <std::int64_t> or <std::string>.
  template <class T>
  Option& add(const std::string& name, T& value, const std::string& help);
  /// A value of an enum by the words for its values; each is as given.
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
  /// A value with a name: `name_of` gives it, `parse` takes it, and throws a UsageError that lists the names.
  template <class T, class NameOf, class Parse>
  Option& named(const std::string& name, T& value, NameOf name_of, Parse parse, const std::string& help) {
    return own(
        name, "NAME", help, [&value, name_of] { return std::string(name_of(value)); },
        [&value, parse](const std::string& given) {
          value = parse(given);
          return true;
        });
  }
  /// A value that is stored in a form of its own. text: as `read` takes it; read: false for a text that it does not
  /// know. The type says what is expected.
  Option& own(std::string name, std::string type, std::string help, std::function<std::string()> text,
              std::function<bool(const std::string&)> read);

  [[nodiscard]] std::deque<Option>& options() { return options_; }
  [[nodiscard]] const std::deque<Option>& options() const { return options_; }
  [[nodiscard]] Option* find(std::string_view name);  ///< nullptr: there is none
  /// Option::check() of all, in the order of their description.
  void check() const;
  /// What was chosen, by name, as read() takes it. `kept_only`: without what belongs to this start alone.
  [[nodiscard]] std::map<std::string, std::string> given(bool kept_only = false) const;

 private:
  std::deque<Option> options_;  ///< whose addresses stay
  std::string group_;
};

}  // namespace lockstep
