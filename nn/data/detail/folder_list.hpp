#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::nn::detail {

struct FolderFile {
  std::string name;  ///< relative to DIR
  std::int32_t label = 0;
};

/// The images of folder:DIR as open_data() describes it, class by class, in the order of the bytes of their names.
struct FolderList {
  int classes = 0;
  std::vector<std::string> names;  ///< of the classes
  std::vector<FolderFile> train;
  std::vector<FolderFile> test;
  std::string about;  ///< where the test images come from
};

/// Reads names only. A fraction of each class is for the test, at least one image and not all, chosen by seed, class
/// and number of images; 0: DIR has a folder for it. UsageError: no such folder and no fraction, or both; a fraction
/// out of range. DataError: no classes, a class without images, classes that differ, links to nowhere or in a circle; a
/// folder that the system cannot read.
[[nodiscard]] FolderList list_folder(const std::string& folder, double val_fraction, std::uint64_t seed);

/// Takes these files out of both sets. DataError when a class or the test would have no images then.
void leave_out(FolderList& list, const std::vector<std::string>& left_out, const std::string& folder);

}  // namespace lockstep::nn::detail
