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
/// resized bilinearly with antialiasing, as torchvision does it. If the used part of a JPEG has at least 4, 8 or 16
/// pixels for each pixel of the image along both axes, the file is decoded at 1/2, 1/4 or 1/8 of its size.
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
/// cifar10:DIR: CIFAR-10 in its binary version. The files are data_batch_1.bin to data_batch_5.bin (all but the first
/// may be missing) and test_batch.bin, each with any number of records of 1 + 3072 bytes. There are 10 classes. Their
/// names are the lines of batches.meta.txt, if that file exists.
///
/// idx:DIR: The files are train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
/// t10k-labels-idx1-ubyte, each plain or as .gz. If both exist, the plain file is read. There are 10 classes, or more
/// if the training labels go on beyond 9 without a gap. Every label must be one of the classes. Labels may begin with
/// 1, like those of EMNIST's letters; then no sample has class 0.
///
/// folder:DIR: JPEG and PNG files that images/decode.hpp can decode.
/// - Training files are DIR/train/CLASS/*.jpg, .jpeg or .png, also in folders below CLASS. Test files are in the folder
///   DIR/val, or in DIR/test if there is no DIR/val, with the same layout. Names that begin with a dot, and files with
///   other endings, are ignored.
/// - With val_fraction, DIR/val and DIR/test must not exist. The pictures of DIR/train are split, or the pictures of
///   DIR/CLASS if there is no DIR/train.
/// - Classes are the names of folders in the order of their bytes. They must be the same for training and test.
/// - Pictures are turned as EXIF says. Every read of a picture decodes its file. The read of a damaged file throws
///   DataError with the file's name; damaged_images() finds damaged files beforehand.
/// - Fingerprints cover names and options, but not the contents of files, because reading all files would take too
///   long. The statistics are ImageNet's. Throws UsageError in a build without libjpeg-turbo and libpng.
///
/// list:TRAIN,VAL or list:TRAIN: JPEG and PNG files that one or two lists name. Except for the following rules,
/// everything is as for folder:DIR.
/// - The paths TRAIN and VAL must not contain a comma. list:TRAIN needs val_fraction, the part of each class that
///   becomes the test set.
/// - A list has a line PATH LABEL or PATH,LABEL for each picture, as in Caffe, and no header. A line ends with LF or CR
///   LF. A byte order mark, blanks around a line, empty lines and lines that begin with # are skipped.
/// - A line is divided at its last tab; without a tab, at its last comma; without tab and comma, at its last space.
///   Blanks around path and label are dropped.
/// - A path is absolute, or relative to the folder of its list. The file name may have any ending. "./" and doubled
///   slashes are removed from paths. Two paths to the same file (by links or "..") count as two pictures.
/// - Either all labels are numbers from 0 to the number of classes - 1, or all labels are names of classes. Names are
///   numbered in the order of their bytes. Every class must have a picture in TRAIN. Each path must have only one
///   label.
/// - A list may repeat a path, which then counts as several samples. A list that is split must not repeat a path.
/// - Samples are in the order of the lists. If VAL is in another folder than TRAIN, the names of its pictures begin
///   with the path from TRAIN's folder to VAL's folder.
/// - If lists in DIR name the pictures of folder:DIR in the same order, samples and fingerprints equal those of
///   folder:DIR. A run may then be resumed with either spec.
///
/// packed:FILE: the pictures of a folder or list in one file, which lockstep-pack has written (packed/packed_file.hpp).
/// - Samples, names and statistics equal those of the folder or list, unless the file was packed in a random order. So
///   a run may be resumed with either spec.
/// - Fingerprints equal those of the folder, unless the stored pixels differ from the folder's pixels. They differ in
///   pictures that were resized, and in JPEGs that a folder decodes at a smaller size (FolderOptions).
/// - Every read of a sample checks its checksum.
/// - Throws UsageError for val_fraction and left_out, which are options of lockstep-pack instead. Also throws
///   UsageError for stored JPEG or PNG files in a build without libjpeg-turbo and libpng.
///
/// synthetic: images that depend only on (seed, split, index); see synthetic.cpp. Reads no files.
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
