#pragma once

#include <cstddef>
#include <string>

#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/nn/data/packed/pack_folder.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {

/// What will happen, before it does.
[[nodiscard]] std::string pack_header(const nn::FolderPack& pack);
/// "1,200 of 5,000 images, 24 %, 130 MiB, 12.0 s left", after so many seconds.
[[nodiscard]] std::string pack_progress(const nn::PackProgress& progress, double seconds);
/// What was written, the first damaged images by name, and how to train on it.
[[nodiscard]] std::string pack_report(const nn::FolderPack& pack, const nn::PackSummary& summary, double seconds);
/// The same for programs, with all damaged images.
[[nodiscard]] Json pack_json(const nn::FolderPack& pack, const nn::PackSummary& summary, double seconds);

/// Damaged samples that check_report() names.
inline constexpr std::size_t kNamedDamage = 20;
/// "27 samples, 3 classes, 5204 bytes: all checksums right", or a line for each damaged sample, and how many more.
[[nodiscard]] std::string check_report(const nn::PackedFile& file, const nn::PackedCheck& check);
/// The same for programs, with the texts of all damaged samples that `check` has.
[[nodiscard]] Json check_json(const nn::PackedFile& file, const nn::PackedCheck& check);

}  // namespace lockstep::tools
