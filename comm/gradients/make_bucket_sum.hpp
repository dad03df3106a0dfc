#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/comm/gradients/bucket_sum.hpp>

namespace lockstep::comm {

/// The sum that a program asks for: the hook, the one that `compress` names, or what dtype and order choose. UsageError
/// for a name that is wrong, and for a sum that does not fit the other options or the use, naming both. seed: of what
/// the sum draws; equal on all ranks.
[[nodiscard]] std::shared_ptr<BucketSum> make_bucket_sum(const SumOptions& options = {}, const SumUse& use = {},
                                                         std::uint64_t seed = 1);
/// The first field that the sum does not go with, for a program that names its own options. UsageError for a name that
/// is wrong.
[[nodiscard]] std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use);

/// The options that a name stands for: "none" or one of the table in sums/detail/kinds.hpp; empty for others.
[[nodiscard]] std::optional<SumOptions> sums_named(std::string_view name);
[[nodiscard]] std::string expected_sum_names();  ///< the names with the ranges of their arguments, for errors
[[nodiscard]] std::string sum_names();           ///< "none, bf16, ...", for the help of an option
[[nodiscard]] std::string sum_names_help();      ///< what they do

/// What the identity of a run holds: reduce_dtype, gradient_sums and gradient_hook, where they are not the defaults.
[[nodiscard]] std::map<std::string, std::string> sum_texts(const SumOptions& options);

}  // namespace lockstep::comm
