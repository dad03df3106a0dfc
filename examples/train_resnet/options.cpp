#include "options.hpp"

#include <string>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>

#include "app/cli/command_line.hpp"

namespace train_resnet {

namespace cli = lockstep::cli;
namespace nn = lockstep::nn;
using lockstep::require;
using lockstep::UsageError;

namespace {

constexpr const char* kAbout =
    "Trains an image classifier with synchronous data parallelism: every rank computes the gradient\n"
    "of its share of the batch, the ranks sum their gradients, and all ranks make the same update.\n"
    "\n"
    "  train_resnet                             synthetic images on all GPUs, or one rank on the CPU\n"
    "  train_resnet --devices cpu:2             two ranks on this machine's CPU\n"
    "  mpirun -np 2 train_resnet --data idx:DIR --epochs 2      two ranks, files in MNIST's format\n"
    "  train_resnet --data folder:DIR --model resnet50          JPEG and PNG files DIR/train/CLASS/*\n";

constexpr const char* kFooter =
    "--lr auto: 0.1 x batch / 128 for models for small images, 0.1 x batch / 256 for models for large\n"
    "images, 0.02 x batch / 128 for mlp, 1.5 x batch / 1024 for airbench94; lars takes 100 times as much;\n"
    "adam, adamw and muon take 0.001.\n"
    "Files in --out DIR: config.json (as resolved), metrics.jsonl (one object a line: step, epoch, end),\n"
    "evaluation.json (results by class), run.lock (keeps other runs out), and the checkpoints last/ and\n"
    "best/ (best test accuracy; with --ema the accuracy of the average, while test_* and evaluation.json\n"
    "describe the weights). A checkpoint has model.safetensors, optimizer.safetensors, state.json,\n"
    "checksums.json, and with --ema ema.safetensors.\n"
    "Exit codes: 0 finished, 2 bad input, 3 failure in the run, 75 stopped by a signal with a checkpoint\n"
    "(--resume auto goes on from this checkpoint), 76 no progress (--watchdog).\n"
    "As root, with few slots or in a container mpirun needs OMPI_ALLOW_RUN_AS_ROOT=1,\n"
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 and --oversubscribe (scripts/train.sh sets all three).";

void describe_model(lockstep::Schema& schema, Options& o) {
  schema.group("Model");
  schema
      .add("model", o.model,
           "network: resnet20, 32, 44, 56, 110, airbench94 (these six for small images), resnet18, 34, 50, 101, 152 or "
           "mlp; also: resnext50_32x4d, resnext101_32x8d, wide_resnet50_2, wide_resnet101_2")
      .looks_like("NAME")
      .is_common();
  schema.add("hidden", o.hidden,
             "sizes of the hidden layers of --model mlp, e.g. 256,128; without this option mlp is a linear classifier");
  schema.add("zero_init_residual", o.zero_init_residual,
             "start the scale of each residual block's last norm layer at 0");
}

void describe_data(lockstep::Schema& schema, Options& o) {
  schema.group("Data");
  schema
      .add("data", o.data.spec,
           "training and test data: synthetic, cifar10:DIR, idx:DIR, folder:DIR, list:TRAIN,VAL or packed:FILE; "
           "cifar10: CIFAR-10's binary files; idx: files in MNIST's format; folder: JPEG and PNG files "
           "DIR/train/CLASS/*, test images in DIR/val or DIR/test; list: text files with a line PATH LABEL or "
           "PATH,LABEL for each JPEG or PNG file; list:FILE: one list, see --val-fraction; packed: a file of "
           "lockstep-pack")
      .is_common();
  schema.add("train_images", o.data.synthetic.train_size, "with --data synthetic: number of training images");
  schema.add("test_images", o.data.synthetic.test_size, "with --data synthetic: number of test images");
  schema
      .add("image_size", o.image_size,
           "side of the images in pixels; for --data synthetic, folder, list and packed; default: 32 for synthetic "
           "images and for models for small images, otherwise 224")
      .is_common();
  schema.add("resize", o.data.folder.resize,
             "with --data folder, list or packed: shorter side of test images in pixels before the centre crop; 0: "
             "256/224 of --image-size");
  schema.add("val_fraction", o.data.folder.val_fraction,
             "with --data folder or list: fraction of each class for the test set; for a DIR without a folder val or "
             "test, or for one list");
  schema.add("skip_damaged", o.skip_damaged,
             "with --data folder or list: decode all images before training and leave out damaged ones; otherwise a "
             "damaged image ends the run");
  schema.add("classes", o.data.synthetic.classes, "with --data synthetic: number of classes, 2 to 1120");
  schema
      .add("pad", o.pad,
           "pixels of padding on each side before a random crop; -1: 4 pixels, with idx 0; with --data folder, list or "
           "packed -1 means no padding but random crops of 8 to 100 % of the picture (--crop-scale)")
      .at_least(-1)
      .instead_of("crop_scale")
      .instead_of("crop_ratio");
  schema.choice<bool>(
      "pad_mode", o.reflect, {{"black", false}, {"reflect", true}},
      "pixels that --pad adds; black: black pixels; reflect: the image reflected about its edge pixels");
  schema.choice<Flip>("flip", o.flip,
                      {{"on", Flip::on}, {"off", Flip::off}, {"auto", Flip::automatic}, {"alternate", Flip::alternate}},
                      "mirror training images at random; auto: on, with --data idx off; alternate: at random in the "
                      "first epoch, afterwards each image the other way round from epoch to epoch");
  constexpr const char* kChannels =
      " of each channel, of values / 255: three numbers R,G,B; default: computed from the training images, with --data "
      "folder, list or packed ImageNet's, with --evaluate the checkpoint's";
  schema.add("mean", o.mean, std::string("mean") + kChannels);
  schema.add("std", o.std, std::string("standard deviation") + kChannels);
  using Views = nn::TestTimeAugmentation;
  const auto word = [](Views views) { return std::pair(std::string(nn::name_of(views)), views); };
  schema.choice<Views>(
      "tta", o.test_time_augmentation, {word(Views::none), word(Views::mirror), word(Views::mirror_translate)},
      "views of a test image whose outputs are averaged; mirror: the image and its mirror image; mirror-translate: "
      "also both images moved by one pixel up and left, and down and right; the moved images have half of the weight");
}

}  // namespace

cli::Parsed<Options> parse(int argc, const char* const* argv, const cli::ConfigFile& config) {
  cli::Parsed<Options> parsed;
  Options& o = parsed.options;
  lockstep::Schema schema;
  describe_model(schema, o);
  describe_data(schema, o);
  describe(schema, o.augmentation);
  cli::describe(schema, o.launch, cli::Restarts::yes);
  nn::describe(schema, o.training);
  parsed.text = cli::parse_command_line({"train_resnet", kAbout, kFooter, true}, schema, argc, argv, config);
  if (!parsed.text.empty()) {
    return parsed;
  }
  o.training.chosen = schema.given(/*kept_only=*/true);
  require<UsageError>(
      (o.mean.empty() || o.mean.size() == 3) && o.mean.empty() == o.std.empty() && o.mean.size() == o.std.size(),
      "--mean has ", o.mean.size(), " numbers and --std has ", o.std.size(), ", expected three of each, or neither");
  const bool files = o.data.spec.starts_with("folder:") || o.data.spec.starts_with("list:");
  require<UsageError>(files || (!o.skip_damaged && o.data.folder.val_fraction == 0),
                      o.skip_damaged ? "--skip-damaged" : "--val-fraction", " with --data ", o.data.spec,
                      ", expected --data folder:DIR or list:FILE",
                      of_folder(o.data) ? "; lockstep-pack has this option" : "");
  require<UsageError>(of_folder(o.data) || o.data.folder.resize == 0, "--resize with --data ", o.data.spec,
                      ", expected --data folder:DIR, list:FILE or packed:FILE");
  const char* const unpadded = o.flip == Flip::alternate ? "--flip is alternate" : "--pad-mode is reflect";
  require<UsageError>(!of_folder(o.data) || o.pad >= 0 || (o.flip != Flip::alternate && !o.reflect), unpadded,
                      " with random parts of the pictures of --data ", o.data.spec,
                      ", expected --pad N instead of these");
  require<UsageError>(!o.reflect || o.augmentation.crop_scale.empty(),
                      "--pad-mode is reflect with --crop-scale, expected one of the two");
  nn::require_training_options(o.training);
  (void)cli::ranks_request(o.launch);
  require_augmentation_flags(o.augmentation, of_folder(o.data), o.pad, o.training);
  if (o.data.spec != "synthetic") {
    for (const char* name : {"train_images", "test_images", "classes"}) {
      const lockstep::Option& option = *schema.find(name);
      require<UsageError>(!option.given, option.spelled(), " is ", option.text(), " with --data ", o.data.spec,
                          ", expected --data synthetic: files have as many as they have");
    }
  }
  o.data.folder.crop = crop_of(o.augmentation);
  o.training.dry_run = o.training.dry_run || !o.augmentation.show_batch.empty();  // a dry run writes nothing to --out
  o.data.seed = o.training.trainer.step.seed;
  if (o.image_size) {
    o.data.synthetic.height = o.data.synthetic.width = o.data.folder.image_size = *o.image_size;
  }
  o.data.folder.random_crops = o.pad < 0;
  o.data.folder.flip = o.flip != Flip::off;
  return parsed;
}

bool of_folder(const nn::DataOptions& data) {
  return data.spec.starts_with("folder:") || data.spec.starts_with("list:") || data.spec.starts_with("packed:");
}

nn::BaseRate base_rate(const std::string& model, nn::OptimizerKind optimizer) {
  const nn::RuleTraits& rule = nn::traits_of(optimizer);
  const double scale = rule.rate;
  if (rule.normalised) {
    return {1e-3 * scale, 0};
  }
  if (model == "mlp") {
    return {0.02 * scale, 128};
  }
  if (model == "airbench94") {
    return {1.5 * scale, 1024};
  }
  return {0.1 * scale, for_small_images(model) ? 128 : 256};
}

bool for_small_images(const std::string& model) {
  return model == "airbench94" || model == "resnet20" || model == "resnet32" || model == "resnet44" ||
         model == "resnet56" || model == "resnet110";
}

}  // namespace train_resnet
