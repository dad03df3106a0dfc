// The input is a list of changes to the files of a checkpoint. A change has four bytes: `which`, an offset of two
// bytes, and the new byte. The first change also selects the checkpoint. If its `which` is below 64 or at least 253,
// the checkpoint is the plain one. Otherwise the checkpoint also has a moving average, running statistics and a
// compression.
// - Plain checkpoint: an even `which` means the model's file, an odd one the optimizer's file. If which / 2 is odd, the
//   offset counts from the data after the header. If which >= 254, the change cuts the file at the offset.
// - Checkpoint with a moving average: which % 3 selects the file of the model, the optimizer or the average. If
//   which / 3 is odd, the offset counts from the data after the header. If which >= 250, the change cuts the file at
//   the offset.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/nn/step/train_step.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "tests/fuzz/support.hpp"
#include "tests/fuzz/tiny_model.hpp"

namespace lockstep::fuzz {

namespace {

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Returns the offset of the data in a safetensors file. Before the data there are 8 bytes with the length of the
/// header, and the header, which is shorter than 64 KiB here.
std::size_t data_begin(const std::string& file) {
  return 8 + static_cast<unsigned char>(file.at(0)) + 256 * std::size_t{static_cast<unsigned char>(file.at(1))};
}

/// A training step with AdamW and the files of its state.
struct Saved {
  Saved(const nn::Model& model, const nn::TrainStepOptions& options, std::vector<std::string> file_names)
      : step(context, model, options), names(std::move(file_names)) {
    nn::save_state(folder() / "state", step);
    for (const std::string& name : names) {
      files.push_back(file_text(folder() / ("state/" + name)));
    }
  }
  CpuContext context{{.threads = 1}};
  nn::TrainStep step;
  std::vector<std::string> names;
  std::vector<std::string> files;
};

Saved& plain() {
  static Saved saved(
      tiny_model(),
      {.max_batch = 1,
       .optimizer = {.kind = nn::OptimizerKind::adamw, .loss_scale = {.kind = nn::LossScale::Kind::dynamic}}},
      {nn::kModelFile, nn::kOptimizerFile});
  return saved;
}

/// Returns a step whose checkpoint also has all optional parts.
Saved& whole() {
  static Saved saved(tiny_norm_model(),
                     {.max_batch = 1,
                      .optimizer = {.kind = nn::OptimizerKind::adamw},
                      .average = {.decay = 0.5},
                      .sums = {.compress = "powersgd:1"}},
                     {nn::kModelFile, nn::kOptimizerFile, nn::kAverageFile});
  return saved;
}

/// The part of a file that a change affects.
struct Place {
  std::size_t file = 0;
  bool data = false;
  bool cut = false;
};
Place place_of(unsigned which, bool of_whole) {
  constexpr unsigned kFiles = 3;
  if (!of_whole) {
    return {.file = which % 2, .data = which < 254 && which / 2 % 2 == 1, .cut = which >= 254};
  }
  const bool cut = which >= 250;
  return {.file = which % kFiles, .data = !cut && which / kFiles % 2 == 1, .cut = cut};
}

/// Returns all bytes of the parameters and of the optimizer's state.
std::vector<std::byte> numbers_of(const nn::ParameterSet& parameters) {
  std::vector<std::byte> all;
  for (const nn::State& each : parameters.states().all()) {
    const auto* begin = static_cast<const std::byte*>(each.view.data);
    all.insert(all.end(), begin, begin + (each.view.given() ? each.view.bytes() : 0));
  }
  return all;
}

}  // namespace

void tensors(Input input) {
  constexpr unsigned kOfWhole = 64;
  constexpr unsigned kEnd = 253;
  const unsigned first = input.empty() ? 0 : input.front();
  const bool of_whole = first >= kOfWhole && first < kEnd;
  Saved& saved = of_whole ? whole() : plain();
  std::vector<std::string> files = saved.files;
  for (Cursor cursor(input); !cursor.empty();) {
    const Place place = place_of(cursor.byte(), of_whole);
    std::size_t at = cursor.word();
    const auto byte = static_cast<char>(cursor.byte());
    std::string& file = files[place.file];
    at += place.data ? data_begin(saved.files[place.file]) : 0;
    if (place.cut) {
      file.resize(std::min(at, file.size()));
    } else if (at < file.size()) {
      file[at] = byte;
    }
  }
  folder().clear();
  // No checksums.json is written, because it would reveal every change.
  std::filesystem::create_directory(folder() / "state");
  for (std::size_t i = 0; i < files.size(); ++i) {
    folder().put("state/" + saved.names[i], files[i]);
  }
  nn::ParameterSet& parameters = saved.step.parameters();
  const std::vector<std::byte> before = numbers_of(parameters);
  const bool fits = accepts<DataError>([&] { nn::require_state(folder() / "state", saved.step); });
  if (!accepts<DataError>([&] { (void)nn::load_state(folder() / "state", saved.context, parameters); })) {
    check(!fits, "a state that fits is refused");
    check(numbers_of(parameters) == before, "a refused state has changed something");
    return;
  }
  const TensorView squares = parameters.state("exp_avg_sq");
  const auto* values = static_cast<const float*>(squares.data);
  for (std::int64_t i = 0; i < squares.numel(); ++i) {
    check(values[i] >= 0, "a square of ", values[i]);
  }
  const std::int64_t steps = *static_cast<const std::int64_t*>(parameters.state("step").data);
  check(steps >= 0 && steps <= std::int64_t{1} << 53, steps, " updates");
  nn::save_state(folder() / "again", saved.context, parameters);
  (void)nn::load_state(folder() / "again", saved.context, parameters);
}

}  // namespace lockstep::fuzz
