#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/comm.hpp>
#include <lockstep/c/context.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/c/handles.hpp>
#include <lockstep/c/model.hpp>
#include <lockstep/c/tape.hpp>
#include <lockstep/c/trainer.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/plan/choice_verifier.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/nn/step/train_step.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/instruction_sets.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::c {

namespace {

constexpr std::size_t kOldestOptions = offsetof(lockstep_trainer_options, clip_value);
constexpr std::size_t kOldestReport = sizeof(lockstep_report);

lockstep_trainer_options default_options() {
  lockstep_trainer_options options{};
  options.struct_size = sizeof(options);
  options.optimizer = LOCKSTEP_OPTIMIZER_ADAM;
  options.loss = LOCKSTEP_LOSS_MSE;
  options.beta1 = 0.9;
  options.beta2 = 0.999;
  options.epsilon = 1e-8;
  options.momentum = 0.9;
  options.huber_delta = 1;
  return options;
}

nn::OptimizerKind optimizer_from(std::int32_t number) {
  using enum nn::OptimizerKind;
  return value_of(number, {sgd, adam, adamw, lars}, "options: optimizer", "LOCKSTEP_OPTIMIZER_SGD", "_LARS");
}

nn::Loss loss_from(std::int32_t number) {
  using enum nn::Loss;
  return value_of(number, {mse, l1, huber, cross_entropy, given}, "options: loss", "LOCKSTEP_LOSS_MSE", "_GIVEN");
}

nn::LossWeights weights_from(std::int32_t number) {
  using enum nn::LossWeights;
  return value_of(number, {none, sample, element}, "options: weights", "LOCKSTEP_WEIGHTS_NONE", "_ELEMENT");
}

nn::TrainStepOptions step_options(const lockstep_trainer_options& o, DType dtype) {
  require<UsageError>(o.max_batch >= 1, "options: max_batch is ", o.max_batch, ", expected at least 1");
  require<UsageError>(o.bucket_bytes >= 0, "options: bucket_bytes is ", o.bucket_bytes, ", expected at least 0");
  const bool checks = flag_of(o.check_input, "options: check_input");
  const bool given = o.loss == LOCKSTEP_LOSS_GIVEN;
  require<UsageError>(!given || o.weights == LOCKSTEP_WEIGHTS_NONE, "options: weights is ", o.weights,
                      " with LOCKSTEP_LOSS_GIVEN, expected LOCKSTEP_WEIGHTS_NONE: the host program weighs");
  require<UsageError>(!given || !checks,
                      "options: check_input is 1 with LOCKSTEP_LOSS_GIVEN, expected 0: tapes take "
                      "the input");
  require<UnsupportedError>(!given || o.sync_batch_norm == 0, "options: sync_batch_norm is ", o.sync_batch_norm,
                            " with LOCKSTEP_LOSS_GIVEN, expected 0: tapes take statistics on each rank");
  require<UsageError>(o.clip_value == 0 || o.optimizer != LOCKSTEP_OPTIMIZER_LARS, "options: clip_value is ",
                      o.clip_value, " with LOCKSTEP_OPTIMIZER_LARS, expected 0");
  return {.max_batch = given ? 1 : o.max_batch,  // with LOCKSTEP_LOSS_GIVEN, only tapes need memory for samples
          .empty_steps = true,
          .sync_batch_norm = flag_of(o.sync_batch_norm, "options: sync_batch_norm"),
          .plan = {.dtype = dtype,
                   .loss = loss_from(o.loss),
                   .huber_delta = o.huber_delta,
                   .weights = weights_from(o.weights)},
          .optimizer = {.kind = optimizer_from(o.optimizer),
                        .momentum = o.momentum,
                        .nesterov = flag_of(o.nesterov, "options: nesterov"),
                        .beta1 = o.beta1,
                        .beta2 = o.beta2,
                        .epsilon = o.epsilon,
                        .clip_norm = o.clip_norm,
                        .clip_value = o.clip_value,
                        .skip_non_finite = flag_of(o.skip_non_finite, "options: skip_non_finite")},
          .weight_decay = o.weight_decay,
          .buckets = {.bucket_bytes = o.bucket_bytes}};
}

/// Returns a text of the options and model properties that must be equal on all ranks, one on each line.
std::string contract_of(const Learned& learned, const lockstep_trainer_options& o) {
  std::string text =
      concat("optimizer ", o.optimizer, "\nloss ", o.loss, "\nnesterov ", o.nesterov, "\nskip_non_finite ",
             o.skip_non_finite, "\nsync_batch_norm ", o.sync_batch_norm, "\nbeta1 ", o.beta1, "\nbeta2 ", o.beta2,
             "\nepsilon ", o.epsilon, "\nmomentum ", o.momentum, "\nweight_decay ", o.weight_decay, "\nclip_norm ",
             o.clip_norm, "\nhuber_delta ", o.huber_delta, "\nbucket_bytes ", o.bucket_bytes, "\nclip_value ",
             o.clip_value, '\n') +
      learned.contract();
  for (const nn::ParameterInfo& info : learned.parameters.parameters()) {
    text += info.spec.trainable ? "" : concat("frozen ", info.spec.name, '\n');
  }
  if (learned.context->context->device().kind == DeviceKind::cpu && !chosen_variant().empty()) {
    text += concat("cpu_variant ", chosen_variant(), '\n');
  }
  return text;
}

/// Copies of the parameters' values and statistics, for restore() after a new TrainStep has overwritten both.
class KeptValues {
 public:
  KeptValues(Context& context, nn::ParameterSet& parameters)
      : context_(context),
        parameters_(parameters),
        arenas_{parameters.values(), parameters.buffer_arena(), parameters.evaluation_buffer_arena()} {
    for (const TensorView& arena : arenas_) {
      if (arena.numel() > 0) {
        Buffer& kept = memory_.emplace_back(arena.bytes(), context);
        copy(context, arena, TensorView(kept.data(), arena.dtype, context.device(), arena.shape));
      } else {
        memory_.emplace_back();
      }
    }
    context.synchronize();
  }
  void restore() {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (arenas_[i].numel() > 0) {
        copy(context_, TensorView(memory_[i].data(), arenas_[i].dtype, context_.device(), arenas_[i].shape),
             arenas_[i]);
      }
    }
    parameters_.round_weights(context_);
    context_.synchronize();
  }

 private:
  Context& context_;
  nn::ParameterSet& parameters_;
  std::vector<TensorView> arenas_;
  std::vector<Buffer> memory_;
};

/// Makes a step that trains the model's own parameters, and restores their values after the step has initialised them.
std::unique_ptr<nn::TrainStep> make_step(TrainerObject& trainer, nn::TrainStepOptions options) {
  Context& context = *trainer.learned->context->context;
  nn::ParameterSet& parameters = trainer.learned->parameters;
  options.lent = parameters.arenas();
  options.plan.verifier = nn::ChoiceVerifier::from_environment();
  if (!trainer.learned->context->can_be_captured()) {
    options.cuda_graph = nn::CudaGraph::off;
  }
  KeptValues kept(context, parameters);
  std::unique_ptr<nn::TrainStep> step;
  try {
    step = std::make_unique<nn::TrainStep>(context, nn::StepRanks{trainer.gradients(), context.stream()},
                                           trainer.learned->model, options);
  } catch (...) {
    kept.restore();
    throw;
  }
  kept.restore();
  return step;
}

void require_trainable(const ModelObject& model, const CommObject& comm) {
  const Learned& learned = model.finished();
  require<UnsupportedError>(!model.reshaped.has_value(),
                            "the model is one of lockstep_model_reshape, expected the one that its parameters were "
                            "made with");
  require<StateError>(learned.trainer.expired(), "the model has a trainer already, expected none");
  require<UsageError>(learned.context == model.context,
                      "the model shares another one's parameters, expected the one that they were made with");
  const Device device = model.context->device();
  require<DeviceError>(comm.gpus == nullptr || comm.context->device() == device, "the communicator is for memory of ",
                       comm.context->device(), ", the model is on ", device, ", expected both on one device");
  require<UnsupportedError>(comm.gpus != nullptr || comm.communicator->size() == 1 || device == Device::cpu(),
                            "training with ", comm.communicator->size(), " ranks on ", device,
                            ": the communicator exchanges memory of the host, expected one of lockstep_comm_from_nccl");
}

nn::FieldView field_of(nn::StateField field, const lockstep_view* view, Device device, const char* name, bool check) {
  nn::FieldView result{field, view_of(view, device, name), std::string(axes_of(given(view, name)))};
  if (check) {
    require_finite(result.view, name);
  }
  return result;
}

/// Begins an entry of the C interface that is collective over the trainer's ranks. Calls agree_on() with a function
/// that sets `use` and then calls check(). The context is in use as long as `use` has a value.
template <class Check>
void begin(TrainerObject& t, std::optional<ContextObject::Use>& use, Check&& check, const char* what = "") {
  agree_on(
      t.control(),
      [&] {
        use.emplace(*t.learned->context);
        return check();
      },
      what);
}

/// Copies the running statistics that training computes to those that inference and model files use.
void take_statistics(TrainerObject& t) {
  const nn::ParameterSet& parameters = t.learned->parameters;
  if (parameters.buffer_arena().numel() > 0) {
    ops::strided_copy(t.step->context(), parameters.buffer_arena(), parameters.evaluation_buffer_arena());
  }
  t.learned->stale = false;
}

/// Copies the running statistics of rank 0 to all ranks, if batch norm uses the statistics of all ranks (t.syncs).
void share_statistics(TrainerObject& t) {
  if (t.syncs) {
    t.gradients().broadcast(t.step->context().stream(), t.learned->parameters.buffer_arena(), 0);
    t.step->synchronize();
  }
}

/// Returns the learning rate as a number for agree_on(). Throws UsageError for a rate out of range.
std::uint64_t rate_of(double learning_rate) {
  require<UsageError>(std::isfinite(learning_rate) && learning_rate >= 0, "learning_rate is ", learning_rate,
                      ", expected a finite number of at least 0");
  return std::bit_cast<std::uint64_t>(learning_rate);
}

/// Calls begin() with check() for an entry whose learning rate must be equal on all ranks.
template <class Check>
void begin_at(TrainerObject& t, std::optional<ContextObject::Use>& use, double learning_rate, Check&& check) {
  begin(
      t, use,
      [&] {
        const std::uint64_t rate = rate_of(learning_rate);
        check();
        return rate;
      },
      "learning_rate");
}

void require_added(const TrainerObject& t) {
  require<StateError>(t.step->added() > 0 || t.options.loss == LOCKSTEP_LOSS_GIVEN,
                      "nothing was added since the last update, expected lockstep_trainer_add before, also of 0 "
                      "samples on a rank that has none");
}

void require_not_reduced(const TrainerObject& t) {
  require<StateError>(!t.step->reduced(),
                      "the gradients are reduced, expected lockstep_trainer_apply or lockstep_trainer_abandon before");
}

void require_given(const TrainerObject& t) {
  require<StateError>(t.options.loss == LOCKSTEP_LOSS_GIVEN, "the trainer's loss is ", t.options.loss,
                      ", expected LOCKSTEP_LOSS_GIVEN");
}

/// Makes the running statistics of training the statistics of inference, or marks the latter as stale if each rank has
/// its own. Must be called at the end of an entry that sums the gradients over the ranks.
void end_sum(TrainerObject& t) {
  t.has_gradients = true;
  if (t.control().size() == 1 || t.syncs) {
    take_statistics(t);
  } else {
    t.learned->stale = t.learned->parameters.buffer_arena().numel() > 0;
  }
}

/// Sets t.batch to the views of a call. Throws for an invalid view, or if `weight` does not fit the option `weights`.
void take_batch(TrainerObject& t, const lockstep_view* in, const lockstep_view* target, const lockstep_view* weight) {
  require_not_reduced(t);
  require<StateError>(t.options.loss != LOCKSTEP_LOSS_GIVEN,
                      "the loss is LOCKSTEP_LOSS_GIVEN, expected gradients of a tape");
  const bool weighs = t.options.weights != LOCKSTEP_WEIGHTS_NONE;
  require<UsageError>(weighs == (weight != nullptr), "weight is ", weighs ? "NULL" : "given", ", expected ",
                      weighs ? "a view" : "NULL", ": the options say weights ", t.options.weights);
  const Device device = t.learned->context->device();
  const nn::StepLayout& layout = t.step->layout();
  const bool check = t.options.check_input == 1;
  t.batch.fields.clear();
  t.batch.fields.push_back(field_of(nn::input_field(layout.input_kind), in, device, "in", check));
  t.batch.fields.push_back(
      field_of(layout.regression ? nn::StateField::targets : nn::StateField::labels, target, device, "target", check));
  if (!layout.regression) {  // with weights, any i32 is valid, because a label of weight 0 does not count
    using Limits = std::numeric_limits<std::int32_t>;
    require_labels(t.batch.fields.back().view, weighs ? Limits::min() : 0,
                   weighs ? Limits::max() : layout.output.back() - 1, "target");
  }
  if (weighs) {
    t.batch.fields.push_back(field_of(nn::StateField::weights, weight, device, "weight", check));
  }
}

void add(TrainerObject& t, const lockstep_view* in, const lockstep_view* target, const lockstep_view* weight,
         lockstep_stream stream) {
  std::optional<ContextObject::Use> use;
  if (t.syncs) {
    begin(t, use, [&] {
      take_batch(t, in, target, weight);
      t.step->check(t.batch);
    });
  } else {
    use.emplace(*t.learned->context);
    take_batch(t, in, target, weight);
  }
  ContextObject::Call call(*t.learned->context, stream);
  t.has_gradients = false;
  t.step->add(t.batch);
  call.end();
  t.step->wait_for_copies();  // after the call, host memory belongs to the caller again
}

/// Returns the number in `scalar`, which is on the trainer's device. Waits for the device.
template <class T>
T read(TrainerObject& t, const TensorView& scalar) {
  T value{};
  copy_now(t.step->context(), scalar, TensorView(std::span(&value, 1), Shape{}));
  return value;
}

constexpr std::size_t kNormScalar = 64;  ///< bytes for the norm in gradient_norm()'s memory; a workspace follows

/// Allocates the memory of gradient_norm(): the norm and the workspace.
Buffer norm_memory(TrainerObject& t) {
  Context& context = t.step->context();
  return Buffer(kNormScalar + ops::squared_norm_workspace_bytes(context, t.step->parameters().gradients()), context);
}

/// Returns the norm that the gradients of the last update had before clipping. Waits for the device.
double gradient_norm(TrainerObject& t, const Buffer& memory) {
  Context& context = t.step->context();
  const nn::ParameterSet& parameters = t.step->parameters();
  const TensorView squares(memory.data(), DType::f64, context.device(), Shape{});
  ops::squared_norm(context, parameters.gradients(), squares,
                    TensorView(memory.data() + kNormScalar, DType::u8, context.device(),
                               Shape{static_cast<std::int64_t>(memory.bytes() - kNormScalar)}));
  return std::sqrt(read<double>(t, squares)) / read<double>(t, parameters.weight_sum());
}

/// Returns the report about the last step, with sums over all ranks. Collective.
lockstep_report report_of(TrainerObject& t) {
  lockstep_report report{};
  report.step = t.step->steps() + (t.step->reduced() ? 1 : 0);
  const nn::Metrics own = nn::sum_in_tree(t.step->metrics_of(report.step));
  nn::Metrics all;
  const auto sum = [&](double nn::Metrics::*part) {
    for (const double each : comm::all_gather_value(t.control(), own.*part)) {
      all.*part += each;
    }
  };
  sum(&nn::Metrics::loss_sum);
  sum(&nn::Metrics::weight);
  sum(&nn::Metrics::samples);
  report.samples = static_cast<std::int64_t>(all.samples);
  report.loss = report.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  if (all.samples > 0) {
    report.loss = all.loss();
    if (t.has_gradients) {
      report.gradient_norm = gradient_norm(t, norm_memory(t));
    }
  }
  const TensorView& skipped = t.step->optimizer().skipped();
  report.skipped = skipped.given() ? read<std::int64_t>(t, skipped) : 0;
  return report;
}

}  // namespace
}  // namespace lockstep::c

using namespace lockstep;
using namespace lockstep::c;

lockstep_status lockstep_trainer_options_init(lockstep_trainer_options* options, size_t size) noexcept {
  return entry("lockstep_trainer_options_init",
               [&] { write_options(options, size, default_options(), kOldestOptions, "options"); });
}

lockstep_status lockstep_trainer_create(lockstep_model model, lockstep_comm comm,
                                        const lockstep_trainer_options* options, lockstep_trainer* trainer) noexcept {
  return entry("lockstep_trainer_create", [&] {
    const std::shared_ptr<CommObject> ranks = share_of(comm);
    comm::Communicator& communicator = *ranks->communicator;
    auto made = std::make_shared<TrainerObject>();
    nn::TrainStepOptions step;
    std::optional<ContextObject::Use> use;
    agree_on(communicator, [&] {
      given(trainer, "trainer") = nullptr;
      const ModelObject& m = object_of(model);
      require_trainable(m, *ranks);
      use.emplace(*m.learned->context);
      static_cast<void>(given(options, "options"));
      made->options = read_options(options, default_options(), kOldestOptions, "options");
      step = step_options(made->options, m.dtype);
      made->learned = m.learned;
      made->comm = ranks;
    });
    comm::require_same_on_all_ranks(communicator, contract_of(*made->learned, made->options));
    step.max_batch = largest_of_ranks(communicator, step.max_batch);
    agree_on(communicator, [&] {
      if (communicator.size() == 1) {
        made->alone = comm::LocalGroup(1).communicator(0);
      }
      made->step = make_step(*made, step);
    });
    made->syncs =
        step.sync_batch_norm && communicator.size() > 1 && made->learned->parameters.buffer_arena().numel() > 0;
    if (communicator.size() > 1) {
      try {
        made->step->require_same_state(communicator, "");
      } catch (UsageError& error) {  // only a difference causes UsageError; MPI and the device cause other errors
        error.annotate("the model begins with other values on another rank, expected lockstep_model_broadcast before");
        throw;
      }
    }
    share_statistics(*made);
    *trainer = make_handle<lockstep_trainer>(made);
    made->learned->trainer = made;
  });
}

lockstep_status lockstep_trainer_add(lockstep_trainer trainer, const lockstep_view* in, const lockstep_view* target,
                                     const lockstep_view* weight, lockstep_stream stream) noexcept {
  return entry("lockstep_trainer_add", [&] { add(object_of(trainer), in, target, weight, stream); });
}

lockstep_status lockstep_trainer_update(lockstep_trainer trainer, double learning_rate) noexcept {
  return entry("lockstep_trainer_update", [&] {
    TrainerObject& t = object_of(trainer);
    std::optional<ContextObject::Use> use;
    begin_at(t, use, learning_rate, [&] {
      require_added(t);
      require_not_reduced(t);
    });
    t.step->update(learning_rate);
    end_sum(t);
  });
}

lockstep_status lockstep_trainer_reduce(lockstep_trainer trainer, double* norm) noexcept {
  return entry("lockstep_trainer_reduce", [&] {
    TrainerObject& t = object_of(trainer);
    std::optional<ContextObject::Use> use;
    Buffer memory;
    begin(t, use, [&] {
      require_added(t);
      require_not_reduced(t);
      if (norm != nullptr) {
        memory = norm_memory(t);
      }
    });
    t.step->reduce();
    end_sum(t);
    if (norm != nullptr) {
      *norm = gradient_norm(t, memory);
    }
  });
}

lockstep_status lockstep_trainer_apply(lockstep_trainer trainer, double learning_rate) noexcept {
  return entry("lockstep_trainer_apply", [&] {
    TrainerObject& t = object_of(trainer);
    std::optional<ContextObject::Use> use;
    begin_at(t, use, learning_rate, [&] {
      require<StateError>(t.step->reduced(), "the gradients are not reduced, expected lockstep_trainer_reduce before");
    });
    t.step->apply(learning_rate);
  });
}

lockstep_status lockstep_gradients_read(lockstep_trainer trainer, const lockstep_view* values) noexcept {
  return entry("lockstep_gradients_read", [&] {
    TrainerObject& t = object_of(trainer);
    const ContextObject::Use use(*t.learned->context);
    const TensorView to = vector_of(output_of(values, t.learned->context->device(), "values"), *values);
    require_added(t);
    t.step->read_gradients(to);
  });
}

lockstep_status lockstep_gradients_write(lockstep_trainer trainer, const lockstep_view* values) noexcept {
  return entry("lockstep_gradients_write", [&] {
    TrainerObject& t = object_of(trainer);
    const ContextObject::Use use(*t.learned->context);
    const TensorView from = vector_of(view_of(values, t.learned->context->device(), "values"), *values);
    require_added(t);
    t.step->write_gradients(from);
  });
}

lockstep_status lockstep_trainer_collect(lockstep_trainer trainer, lockstep_tape tape) noexcept {
  return entry("lockstep_trainer_collect", [&] {
    TrainerObject& t = object_of(trainer);
    TapeObject& from = object_of(tape);
    const ContextObject::Use use(*t.learned->context);
    require<UsageError>(from.learned == t.learned, "the tape is of another model, expected the trainer's");
    require<StateError>(from.own.bytes() > 0, "the tape ",
                        from.trainer != nullptr ? "adds to the trainer's gradients itself, expected own_gradients 1"
                                                : "has parameter_gradients 0, expected a tape with own_gradients 1");
    require_given(t);
    require_not_reduced(t);
    std::optional<ContextObject::Use> at_rest;
    if (from.context != t.learned->context) {
      at_rest.emplace(*from.context);
    }
    from.context->context->synchronize();
    const TensorView sums = t.step->given_gradients();
    ops::add(t.step->context(), sums, from.gradients, sums);
    ops::fill(t.step->context(), 0, from.gradients);
    t.step->context().synchronize();  // the tape may use `gradients` on another stream
  });
}

lockstep_status lockstep_trainer_abandon(lockstep_trainer trainer) noexcept {
  return entry("lockstep_trainer_abandon", [&] {
    TrainerObject& t = object_of(trainer);
    const ContextObject::Use use(*t.learned->context);
    t.step->abandon();
    t.has_gradients = false;
  });
}

lockstep_status lockstep_trainer_loss(lockstep_trainer trainer, int32_t wait, double* loss, int64_t* step) noexcept {
  return entry("lockstep_trainer_loss", [&] {
    TrainerObject& t = object_of(trainer);
    const ContextObject::Use use(*t.learned->context);
    const nn::StepLoss newest = flag_of(wait, "wait") ? t.step->wait_loss() : t.step->loss();
    if (loss != nullptr) {
      *loss = newest.step > 0 ? newest.value : std::numeric_limits<double>::quiet_NaN();
    }
    if (step != nullptr) {
      *step = newest.step;
    }
  });
}

lockstep_status lockstep_trainer_report(lockstep_trainer trainer, lockstep_report* report) noexcept {
  return entry("lockstep_trainer_report", [&] {
    TrainerObject& t = object_of(trainer);
    std::optional<ContextObject::Use> use;
    begin(t, use, [&] {
      write_options(report, given(report, "report").struct_size, lockstep_report{}, kOldestReport, "report");
      require<StateError>(t.step->added() == 0 || t.step->reduced(),
                          "samples were added since the last update, expected an update or a reduce before");
      static_cast<void>(t.step->wait_loss());
    });
    write_options(report, report->struct_size, report_of(t), kOldestReport, "report");
  });
}

lockstep_status lockstep_trainer_check(lockstep_trainer trainer) noexcept {
  return entry("lockstep_trainer_check", [&] {
    TrainerObject& t = object_of(trainer);
    std::optional<ContextObject::Use> use;
    begin(t, use, [] {});
    t.step->check_replicas(t.control());
  });
}

lockstep_status lockstep_trainer_broadcast(lockstep_trainer trainer, int32_t root) noexcept {
  return entry("lockstep_trainer_broadcast", [&] {
    TrainerObject& t = object_of(trainer);
    std::optional<ContextObject::Use> use;
    begin(
        t, use, [&] { return root_of(root, t.control()); }, "root");
    t.step->broadcast(root);
    take_statistics(t);
  });
}

lockstep_status lockstep_trainer_average(lockstep_trainer trainer) noexcept {
  return entry("lockstep_trainer_average", [&] {
    TrainerObject& t = object_of(trainer);
    std::optional<ContextObject::Use> use;
    begin(t, use, [] {});
    t.step->synchronize();
    nn::average_statistics(t.step->context(), t.step->parameters(), t.control(),
                           std::vector<double>(static_cast<std::size_t>(t.control().size()), 1.0));
    t.learned->stale = false;
  });
}

lockstep_status lockstep_trainer_save(lockstep_trainer trainer, const char* folder, size_t folder_n) noexcept {
  return entry("lockstep_trainer_save", [&] {
    TrainerObject& t = object_of(trainer);
    std::string path;
    std::optional<ContextObject::Use> use;
    begin(
        t, use,
        [&] {
          path = text_of(folder, folder_n, "folder");
          return number_of(path);
        },
        "folder");
    nn::save_state(path, *t.step, t.control());
    t.learned->stale = false;
  });
}

lockstep_status lockstep_trainer_load(lockstep_trainer trainer, const char* folder, size_t folder_n) noexcept {
  return entry("lockstep_trainer_load", [&] {
    TrainerObject& t = object_of(trainer);
    std::string path;
    std::optional<ContextObject::Use> use;
    begin(t, use, [&] {
      path = text_of(folder, folder_n, "folder");
      require<StateError>(t.step->added() == 0,
                          "samples were added since the last update, expected an update, or "
                          "lockstep_trainer_abandon, before");
      nn::require_state(path, *t.step);
    });
    t.has_gradients = false;
    agree_on(t.control(), [&] { nn::load_state(path, *t.step, t.control()); });
    t.learned->stale = false;
    share_statistics(t);
  });
}

lockstep_status lockstep_trainer_destroy(lockstep_trainer trainer) noexcept {
  return entry("lockstep_trainer_destroy", [&] { destroy(trainer); });
}
