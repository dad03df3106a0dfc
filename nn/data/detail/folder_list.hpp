#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::nn::detail {

struct FolderFile {
  std::string name;  ///< relative to FolderList::root, or absolute
  std::int32_t label = 0;
};

/// The images of folder:DIR and list:TRAIN,VAL as open_data() describes them: class by class in the order of the bytes
/// of their names, or in the order of the lists.
struct FolderList {
  int classes = 0;
  std::vector<std::string> names;  ///< of the classes
  std::vector<FolderFile> train;
  std::vector<FolderFile> test;
  std::string root;    ///< DIR, or the folder of TRAIN; empty: that of the program
  std::string source;  ///< DIR or TRAIN, for errors
  std::string about;   ///< where the test images come from
};

/// What `spec` names, "folder:DIR" or "list:TRAIN" or "list:TRAIN,VAL"; no image is opened. A fraction of each class is
/// for the test, at least one image and not all, chosen by seed, class and number of images; 0: DIR or VAL says which.
/// UsageError: neither or both; a fraction out of range; of a list another number of commas. DataError of a folder: no
/// such folder, no classes, a class without images, classes that differ, links to nowhere or in a circle, a folder that
/// the system cannot read; of lists as combined_lists(), and a list that cannot be read.
[[nodiscard]] FolderList list_pictures(const std::string& spec, double val_fraction, std::uint64_t seed);
[[nodiscard]] FolderList list_folder(const std::string& folder, double val_fraction, std::uint64_t seed);
[[nodiscard]] FolderList list_lists(const std::string& paths, double val_fraction, std::uint64_t seed);
[[nodiscard]] bool is_list(const std::string& spec);
/// The files of list:TRAIN,VAL or list:TRAIN. UsageError.
[[nodiscard]] std::vector<std::string> paths_of_lists(const std::string& paths);

struct PictureList {
  std::string path;   ///< for errors
  std::string text;   ///< the file
  std::string above;  ///< from the root to the folder of this list, "../val/"; empty: it is the root
};
/// TRAIN, and VAL where there is one. `problem`: of a name, why it is no picture; empty: nothing. DataError with list
/// and line: a line without label, with a byte 0, or of more than 8192 bytes; a problem; a label that is below 0 or too
/// large, or a name among numbers or the other way round; a picture with two labels, or twice where a fraction is split
/// off; a list without pictures, a class without a training picture.
[[nodiscard]] FolderList combined_lists(std::span<const PictureList> lists, double val_fraction, std::uint64_t seed,
                                        const std::function<std::string(const std::string& name)>& problem);

/// Which images of a class are for the test: a function of seed, label and their number.
[[nodiscard]] std::vector<bool> drawn_for_test(std::size_t images, double fraction, std::uint64_t seed,
                                               std::int32_t label);
/// UsageError.
void require_fraction(double val_fraction);

/// Takes these files out of both sets. DataError when a class or the test would have no images then.
void leave_out(FolderList& list, const std::vector<std::string>& left_out, const std::string& source);

}  // namespace lockstep::nn::detail
