#include <lockstep/comm/gradients/make_bucket_sum.hpp>

#include <array>
#include <utility>

#include <lockstep/comm/gradients/sums/detail/kinds.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

/// Splits `name` ("NAME" or "NAME:ARGUMENT") into a named sum and the text of its argument; nullopt for a wrong name.
std::optional<std::pair<NamedSum, std::string_view>> find(std::string_view name) {
  const std::size_t colon = name.find(':');
  for (const auto& entry : kNamedSums) {
    NamedSum sum = entry();
    if (sum.name == name.substr(0, colon) && (colon != std::string_view::npos) == !sum.argument.empty()) {
      const std::string_view argument = colon == std::string_view::npos ? "" : name.substr(colon + 1);
      return std::pair(std::move(sum), argument);
    }
  }
  return std::nullopt;
}

std::shared_ptr<BucketSum> made(const SumOptions& options, bool divided, std::uint64_t seed) {
  if (options.hook != nullptr) {
    const std::string name = options.hook->name();
    require<UsageError>(!name.empty() && name.find('\n') == std::string::npos,
                        "gradient sums: the name of the hook is '", name, "', expected one line");
    return options.hook;
  }
  if (!options.compress.empty()) {
    const auto found = find(options.compress);
    require<UsageError>(found && found->first.options(found->second), "gradient sums: compress is '", options.compress,
                        "', expected ", expected_sum_names());
    require<UsageError>(found->first.make != nullptr, "gradient sums: compress is ", options.compress,
                        ", expected the dtype and the order that sums_named() gives");
    return found->first.make(found->second, seed);
  }
  return options.order == SumOrder::library ? make_library_sum(options.dtype, divided)
                                            : make_ordered_sum(options.dtype, options.order);
}

/// Texts for the error of a SumField that a sum does not support: the field's meaning, and what was expected.
constexpr std::array kBeside{"a hook of the program, expected one of the two",
                             "an order of sums, expected SumOrder::library",
                             "gradients that travel in 16 bits, expected f32",
                             "a strategy that divides the gradients, expected ddp",
                             "virtual ranks, expected none",
                             "a loss scale, expected none"};

}  // namespace

std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use) {
  if (options.hook != nullptr && !options.compress.empty()) {
    return Misfit{SumField::hook};
  }
  const std::shared_ptr<BucketSum> sum = made(options, use.divided, 1);
  return options.hook == nullptr && sum->name().empty() ? std::nullopt : sum->misfit(options, use);
}

std::shared_ptr<BucketSum> make_bucket_sum(const SumOptions& options, const SumUse& use, std::uint64_t seed) {
  if (const std::optional<Misfit> wrong = misfit(options, use)) {
    throw UsageError(concat(
        "gradient sums: ",
        options.compress.empty() ? "hook is " + options.hook->name() : "compress is " + options.compress, " with ",
        kBeside[static_cast<std::size_t>(wrong->field)], wrong->reason.empty() ? "" : ": ", wrong->reason));
  }
  return made(options, use.divided, seed);
}

std::optional<SumOptions> sums_named(std::string_view name) {
  if (name == "none") {
    return SumOptions();
  }
  const auto found = find(name);
  return found ? found->first.options(found->second) : std::nullopt;
}

std::string expected_sum_names() {
  std::string text = "none";
  for (std::size_t i = 0; i < kNamedSums.size(); ++i) {
    text += concat(i + 1 < kNamedSums.size() ? ", " : ", or ", kNamedSums[i]().expected);
  }
  return text;
}

std::string sum_names() {
  std::string text = "none";
  for (std::size_t i = 0; i < kNamedSums.size(); ++i) {
    const NamedSum sum = kNamedSums[i]();
    text += concat(i + 1 < kNamedSums.size() ? ", " : " or ", sum.name, sum.argument.empty() ? "" : ":", sum.argument);
  }
  return text;
}

std::string sum_names_help() {
  std::string text;
  for (const auto& entry : kNamedSums) {
    if (const std::string_view help = entry().help; !help.empty()) {
      text += concat(text.empty() ? "" : "; ", help);
    }
  }
  return text;
}

std::map<std::string, std::string> sum_texts(const SumOptions& options) {
  std::map<std::string, std::string> texts;
  if (options.dtype != DType::f32) {
    texts["reduce_dtype"] = concat(options.dtype);
  }
  if (options.order == SumOrder::ranks) {
    texts["gradient_sums"] = "in rank order";
  }
  if (options.hook != nullptr || !options.compress.empty()) {
    texts["gradient_hook"] = made(options, false, 1)->name();
  }
  return texts;
}

}  // namespace lockstep::comm
