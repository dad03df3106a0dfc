// lockstep-pack DIR FILE: the pictures of a folder or a list, or text or tokens, in one file, for --data packed:FILE;
// --check FILE: whether such a file is whole. One process, no mpirun.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/base/text.hpp>

#include "app/cli/run_alone.hpp"
#include "tools/lockstep_pack/report.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Prints how far the work is, every five seconds.
class ProgressLines {
 public:
  explicit ProgressLines(std::FILE* to) : to_(to) {}
  [[nodiscard]] double seconds() const { return seconds_since(begin_); }
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

/// Writes the file; --json leaves standard output to the summary.
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

int pack(nn::PackOptions options, const std::string& store, bool json) {
  require<UsageError>(store == "files" || store == "pixels", "--store is ", store, ", expected files or pixels");
  options.store = store == "files" ? nn::PackedStore::files : nn::PackedStore::pixels;
  return write(nn::FolderPack(options), json);
}

/// Reads the file; standard output has the result alone.
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
                     " are damaged");
  return exit_code::kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Writes what train_resnet --data folder:DIR or list:FILE reads into one file, for --data packed:FILE: the same\n"
      "samples in the same order, so a run has the same bits, without a look at thousands of small files. The file "
      "holds names,\n"
      "labels and checksums; a damaged one is noticed when it is opened or read.\n\n"
      "  lockstep-pack DIR train.pack                                   JPEG and PNG files as they are\n"
      "  lockstep-pack DIR train.pack --store pixels --resize 256       decoded once, for processors that decode too\n"
      "                                                                 slowly: a larger file, and other bits\n"
      "  lockstep-pack DIR train.pack --val-fraction 0.1                DIR has no folder val or test\n"
      "  lockstep-pack DIR train.pack --shuffle                         for disks: train_resnet --shuffle-chunk 64\n"
      "  lockstep-pack list:train.txt,val.txt train.pack                files by lists, as train_resnet takes them\n"
      "  lockstep-pack tokens:DIR train.pack                            what train_text --data tokens:DIR reads\n"
      "  lockstep-pack text:PATH train.pack                             what train_text --data PATH reads\n"
      "  lockstep-pack --check train.pack                               every checksum and picture, a line for each\n"
      "                                                                 damaged sample or block of text or tokens\n\n"
      "Exit codes: 0; 2 bad options, a folder that is no data, a damaged image or packed file, a file that exists;\n"
      "3 a full disk.",
      "lockstep-pack");
  nn::PackOptions options;
  options.seed = 1;  // as of train_resnet
  options.threads = default_threads();
  std::string store = "files";
  std::string checked;
  bool json = false;
  CLI::Option* const folder =
      app.add_option(
             "DIR", options.folder,
             "train and val or test in it, with a folder of images for each class; or list:TRAIN,VAL, tokens:DIR or\n"
             "text:PATH")
          ->required();
  CLI::Option* const out =
      app.add_option("FILE", options.out, "to write, outside of DIR; beside it FILE.tmp-... until it is whole")
          ->required();
  app.add_option("--store", store,
                 "files: as they are; pixels: decoded, so that reading needs no JPEG and PNG libraries. Pictures of\n"
                 "their own size give the folder's bits, but for JPEGs of four times the image's side or more")
      ->capture_default_str();
  app.add_option("--resize", options.resize,
                 "pixels: pictures with a longer shorter side are resized to this one, as for evaluation; 0: none")
      ->capture_default_str();
  app.add_option("--val-fraction", options.val_fraction,
                 "so much of each class is for the test, where DIR has no folder val or test, or there is one list");
  app.add_flag("--shuffle", options.shuffle,
               "store the training pictures in a random order, for train_resnet's --shuffle-chunk: a folder has them\n"
               "class by class. A run has other bits than with the folder");
  app.add_option("--seed", options.seed, "of that split, train_resnet's --seed, and of --shuffle")
      ->capture_default_str();
  app.add_flag("--skip-damaged", options.skip_damaged, "leave damaged images out and name them; else one is an error");
  std::optional<std::int64_t> vocabulary;
  CLI::Option* const vocabulary_option =
      app.add_option("--vocabulary", vocabulary, "tokens:DIR: ids have to be below it; none: any ids");
  CLI::Option* const overwrite = app.add_flag("--overwrite", options.overwrite, "replace FILE");
  const CLI::Option* const json_option =
      app.add_flag("--json", json,
                   "the summary as JSON on standard output; the other lines on standard error. Beside --check: its\n"
                   "result, with all damaged samples");
  CLI::Option* const check_option =
      app.add_option(
             "--check", checked,
             "write nothing: read this packed file from end to end. Its header, its index and every sample's\n"
             "checksum are compared, every JPEG and PNG file is decoded. The first 20 damaged samples are named")
          ->type_name("FILE");
  check_option->each([=](const std::string& /*path*/) {
    folder->required(false);
    out->required(false);
  });
  const CLI::Option* const threads = app.add_option("--threads", options.threads, "that decode")->capture_default_str();
  return cli::run_alone(app, argc, argv, [&] {
    if (check_option->count() == 0) {
      require<UsageError>(!options.folder.empty(), "DIR is empty, expected a folder, or list:, tokens: or text:");
      require<UsageError>(!options.out.empty(), "FILE is empty, expected a file to write");
    }
    if (check_option->count() == 0 && nn::is_token_source(options.folder)) {
      for (const CLI::Option* const other : app.get_options()) {
        const bool taken =
            other == folder || other == out || other == vocabulary_option || other == overwrite || other == json_option;
        require<UsageError>(taken || other->count() == 0, other->get_name(), " is given beside ",
                            displayed(options.folder), ", expected no more than --vocabulary, --overwrite and --json");
      }
      return write(nn::TokenPack({options.folder, options.out, vocabulary, options.overwrite}), json);
    }
    if (check_option->count() == 0) {
      require<UsageError>(!vocabulary.has_value(), "--vocabulary is ", vocabulary.value_or(0),
                          " beside a folder of pictures, expected it beside tokens:DIR");
      return pack(options, store, json);
    }
    require<UsageError>(!checked.empty(), "--check is empty, expected a packed file");
    for (const CLI::Option* const other : app.get_options()) {
      require<UsageError>(other == check_option || other == threads || other == json_option || other->count() == 0,
                          other->get_name(),
                          " is given beside --check FILE, expected no more than --threads and --json");
    }
    return nn::is_packed_tokens(checked) ? check<nn::PackedTokens>(checked, options.threads, json)
                                         : check<nn::PackedFile>(checked, options.threads, json);
  });
}
