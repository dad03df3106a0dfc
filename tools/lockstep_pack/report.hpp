#pragma once

#include <cstddef>
#include <string>

#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/nn/data/packed/pack_tokens.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {

/// Returns the lines that are printed before packing: the source, the file, and how samples are stored in the file.
[[nodiscard]] std::string pack_header(const nn::FolderPack& pack);
[[nodiscard]] std::string pack_header(const nn::TokenPack& pack);
/// Returns a line such as "1200 of 5000 images, 24 %, 130 MiB, 12 s left", after `seconds` seconds.
[[nodiscard]] std::string pack_progress(const nn::PackProgress& progress, double seconds);
/// Returns the lines that are printed at the end: the file's size, the names of the first damaged images, and the
/// option with which a program trains on the file.
[[nodiscard]] std::string pack_report(const nn::FolderPack& pack, const nn::PackSummary& summary, double seconds);
[[nodiscard]] std::string pack_report(const nn::TokenPack& pack, const nn::TokenPackSummary& summary, double seconds);
/// Returns the result of packing as JSON, with all damaged images.
[[nodiscard]] Json pack_json(const nn::FolderPack& pack, const nn::PackSummary& summary, double seconds);
[[nodiscard]] Json pack_json(const nn::TokenPack& pack, const nn::TokenPackSummary& summary, double seconds);

/// Largest number of damaged samples that check_report() names.
inline constexpr std::size_t kNamedDamage = 20;
/// Returns "27 samples, 3 classes, 5204 bytes: all checksums right". If samples are damaged, returns a line for each of
/// the first kNamedDamage damaged samples, and the number of all other damaged samples.
[[nodiscard]] std::string check_report(const nn::PackedFile& file, const nn::PackedCheck& check);
/// Returns the result of a check as JSON, with the texts of all damaged samples that `check` has.
[[nodiscard]] Json check_json(const nn::PackedFile& file, const nn::PackedCheck& check);
/// Returns "90 and 10 tokens of a vocabulary of 40, in 2 parts of 1 byte an id, 274 bytes: all checksums right" for 90
/// training tokens and 10 validation tokens. If blocks are damaged, returns a line for each damaged block.
[[nodiscard]] std::string check_report(const nn::PackedTokens& file, const nn::PackedCheck& check);
[[nodiscard]] Json check_json(const nn::PackedTokens& file, const nn::PackedCheck& check);
/// Returns the number and kind of the parts of a file that may be damaged: "27 samples", "3 blocks of ids".
[[nodiscard]] std::string checked_text(const nn::PackedFile& file);
[[nodiscard]] std::string checked_text(const nn::PackedTokens& file);

}  // namespace lockstep::tools
