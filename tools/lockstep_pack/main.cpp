// lockstep-pack DIR FILE: the pictures of a folder in one file, for --data packed:FILE. One process, no mpirun.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/parallel.hpp>

#include "cli/run_alone.hpp"
#include "tools/lockstep_pack/report.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Writes the file; --json leaves standard output to the summary.
int pack(nn::PackOptions options, const std::string& store, bool json) {
  require<UsageError>(store == "files" || store == "pixels", "--store is ", store, ", expected files or pixels");
  options.store = store == "files" ? nn::PackedStore::files : nn::PackedStore::pixels;
  std::FILE* const lines = json ? stderr : stdout;
  const nn::FolderPack pack(options);
  std::fputs(tools::pack_header(pack).c_str(), lines);
  std::fflush(lines);
  constexpr double kEvery = 5;
  const auto begin = std::chrono::steady_clock::now();
  double next = kEvery;
  const nn::PackSummary summary = pack.write([&](const nn::PackProgress& progress) {
    const double seconds = seconds_since(begin);
    if (seconds >= next) {
      next = seconds + kEvery;
      std::fprintf(lines, "  %s\n", tools::pack_progress(progress, seconds).c_str());
      std::fflush(lines);
    }
  });
  const double seconds = seconds_since(begin);
  std::fputs(json ? (tools::pack_json(pack, summary, seconds).text(2) + "\n").c_str()
                  : tools::pack_report(pack, summary, seconds).c_str(),
             stdout);
  return exit_code::kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Writes what train_resnet --data folder:DIR reads into one file, for --data packed:FILE: the same samples in "
      "the\n"
      "same order, so a run has the same bits, without a look at thousands of small files. The file holds names,\n"
      "labels and checksums; a damaged one is noticed when it is opened or read.\n\n"
      "  lockstep-pack DIR train.pack                                   JPEG and PNG files as they are\n"
      "  lockstep-pack DIR train.pack --store pixels --resize 256       decoded once, for processors that decode too\n"
      "                                                                 slowly: a larger file, and other bits\n"
      "  lockstep-pack DIR train.pack --val-fraction 0.1                DIR has no folder val or test\n\n"
      "Exit codes: 0; 2 bad options, a folder that is no data, a damaged image, a file that exists; 3 a full disk.",
      "lockstep-pack");
  nn::PackOptions options;
  options.seed = 1;  // as of train_resnet
  options.threads = default_threads();
  std::string store = "files";
  bool json = false;
  app.add_option("DIR", options.folder, "train and val or test in it, with a folder of images for each class")
      ->required();
  app.add_option("FILE", options.out, "to write, outside of DIR; beside it FILE.tmp-PID until it is whole")->required();
  app.add_option("--store", store,
                 "files: as they are; pixels: decoded, so that reading needs no JPEG and PNG libraries. Pictures of\n"
                 "their own size give the folder's bits, but for JPEGs of four times the image's side or more")
      ->capture_default_str();
  app.add_option("--resize", options.resize,
                 "pixels: pictures with a longer shorter side are resized to this one, as for evaluation; 0: none")
      ->capture_default_str();
  app.add_option("--val-fraction", options.val_fraction,
                 "so much of each class is for the test, where DIR has no folder val or test");
  app.add_option("--seed", options.seed, "of that split: train_resnet's --seed")->capture_default_str();
  app.add_flag("--skip-damaged", options.skip_damaged, "leave damaged images out and name them; else one is an error");
  app.add_flag("--overwrite", options.overwrite, "replace FILE");
  app.add_option("--threads", options.threads, "that decode")->capture_default_str();
  app.add_flag("--json", json, "the summary as JSON on standard output; the other lines on standard error");
  return cli::run_alone(app, argc, argv, [&] { return pack(options, store, json); });
}
