#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/comm/gradients/bucket_sum.hpp>

namespace lockstep::comm {

/// Makes the sum that the options ask for: the hook, the sum that `compress` names, or the sum of dtype and order.
/// UsageError for a wrong name, or for a sum that does not support another option or the use; the error names both.
/// `seed` is for random numbers of the sum and must be equal on all ranks.
[[nodiscard]] std::shared_ptr<BucketSum> make_bucket_sum(const SumOptions& options = {}, const SumUse& use = {},
                                                         std::uint64_t seed = 1);
/// Returns the first field that the sum does not support, for a program that prints its own option names. UsageError
/// for a wrong name.
[[nodiscard]] std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use);

/// Returns the options for a name: "none" or a name of the table in sums/detail/kinds.hpp. nullopt for other names.
[[nodiscard]] std::optional<SumOptions> sums_named(std::string_view name);
[[nodiscard]] std::string expected_sum_names();  ///< names with the ranges of their arguments, for error texts
[[nodiscard]] std::string sum_names();           ///< names for the help of an option: "none, bf16, ..."
[[nodiscard]] std::string sum_names_help();      ///< help text of all named sums

/// Returns entries of a run's identity: reduce_dtype unless f32, gradient_sums for SumOrder::ranks, gradient_hook.
[[nodiscard]] std::map<std::string, std::string> sum_texts(const SumOptions& options);

}  // namespace lockstep::comm
