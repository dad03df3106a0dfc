#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/options/crop_options.hpp>

/// Opens the sets of images that a text names. The value of train_resnet's option --data is such a text.
namespace lockstep::nn {

struct SyntheticOptions {
  std::int64_t train_size = 8192;
  std::int64_t test_size = 2048;
  std::int64_t height = 32;
  std::int64_t width = 32;
  int classes = 10;  ///< number of classes, 2 to 1120
};

/// Options for turning the pictures of folder:DIR, list:FILE and packed:FILE into images of one size. Pictures are
/// resized bilinearly with antialiasing, as torchvision does it. A JPEG file with at least four times the image's side
/// is decoded at 1/2, 1/4 or 1/8 of its size.
struct FolderOptions {
  std::int64_t image_size = 224;  ///< side of the images, 1 to 4096
  /// Shorter side to which test images are resized before the crop in the centre; 0: image_size * 256 / 224, rounded.
  std::int64_t resize = 0;
  bool random_crops = true;  ///< true: training crops random parts, new in every epoch; false: the centre
  CropOptions crop{};
  bool flip = true;  ///< true: random crops are mirrored with probability 1/2
  /// Fraction of each class that becomes the test set, if neither DIR nor the list has a test set; 0: no split.
  double val_fraction = 0;
  std::vector<std::string> left_out{};  ///< files to leave out: absolute paths, or relative to the data's folder
};

struct DataOptions {
  /// Source of the data: "synthetic", "cifar10:DIR", "idx:DIR", "folder:DIR", "list:TRAIN,VAL" or "packed:FILE".
  std::string spec = "synthetic";
  std::uint64_t seed = 0;  ///< seed of synthetic images, or of the crops and the split of a folder
  SyntheticOptions synthetic;
  FolderOptions folder{};
};

struct DataSplit {
  std::unique_ptr<ImageDataset> train;
  std::unique_ptr<ImageDataset> test;
  ChannelStatistics statistics;            ///< statistics of the training set, used to normalise both sets
  std::string about{};                     ///< one line about the sets, for users; may be empty
  std::vector<std::string> class_names{};  ///< name of each class, by label; empty if the source has no names
  bool files = false;                      ///< true: every read of an image decodes a JPEG or PNG file

  operator TrainingData() const { return {*train, *test}; }  // NOLINT(google-explicit-constructor)
};

/// Opens the data that `spec` names. Throws UsageError for an unknown spec or bad synthetic options, and DataError for
/// a file that is missing or damaged. The error text names the file, the record or offset, and the expected value.
///
///   cifar10:DIR  CIFAR-10 in its binary version: data_batch_1.bin to data_batch_5.bin (all but the first may be
///                missing) and test_batch.bin, each with any number of records of 1 + 3072 bytes. There are 10 classes.
///                Their names are the lines of batches.meta.txt, if that file exists.
///   idx:DIR      train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte;
///                each plain or as .gz (if both exist, the plain file is read). There are 10
///                classes, or more if the training labels go on beyond 9 without a gap. Every label has to be one of
///                the classes. Labels may begin with 1, as those of EMNIST's letters do; then no sample has class 0.
///   folder:DIR   JPEG and PNG files that images/decode.hpp can decode. Training files are DIR/train/CLASS/*.jpg, .jpeg
///                or .png, also in folders below CLASS. Test files are the same below DIR/val, or below DIR/test if
///                there is no DIR/val. With val_fraction there must be no DIR/val or DIR/test; the pictures of
///                DIR/train are split, or those of DIR/CLASS if there is no DIR/train. Classes are the names of folders
///                in the order of their bytes, and have to be the same for training and test. Names that begin with a
///                dot, and other files, are ignored. Pictures are turned as EXIF says. Every read of a picture decodes
///                its file. The read of a damaged file throws DataError with the file's name; damaged_images() finds
///                damaged files beforehand. Fingerprints cover names and options, but not contents, which would cost a
///                pass over all files. The statistics are ImageNet's. Throws UsageError in a build without
///                libjpeg-turbo and libpng.
///   list:TRAIN,VAL
///                JPEG and PNG files that two lists name, in the form of Caffe's lists: a line PATH LABEL or PATH,LABEL
///                for each picture, without a header. list:TRAIN needs val_fraction, the part of each class to split
///                off. The names of lists contain no comma. A line ends with LF or CR LF. A byte order mark before the
///                first line, blanks around a line, empty lines and lines that begin with # are skipped. A line is
///                divided at its last tab; without a tab at its last comma; without both at its last space. Blanks
///                around both parts are dropped, and so are "./" and doubled slashes in paths. Paths are absolute, or
///                relative to the folder of their list; the ending of a file name does not matter. Labels are all
///                numbers, 0 to the number of classes - 1, or all names; classes with names are in the order of the
///                names' bytes. Every class has a picture in TRAIN. A path has one label. A list may repeat a path,
///                which then counts as several samples; a list that is split may not. Two paths to the same file (by
///                links or "..") are two pictures. Samples are in the order of the lists. So lists in DIR that name the
///                pictures of folder:DIR in its order give the same samples and fingerprints as the folder, and a run
///                may be resumed with either. If VAL lies in another folder than TRAIN, the names of its pictures begin
///                with the path from TRAIN's folder to VAL's. Everything else is as
///                for folder:DIR.
///   packed:FILE  the pictures of a folder or list in one file, from lockstep-pack (packed/packed_file.hpp). Samples,
///                names and statistics are the same as from the folder, so a run may be resumed with either, unless the
///                file was packed in a random order. Fingerprints are those of the folder, unless stored pixels differ
///                from the folder's: in pictures that were resized, and in JPEGs with four times the image's side,
///                which a folder decodes smaller. Every read of a sample checks its checksum. Throws UsageError for
///                val_fraction and left_out, which lockstep-pack takes instead, and for stored files in a build without
///                the libraries.
///   synthetic    images drawn from (seed, split, index) alone (synthetic.cpp); reads no files.
[[nodiscard]] DataSplit open_data(const DataOptions& options);

struct DamagedImage {
  std::string file;  ///< path of the file: absolute, or relative to the data's folder
  std::string text;  ///< error in one line, with the name of the file
};
/// Decodes all images of a folder:DIR or list:FILE, including the images in left_out, and returns the damaged images in
/// order. The images are divided into `parts` parts, and this call decodes part `part` with `threads` threads. If
/// `parts` ranks see the same files, each rank can decode one part. Throws the errors of open_data(), and FileError for
/// a file that the system cannot read.
[[nodiscard]] std::vector<DamagedImage> damaged_images(const DataOptions& options, int parts, int part, int threads);

}  // namespace lockstep::nn
