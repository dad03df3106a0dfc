// mpirun -np N train_resnet [options]: data-parallel training of an image classifier. --help explains the rest.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/program/training_program.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>

#include "options.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using train_resnet::Options;

/// "256,128", as RunIdentity::options keeps the hidden layers of an mlp.
std::string text_of(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) {
    text += concat(text.empty() ? "" : ",", size);
  }
  return text;
}

std::vector<std::int64_t> sizes_in(const std::string& text) {
  std::vector<std::int64_t> sizes;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    const auto [stop, error] = std::from_chars(at, end, sizes.emplace_back());
    require<DataError>(error == std::errc() && (stop == end || *stop == ','), "hidden layers are ", printable(text),
                       ", expected sizes with commas between them");
    at = stop == end ? end : stop + 1;
  }
  return sizes;
}

/// The model that a checkpoint names, for the images of `request`, which gets its name and sizes. The checkpoint's
/// state.json may be damaged: nothing is planned for a model that its tensors cannot be of. DataError naming the file.
nn::Model model_of(const nn::RunIdentity& saved, const std::string& checkpoint, nn::ModelRequest& request) {
  const std::string folder = find_folder(checkpoint);
  std::optional<nn::Model> model;
  try {
    const auto hidden = saved.options.find("hidden");
    request.name = saved.model;
    request.hidden = hidden == saved.options.end() ? std::vector<std::int64_t>() : sizes_in(hidden->second);
    model.emplace(nn::make_model(request));
    std::error_code missing;  // the error comes when it is read
    const std::uintmax_t bytes = std::filesystem::file_size(folder + "/" + nn::kModelFile, missing);
    require<DataError>(missing || static_cast<std::uintmax_t>(model->parameter_count()) <= bytes, "model ",
                       request.name, " has ", model->parameter_count(), " parameters, and ", nn::kModelFile,
                       " beside it only ", bytes, " bytes");
  } catch (const Error& error) {
    throw DataError(folder + "/state.json: identity: " + error.what());
  }
  return *std::move(model);
}

int run(comm::Session& session, comm::Workplace& place, const Options& o) {
  nn::TrainingProgram program(session, place, o.training);
  nn::ModelRequest request{.name = o.model, .hidden = o.hidden};
  nn::DataSplit data;
  std::optional<nn::Model> model;
  session.agree([&] { data = nn::open_data(o.data); });
  const nn::ImageDataset& train = *data.train;
  comm::require_same_on_all_ranks(
      session.control(), concat("training images ", train.size(), "\ntest images ", data.test->size(), "\nimages ",
                                train.height(), " x ", train.width(), "\nclasses ", train.classes()));
  session.agree([&] {
    request.classes = train.classes();
    request.height = train.height();
    request.width = train.width();
    if (const nn::RunIdentity* evaluated = program.evaluated()) {
      model.emplace(model_of(*evaluated, o.training.evaluate, request));
    } else {
      model.emplace(nn::make_model(request));
    }
  });

  const bool photos = !o.data.spec.starts_with("idx:");  // digits and letters change their meaning when mirrored
  nn::Recipe recipe{.model = *model, .train = std::move(data.train), .test = std::move(data.test)};
  recipe.rate = train_resnet::base_rate(request.name, o.training.optimizer);
  recipe.augment = {.pad = o.pad >= 0 ? o.pad : (photos ? 4 : 0),
                    .flip = o.flip == nn::Switch::automatic ? photos : o.flip == nn::Switch::on,
                    .mean = data.statistics.mean,
                    .std = data.statistics.std};
  if (!o.mean.empty()) {
    std::copy_n(o.mean.begin(), 3, recipe.augment.mean.begin());
    std::copy_n(o.std.begin(), 3, recipe.augment.std.begin());
    recipe.statistics_given = true;
  }
  recipe.samples = "images";
  recipe.about = {
      {"data", concat(o.data.spec, ": ", train.size(), " training and ", recipe.test->size(), " test images ",
                      train.height(), " x ", train.width(), ", ", train.classes(), " classes")}};
  if (!request.hidden.empty()) {
    recipe.options["hidden"] = text_of(request.hidden);
  }
  recipe.config = {
      {"data", o.data.spec}, {"classes", request.classes}, {"height", request.height}, {"width", request.width}};
  return program.run(std::move(recipe));
}

}  // namespace

int main(int argc, char** argv) {
  return cli::training_main<Options>(argc, argv, train_resnet::parse, run);
}
