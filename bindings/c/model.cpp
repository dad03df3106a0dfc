#include <lockstep/c/model.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/comm.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/c/handles.hpp>
#include <lockstep/c/layers.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/flat_vector.hpp>
#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/nn/plan/choice_verifier.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::c {
namespace {

constexpr std::size_t kOldestLayerOptions = offsetof(lockstep_layer_options, output_pad);
constexpr std::size_t kOldestParameter = sizeof(lockstep_parameter);
constexpr std::int64_t kSamplesUnasked = 64;  ///< smallest max_batch unless the caller calls lockstep_model_prepare()

lockstep_layer_options default_layer_options() {
  lockstep_layer_options options{};
  options.struct_size = sizeof(options);
  return options;
}

DType model_dtype(lockstep_dtype dtype) {
  const DType type = dtype_from(dtype, "dtype");
  require<DTypeError>(type == DType::f32 || type == DType::f64 || type == DType::bf16, "a model cannot compute in ",
                      type, ", expected f32, f64 or bf16");
  return type;
}

std::shared_ptr<ModelObject> empty_model(lockstep_context context, DType dtype, const char* name, const Shape& sample) {
  auto model = std::make_shared<ModelObject>();
  model->context = share_of(context);
  model->dtype = dtype;
  model->builder.emplace(name, sample);
  model->nodes = {model->builder->input()};
  return model;
}

nn::ModelBuilder& unfinished(ModelObject& model) {
  require<StateError>(model.builder.has_value(),
                      "the model has parameters, expected no more layers: add all of them before");
  return *model.builder;
}

/// Returns new parameters for `model`, which must have layers but no parameters; `model` does not change. Throws
/// StateError if the model has no layers.
std::shared_ptr<Learned> finish(const ModelObject& model) {
  require<StateError>(model.nodes.size() > 1, "the model has no layers, expected lockstep_model_add before");
  nn::ModelBuilder copy = *model.builder;
  return std::make_shared<Learned>(model.context, copy.build(), model.dtype);
}

void require_device(const ContextObject& context, const Learned& learned) {
  require<DeviceError>(context.device() == learned.context->device(), "the context is on ", context.device(),
                       ", the parameters are on ", learned.context->device(), ", expected both on one device");
}

void adopt(ModelObject& model, std::shared_ptr<Learned> learned) {
  model.learned = std::move(learned);
  model.builder.reset();
}

/// If options.share is 1, the new layer takes the parameters of an earlier layer with the same name. Throws UsageError
/// if options.share is 1 and no earlier layer has the name, or if options.share is 0 and an earlier layer has it.
void require_name(const ModelObject& model, const LayerRequest& request) {
  const bool taken = std::ranges::any_of(
      model.steps, [&](const BuildStep& step) { return !step.layer.kind.empty() && step.layer.name == request.name; });
  if (flag_of(request.options.share, "options: share")) {
    require<UsageError>(taken, "options of layer ", request.name,
                        ": share is 1, expected a layer of this name before, whose parameters it takes");
  } else {
    require<UsageError>(!taken, "layer ", request.name, ": another layer has this name, expected one of its own, ",
                        "or share = 1 in the options where both are to have the same parameters");
  }
}

/// Makes the call that `step` describes: adds a layer to `builder`, and the layer's output to `nodes`, or freezes
/// parameters.
void repeat(const BuildStep& step, nn::ModelBuilder& builder, std::vector<nn::NodeId>& nodes) {
  if (step.layer.kind.empty()) {
    builder.freeze(step.frozen);
    return;
  }
  LayerRequest request = step.layer;
  for (const std::int32_t input : step.inputs) {
    request.inputs.push_back(nodes[static_cast<std::size_t>(input)]);
  }
  nodes.push_back(add_layer(builder, request));
}

/// Makes the call that `step` describes, and adds it to the model's steps. After an exception the model is unchanged.
void build(ModelObject& model, BuildStep step) {
  nn::ModelBuilder next = unfinished(model);
  repeat(step, next, model.nodes);
  model.builder = std::move(next);
  model.steps.push_back(std::move(step));
}

/// Returns a model with the layers of `model` for samples of another shape. Throws ShapeError if a parameter would have
/// another shape.
nn::Model reshaped(const ModelObject& model, const Shape& sample) {
  const nn::Model& own = model.finished().model;
  nn::ModelBuilder builder(own.name(), sample);
  std::vector<nn::NodeId> nodes{builder.input()};
  for (const BuildStep& step : model.steps) {
    repeat(step, builder, nodes);
  }
  nn::Model made = builder.build();
  const std::vector<nn::Model::Parameter> before = own.parameters();
  const std::vector<nn::Model::Parameter> after = made.parameters();
  for (std::size_t i = 0; i < before.size(); ++i) {
    require<ShapeError>(before[i].spec.shape == after[i].spec.shape && before[i].spec.dims == after[i].spec.dims,
                        "sample_shape is ", sample, ": parameter '", after[i].spec.name, "' would be ",
                        after[i].spec.dims, ", expected ", before[i].spec.dims, " as in the model");
  }
  return made;
}

/// Returns a model with the parameters and layers of `model` on another context of the same device.
std::shared_ptr<ModelObject> sharing(const ModelObject& model, lockstep_context context) {
  auto made = std::make_shared<ModelObject>();
  made->context = share_of(context);
  require_device(*made->context, model.finished());
  made->dtype = model.dtype;
  made->steps = model.steps;
  made->learned = model.learned;
  return made;
}

Shape sample_shape_of(const std::int64_t* sample_shape, std::int32_t ndim) {
  static_cast<void>(given(sample_shape, "sample_shape"));
  require<ShapeError>(ndim >= 1 && ndim <= 4, "sample_shape has ", ndim, " axes, expected 1 to 4");
  const Shape sample(std::span(sample_shape, static_cast<std::size_t>(ndim)));
  for (const std::int64_t extent : sample) {
    require<ShapeError>(extent >= 1, "sample_shape is ", sample, ", expected extents of at least 1");
  }
  return sample;
}

void prepare(ModelObject& model, std::int64_t max_batch) {
  Learned& learned = model.finished();
  require<UsageError>(max_batch >= 1, "max_batch is ", max_batch, ", expected at least 1");
  auto made = std::make_unique<nn::Inference>(
      *model.context->context, model.reshaped ? *model.reshaped : learned.model, learned.parameters,
      nn::InferenceOptions{.max_batch = max_batch,
                           .plan = {.dtype = model.dtype, .verifier = nn::ChoiceVerifier::from_environment()}});
  model.inference = std::move(made);
}

/// Returns the number of samples in `view`: the product of the extents of the axes "n". An invalid view is no error
/// here; the computation reports it later.
std::int64_t samples_in(const nn::SampleView& view) {
  std::int64_t samples = 1;
  for (int axis = 0; axis < view.view.shape.rank(); ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    const bool counts = view.axes.empty() ? axis == 0 : at < view.axes.size() && view.axes[at] == 'n';
    samples *= counts ? view.view.shape[axis] : 1;
  }
  return samples;
}

void infer(ModelObject& model, const lockstep_view* in, const lockstep_view* out, std::int64_t views,
           lockstep_stream stream) {
  const ContextObject::Use use(*model.context);
  model.finished().require_statistics();
  if (views == 0) {
    return;
  }
  if (views == 1 && model.last && model.last->first.fits(*in) && model.last->second.fits(*out) && in->data != nullptr &&
      out->data != nullptr && model.inference->run_again(in->data, out->data)) {
    return;
  }
  model.last.reset();
  const Device device = model.context->device();
  const auto n = static_cast<std::size_t>(views);
  model.inputs.resize(n);
  model.outputs.resize(n);
  std::int64_t most = 0;
  bool on_host = false;  // true: some view is in host memory, which the caller may use or free after the call
  for (std::size_t i = 0; i < n; ++i) {
    model.inputs[i] = {view_of(&in[i], device, "in"), axes_of(in[i])};
    model.outputs[i] = {output_of(&out[i], device, "out"), axes_of(out[i])};
    most = std::max(most, samples_in(model.inputs[i]));
    for (const nn::SampleView* each : {&model.inputs[i], &model.outputs[i]}) {
      on_host = on_host || each->view.device.kind == DeviceKind::cpu;
    }
  }
  if (model.inference == nullptr) {
    prepare(model, std::max(most, kSamplesUnasked));
  } else if (most > model.inference->max_batch()) {
    // Plans for at least 1.5 times as many samples as before. So a caller whose number of samples grows by 1 with every
    // call seldom needs a new plan.
    prepare(model, std::max(most, model.inference->max_batch() * 3 / 2));
  }
  ContextObject::Call call(*model.context, stream);
  model.inference->run(model.inputs, model.outputs);
  call.end();
  if (views == 1 && model.inference->runs_again()) {
    model.last.emplace(ViewForm(*in), ViewForm(*out));
  }
  if (on_host && device.kind == DeviceKind::cuda) {
    model.context->context->synchronize();  // waits for copies from or to page-locked memory
  }
}

std::string parameter_name(const char* name, std::size_t length) {
  return text_of(name, length, "name");
}

/// Copies the `arena` of rank `root` to all ranks, through host memory, because some communicators exchange only host
/// memory.
void broadcast(Context& context, comm::Communicator& ranks, const TensorView& arena, int root) {
  if (arena.numel() == 0) {
    return;
  }
  std::vector<double> numbers(static_cast<std::size_t>(arena.numel()));
  const TensorView host(std::span<double>(numbers), arena.shape);
  Stream stream = Stream::host_inline();
  copy_now(context, arena, host);
  ranks.broadcast(stream, host, root);
  copy_now(context, host, arena);
}

nn::FlatPart part_of(std::int32_t statistics) {
  using enum nn::FlatPart;
  return value_of(statistics, {values, values_and_statistics}, "statistics", "LOCKSTEP_WITHOUT_STATISTICS",
                  "LOCKSTEP_WITH_STATISTICS");
}

void require_no_axes(const lockstep_view& view) {
  require<ShapeError>(view.axes == nullptr, "value: axes are '", axes_of(view),
                      "', expected NULL: a parameter has its own order");
}

}  // namespace

ViewForm::ViewForm(const lockstep_view& view)
    : dtype(view.dtype),
      device_type(view.device_type),
      device_id(view.device_id),
      ndim(view.ndim),
      strided(view.strides != nullptr),
      lettered(view.axes != nullptr) {
  const auto n = static_cast<std::size_t>(ndim);
  std::copy_n(view.shape, n, shape.begin());
  if (strided) {
    std::copy_n(view.strides, n, strides.begin());
  }
  if (lettered) {
    std::copy_n(view.axes, n, axes.begin());
  }
}

bool ViewForm::fits(const lockstep_view& view) const {
  if (view.dtype != dtype || view.device_type != device_type || view.device_id != device_id || view.ndim != ndim ||
      (view.strides != nullptr) != strided || (view.axes != nullptr) != lettered || view.shape == nullptr) {
    return false;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(ndim); ++i) {
    if (view.shape[i] != shape[i] || (strided && view.strides[i] != strides[i]) ||
        (lettered && view.axes[i] != axes[i])) {
      return false;
    }
  }
  return !lettered || view.axes[ndim] == '\0';
}

Learned::Learned(std::shared_ptr<ContextObject> owner, nn::Model finished, DType dtype)
    : context(std::move(owner)), model(std::move(finished)), parameters(*context->context, model, dtype) {}

std::string Learned::contract() const {
  std::string text = concat("parameters in ", parameters.weight_dtype(), '\n');
  for (const auto& [name, layer] : model.layer_texts()) {
    text += concat("layer ", name, ": ", layer, '\n');
  }
  for (const nn::ParameterInfo& info : parameters.parameters()) {
    text += concat("parameter ", info.spec.name, ' ', info.spec.dims, '\n');
  }
  return text;
}

void Learned::require_statistics() const {
  require<StateError>(!stale,
                      "the ranks have trained since the running statistics of batch norm were averaged, expected "
                      "lockstep_trainer_average (of all ranks) before");
}

Learned& ModelObject::finished() const {
  require<StateError>(learned != nullptr,
                      "the model has no parameters, expected lockstep_model_initialise or lockstep_model_load before");
  return *learned;
}

}  // namespace lockstep::c

using namespace lockstep;
using namespace lockstep::c;

lockstep_status lockstep_layer_options_init(lockstep_layer_options* options, size_t size) noexcept {
  return entry("lockstep_layer_options_init",
               [&] { write_options(options, size, default_layer_options(), kOldestLayerOptions, "options"); });
}

lockstep_status lockstep_model_create(lockstep_context context, lockstep_dtype dtype, const int64_t* sample_shape,
                                      int32_t ndim, lockstep_model* model) noexcept {
  return entry("lockstep_model_create", [&] {
    given(model, "model") = nullptr;
    const Shape sample = sample_shape_of(sample_shape, ndim);
    *model = make_handle<lockstep_model>(empty_model(context, model_dtype(dtype), "model", sample));
  });
}

lockstep_status lockstep_model_mlp(lockstep_context context, lockstep_dtype dtype, const int64_t* widths, int32_t n,
                                   int32_t activation, lockstep_model* model) noexcept {
  return entry("lockstep_model_mlp", [&] {
    given(model, "model") = nullptr;
    static_cast<void>(given(widths, "widths"));
    require<UsageError>(n >= 2 && n <= 1000, "n is ", n, ", expected 2 to 1000 widths");
    for (int i = 0; i < n; ++i) {
      require<ShapeError>(widths[i] >= 1, "widths[", i, "] is ", widths[i], ", expected at least 1");
    }
    static_cast<void>(activation_from(activation));
    std::shared_ptr<ModelObject> made = empty_model(context, model_dtype(dtype), "mlp", {widths[0]});
    for (int i = 1; i < n; ++i) {
      BuildStep step{.layer = {.kind = "linear",
                               .name = std::to_string(i),
                               .inputs = {},
                               .size = widths[i],
                               .options = default_layer_options()},
                     .inputs = {i - 1}};
      step.layer.options.activation = i + 1 < n ? activation : LOCKSTEP_ACTIVATION_NONE;
      build(*made, std::move(step));
    }
    *model = make_handle<lockstep_model>(std::move(made));
  });
}

lockstep_status lockstep_model_add(lockstep_model model, const char* kind, size_t kind_n, const char* name,
                                   size_t name_n, const int32_t* inputs, int32_t ninputs, int64_t size,
                                   const lockstep_layer_options* options, int32_t* node) noexcept {
  return entry("lockstep_model_add", [&] {
    ModelObject& m = object_of(model);
    static_cast<void>(unfinished(m));
    BuildStep step{
        .layer = {
            .kind = text_of(kind, kind_n, "kind"), .name = text_of(name, name_n, "name"), .inputs = {}, .size = size}};
    static_cast<void>(given(inputs, "inputs"));
    require<UsageError>(ninputs >= 1 && ninputs <= 2, "ninputs is ", ninputs, ", expected 1 or 2");
    for (int i = 0; i < ninputs; ++i) {
      require<UsageError>(inputs[i] >= 0 && inputs[i] < static_cast<std::int32_t>(m.nodes.size()), "inputs[", i,
                          "] is ", inputs[i], ", expected a node of the model, 0 to ", m.nodes.size() - 1);
    }
    step.inputs.assign(inputs, inputs + ninputs);
    step.layer.options = read_options(options, default_layer_options(), kOldestLayerOptions, "options");
    require_name(m, step.layer);
    build(m, std::move(step));
    if (node != nullptr) {
      *node = static_cast<std::int32_t>(m.nodes.size()) - 1;
    }
  });
}

lockstep_status lockstep_model_freeze(lockstep_model model, const char* name, size_t name_n) noexcept {
  return entry("lockstep_model_freeze", [&] { build(object_of(model), {.frozen = text_of(name, name_n, "name")}); });
}

lockstep_status lockstep_model_initialise(lockstep_model model, uint64_t seed) noexcept {
  return entry("lockstep_model_initialise", [&] {
    ModelObject& m = object_of(model);
    const ContextObject::Use use(*m.context);
    if (m.learned != nullptr) {
      require<StateError>(m.learned->trainer.expired(),
                          "the model has a trainer, expected none: initialise before, or destroy the trainer");
      m.learned->parameters.initialise(*m.context->context, seed);
      m.learned->stale = false;
      return;
    }
    std::shared_ptr<Learned> learned = finish(m);
    learned->parameters.initialise(*m.context->context, seed);
    adopt(m, std::move(learned));
  });
}

lockstep_status lockstep_model_prepare(lockstep_model model, int64_t max_batch) noexcept {
  return entry("lockstep_model_prepare", [&] {
    ModelObject& m = object_of(model);
    const ContextObject::Use use(*m.context);
    prepare(m, max_batch);
  });
}

lockstep_status lockstep_model_share(lockstep_model model, lockstep_context context, lockstep_model* shared) noexcept {
  return entry("lockstep_model_share", [&] {
    given(shared, "shared") = nullptr;
    const ModelObject& m = object_of(model);
    std::shared_ptr<ModelObject> made = sharing(m, context);
    made->reshaped = m.reshaped;
    *shared = make_handle<lockstep_model>(std::move(made));
  });
}

lockstep_status lockstep_model_reshape(lockstep_model model, const int64_t* sample_shape, int32_t ndim,
                                       lockstep_context context, lockstep_model* other) noexcept {
  return entry("lockstep_model_reshape", [&] {
    given(other, "reshaped") = nullptr;
    const ModelObject& m = object_of(model);
    std::shared_ptr<ModelObject> made = sharing(m, context);
    made->reshaped = reshaped(m, sample_shape_of(sample_shape, ndim));
    *other = make_handle<lockstep_model>(std::move(made));
  });
}

lockstep_status lockstep_model_save(lockstep_model model, const char* path, size_t path_n) noexcept {
  return entry("lockstep_model_save", [&] {
    const ModelObject& m = object_of(model);
    const ContextObject::Use use(*m.context);
    m.finished().require_statistics();
    nn::save_model(text_of(path, path_n, "path"), *m.context->context, m.finished().parameters);
  });
}

lockstep_status lockstep_model_load(lockstep_model model, const char* path, size_t path_n) noexcept {
  return entry("lockstep_model_load", [&] {
    ModelObject& m = object_of(model);
    const ContextObject::Use use(*m.context);
    const std::string file = text_of(path, path_n, "path");
    std::shared_ptr<Learned> learned = m.learned != nullptr ? m.learned : finish(m);
    nn::load_model(file, *m.context->context, learned->parameters);
    learned->stale = false;
    adopt(m, std::move(learned));
  });
}

lockstep_status lockstep_model_broadcast(lockstep_model model, lockstep_comm comm, int32_t root) noexcept {
  return entry("lockstep_model_broadcast", [&] {
    comm::Communicator& ranks = *object_of(comm).communicator;
    std::shared_ptr<Learned> learned;
    std::optional<ContextObject::Use> use;
    agree_on(
        ranks,
        [&] {
          const std::uint64_t number = root_of(root, ranks);
          const ModelObject& m = object_of(model);
          use.emplace(*m.finished().context);
          learned = m.learned;
          if (ranks.rank() == root) {
            learned->require_statistics();
          }
          return number;
        },
        "root");
    comm::require_same_on_all_ranks(ranks, learned->contract());
    Context& context = *learned->context->context;
    const nn::ParameterSet& parameters = learned->parameters;
    broadcast(context, ranks, parameters.values(), root);
    parameters.round_weights(context);
    broadcast(context, ranks, parameters.evaluation_buffer_arena(), root);
    if (learned->trainer.expired() && parameters.buffer_arena().numel() > 0) {  // a trainer keeps its own statistics
      ops::strided_copy(context, parameters.evaluation_buffer_arena(), parameters.buffer_arena());
    }
    context.synchronize();
    learned->stale = false;
  });
}

lockstep_status lockstep_model_destroy(lockstep_model model) noexcept {
  return entry("lockstep_model_destroy", [&] { destroy(model); });
}

lockstep_status lockstep_parameter_count(lockstep_model model, int32_t* count) noexcept {
  return entry("lockstep_parameter_count", [&] {
    given(count, "count") = static_cast<std::int32_t>(object_of(model).finished().parameters.parameters().size());
  });
}

lockstep_status lockstep_parameter_info(lockstep_model model, int32_t index, lockstep_parameter* info) noexcept {
  return entry("lockstep_parameter_info", [&] {
    const auto parameters = object_of(model).finished().parameters.parameters();
    require<UsageError>(index >= 0 && index < static_cast<std::int32_t>(parameters.size()), "index is ", index,
                        ", expected 0 to ", static_cast<std::int64_t>(parameters.size()) - 1);
    const nn::ParameterSpec& spec = parameters[static_cast<std::size_t>(index)].spec;
    lockstep_parameter known{};
    known.ndim = spec.shape.rank();
    std::copy(spec.shape.begin(), spec.shape.end(), known.shape);
    known.name = spec.name.c_str();
    write_options(info, given(info, "info").struct_size, known, kOldestParameter, "info");
  });
}

lockstep_status lockstep_parameter_read(lockstep_model model, const char* name, size_t name_n,
                                        const lockstep_view* value) noexcept {
  return entry("lockstep_parameter_read", [&] {
    const ModelObject& m = object_of(model);
    const ContextObject::Use use(*m.context);
    const TensorView to = output_of(value, m.context->device(), "value");
    require_no_axes(*value);
    m.finished().parameters.read(*m.context->context, parameter_name(name, name_n), to);
  });
}

lockstep_status lockstep_parameter_write(lockstep_model model, const char* name, size_t name_n,
                                         const lockstep_view* value) noexcept {
  return entry("lockstep_parameter_write", [&] {
    const ModelObject& m = object_of(model);
    const ContextObject::Use use(*m.context);
    const TensorView from = view_of(value, m.context->device(), "value");
    require_no_axes(*value);
    m.finished().parameters.write(*m.context->context, parameter_name(name, name_n), from);
  });
}

lockstep_status lockstep_parameters_size(lockstep_model model, int32_t statistics, int64_t* n) noexcept {
  return entry("lockstep_parameters_size",
               [&] { given(n, "n") = nn::flat_size(object_of(model).finished().parameters, part_of(statistics)); });
}

lockstep_status lockstep_parameters_read(lockstep_model model, int32_t statistics,
                                         const lockstep_view* values) noexcept {
  return entry("lockstep_parameters_read", [&] {
    const ModelObject& m = object_of(model);
    const ContextObject::Use use(*m.context);
    const nn::FlatPart part = part_of(statistics);
    if (part == nn::FlatPart::values_and_statistics) {
      m.finished().require_statistics();
    }
    nn::read_flat(*m.context->context, m.finished().parameters, part,
                  vector_of(output_of(values, m.context->device(), "values"), *values));
  });
}

lockstep_status lockstep_parameters_write(lockstep_model model, int32_t statistics,
                                          const lockstep_view* values) noexcept {
  return entry("lockstep_parameters_write", [&] {
    const ModelObject& m = object_of(model);
    const ContextObject::Use use(*m.context);
    const nn::FlatPart part = part_of(statistics);
    nn::write_flat(*m.context->context, m.finished().parameters, part,
                   vector_of(view_of(values, m.context->device(), "values"), *values));
    if (part == nn::FlatPart::values_and_statistics) {
      m.learned->stale = false;
    }
  });
}

lockstep_status lockstep_infer(lockstep_model model, const lockstep_view* in, const lockstep_view* out,
                               lockstep_stream stream) noexcept {
  return entry("lockstep_infer", [&] {
    static_cast<void>(given(in, "in"));
    static_cast<void>(given(out, "out"));
    infer(object_of(model), in, out, 1, stream);
  });
}

lockstep_status lockstep_infer_many(lockstep_model model, const lockstep_view* in, const lockstep_view* out,
                                    int64_t views, lockstep_stream stream) noexcept {
  return entry("lockstep_infer_many", [&] {
    require<UsageError>(views >= 0 && views <= (std::int64_t{1} << 40), "views is ", views, ", expected at least 0");
    ModelObject& m = object_of(model);
    if (views > 0) {
      static_cast<void>(given(in, "in"));
      static_cast<void>(given(out, "out"));
    }
    infer(m, in, out, views, stream);
  });
}
