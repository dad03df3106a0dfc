#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/comm/gradients/bucket_sum.hpp>

namespace lockstep::comm {

// Functions that make lockstep's own kinds of BucketSum. Each kind has a file in comm/gradients/sums.
[[nodiscard]] std::shared_ptr<BucketSum> make_library_sum(DType dtype, bool divided);
/// Makes the sum for SumOrder::ranks or SumOrder::tree. Throws DTypeError for a 16-bit type with SumOrder::tree.
[[nodiscard]] std::shared_ptr<BucketSum> make_ordered_sum(DType dtype, SumOrder order);

/// A kind of BucketSum that a program selects by its name.
struct NamedSum {
  std::string_view name;  ///< name without argument: "bf16"
  /// Text for the argument that follows the sum's name and a colon: "RANK"; empty if the sum has no argument.
  std::string_view argument;
  std::string expected;   ///< text for errors: the sum's name and the range of its argument
  std::string_view help;  ///< help text; may be empty if the help of the previous sum explains both sums
  /// Function that returns the SumOptions for the sum's name with this argument; nullopt for a wrong argument.
  std::optional<SumOptions> (*options)(std::string_view argument);
  /// Function that makes the sum; `argument` must be valid. The member `make` is nullptr if SumOptions::dtype and order
  /// describe the sum completely.
  std::shared_ptr<BucketSum> (*make)(std::string_view argument, std::uint64_t seed) = nullptr;
};

[[nodiscard]] NamedSum bf16_sum();
[[nodiscard]] NamedSum fp16_sum();
[[nodiscard]] NamedSum low_rank_sum();

/// Functions that return the named sums, in the order in which help texts list the sums.
inline constexpr std::array kNamedSums{&bf16_sum, &fp16_sum, &low_rank_sum};

}  // namespace lockstep::comm
