#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/comm/gradients/bucket_sum.hpp>

namespace lockstep::comm {

// Functions for the sums of this library; each sum has a file in the folder sums. This one is SumOrder::library.
[[nodiscard]] std::shared_ptr<BucketSum> make_library_sum(DType dtype, bool divided);
/// Makes the sum for SumOrder::ranks or tree. DTypeError for 16 bits in a tree.
[[nodiscard]] std::shared_ptr<BucketSum> make_ordered_sum(DType dtype, SumOrder order);

/// A sum that a program asks for by name.
struct NamedSum {
  std::string_view name;  ///< name: "bf16"
  /// Name of the argument that follows the sum's name and a colon: "RANK"; empty: no argument.
  std::string_view argument;
  std::string expected;   ///< form for an error text: the name and the range of its argument
  std::string_view help;  ///< help text; may be empty if the entry before explains both
  /// Returns the options for which the name stands; nullopt for a wrong argument.
  std::optional<SumOptions> (*options)(std::string_view argument);
  /// Makes the sum for a valid argument if SumOptions::compress names it. nullptr: dtype and order say everything.
  std::shared_ptr<BucketSum> (*make)(std::string_view argument, std::uint64_t seed) = nullptr;
};

[[nodiscard]] NamedSum bf16_sum();
[[nodiscard]] NamedSum fp16_sum();
[[nodiscard]] NamedSum low_rank_sum();

/// All named sums, in the order of the help.
inline constexpr std::array kNamedSums{&bf16_sum, &fp16_sum, &low_rank_sum};

}  // namespace lockstep::comm
