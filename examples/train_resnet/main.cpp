// mpirun -np N train_resnet [options]: data-parallel training of an image classifier. --help explains the options.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/app/training_program.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/kernels/jpeg_decoder.hpp>
#include <lockstep/nn/models/whitening.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "damaged_images.hpp"
#include "options.hpp"
#include "saved_model.hpp"
#include "show_batch.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using train_resnet::Options;

int run(comm::Session& session, comm::RankContext& place, const Options& o) {
  nn::TrainingProgram program(session, place, o.training);
  nn::ModelRequest request{.name = o.model, .hidden = o.hidden, .zero_init_residual = o.zero_init_residual};
  nn::DataOptions data_options = o.data;
  if (!o.image_size && train_resnet::for_small_images(program.evaluated() ? program.evaluated()->model : o.model)) {
    data_options.folder.image_size = 32;
  }
  std::vector<nn::DamagedImage> damaged;
  if (o.skip_damaged) {
    damaged = train_resnet::find_damaged(session, place.share(), o.data);
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
    const std::int64_t chunk = o.training.trainer.shuffle_chunk;
    const bool trains = o.training.evaluate.empty() && o.augmentation.show_batch.empty();
    require<UsageError>(!trains || !nn::chunks_separate_classes(train, chunk), "--shuffle-chunk is ", chunk,
                        ", and the training images of ", o.data.spec,
                        " lie class by class, so that a batch would have few of the ", train.classes(),
                        " classes; expected images in a random order (a shuffled list, lockstep-pack --shuffle)");
    request.classes = train.classes();
    request.height = train.height();
    request.width = train.width();
    if (const nn::RunIdentity* evaluated = program.evaluated()) {
      model.emplace(train_resnet::model_of(*evaluated, o.training.evaluate, request));
    } else {
      model.emplace(nn::make_model(request));
    }
  });

  const bool photos = !o.data.spec.starts_with("idx:");  // idx: data are digits and letters, which must not be mirrored
  nn::TrainingInputs inputs{.model = *model, .test = std::move(data.test), .class_names = std::move(data.class_names)};
  inputs.rate = train_resnet::base_rate(request.name, o.training.trainer.step.optimizer.kind);
  // If `prepared`, the decoder of encoded images already cuts out random parts and mirrors them.
  const bool folder = train_resnet::of_folder(o.data);
  const bool prepared = folder && o.data.folder.random_crops;
  inputs.augment = {
      .pad = o.pad >= 0 ? o.pad : (photos && !prepared ? 4 : 0),
      .flip = !prepared && (o.flip == train_resnet::Flip::automatic ? photos : o.flip != train_resnet::Flip::off),
      .alternate = o.flip == train_resnet::Flip::alternate,
      .reflect = o.reflect,
      .mean = data.statistics.mean,
      .std = data.statistics.std};
  session.agree([&] {
    require<UsageError>(!o.reflect || (inputs.augment.pad < train.height() && inputs.augment.pad < train.width()),
                        "--pad is ", inputs.augment.pad, " and --pad-mode reflect, images are ", train.height(), " x ",
                        train.width(), ", expected a pad below both sides of an image");
  });
  if (!o.mean.empty()) {
    std::copy_n(o.mean.begin(), 3, inputs.augment.mean.begin());
    std::copy_n(o.std.begin(), 3, inputs.augment.std.begin());
    inputs.statistics_given = true;
  }
  const bool whitens = request.name == "airbench94" && !program.takes_parameters();
  if (whitens) {
    session.agree([&] {
      if (session.rank() == 0) {  // rank 0 is enough, because all ranks begin with its parameters
        const nn::ChannelStatistics normalised{inputs.augment.mean, inputs.augment.std};
        inputs.model = inputs.model.with_initial_value("whiten.weight", nn::whitening_filters(train, normalised));
      }
    });
  }
  const nn::AugmentationOptions augmentation =
      train_resnet::augmentation_of(o.augmentation, folder, inputs.augment, o.training.trainer.step.seed);
  if (augmentation.any()) {
    inputs.augment.pad = 0;
    inputs.augment.flip = inputs.augment.alternate = inputs.augment.reflect = false;
    inputs.options["pictures"] = text_of(augmentation);
    inputs.two_labels = augmentation.mixes();
  }
  inputs.samples = "images";
  inputs.about = {
      {"data", concat(o.data.spec, ": ", train.size(), " training and ", inputs.test->size(), " test images ",
                      train.height(), " x ", train.width(), ", ", train.classes(), " classes")}};
  if (!o.training.recipe.empty() && o.data.spec == "synthetic") {
    inputs.about.emplace_back("", "warning: --recipe describes a run on pictures; without --data they are drawn");
  }
  if (!data.about.empty()) {
    inputs.about.emplace_back("", data.about);
  }
  if (augmentation.any()) {
    inputs.about.emplace_back("", concat("training images: ", text_of(augmentation)));
  }
  if (folder && !inputs.statistics_given && o.training.evaluate.empty()) {
    inputs.about.emplace_back("", "normalised by ImageNet's mean and standard deviation (--mean, --std)");
  }
  if (whitens) {
    inputs.about.emplace_back("", concat("first filters: whitening of the patches of ",
                                         std::min(nn::WhiteningOptions{}.images, train.size()), " training images"));
  }
  const bool trains =
      o.training.evaluate.empty() && o.augmentation.show_batch.empty() && o.training.describe_gpu.empty();
  const nn::PicturesOn pictures = trains ? nn::parse_pictures_on(o.augmentation.pictures) : nn::PicturesOn::host;
  if (pictures == nn::PicturesOn::nvjpeg) {
    session.agree([&] {
      require<UsageError>(data.files, "--pictures is nvjpeg, and ", o.data.spec,
                          " holds no files, expected --data folder:DIR, list:FILE or a packed:FILE of files");
      require<UsageError>(
          augmentation.pad == 0 && !augmentation.flip && augmentation.automatic == nn::AutoAugment::none,
          "--pictures is nvjpeg with --pad, --flip on or --auto-augment, for which the loader decodes every file, "
          "expected host or device");
      const std::string problem = ops::jpeg_decoder_problem(place.context().device());
      require<UsageError>(problem.empty(), "--pictures is nvjpeg: ", problem, "; expected host or device");
    });
  }
  if (pictures != nn::PicturesOn::host) {
    inputs.about.emplace_back("", pictures == nn::PicturesOn::nvjpeg
                                      ? "training images: decoded by nvJPEG and finished on the device"
                                      : "training images: finished on the device");
  }
  inputs.config["pictures_on"] = name_of(pictures);
  if (o.test_time_augmentation != nn::TestTimeAugmentation::none) {
    inputs.about.emplace_back(
        "", concat("test images: the mean of the outputs for ", nn::test_time_views(o.test_time_augmentation).size(),
                   " views (", name_of(o.test_time_augmentation), ')'));
  }
  inputs.change = [pictures, views = o.test_time_augmentation](nn::TrainerOptions& options) {
    options.pictures = pictures;
    options.test_time_augmentation = views;
  };
  if (!damaged.empty()) {
    train_resnet::add_damaged(damaged, inputs);
  }
  train_resnet::keep_hidden(request.hidden, inputs);
  if (o.zero_init_residual) {
    inputs.options["zero_init_residual"] = "1";
  }
  inputs.config.insert(
      {{"data", o.data.spec}, {"classes", request.classes}, {"height", request.height}, {"width", request.width}});
  if (augmentation.any()) {
    inputs.train = std::make_shared<nn::AugmentedImages>(std::move(data.train), augmentation);
  } else {
    inputs.train = std::move(data.train);
  }
  if (!o.augmentation.show_batch.empty()) {
    session.agree([&] {
      const nn::ResolvedTraining resolved =
          nn::resolve(o.training, inputs.train->size(), inputs.rate, session.size(), session.rank(), place.share());
      if (session.rank() == 0) {
        train_resnet::show_batch(*inputs.train, inputs.augment, resolved.trainer, session.size(), inputs.class_names,
                                 o.augmentation.show_batch);
      }
    });
    return exit_code::kFinished;
  }
  return program.run(std::move(inputs));
}

}  // namespace

int main(int argc, char** argv) {
  return cli::training_main<Options>(argc, argv, train_resnet::parse, run);
}
