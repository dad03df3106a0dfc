#include <iomanip>
#include <locale>
#include <sstream>

#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/kernels/jpeg_decoder.hpp>
#include <lockstep/nn/run/detail/rank_contract.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/machine/instruction_sets.hpp>

namespace lockstep::nn {

namespace {

/// Texts of options by name. Numbers have 17 digits, and true and false are 1 and 0, so that the texts agree with those
/// in older checkpoints.
class Texts {
 public:
  template <class... Values>
  void add(const char* name, const Values&... values) {
    std::string& text = all[name];
    text.clear();
    ((text += concat(text.empty() ? "" : " ", std::setprecision(17), values)), ...);
  }
  template <class... Values>
  void add_if(bool given, const char* name, const Values&... values) {
    if (given) {
      add(name, values...);
    }
  }
  std::map<std::string, std::string> all;
};

void add(Texts& texts, const Schedule& schedule) {
  texts.add("learning_rate", schedule.base);
  texts.add("schedule", name_of(schedule.kind));
  texts.add("warmup_steps", schedule.warmup_steps);
  texts.add("total_steps", schedule.total_steps);
  texts.add("milestones", joined(schedule.milestones, " "));
  texts.add("gamma", schedule.gamma);
  texts.add_if(schedule.end != 0, "learning_rate_at_end", schedule.end);
  texts.add_if(schedule.kind == Schedule::Kind::polynomial, "power", schedule.power);
  texts.add_if(schedule.warmup_factor.has_value(), "warmup", name_of(schedule.warmup),
               schedule.warmup_factor.value_or(0));
}

void add(Texts& texts, const PlanOptions& plan) {
  const ops::AugmentDesc& augment = plan.augment;
  texts.add("dtype", plan.dtype);
  texts.add_if(plan.tf32, "tf32", plan.tf32);
  texts.add("loss", name_of(plan.loss));
  texts.add("huber_delta", plan.huber_delta);
  texts.add("label_smoothing", plan.label_smoothing);
  texts.add_if(plan.two_labels, "two_labels", plan.two_labels);
  texts.add_if(plan.weights != LossWeights::none, "loss_weights", name_of(plan.weights));
  texts.add("dropout_seed", plan.dropout_seed);
  texts.add("pad", augment.pad);
  texts.add_if(augment.pad > 0 && augment.reflect, "pad_mode", "reflect");
  texts.add("flip", augment.flip);
  texts.add_if(augment.flip && augment.alternate, "flip_mode", "alternate");
  texts.add("mean", augment.mean[0], augment.mean[1], augment.mean[2]);
  texts.add("std", augment.std[0], augment.std[1], augment.std[2]);
  texts.add("augmentation_seed", augment.seed);
}

void add(Texts& texts, const OptimizerOptions& optimizer) {
  texts.add("optimizer", name_of(optimizer));
  texts.add("clip_norm", optimizer.clip_norm);
  texts.add_if(optimizer.clip_value > 0, "clip_value", optimizer.clip_value);
  texts.add("skip_non_finite", optimizer.skip_non_finite);
  texts.add_if(optimizer.loss_scale.scales(), "loss_scale", text_of(optimizer.loss_scale));
  texts.all.merge(rule_texts(optimizer));
}

}  // namespace

std::map<std::string, std::string> option_texts(const TrainerOptions& options, const TrainingData& data) {
  const TrainStepOptions& step = options.step;
  Texts texts;
  TrainerOptions plain;
  TrainerOptions described = options;
  Schema defaults;
  Schema schema;
  describe(defaults, plain);
  describe(schema, described);
  for (const Option& option : schema.options()) {
    texts.add_if(option.numbers && option.text() != defaults.find(option.name)->text(), option.name.c_str(),
                 option.text());
  }
  add(texts, options.schedule);
  add(texts, step.plan);
  add(texts, step.optimizer);
  texts.add("weight_decay", step.weight_decay);
  texts.add("decay_norm_and_bias", step.decay_all);
  texts.add_if(!text_of(step.groups).empty(), "parameter_groups", text_of(step.groups));
  texts.add_if(step.average.on(), "ema", text_of(step.average));
  texts.add_if(step.sync_batch_norm, "sync_batch_norm", step.sync_batch_norm);
  texts.add_if(step.strategy != Strategy::ddp, "strategy", name_of(step.strategy));
  texts.add("keep_last", options.keep_last);
  texts.add_if(options.test_time_augmentation != TestTimeAugmentation::none, "test_views",
               name_of(options.test_time_augmentation));
  texts.add("training_data", data.train.fingerprint());
  texts.add("test_data", data.test.fingerprint());
  if (options.pictures == PicturesOn::nvjpeg) {
    texts.add("jpeg", ops::jpeg_decoder_version());
  }
  texts.all.merge(comm::sum_texts(step.sums));
  return texts.all;
}

std::map<std::string, std::string> option_texts(Device device, const TrainerOptions& options,
                                                const TrainingData& data) {
  std::map<std::string, std::string> texts = option_texts(options, data);
  if (device.kind == DeviceKind::cpu && !chosen_variant().empty()) {
    texts["cpu_variant"] = chosen_variant();
  }
  return texts;
}

std::string detail::rank_contract(Device device, const Model& model, const std::map<std::string, std::string>& layers,
                                  const TrainingData& data, const TrainerOptions& options, const Choices& choices) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << "version " << version() << '\n' << "model " << model.name() << '\n';
  for (const Model::Parameter& parameter : model.parameters()) {
    text << "parameter " << parameter.spec.name << ' ' << parameter.spec.shape << ' ' << options.step.plan.dtype
         << (parameter.spec.trainable ? "" : " frozen") << '\n';
  }
  for (const auto& [name, layer] : layers) {
    text << "layer " << name << ' ' << layer << '\n';
  }
  for (const BufferSpec& buffer : model.buffers()) {
    text << "buffer " << buffer.name << ' ' << buffer.shape << '\n';
  }
  const comm::BucketOptions& buckets = options.step.buckets;
  text << "training samples " << data.train.size() << '\n'
       << "test samples " << data.test.size() << '\n'
       << "seed " << options.step.seed << '\n'
       << "global_batch " << options.global_batch << '\n'
       << "buckets " << buckets.bucket_bytes << ' ' << buckets.tail_bytes << ' ' << buckets.head_bytes << ' '
       << buckets.backward_s << ' ' << buckets.all_reduce.text() << "\nbucket plan"
       << (buckets.ends.empty() ? " none" : "");
  for (const int end : buckets.ends) {
    text << ' ' << end;
  }
  text << '\n';
  TrainerOptions described = options;
  Schema schema;
  describe(schema, described);
  for (const Option& option : schema.options()) {
    if (option.shared) {
      text << option.name << ' ' << option.text() << '\n';
    }
  }
  for (const auto& [name, value] : option_texts(device, options, data)) {
    text << name << ' ' << value << '\n';
  }
  for (const auto& [call, choice] : choices) {
    text << "choice for " << call << ' ' << choice << '\n';
  }
  return text.str();
}

void describe(Schema& schema, TrainerOptions& options) {
  schema.group("Training");
  schema
      .add("accumulate", options.accumulate,
           "micro-batches of one update, whose gradients add up; an update needs the memory of one micro-batch")
      .at_least(1)
      .decides_numbers()
      .is_common();
  describe(schema, options.schedule);
  describe(schema, options.step);
  schema.group("Training");
  schema.add("keep_last", options.keep_last, "also train on the last, incomplete batch of an epoch");
  schema
      .add("shuffle_chunk", options.shuffle_chunk,
           "samples of a chunk, which lie side by side in a packed file or in token files and are read together; an "
           "epoch shuffles the chunks, then the samples of each 16 chunks; 0: any sample may follow any other; shuffle "
           "a file that lies class by class first (lockstep-pack --shuffle), otherwise batches hold few classes")
      .at_least(0)
      .decides_numbers();
}

}  // namespace lockstep::nn
