// bench_cold_reads FOLDER: samples a second that a loader reads from a packed file of which the system has nothing in
// memory, by the order of the samples. Writes the file to FOLDER, which says which disk is measured, and deletes it.
//
//   chunk    SamplerOptions::chunk; 0: any sample may follow any other
//   hint     the data set hears what comes (Dataset::ahead()); off: it does not
//
// Each round reads the file once in every way, one after the other; the medians over the rounds are printed. Before
// each reading the system is told to forget the file (posix_fadvise), and whether it did is looked at (mincore).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

#include "app/cli/run_alone.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

struct Options {
  std::string folder;
  std::int64_t samples = 20000;
  std::int64_t side = 64;
  int workers = 1;
  int rounds = 5;
  std::vector<std::int64_t> chunks{0, 16, 64, 256};
};

/// The same samples, deaf to hints.
class Deaf final : public nn::Dataset {
 public:
  explicit Deaf(const nn::Dataset& set)
      : Dataset(set.name(), set.size(), {set.fields().begin(), set.fields().end()}), set_(set) {}
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override {
    set_.read_sample(index, out);
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return set_.fingerprint(); }

 private:
  const nn::Dataset& set_;
};

void write(const Options& options, const std::string& path) {
  nn::PackedWriter writer(path, nn::PackedStore::pixels, {"all"});
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(options.side * options.side * 3));
  const nn::PackedSample sample{.label = 0, .width = options.side, .height = options.side};
  Random random(1, RandomUse::test);
  for (std::int64_t i = 0; i <= options.samples; ++i) {
    for (std::uint8_t& value : pixels) {
      value = static_cast<std::uint8_t>(random.bits());
    }
    writer.add(i == options.samples, sample, pixels);
  }
  writer.commit();
}

/// Of the file's pages, the share that the system holds.
double forget(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require<StateError>(file >= 0, path, ": cannot be opened");
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(path));
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  ::mincore(memory, bytes, resident.data());
  ::munmap(memory, bytes);
  ::close(file);
  const auto held = std::count_if(resident.begin(), resident.end(), [](unsigned char p) { return (p & 1U) != 0; });
  return static_cast<double>(held) / static_cast<double>(resident.size());
}

/// Samples a second of one epoch.
double rate(const std::string& path, const Options& options, std::int64_t chunk, bool hint) {
  require<StateError>(forget(path) < 0.01, path, ": the system does not forget it");
  nn::DataOptions data{.spec = "packed:" + path};
  data.folder.image_size = data.folder.resize = options.side;
  data.folder.random_crops = false;
  const nn::DataSplit split = nn::open_data(data);
  const Deaf deaf(*split.train);
  const nn::Sampler sampler({.size = options.samples, .batch_size = 128, .keep_last = true, .seed = 1, .chunk = chunk});
  HostMemoryResource memory;
  const auto begin = std::chrono::steady_clock::now();
  nn::Loader loader(hint ? *split.train : static_cast<const nn::Dataset&>(deaf), sampler, memory,
                    {.workers = options.workers});
  for (std::int64_t batch = 0; batch < sampler.batches(); ++batch) {
    (void)loader.next();
  }
  return static_cast<double>(options.samples) /
         std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void run(const Options& options) {
  require<UsageError>(options.samples >= 1 && options.side >= 1 && options.rounds >= 1, "samples ", options.samples,
                      ", side ", options.side, ", rounds ", options.rounds, ", expected at least 1 of each");
  for (const std::int64_t chunk : options.chunks) {
    require<UsageError>(chunk >= 0, "chunk ", chunk, ", expected at least 0");
  }
  const std::string path = options.folder + "/bench_cold_reads.pack";
  struct Removed {  // also after an error
    const std::string& path;
    ~Removed() {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
  } const removed{path};
  struct Row {
    std::int64_t chunk;
    bool hint;
    std::vector<double> rates{};
  };
  std::vector<Row> rows;
  for (const std::int64_t chunk : options.chunks) {
    rows.push_back({chunk, false});
    if (chunk > 0) {
      rows.push_back({chunk, true});
    }
  }
  write(options, path);
  for (int round = 0; round < options.rounds; ++round) {
    for (Row& row : rows) {
      row.rates.push_back(rate(path, options, row.chunk, row.hint));
    }
  }
  const double bytes = static_cast<double>(options.side * options.side * 3);
  std::printf("%lld samples of %.0f bytes, %d workers, %d rounds\n\nchunk  hint  samples/s      MB/s  of all rounds\n",
              static_cast<long long>(options.samples), bytes, options.workers, options.rounds);
  for (Row& row : rows) {
    std::sort(row.rates.begin(), row.rates.end());
    const double median = row.rates[row.rates.size() / 2];
    std::printf("%5lld  %-4s  %9.0f  %8.1f  %.0f to %.0f\n", static_cast<long long>(row.chunk), row.hint ? "on" : "off",
                median, median * bytes / 1e6, row.rates.front(), row.rates.back());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Samples a second of a loader from a packed file that is on the disk alone, by the order of the samples.",
      "bench_cold_reads");
  app.add_option("FOLDER", options.folder, "on the disk that is measured")->required();
  app.add_option("--samples", options.samples, "of the file")->capture_default_str();
  app.add_option("--side", options.side, "of a sample, an image of 3 side^2 bytes")->capture_default_str();
  app.add_option("--workers", options.workers, "threads that read")->capture_default_str();
  app.add_option("--rounds", options.rounds, "of which the medians are taken")->capture_default_str();
  app.add_option("--chunks", options.chunks, "chunks that are tried")->delimiter(',')->capture_default_str();
  return cli::run_alone(app, argc, argv, [&] {
    run(options);
    return exit_code::kFinished;
  });
}
