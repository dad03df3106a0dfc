#pragma once

#include <cstddef>
#include <string>

#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/nn/data/packed/pack_tokens.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {

/// What will happen, before it does.
[[nodiscard]] std::string pack_header(const nn::FolderPack& pack);
[[nodiscard]] std::string pack_header(const nn::TokenPack& pack);
/// "1,200 of 5,000 images, 24 %, 130 MiB, 12.0 s left", after so many seconds.
[[nodiscard]] std::string pack_progress(const nn::PackProgress& progress, double seconds);
/// What was written, the first damaged images by name, and how to train on it.
[[nodiscard]] std::string pack_report(const nn::FolderPack& pack, const nn::PackSummary& summary, double seconds);
[[nodiscard]] std::string pack_report(const nn::TokenPack& pack, const nn::TokenPackSummary& summary, double seconds);
/// The same for programs, with all damaged images.
[[nodiscard]] Json pack_json(const nn::FolderPack& pack, const nn::PackSummary& summary, double seconds);
[[nodiscard]] Json pack_json(const nn::TokenPack& pack, const nn::TokenPackSummary& summary, double seconds);

/// Damaged samples that check_report() names.
inline constexpr std::size_t kNamedDamage = 20;
/// "27 samples, 3 classes, 5204 bytes: all checksums right", or a line for each damaged sample, and how many more.
[[nodiscard]] std::string check_report(const nn::PackedFile& file, const nn::PackedCheck& check);
/// The same for programs, with the texts of all damaged samples that `check` has.
[[nodiscard]] Json check_json(const nn::PackedFile& file, const nn::PackedCheck& check);
/// "90 and 10 tokens of a vocabulary of 40, in 2 parts of 1 byte an id, 274 bytes: all checksums right", or likewise.
[[nodiscard]] std::string check_report(const nn::PackedTokens& file, const nn::PackedCheck& check);
[[nodiscard]] Json check_json(const nn::PackedTokens& file, const nn::PackedCheck& check);
/// What of it may be damaged: "27 samples", "3 blocks of ids".
[[nodiscard]] std::string checked_text(const nn::PackedFile& file);
[[nodiscard]] std::string checked_text(const nn::PackedTokens& file);

}  // namespace lockstep::tools
