#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/comm/gradients/bucket_sum.hpp>

namespace lockstep::comm {

// The kinds of sums of this library, each in a file of this folder. What SumOptions::dtype and order choose:
[[nodiscard]] std::shared_ptr<BucketSum> make_library_sum(DType dtype, bool divided);
/// SumOrder::ranks or tree; DTypeError for 16 bits in a tree.
[[nodiscard]] std::shared_ptr<BucketSum> make_ordered_sum(DType dtype, SumOrder order);

/// A sum that a program asks for by name.
struct NamedSum {
  std::string_view name;      ///< "bf16"
  std::string_view argument;  ///< what follows the name and a colon: "RANK"; empty: nothing
  std::string expected;       ///< in an error: the name and the range of its argument
  std::string_view help;      ///< what it does; may be empty, where that of the entry before says it
  /// The options that the name stands for; empty for an argument that is wrong.
  std::optional<SumOptions> (*options)(std::string_view argument);
  /// The sum of a right argument, where SumOptions::compress names it; nullptr: dtype and order say everything.
  std::shared_ptr<BucketSum> (*make)(std::string_view argument, std::uint64_t seed) = nullptr;
};

[[nodiscard]] NamedSum bf16_sum();
[[nodiscard]] NamedSum fp16_sum();
[[nodiscard]] NamedSum low_rank_sum();

/// All of them, in the order of the help.
inline constexpr std::array kNamedSums{&bf16_sum, &fp16_sum, &low_rank_sum};

}  // namespace lockstep::comm
