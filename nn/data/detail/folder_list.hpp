#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::nn::detail {

struct FolderFile {
  std::string name;  ///< path relative to FolderList::root, or absolute
  std::int32_t label = 0;
};

/// The image files of folder:DIR or list:TRAIN,VAL, which open_data() describes. Files of a folder are sorted by class,
/// then by the bytes of their names. Files of lists keep the order of the lists.
struct FolderList {
  int classes = 0;
  std::vector<std::string> names;  ///< names of the classes, by label
  std::vector<FolderFile> train;
  std::vector<FolderFile> test;
  std::string root;    ///< folder to which the names are relative; empty: the program's working directory
  std::string source;  ///< path of the folder, or of the training list, for error texts
  std::string about;   ///< text for users that says where the test images come from
};

/// Lists the image files that `spec` names: "folder:DIR", "list:TRAIN" or "list:TRAIN,VAL". Opens no image.
///
/// If `val_fraction` is above 0, this fraction of the images of each class becomes the test set. A class with two or
/// more images has at least one image in the test set and one in the training set. Which images become the test set
/// depends only on `seed`, the class and the class's number of images. If `val_fraction` is 0, the test set consists of
/// the images below DIR/val or DIR/test, or of the images in the list VAL.
///
/// Throws UsageError if `val_fraction` is out of range, if `val_fraction` and a test set are both given, if neither is
/// given, and if `spec` has more than one comma. Throws DataError for a folder that does not exist or has no classes,
/// for a class without images, for classes that differ between training and test, and for symbolic links that are
/// dangling or form a cycle. Throws FileError for a folder or list that the system cannot read. For lists, also throws
/// the errors of combined_lists().
[[nodiscard]] FolderList list_pictures(const std::string& spec, double val_fraction, std::uint64_t seed);
[[nodiscard]] FolderList list_folder(const std::string& folder, double val_fraction, std::uint64_t seed);
[[nodiscard]] FolderList list_lists(const std::string& paths, double val_fraction, std::uint64_t seed);
[[nodiscard]] bool is_list(const std::string& spec);
/// Splits `paths`, "TRAIN,VAL" or "TRAIN", into the paths of the lists. Throws UsageError if there is more than one
/// comma, or if a path is empty.
[[nodiscard]] std::vector<std::string> paths_of_lists(const std::string& paths);

struct PictureList {
  std::string path;   ///< path of the list, for error texts
  std::string text;   ///< contents of the list
  std::string above;  ///< path from the root to this list's folder, like "../val/"; empty if that folder is the root
};
/// Combines the lists TRAIN and, if given, VAL. problem(name) must return the reason why the file `name` cannot be a
/// picture, or an empty text if the file can be a picture. Throws a DataError, which names list and line, for:
/// - a line without a label, with a byte 0, or of more than 8192 bytes
/// - a file for which problem() returns a reason
/// - a label that is below 0 or too large
/// - labels of which some are numbers and others are names
/// - a picture with two labels
/// - a picture that occurs twice in a list that is split
/// - a list without pictures, and a class without a training picture
[[nodiscard]] FolderList combined_lists(std::span<const PictureList> lists, double val_fraction, std::uint64_t seed,
                                        const std::function<std::string(const std::string& name)>& problem);

/// Draws the test images of a class: element i of the result is true if image i is for the test. `images` is the
/// class's number of images. The result depends only on the arguments.
[[nodiscard]] std::vector<bool> drawn_for_test(std::size_t images, double fraction, std::uint64_t seed,
                                               std::int32_t label);
/// Throws UsageError unless 0 <= val_fraction < 1.
void require_fraction(double val_fraction);

/// Removes the files named in `left_out` from the training and the test set. Throws DataError if a class, or the test
/// set, then has no images.
void leave_out(FolderList& list, const std::vector<std::string>& left_out, const std::string& source);

}  // namespace lockstep::nn::detail
