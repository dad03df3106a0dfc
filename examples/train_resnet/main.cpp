// mpirun -np N train_resnet [options]: data-parallel training of an image classifier. --help explains the rest.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <sstream>
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
#include "show_batch.hpp"

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
  const std::string folder = find_folder(nn::checkpoint_folder(checkpoint));
  std::optional<nn::Model> model;
  try {
    const auto hidden = saved.options.find("hidden");
    request.name = saved.model;
    request.zero_init_residual = false;  // the checkpoint has the values
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

/// The damaged images of folder:DIR. Each rank decodes a part of the files, and all learn what any of them found: they
/// leave out the same.
std::vector<nn::DamagedImage> find_damaged(comm::Session& session, const comm::CpuShare& share,
                                           const nn::DataOptions& data) {
  if (comm::Watchdog* watchdog = session.watchdog()) {
    watchdog->pause("looking for damaged images");  // as long as reading all of them takes
  }
  std::string found;  // names and texts, each with a zero behind it
  session.agree([&] {
    for (const nn::DamagedImage& image : nn::damaged_images(data, session.size(), session.rank(), share.threads())) {
      found += image.file + '\0' + image.text + '\0';
    }
  });
  std::vector<nn::DamagedImage> damaged;
  for (const std::string& part : comm::all_gather_text(session.control(), found)) {
    std::istringstream in(part);
    for (nn::DamagedImage image; std::getline(in, image.file, '\0') && std::getline(in, image.text, '\0');) {
      damaged.push_back(image);
    }
  }
  return damaged;
}

/// Lines of the header about them: the first ones by name.
void add_damaged(const std::vector<nn::DamagedImage>& damaged, nn::Recipe& recipe) {
  constexpr std::size_t kShown = 10;
  Json::Array texts;
  for (const nn::DamagedImage& image : damaged) {
    if (texts.size() < kShown) {
      recipe.about.emplace_back(
          texts.empty() ? "left out" : "",
          concat(texts.empty() ? concat(damaged.size(), " damaged images: ") : std::string(), image.text));
    }
    texts.emplace_back(image.text);
  }
  if (damaged.size() > kShown) {
    recipe.about.emplace_back("", concat("and ", damaged.size() - kShown, " more (config.json)"));
  }
  recipe.config["damaged_images"] = std::move(texts);
}

int run(comm::Session& session, comm::Workplace& place, const Options& o) {
  nn::TrainingProgram program(session, place, o.training);
  nn::ModelRequest request{.name = o.model, .hidden = o.hidden, .zero_init_residual = o.zero_init_residual};
  nn::DataOptions data_options = o.data;
  std::vector<nn::DamagedImage> damaged;
  if (o.skip_damaged) {
    damaged = find_damaged(session, place.share(), o.data);
    for (const nn::DamagedImage& image : damaged) {
      data_options.folder.left_out.push_back(image.file);
    }
  }
  nn::DataSplit data;
  std::optional<nn::Model> model;
  session.agree([&] { data = nn::open_data(data_options); });
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
  nn::Recipe recipe{.model = *model, .test = std::move(data.test)};
  recipe.rate = train_resnet::base_rate(request.name, o.training.optimizer);
  // Random parts of a picture are taken, and mirrored, where it is decoded.
  const bool folder = train_resnet::of_folder(o.data);
  const bool prepared = folder && o.data.folder.random_crops;
  recipe.augment = {.pad = o.pad >= 0 ? o.pad : (photos && !prepared ? 4 : 0),
                    .flip = !prepared && (o.flip == nn::Switch::automatic ? photos : o.flip == nn::Switch::on),
                    .mean = data.statistics.mean,
                    .std = data.statistics.std};
  if (!o.mean.empty()) {
    std::copy_n(o.mean.begin(), 3, recipe.augment.mean.begin());
    std::copy_n(o.std.begin(), 3, recipe.augment.std.begin());
    recipe.statistics_given = true;
  }
  const nn::AugmentationOptions augmentation =
      train_resnet::augmentation_of(o.augmentation, folder, recipe.augment, o.training.seed);
  if (augmentation.any()) {
    recipe.augment.pad = 0;
    recipe.augment.flip = false;
    recipe.options["pictures"] = text_of(augmentation);
    recipe.two_labels = augmentation.mixes();
  }
  recipe.samples = "images";
  recipe.about = {
      {"data", concat(o.data.spec, ": ", train.size(), " training and ", recipe.test->size(), " test images ",
                      train.height(), " x ", train.width(), ", ", train.classes(), " classes")}};
  if (!data.about.empty()) {
    recipe.about.emplace_back("", data.about);
  }
  if (augmentation.any()) {
    recipe.about.emplace_back("", concat("training images: ", text_of(augmentation)));
  }
  if (folder && !recipe.statistics_given && o.training.evaluate.empty()) {
    recipe.about.emplace_back("", "normalised by ImageNet's mean and standard deviation (--mean, --std)");
  }
  if (!damaged.empty()) {
    add_damaged(damaged, recipe);
  }
  if (!request.hidden.empty()) {
    recipe.options["hidden"] = text_of(request.hidden);
  }
  if (o.zero_init_residual) {
    recipe.options["zero_init_residual"] = "1";
  }
  recipe.config.insert(
      {{"data", o.data.spec}, {"classes", request.classes}, {"height", request.height}, {"width", request.width}});
  if (augmentation.any()) {
    recipe.train = std::make_shared<nn::AugmentedImages>(std::move(data.train), augmentation);
  } else {
    recipe.train = std::move(data.train);
  }
  if (!o.augmentation.show_batch.empty()) {
    session.agree([&] {
      const nn::ResolvedTraining resolved =
          nn::resolve(o.training, recipe.train->size(), recipe.rate, session.size(), session.rank(), place.share());
      if (session.rank() == 0) {
        train_resnet::show_batch(*recipe.train, recipe.augment, resolved.trainer, session.size(),
                                 o.augmentation.show_batch);
      }
    });
    return exit_code::kFinished;
  }
  return program.run(std::move(recipe));
}

}  // namespace

int main(int argc, char** argv) {
  return cli::training_main<Options>(argc, argv, train_resnet::parse, run);
}
