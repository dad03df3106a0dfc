#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/options/crop_options.hpp>

/// Opens sets of images that a text names: the option --data of train_resnet.
namespace lockstep::nn {

struct SyntheticOptions {
  std::int64_t train_size = 8192;
  std::int64_t test_size = 2048;
  std::int64_t height = 32;
  std::int64_t width = 32;
  int classes = 10;  ///< number of classes, 2 to 1120
};

/// How the pictures of folder:DIR, list:FILE and packed:FILE become images of one size. They are resized bilinearly
/// with antialiasing, as torchvision does it. A JPEG file with at least four times the image's side is decoded at 1/2,
/// 1/4 or 1/8 of its size.
struct FolderOptions {
  std::int64_t image_size = 224;  ///< side of the images, 1 to 4096
  /// Shorter side of test images before the crop in the centre; 0: image_size * 256 / 224, rounded.
  std::int64_t resize = 0;
  bool random_crops = true;  ///< training images are random parts, drawn anew in every epoch; false: like test images
  CropOptions crop{};
  bool flip = true;  ///< random crops are mirrored with probability 1/2
  /// Fraction of each class that becomes the test set, for a DIR or list without one; 0: none.
  double val_fraction = 0;
  std::vector<std::string> left_out{};  ///< files that are left out, named like DamagedImage::file
};

struct DataOptions {
  /// "synthetic", "cifar10:DIR", "idx:DIR", "folder:DIR", "list:TRAIN,VAL" or "packed:FILE".
  std::string spec = "synthetic";
  std::uint64_t seed = 0;  ///< seed of synthetic images, and of the crops and the split of a folder
  SyntheticOptions synthetic;
  FolderOptions folder{};
};

struct DataSplit {
  std::unique_ptr<ImageDataset> train;
  std::unique_ptr<ImageDataset> test;
  ChannelStatistics statistics;            ///< statistics of the training set, with which both sets are normalised
  std::string about{};                     ///< one line about the sets, for a user; may be empty
  std::vector<std::string> class_names{};  ///< names of the classes, by label; empty: the source has none
  bool files = false;                      ///< every read of an image decodes a JPEG or PNG file

  operator TrainingData() const { return {*train, *test}; }  // NOLINT(google-explicit-constructor)
};

/// Opens the data that `spec` names. Throws UsageError for an unknown spec or bad synthetic options, and DataError for
/// a file that is missing or damaged. The error text names the file, the record or offset, and the expected value.
///
///   cifar10:DIR  CIFAR-10 in its binary version: data_batch_1.bin to data_batch_5.bin (those after the first may be
///                missing) and test_batch.bin, each with any number of records of 1 + 3072 bytes. There are 10 classes.
///                Their names are the lines of batches.meta.txt, if that file exists.
///   idx:DIR      train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte;
///                each plain or with .gz added (plain is taken when both are there). There are 10 classes, or more if
///                the training labels go on beyond 9 without a gap. Every label has to be one of the classes. Labels
///                may begin with 1, as those of EMNIST's letters do; then no sample has class 0.
///   folder:DIR   JPEG and PNG files (images/decode.hpp says which), found by their names: DIR/train/CLASS/*.jpg, .jpeg
///                or .png, also in folders below CLASS, and the same below DIR/val or, without it, DIR/test. With
///                val_fraction there is no val or test, and the pictures of DIR/train, or without it of DIR/CLASS, are
///                split. Classes are the names of folders in the order of their bytes, and have to be the same for
///                training and test. Names that begin with a dot, and other files, are ignored. Pictures are turned as
///                EXIF says. Every read of a picture decodes its file; for a damaged file the read throws DataError
///                with the file's name. damaged_images() finds damaged files beforehand. Fingerprints cover names and
///                options, not contents, which would cost a pass over all files. The statistics are ImageNet's. Throws
///                UsageError in a build without the libraries.
///   list:TRAIN,VAL
///                JPEG and PNG files that two lists name, in the form of Caffe's: a line PATH LABEL or PATH,LABEL for
///                each picture, without a header. Or list:TRAIN with val_fraction, which is split off each class. The
///                names of lists contain no comma. A line ends with LF or CR LF. A byte order mark before the first
///                line, blanks around a line, empty lines and lines that begin with # are skipped. A line is divided at
///                its last tab; without a tab at its last comma; without both at its last space. Blanks around both
///                parts are dropped, and "./" and doubled slashes in paths. Paths are relative to the folder of their
///                list, or absolute; the ending of a file name does not matter. Labels are all numbers, 0 to the number
///                of classes - 1, or all names, whose classes are in the order of their bytes. Every class has a
///                picture in TRAIN. A path has one label. A path may stand in a list several times, and then counts as
///                several samples, but not where a fraction is split off. Other paths to the same file (by links or
///                "..") are other pictures. Samples are in the order of the lists. So lists in DIR that name the
///                pictures of folder:DIR in its order give the same samples and fingerprints as the folder, and a run
///                may be resumed with either. Where VAL lies in another folder than TRAIN, the names of its pictures
///                begin with the path from TRAIN's folder to VAL's. All else is as for folder:DIR.
///   packed:FILE  the pictures of a folder or list in one file, from lockstep-pack (packed/packed_file.hpp). Samples,
///                names and statistics are the same, so a run may be resumed with either, except with a file that was
///                packed in a random order. Fingerprints are those of the folder, except where stored pixels differ
///                from the folder's: in pictures that were resized, and in JPEGs with four times the image's side,
///                which a folder decodes smaller. Every read of a sample checks its checksum. Throws UsageError for
///                val_fraction and left_out, which are options of lockstep-pack here, and for stored files in a build
///                without the libraries.
///   synthetic    images drawn from (seed, split, index) alone (synthetic.cpp); reads no files.
[[nodiscard]] DataSplit open_data(const DataOptions& options);

struct DamagedImage {
  std::string file;  ///< path relative to DIR or the folder of TRAIN, or absolute, as FolderOptions::left_out wants it
  std::string text;  ///< the error in one line, with the name of the file
};
/// Decodes part `part` of `parts` of all images of a folder:DIR or list:FILE, including those in left_out, with
/// `threads` threads. Returns the damaged images in order. If each of `parts` ranks that see the same files takes one
/// part, they find all damaged images together. Throws the errors of open_data(), and FileError for a file that the
/// system cannot read.
[[nodiscard]] std::vector<DamagedImage> damaged_images(const DataOptions& options, int parts, int part, int threads);

}  // namespace lockstep::nn
