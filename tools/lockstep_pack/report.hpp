#pragma once

#include <string>

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

}  // namespace lockstep::tools
