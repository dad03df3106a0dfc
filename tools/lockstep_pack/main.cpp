// lockstep-pack DIR FILE: packs a folder or list of images, or text or tokens, into one file, for --data packed:FILE.
// lockstep-pack --check FILE: checks that such a file is undamaged. One process, no mpirun.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/base/text.hpp>

#include "app/cli/run_alone.hpp"
#include "tools/lockstep_pack/report.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

/// Prints the progress every five seconds.
class ProgressLines {
 public:
  explicit ProgressLines(std::FILE* to) : to_(to) {}
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  void operator()(const nn::PackProgress& progress) {
    constexpr double kEvery = 5;
    if (const double now = seconds(); now >= last_ + kEvery) {
      last_ = now;
      std::fprintf(to_, "  %s\n", tools::pack_progress(progress, now).c_str());
      std::fflush(to_);
    }
  }

 private:
  std::FILE* to_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double last_ = 0;
};

/// Packs the samples of `pack`, and prints the progress and the summary. With `json`, standard output has only the
/// summary.
template <class Pack>
int write(const Pack& pack, bool json) {
  std::FILE* const lines = json ? stderr : stdout;
  std::fputs(tools::pack_header(pack).c_str(), lines);
  std::fflush(lines);
  ProgressLines progress(lines);
  const auto summary = pack.write([&](const nn::PackProgress& now) { progress(now); });
  const double seconds = progress.seconds();
  std::fputs(json ? (tools::pack_json(pack, summary, seconds).text(2) + "\n").c_str()
                  : tools::pack_report(pack, summary, seconds).c_str(),
             stdout);
  return exit_code::kFinished;
}

/// Checks the packed file at `path`. Standard output has only the result of the check.
template <class File>
int check(const std::string& path, int threads, bool json) {
  const File file(path);
  ProgressLines progress(stderr);
  const nn::PackedCheck found =
      nn::check_packed(file, threads, json ? std::numeric_limits<std::size_t>::max() : tools::kNamedDamage,
                       [&](const nn::PackProgress& now) { progress(now); });
  std::fputs((json ? tools::check_json(file, found).text(2) + "\n" : tools::check_report(file, found)).c_str(), stdout);
  std::fflush(stdout);
  require<DataError>(found.damaged == 0, printable(path), ": ", found.damaged, " of ", tools::checked_text(file),
                     " are damaged, expected none: pack it again");
  return exit_code::kFinished;
}

constexpr const char* kAbout =
    "Writes the data of train_resnet --data folder:DIR or list:FILE to one file, for --data packed:FILE.\n"
    "The file has the same samples in the same order, so a run gives the same bits, and spares the run a\n"
    "look at thousands of small files. The file holds names, labels and checksums; a damaged file is\n"
    "noticed when it is opened or read.\n\n"
    "  lockstep-pack DIR train.pack                               JPEG and PNG files as they are\n"
    "  lockstep-pack DIR train.pack --store pixels --resize 256   decoded once, for processors that are\n"
    "                                                             slow decoders: larger file, other bits\n"
    "  lockstep-pack DIR train.pack --val-fraction 0.1            DIR has no folder val or test\n"
    "  lockstep-pack DIR train.pack --shuffle                     for train_resnet --shuffle-chunk 64\n"
    "  lockstep-pack list:train.txt,val.txt train.pack            files by lists, as for train_resnet\n"
    "  lockstep-pack tokens:DIR train.pack                        data of train_text --data tokens:DIR\n"
    "  lockstep-pack text:PATH train.pack                         data of train_text --data PATH\n"
    "  lockstep-pack --check train.pack                           checks every checksum and picture, and\n"
    "                                                             prints a line for each damaged sample\n"
    "                                                             or block of text or tokens\n\n"
    "Exit codes: 0 finished; 2 bad options, a folder without data, a damaged image or packed file, a file\n"
    "that exists; 3 a full disk.";

class Command {
 public:
  Command() {
    options_.seed = 1;  // default seed of train_resnet
    options_.threads = default_threads();
    CLI::Option* const folder = app.add_option("DIR", options_.folder,
                                               "folder with train and val or test, and in each a folder of images for "
                                               "each class; or list:TRAIN,VAL, tokens:DIR or text:PATH")
                                    ->required();
    CLI::Option* const out =
        app.add_option("FILE", options_.out,
                       "file to write, outside of DIR; called FILE.tmp-... until the file is complete")
            ->required();
    app.add_option("--store", store_,
                   "form of the pictures in the file; files: as they are; pixels: decoded, so that reading needs no "
                   "JPEG and PNG libraries. Pictures of their own size give the folder's bits, except JPEGs of at "
                   "least four times the image's side")
        ->capture_default_str();
    app.add_option("--resize", options_.resize,
                   "with --store pixels: shorter side, in pixels, to which larger pictures are resized, as for "
                   "evaluation; 0: no resizing")
        ->capture_default_str();
    app.add_option("--val-fraction", options_.val_fraction,
                   "fraction of each class for the test set; for a DIR without a folder val or test, or for one list");
    app.add_flag("--shuffle", options_.shuffle,
                 "store the training pictures in a random order, for train_resnet --shuffle-chunk; a folder has its "
                 "pictures class by class. A run has other bits than with the folder");
    app.add_option("--seed", options_.seed, "seed of --val-fraction (train_resnet's --seed) and of --shuffle")
        ->capture_default_str();
    app.add_flag("--skip-damaged", options_.skip_damaged,
                 "leave out damaged images and name them; without this option a damaged image is an error");
    app.add_option("--vocabulary", vocabulary_,
                   "with tokens:DIR: size of the vocabulary, above every id; default: any ids are allowed");
    app.add_flag("--overwrite", options_.overwrite, "replace an existing FILE");
    app.add_flag("--json", json_,
                 "print the summary as JSON on standard output, and other lines on standard error; with --check: print "
                 "the result with all damaged samples");
    CLI::Option* const check =
        app.add_option("--check", checked_,
                       "check this packed file and write nothing: header, index and every sample's checksum are "
                       "compared, and every JPEG and PNG file is decoded. The first 20 damaged samples are named")
            ->type_name("FILE");
    check->each([=](const std::string& /*path*/) {
      folder->required(false);
      out->required(false);
    });
    app.add_option("--threads", options_.threads, "number of threads that decode")->capture_default_str();
  }

  int run() {
    if (app.count("--check") > 0) {
      require<UsageError>(!checked_.empty(), "--check is empty, expected a packed file");
      expect_only({"--check", "--threads", "--json"}, "--check FILE, expected no more than --threads and --json");
      return nn::is_packed_tokens(checked_) ? check<nn::PackedTokens>(checked_, options_.threads, json_)
                                            : check<nn::PackedFile>(checked_, options_.threads, json_);
    }
    require<UsageError>(!options_.folder.empty(), "DIR is empty, expected a folder, or list:, tokens: or text:");
    require<UsageError>(!options_.out.empty(), "FILE is empty, expected a file to write");
    if (nn::is_token_source(options_.folder)) {
      expect_only({"DIR", "FILE", "--vocabulary", "--overwrite", "--json"},
                  concat(displayed(options_.folder), ", expected no more than --vocabulary, --overwrite and --json"));
      return write(nn::TokenPack({options_.folder, options_.out, vocabulary_, options_.overwrite}), json_);
    }
    require<UsageError>(!vocabulary_.has_value(), "--vocabulary is ", vocabulary_.value_or(0),
                        " with a folder of pictures, expected it with tokens:DIR");
    require<UsageError>(store_ == "files" || store_ == "pixels", "--store is ", store_, ", expected files or pixels");
    options_.store = store_ == "files" ? nn::PackedStore::files : nn::PackedStore::pixels;
    return write(nn::FolderPack(options_), json_);
  }

  CLI::App app{kAbout, "lockstep-pack"};

 private:
  /// Throws UsageError if the user gave an option that is not in `taken`.
  void expect_only(std::initializer_list<std::string_view> taken, const std::string& beside) const {
    for (const CLI::Option* const other : app.get_options()) {
      require<UsageError>(
          std::find(taken.begin(), taken.end(), other->get_name()) != taken.end() || other->count() == 0,
          other->get_name(), " is given with ", beside, ", expected it without");
    }
  }

  nn::PackOptions options_;
  std::string store_ = "files";
  std::string checked_;
  std::optional<std::int64_t> vocabulary_;
  bool json_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  Command command;
  return cli::run_alone(command.app, argc, argv, [&] { return command.run(); });
}
