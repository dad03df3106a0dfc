// fuzz_replay [--seconds S] [--megabytes M] READER PATH...: gives the reader each file once, and each file in each
// folder. A finding or a crash ends the program; the line printed before it names the file. An input that takes longer
// than S seconds, or a process that needs more than M MiB, is a finding, too.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>

#include "tests/fuzz/support.hpp"

namespace {

namespace fs = std::filesystem;
using lockstep::fuzz::Input;

struct Limits {
  double seconds = 10;    ///< time limit of one input; most inputs take about a millisecond
  long megabytes = 1024;  ///< limit of the process's memory, in MiB
};

struct Reader {
  std::string_view name;
  void (*read)(Input);
};
constexpr Reader kReaders[] = {
#include "fuzz_readers.inc"  // CMake writes the list of this build's readers
};

/// Removes the options from the command line and returns their values.
Limits limits_of(int& argc, char**& argv) {
  Limits limits;
  while (argc > 2 && std::string_view(argv[1]).starts_with("--")) {
    if (std::string_view(argv[1]) == "--seconds") {
      limits.seconds = std::atof(argv[2]);
    } else if (std::string_view(argv[1]) == "--megabytes") {
      limits.megabytes = std::atol(argv[2]);
    }
    argc -= 2;
    argv += 2;
  }
  return limits;
}

std::vector<fs::path> files_in(int count, char** paths) {
  std::vector<fs::path> files;
  for (int i = 0; i < count; ++i) {
    if (!fs::is_directory(paths[i])) {
      files.emplace_back(paths[i]);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(paths[i])) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

long peak_megabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

}  // namespace

int main(int argc, char** argv) {
  const Limits limits = limits_of(argc, argv);
  const auto* reader = std::find_if(std::begin(kReaders), std::end(kReaders),
                                    [&](const Reader& r) { return argc > 1 && r.name == argv[1]; });
  if (reader == std::end(kReaders) || argc < 3) {
    std::fprintf(stderr, "usage: fuzz_replay [--seconds S] [--megabytes M] READER PATH...\nreaders:");
    for (const Reader& known : kReaders) {
      std::fprintf(stderr, " %s", std::string(known.name).c_str());
    }
    std::fprintf(stderr, "\n");
    return 2;
  }
  const std::vector<fs::path> files = files_in(argc - 2, argv + 2);
  double slowest = 0;
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file.is_open()) {
      std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
      return 2;
    }
    std::fprintf(stderr, "%s\n", path.c_str());
    const auto begin = std::chrono::steady_clock::now();
    reader->read({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    slowest = std::max(slowest, seconds);
    lockstep::fuzz::check(seconds <= limits.seconds, "took ", seconds, " s, expected at most ", limits.seconds);
    lockstep::fuzz::check(peak_megabytes() <= limits.megabytes, "the process took ", peak_megabytes(),
                          " MB, expected at most ", limits.megabytes);
  }
  if (files.empty()) {
    std::fprintf(stderr, "fuzz_replay: no file in the paths given, expected some\n");
    return 2;
  }
  std::printf("%s: %zu inputs, the slowest in %.3f s, %ld MB at most\n", argv[1], files.size(), slowest,
              peak_megabytes());
  return 0;
}
