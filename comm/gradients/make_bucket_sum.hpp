#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/comm/gradients/bucket_sum.hpp>

namespace lockstep::comm {

/// Makes the sum that the options choose: the hook, the sum that `compress` names, or the sum of dtype and order.
/// Throws UsageError if `compress` is not a known name. Also throws UsageError if the sum does not support another
/// option or a field of `use`; this error names the sum and the option or field. `seed` is the seed of the sum's random
/// numbers, and must be equal on all ranks.
[[nodiscard]] std::shared_ptr<BucketSum> make_bucket_sum(const SumOptions& options = {}, const SumUse& use = {},
                                                         std::uint64_t seed = 1);
/// Returns the first field of `options` or `use` that the sum does not support, for a program that prints its own
/// option names; nullopt if all are supported. Throws UsageError if options.compress is not a known name.
[[nodiscard]] std::optional<Misfit> misfit(const SumOptions& options, const SumUse& use);

/// Returns the options for "none" or for a name of the table in sums/detail/kinds.hpp; nullopt for any other name.
[[nodiscard]] std::optional<SumOptions> sums_named(std::string_view name);
[[nodiscard]] std::string expected_sum_names();  ///< all valid names, with the ranges of arguments, for errors
[[nodiscard]] std::string sum_names();           ///< all valid names for the help of an option: "none, bf16, .."
[[nodiscard]] std::string sum_names_help();      ///< help text that explains all named sums

/// Returns the settings that are not the default and change a run's results. The keys are those of a RunIdentity, which
/// checkpoints hold.
[[nodiscard]] std::map<std::string, std::string> sum_texts(const SumOptions& options);

}  // namespace lockstep::comm
