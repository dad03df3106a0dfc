// This file is separate from dataset.cpp, so that a program that opens no files needs no library for image files.

#include <lockstep/nn/data/open_data.hpp>

#include <filesystem>
#include <limits>
#include <system_error>

#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {
namespace {

// Number of images from which the statistics of a synthetic set are computed. 1024 images give three correct digits,
// and take little time to draw.
constexpr std::int64_t kSyntheticSamples = 1024;

}  // namespace

DataSplit open_data(const DataOptions& options) {
  const std::size_t colon = options.spec.find(':');
  const std::string kind = options.spec.substr(0, colon);
  const std::string folder = colon == std::string::npos ? "" : options.spec.substr(colon + 1);
  if ((kind == "folder" || kind == "list") && !folder.empty()) {
    return detail::open_pictures(options.spec, options.folder, options.seed);
  }
  if (kind == "packed" && !folder.empty()) {
    return detail::open_packed(folder, options.folder, options.seed);
  }
  DataSplit split;
  std::int64_t samples = std::numeric_limits<std::int64_t>::max();
  if (options.spec == "synthetic") {
    split = detail::open_synthetic(options.synthetic, options.seed);
    samples = kSyntheticSamples;
  } else if (kind == "cifar10" && !folder.empty()) {
    split = detail::open_cifar10(folder);
  } else if (kind == "idx" && !folder.empty()) {
    split = detail::open_idx(folder);
  } else {
    std::error_code ignored;
    const bool exists = std::filesystem::is_directory(options.spec, ignored);
    require<UsageError>(!exists, "data is '", options.spec,
                        "', a folder, expected a word before it: folder:", options.spec,
                        " where it holds pictures in folders train and val");
    throw UsageError(concat("data is '", options.spec,
                            "', expected synthetic, cifar10:DIR, idx:DIR, folder:DIR, list:FILE or packed:FILE"));
  }
  split.statistics = channel_statistics(*split.train, samples);
  return split;
}

}  // namespace lockstep::nn
