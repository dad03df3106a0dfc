#include <lockstep/nn/model/parameter_groups.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include <fnmatch.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

bool fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

/// Joins texts of the rates, like "layer4.*=0.1", with `separator` between them.
std::string rates_text(const ParameterGroups& groups, char separator) {
  std::string text;
  for (const ParameterGroups::Rate& rate : groups.rates) {
    text += text.empty() ? "" : std::string(1, separator);
    text += concat(rate.pattern, '=', exact_text(rate.factor));
  }
  return text;
}

}  // namespace

ParameterGroups::Rate parse_rate(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  ParameterGroups::Rate rate{.pattern = text.substr(0, equals), .factor = std::nan("")};
  if (equals != std::string::npos && equals > 0) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, rate.factor);
    rate.factor = error == std::errc() && stop == end ? rate.factor : std::nan("");
  }
  require<UsageError>(std::isfinite(rate.factor) && rate.factor >= 0, "a rate of parameters is '", text,
                      "', expected PATTERN=FACTOR with a number of at least 0, as layer4.*=0.1");
  return rate;
}

double rate_of(const ParameterGroups& groups, const std::string& name) {
  const auto last = std::find_if(groups.rates.rbegin(), groups.rates.rend(),
                                 [&](const ParameterGroups::Rate& rate) { return fits(rate.pattern, name); });
  return last == groups.rates.rend() ? 1 : last->factor;
}

void require_groups(const ParameterGroups& groups, const std::vector<std::string>& names) {
  const auto decay = [](const char* what, const std::optional<double>& value) {
    require<UsageError>(!value || (std::isfinite(*value) && *value >= 0), "the weight decay of ", what, " is ",
                        value.value_or(0), ", expected a number of at least 0");
  };
  decay("norms", groups.norm_weight_decay);
  decay("biases", groups.bias_weight_decay);
  for (const ParameterGroups::Rate& rate : groups.rates) {
    require<UsageError>(
        std::any_of(names.begin(), names.end(), [&](const std::string& name) { return fits(rate.pattern, name); }),
        "no parameter has a name like '", rate.pattern, "', expected one for a rate of ", rate.factor, ", as ",
        names.empty() ? std::string() : names.front());
    require<UsageError>(std::isfinite(rate.factor) && rate.factor >= 0, "the rate of ", rate.pattern, " is ",
                        rate.factor, ", expected a number of at least 0");
  }
}

std::string text_of(const ParameterGroups& groups) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (groups.norm_weight_decay) {
    add("norm decay " + exact_text(*groups.norm_weight_decay));
  }
  if (groups.bias_weight_decay) {
    add("bias decay " + exact_text(*groups.bias_weight_decay));
  }
  if (!groups.rates.empty()) {
    add("rates " + rates_text(groups, ' '));
  }
  return text;
}

void describe(Schema& schema, ParameterGroups& groups) {
  schema.group("Training");
  schema
      .add("norm_weight_decay", groups.norm_weight_decay, "weight decay of norm parameters, instead of --weight-decay")
      .at_least(0)
      .instead_of("no_decay_norm");
  schema
      .add("bias_weight_decay", groups.bias_weight_decay,
           "weight decay of biases outside norm layers, instead of --weight-decay")
      .at_least(0)
      .instead_of("no_decay_norm");
  const auto text = [&groups] { return rates_text(groups, ','); };
  const auto read = [&groups](const std::string& given) {
    groups.rates.clear();
    std::istringstream parts(given);
    for (std::string part; std::getline(parts, part, ',');) {
      groups.rates.push_back(parse_rate(part));
    }
    return true;
  };
  schema
      .own("rate_scale", "PATTERN=FACTOR",
           "factors of the learning rate by parameter name, e.g. 'layer4.*=0.1,fc.*=1'; the last pattern that fits a "
           "name counts",
           text, read)
      .list = true;
}

}  // namespace lockstep::nn
