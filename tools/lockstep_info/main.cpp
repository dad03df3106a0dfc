// lockstep-info FILE: prints the tensors of a file or a checkpoint. One process, no mpirun.

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "app/cli/run_alone.hpp"
#include "tools/lockstep_info/tensors.hpp"

int main(int argc, char** argv) {
  using namespace lockstep;
  CLI::App app(
      "Prints the tensors of a checkpoint's folder, or of a file of safetensors or of torch.save (.pth,\n"
      ".pt, .bin; no code in the file is executed): name, type, shape, least, largest and mean finite\n"
      "value, and the number of values that are NaN or infinite. Prints for the folder of a run which\n"
      "candidates of libraries were refused when they were timed (--tune).\n\n"
      "Exit codes: 0 finished, with any values; 2 a file that cannot be read, or is damaged.",
      "lockstep-info");
  std::vector<std::string> paths;
  bool json = false;
  app.add_option("FILE", paths, "files and folders to print")->required();
  app.add_flag("--json", json, "print JSON instead of text: an array of files; null: not known");
  return cli::run_alone(app, argc, argv, [&] {
    std::vector<tools::FileFacts> files;
    for (const std::string& path : paths) {
      for (tools::FileFacts& file : tools::read_tensors(path)) {
        files.push_back(std::move(file));
      }
    }
    const std::string text = json ? tools::tensor_json(files).text(2) + "\n" : tools::tensor_report(files);
    std::fputs(text.c_str(), stdout);
    return exit_code::kFinished;
  });
}
