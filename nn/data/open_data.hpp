#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/options/crop_options.hpp>

/// The sets of images that lockstep opens by a text: --data of train_resnet.
namespace lockstep::nn {

struct SyntheticOptions {
  std::int64_t train_size = 8192;
  std::int64_t test_size = 2048;
  std::int64_t height = 32;
  std::int64_t width = 32;
  int classes = 10;  ///< 2 to 1120
};

/// How the pictures of folder:DIR, list:FILE and packed:FILE become images of one size, bilinear with antialiasing, as
/// torchvision does it. A JPEG file with at least four times the image's side is decoded at 1/2, 1/4 or 1/8 of its
/// size.
struct FolderOptions {
  std::int64_t image_size = 224;  ///< side of the images, 1 to 4096
  /// Of test images: the shorter side before the crop in the centre; 0: image_size * 256 / 224, rounded.
  std::int64_t resize = 0;
  bool random_crops = true;  ///< training images are random parts, drawn anew in every epoch; false: like test images
  CropOptions crop{};
  bool flip = true;                     ///< with random crops: mirrored with probability 1/2
  double val_fraction = 0;              ///< of each class, for the test set, where DIR or a list does not say; 0: none
  std::vector<std::string> left_out{};  ///< files, as DamagedImage::file names them
};

struct DataOptions {
  /// "synthetic", "cifar10:DIR", "idx:DIR", "folder:DIR", "list:TRAIN,VAL" or "packed:FILE".
  std::string spec = "synthetic";
  std::uint64_t seed = 0;  ///< of synthetic images; of the crops and the split of a folder
  SyntheticOptions synthetic;
  FolderOptions folder{};
};

struct DataSplit {
  std::unique_ptr<ImageDataset> train;
  std::unique_ptr<ImageDataset> test;
  ChannelStatistics statistics;            ///< of the training set; normalise the images of both sets
  std::string about{};                     ///< what else a user wants to know of them, one line; or empty
  std::vector<std::string> class_names{};  ///< by label; empty: the source has none
  bool files = false;                      ///< images are read from JPEG and PNG files, whenever they are read

  operator TrainingData() const { return {*train, *test}; }  // NOLINT(google-explicit-constructor)
};

/// Opens the data that spec names. UsageError: unknown spec or bad synthetic options. DataError: a file is missing or
/// damaged; the text names file, record or offset, and what was expected.
///
///   cifar10:DIR  the binary version: data_batch_1.bin to data_batch_5.bin (those after the first may be missing) and
///                test_batch.bin, any number of records of 1 + 3072 bytes each. 10 classes, which batches.meta.txt
///                names, a line each, where it is there.
///   idx:DIR      train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte;
///                each plain or with .gz added (plain is taken when both are there). Classes: 10, or more when the
///                training labels go on beyond 9 without a gap; every label has to be one of them. They may begin
///                with 1, as EMNIST's letters: there is a class 0, which no sample has.
///   folder:DIR   JPEG and PNG files (images/decode.hpp says which), by their names: DIR/train/CLASS/*.jpg, .jpeg or
///                .png, also in folders below, and the same below DIR/val or else DIR/test; or with val_fraction one of
///                DIR/train and DIR/CLASS, which is split. Classes are the names of folders in the order of their
///                bytes, the same in both. Names that begin with a dot, and other files, are ignored. Pictures are
///                turned as EXIF says. They are decoded whenever they are read, so one that turns out to be damaged is
///                an error of the reader, DataError with its name: damaged_images() finds them before. Fingerprints are
///                those of names and options, as contents would cost a pass over all files. The statistics are
///                ImageNet's. UsageError in a build without the libraries.
///   list:TRAIN,VAL
///                such files by lists, as Caffe has them: a line for each picture, PATH LABEL or PATH,LABEL, without a
///                head; or list:TRAIN with val_fraction, which is split off each class. The names of lists have no
///                comma in them. A line ends with LF or CR LF; a byte order mark before the first, blanks around a
///                line, empty lines and those that begin with # are skipped. A line is divided at its last tab; without
///                a tab at its last comma; without both at its last space; blanks around both parts are dropped, and
///                of paths "./" and doubled slashes. Paths are relative to the folder of their list, or absolute; what
///                a name ends with does not matter. Labels are all numbers, 0 to the number of classes - 1, or all
///                names, whose classes are in the order of their bytes; every class has a picture in TRAIN. A name has
///                one label; it may stand in a list several times, and then counts so often, but not where a fraction
///                is split off. Other names of the same file (by links or "..") are other pictures. Samples are in the
///                order of the lists. So lists in DIR with the folder's pictures in its order give the folder's samples
///                and fingerprints, and a run may go on from one to the other. Names of a VAL in another folder begin
///                with the way there from TRAIN's. All else is as of folder:DIR.
///   packed:FILE  such a folder or list in one file, as lockstep-pack writes it (packed/packed_file.hpp): the same
///                samples, names and statistics, so a run may go on from one to the other, but for a file that was
///                packed in a random order. Fingerprints are the folder's, but those of stored pixels where they differ
///                from what the folder gives: pictures that were resized, or JPEGs with four times the image's side,
///                which a folder decodes smaller. A sample's checksum is looked at when it is read. UsageError for
///                val_fraction and left_out, which are lockstep-pack's, and for stored files in a build without the
///                libraries.
///   synthetic    drawn from (seed, split, index) alone, see synthetic.cpp; no files.
[[nodiscard]] DataSplit open_data(const DataOptions& options);

struct DamagedImage {
  std::string file;  ///< relative to DIR or the folder of TRAIN, or absolute, as FolderOptions::left_out wants it
  std::string text;  ///< what is wrong, with the name in it: one line
};
/// Of folder:DIR and list:FILE: decodes part `part` of `parts` of all images, those in left_out too, with so many
/// threads, and returns the damaged ones in order. So ranks that see the same files find all of them together. Errors
/// as of open_data(); a file that the system cannot read is one too, and not damaged.
[[nodiscard]] std::vector<DamagedImage> damaged_images(const DataOptions& options, int parts, int part, int threads);

}  // namespace lockstep::nn
