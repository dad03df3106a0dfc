#include <lockstep/nn/plan/library_choices.hpp>

#include <cmath>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

void choices(Input input) {
  nn::ChoiceTable table;
  if (!accepts<DataError>([&] { table = nn::parse_choices(text_of(input), "choices.json"); })) {
    return;
  }
  for (const auto& [machine, calls] : table) {
    for (const auto& [call, timed] : calls) {
      check(!timed.choice.empty() && std::isfinite(timed.seconds) && timed.seconds >= 0, "a choice cannot be");
    }
  }
  check(nn::parse_choices(nn::choices_text(table), "again") == table, "differs when it is read again");
}

}  // namespace lockstep::fuzz
