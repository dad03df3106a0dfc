#include <lockstep/nn/plan/plan_builder.hpp>

#include <algorithm>
#include <utility>

#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/nn/plan/detail/joins.hpp>
#include <lockstep/nn/plan/detail/loss.hpp>
#include <lockstep/nn/plan/detail/place_slots.hpp>
#include <lockstep/nn/plan/detail/recomputation.hpp>

namespace lockstep::nn {

namespace {

Shape with_batch(std::int64_t batch, const Shape& sample) {
  Shape shape{batch};
  for (const std::int64_t extent : sample) {
    shape.push_back(extent);
  }
  return shape;
}

/// Returns the largest number of gradients that a node accepts without a sum (Layer::gradients_taken()). The model's
/// input, which has no layer, accepts one.
int gradients_taken(const Node& node) {
  return node.layer ? node.layer->gradients_taken() : 1;
}

std::string name_of(const Node& node) {
  return node.layer ? node.layer->name() : "input";
}

}  // namespace

PlanBuilder::PlanBuilder(Context& context, const Model& model, Mode mode, std::int64_t batch,
                         const PlanOptions& options)
    : context_(&context),
      model_(model),
      parameters_(model.parameters()),
      buffers_(model.buffers()),
      mode_(mode),
      batch_(batch),
      options_(options),
      nodes_(model.nodes().size()),
      constants_(options.constant_parameters),
      writes_so_far_(parameters_.size(), options.accumulate ? 1 : 0) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameter_index_.emplace(parameters_[i].spec.name, i);
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffer_index_.emplace(buffers_[i].name, i);
  }
  for (const Node& node : model.nodes()) {
    for (const NodeId input : node.inputs) {
      ++nodes_[static_cast<std::size_t>(input.index)].uses;
    }
  }
  nodes_[0].trains = mode == Mode::train && options.input_gradient;
  const bool frozen = std::any_of(parameters_.begin(), parameters_.end(),
                                  [](const Model::Parameter& parameter) { return !parameter.spec.trainable; });
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    const Node& node = model.nodes()[i];
    bool trains = !frozen;
    std::vector<Shape> inputs;
    for (const NodeId input : node.inputs) {
      trains = trains || nodes_[static_cast<std::size_t>(input.index)].trains;
      inputs.push_back(model.nodes()[static_cast<std::size_t>(input.index)].shape);
    }
    for (const ParameterSpec& spec : node.layer->parameters(inputs)) {
      trains = trains || parameters_[parameter_index_.at(spec.name)].spec.trainable;
    }
    nodes_[i].trains = trains;
  }
}

PlanContents PlanBuilder::build() {
  const auto& nodes = model_.nodes();
  nodes_[0].output = plan_input(*this, model_);
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    current_ = static_cast<int>(i);
    nodes[i].layer->plan(*this);
    require<StateError>(nodes_[i].output.valid(), "plan: ", nodes[i].layer->name(),
                        " set no output, expected its plan() to call set_output()");
  }
  contents_.output = nodes_.back().output;
  const bool given = training() && options_.loss == Loss::given;
  if (given) {  // no-op call that reads the output, so that no later call reuses the output's memory
    call_once(
        "output", {contents_.output}, {}, 0, [](Context&, const Frame&) {}, 0);
    contents_.backward_begin = static_cast<int>(contents_.calls.size());
    backward_phase_ = true;
  }
  SlotId gradient;
  if (mode_ != Mode::infer) {
    gradient = plan_loss(*this, model_, contents_.output);
  }
  contents_.guarded =
      options_.guard_bands && context_->device().kind == DeviceKind::cpu && context_->stream().is_inline();
  if (!given) {
    contents_.backward_begin = static_cast<int>(contents_.calls.size());
  }
  if (training()) {
    backward_phase_ = true;
    plan_backward(gradient);
    if (options_.input_gradient) {
      contents_.input_gradient = plan_input_gradient();
    }
    recompute(contents_, options_.recompute);
    plan_vjp();
    plan_jvp();
  } else {  // makes the output live to the end of the plan, because the caller reads the output after the run
    info_of(contents_.output).last = static_cast<int>(contents_.calls.size()) - 1;
    contents_.vjp_begin = contents_.jvp_begin = static_cast<int>(contents_.calls.size());
  }
  plan_joins(contents_);
  place_slots(contents_, options_.reuse_memory, training() && options_.kept_apart);
  return std::move(contents_);
}

void PlanBuilder::plan_backward(SlotId gradient) {
  if (gradient.valid()) {
    nodes_.back().gradients.push_back(gradient);
  }
  for (std::size_t i = nodes_.size(); i-- > 1;) {
    current_ = static_cast<int>(i);
    const NodeState& node = nodes_[i];
    if (node.backward && (!node.gradients.empty() || node.pooled.dy.valid() || node.masked.g.valid())) {
      const std::size_t first_call = contents_.calls.size();
      nodes_[i].backward(*this);
      require_gradients_read(first_call);
    }
  }
}

void PlanBuilder::plan_vjp() {
  contents_.vjp_begin = static_cast<int>(contents_.calls.size());
  if (!options_.vjp) {
    return;
  }
  if (constants_) {  // backward() computes J^T u, so vjp() needs no calls
    contents_.vjp_result = contents_.input_gradient;
    return;
  }
  constants_ = true;
  shared_gradients_.clear();
  for (NodeState& node : nodes_) {
    node.gradients.clear();
    node.pooled = {};
    node.masked = {};
  }
  current_ = static_cast<int>(nodes_.size()) - 1;
  plan_backward(plan_loss(*this, model_, contents_.output));
  contents_.vjp_result = plan_input_gradient();
}

void PlanBuilder::plan_jvp() {
  contents_.jvp_begin = static_cast<int>(contents_.calls.size());
  if (!options_.jvp) {
    return;
  }
  current_ = 0;
  contents_.input_tangent = nodes_[0].tangent = activation("t(input)", prototype(nodes_[0].output).shape);
  call_once(
      "input tangent", {}, {contents_.input_tangent}, 0, [](Context&, const Frame&) {}, 0);
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    current_ = static_cast<int>(i);
    const Layer& layer = *node().layer;
    require<UnsupportedError>(static_cast<bool>(here().tangents), "plan: layer ", layer.name(), " of kind '",
                              layer.kind(), "' has no rule for tangents (jvp), expected a layer with one, or no jvp");
    here().tangents(*this);
    require<StateError>(here().tangent.valid(), "plan: ", layer.name(),
                        " set no tangent, expected its rule to call set_tangent()");
  }
  contents_.output_tangent = here().tangent;
  call_once(
      "output tangent", {contents_.output_tangent}, {}, 0, [](Context&, const Frame&) {}, 0);
}

SlotId PlanBuilder::plan_input_gradient() {
  current_ = 0;
  SlotId gradient;
  if (nodes_[0].gradients.empty()) {  // no layer computes a gradient of the input, so the gradient is 0
    gradient = activation("d(input)", prototype(nodes_[0].output).shape);
    call("fill", {}, {gradient}, 0,
         [slot = gradient](Context& context, const Frame& frame) { ops::fill(context, 0, frame[slot]); });
  } else {
    gradient = nodes_[0].gradients.back();
  }
  // This no-op call reads the gradient, so that the gradient's memory is kept until the end of the plan. The caller
  // reads the gradient after the run.
  call_once(
      "input gradient", {gradient}, {}, 0, [](Context&, const Frame&) {}, 0);
  return gradient;
}

Shape PlanBuilder::batched(const Shape& sample) const {
  return with_batch(batch_, sample);
}

SlotId PlanBuilder::new_slot(SlotInfo info) {
  info.bytes = static_cast<std::size_t>(info.shape.numel()) * size_of(info.dtype);
  contents_.slots.push_back(std::move(info));
  return {static_cast<int>(contents_.slots.size()) - 1};
}

SlotId PlanBuilder::parameter_slot(const std::string& name, SlotKind kind, DType dtype) {
  const auto found = parameter_index_.find(name);
  require<StateError>(found != parameter_index_.end(), "plan: layer ", node().layer->name(), " asks for parameter ",
                      name, ", expected one that its parameters() lists");
  return new_slot({.name = name,
                   .kind = kind,
                   .dtype = dtype,
                   .shape = parameters_[found->second].spec.stored_shape(),
                   .source = static_cast<int>(found->second)});
}

SlotId PlanBuilder::parameter(const std::string& name) {
  return parameter_slot(name, SlotKind::parameter, statistics_dtype());
}

SlotId PlanBuilder::weight(const std::string& name) {
  return dtype() == statistics_dtype() ? parameter(name) : parameter_slot(name, SlotKind::weight, dtype());
}

SlotId PlanBuilder::buffer(const std::string& name) {
  const auto found = buffer_index_.find(name);
  require<StateError>(found != buffer_index_.end(), "plan: layer ", node().layer->name(), " asks for buffer ", name,
                      ", expected one that its buffers() lists");
  return new_slot({.name = name,
                   .kind = SlotKind::buffer,
                   .dtype = statistics_dtype(),
                   .shape = buffers_[found->second].stored_shape(),
                   .source = static_cast<int>(found->second)});
}

SlotId PlanBuilder::state(StateField field) {
  const FieldSpec spec = field_spec(field, step_layout(model_, options_), batch_);
  return new_slot({.name = std::string(name_of(field)),
                   .kind = SlotKind::state,
                   .dtype = spec.dtype,
                   .shape = spec.shape,
                   .source = static_cast<int>(field)});
}

SlotId PlanBuilder::loss_scale() {
  return new_slot({.name = "loss scale", .kind = SlotKind::loss_scale, .dtype = statistics_dtype(), .shape = Shape{}});
}

SlotId PlanBuilder::weight_sum() {
  return new_slot({.name = "weight sum", .kind = SlotKind::weight_sum, .dtype = statistics_dtype(), .shape = Shape{}});
}

bool PlanBuilder::may_overwrite_input(int i) const {
  const Layer* layer = producer_node(i).layer.get();
  return layer != nullptr && producer(i).uses == 1 && info_of(input(i)).kind == SlotKind::workspace &&
         (!training() || !layer->backward_reads_output());
}

void PlanBuilder::set_output(SlotId slot) {
  require<StateError>(!here().output.valid(), "plan: ", node().layer->name(), " set its output twice, expected once");
  here().output = slot;
}

const Layer* PlanBuilder::only_reader(int& input) const {
  if (here().uses != 1) {
    return nullptr;
  }
  for (const Node& reader : model_.nodes()) {
    for (std::size_t i = 0; i < reader.inputs.size(); ++i) {
      if (reader.inputs[i].index == current_) {
        input = static_cast<int>(i);
        return reader.layer.get();
      }
    }
  }
  return nullptr;
}

bool PlanBuilder::may_leave_norm_unapplied(bool relu) const {
  int i = 0;
  const Layer* const reader = fuses() && training() ? only_reader(i) : nullptr;
  return reader != nullptr && reader->takes_norm(i, relu);
}

SlotId PlanBuilder::sums_wanted_near(SlotId output) {
  int i = 0;
  const Layer* const reader = training() ? only_reader(i) : nullptr;
  const std::string name = reader != nullptr && i == 0 ? reader->sums_wanted_near(*this, prototype(output)) : "";
  return name.empty() ? SlotId{} : buffer(name);
}

const FusibleNorm* PlanBuilder::fusible_norm(SlotId& addend) const {
  const NodeState& norm = producer(0);
  if (!norm.fusible.x.valid() || !norm.trains || norm.gradients.size() > 1 ||
      static_cast<int>(norm.gradients.size()) + 1 != norm.uses) {
    return nullptr;
  }
  addend = norm.gradients.empty() ? SlotId{} : norm.gradients[0];
  return &norm.fusible;
}

SlotId PlanBuilder::activation(const std::string& name, const Shape& shape) {
  return tensor(name, shape, options_.dtype);
}

SlotId PlanBuilder::statistics(const std::string& name, const Shape& shape) {
  return tensor(name, shape, statistics_dtype());
}

SlotId PlanBuilder::tensor(const std::string& name, const Shape& shape, DType dtype) {
  return new_slot({.name = name, .dtype = dtype, .shape = shape});
}

SlotId PlanBuilder::scratch(std::size_t bytes) {
  if (bytes == 0) {
    return {};
  }
  return new_slot({.name = "scratch", .dtype = DType::u8, .shape = Shape{static_cast<std::int64_t>(bytes)}});
}

SlotId PlanBuilder::alias(SlotId of, const std::string& name, const Shape& shape) {
  const SlotInfo& root = info_of(of);
  require<StateError>(root.kind == SlotKind::workspace, "plan: ", name, " cannot take the memory of ", root.name,
                      ", expected a slot of the workspace, e.g. of activation()");
  const SlotId slot =
      new_slot({.name = name, .dtype = root.dtype, .shape = shape, .alias_of = options_.reuse_memory ? of.index : -1});
  require<ShapeError>(contents_.slots.back().bytes <= info_of(of).bytes, "plan: ", name, " has ",
                      contents_.slots.back().bytes, " bytes, expected at most the ", info_of(of).bytes,
                      " of the slot that it takes over");
  return slot;
}

TensorView PlanBuilder::prototype(SlotId slot) const {
  if (!slot.valid()) {
    return {};
  }
  const SlotInfo& info = info_of(slot);
  return {nullptr, info.dtype, context_->device(), info.shape};
}

void PlanBuilder::call(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes, double flops,
                       std::function<void(Context&, const Frame&)> run, int launches) {
  const auto missing = [](SlotId slot) { return !slot.valid(); };
  std::erase_if(reads, missing);
  std::erase_if(writes, missing);
  Call call{.layer = node().layer ? node().layer->name() : std::string("input"),
            .op = op,
            .backward = backward_phase_,
            .once = std::exchange(once_, false),
            .beside = context_ == options_.beside,
            .reads = std::move(reads),
            .writes = std::move(writes),
            .flops = flops,
            .bytes = 0,
            .launches = launches,
            .gradients = std::exchange(pending_writes_, {}),
            .run = std::move(run)};
  const int index = static_cast<int>(contents_.calls.size());
  for (const auto* list : {&call.reads, &call.writes}) {
    for (const SlotId slot : *list) {
      SlotInfo& info = info_of(slot);
      info.first = info.first < 0 ? index : info.first;
      info.last = index;
      call.bytes += info.name == "scratch" ? 0 : static_cast<double>(info.bytes);
    }
  }
  contents_.calls.push_back(std::move(call));
  merge_pending();
}

SlotId PlanBuilder::all_gather(const std::string& op, SlotId own, const std::string& name) {
  require<StateError>(options_.exchange.given(), "plan: ", op, " needs other ranks, expected PlanOptions::exchange");
  require<StateError>(
      context_ != options_.beside, "plan: ", op,
      " runs at the same time as other calls, expected it on the plan's stream, as the other exchanges are");
  const TensorView one = prototype(own);
  const SlotId all = tensor(name, {options_.exchange.ranks->size(), one.numel()}, one.dtype);
  call_once(op, {own}, {all}, 0, [own, all, exchange = options_.exchange](Context& context, const Frame& frame) {
    if (exchange.before) {
      exchange.before();
    }
    exchange.ranks->all_gather(context.stream(), frame[own], frame[all]);
    if (exchange.after) {
      exchange.after();
    }
  });
  contents_.calls.back().exchanged = static_cast<double>(one.bytes());
  return all;
}

void PlanBuilder::call_once(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes, double flops,
                            std::function<void(Context&, const Frame&)> run, int launches) {
  once_ = true;
  call(op, std::move(reads), std::move(writes), flops, std::move(run), launches);
}

void PlanBuilder::call_together(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes,
                                double flops, std::function<void(Context&, const Frame&)> run) {
  require<StateError>(context_ != options_.beside, "plan: ", node().layer->name(), " plans the cooperative launch '",
                      op,
                      "' on the second context, expected the plan's own: two such launches at a time may wait for each "
                      "other without end");
  call(op, std::move(reads), std::move(writes), flops, std::move(run));
}

std::shared_ptr<const ops::MatmulPlan> PlanBuilder::matmul(const std::string& key, ops::MatmulDesc desc) {
  desc.tf32 = options_.tf32;
  return planned(key, [&](const std::string& choice) { return ops::plan_matmul(*context_, desc, choice); });
}

void PlanBuilder::reduce_rows(SlotId dy, const Shape& rows, const GradientTarget& dbias) {
  if (!dbias.wanted()) {
    return;
  }
  const SlotId workspace = scratch(
      ops::reduce_rows_workspace_bytes(*context_, TensorView(nullptr, prototype(dy).dtype, context_->device(), rows)));
  call(
      "reduce_rows", {dy}, {dbias.slot, workspace}, 0,
      [=](Context& context, const Frame& frame) {
        ops::reduce_rows(context, frame[dy].reshape(rows), dbias.mode, frame[dbias.slot].reshape({rows[1]}),
                         frame[workspace]);
      },
      rows[0] <= ops::backend::kReduceRowsChunk ? 1 : 2);
}

void PlanBuilder::merge_pending() {
  for (const Merge& merge : std::exchange(pending_merges_, {})) {
    add_gradients(merge.from, merge.into, merge.into);
  }
}

void PlanBuilder::add_gradients(SlotId a, SlotId b, SlotId out) {
  // Hides pending_writes_ from this call: the pending gradient writes belong to the layer's next call, not to the add.
  std::vector<int> writes = std::exchange(pending_writes_, {});
  call("add", {a, b}, {out}, 0,
       [=](Context& context, const Frame& frame) { ops::add(context, frame[a], frame[b], frame[out]); });
  pending_writes_ = std::move(writes);
}

bool PlanBuilder::shared_gradient(SlotId slot) const {
  return std::find(shared_gradients_.begin(), shared_gradients_.end(), slot) != shared_gradients_.end();
}

SlotId PlanBuilder::overwrite_gradient(SlotId dy, const std::string& name) {
  const Shape& shape = info_of(dy).shape;
  return shared_gradient(dy) ? activation(name, shape) : alias(dy, name, Shape(shape));
}

void PlanBuilder::pass_gradient(int i, SlotId dy) {
  const Node& from = producer_node(i);
  if (!producer(i).trains) {
    return;
  }
  std::vector<SlotId>& gradients = producer(i).gradients;
  if (static_cast<int>(gradients.size()) < gradients_taken(from)) {
    gradients.push_back(dy);
    shared_gradients_.push_back(dy);
    return;
  }
  const SlotId before = gradients.back();
  if (shared_gradient(before)) {
    gradients.back() = activation("d(" + name_of(from) + ")", batched(from.shape));
  }
  add_gradients(dy, before, gradients.back());
}

void PlanBuilder::pass_pooled_gradient(const PooledGradient& gradient) {
  if (producer(0).trains) {
    producer(0).pooled = gradient;
  }
}

void PlanBuilder::on_backward(std::function<void(PlanBuilder&)> emit) {
  if (training()) {
    here().backward = std::move(emit);
  }
}

void PlanBuilder::on_tangent(std::function<void(PlanBuilder&)> emit) {
  here().tangents = std::move(emit);
}

SlotId PlanBuilder::new_tangent() {
  here().tangent = activation("t(" + node().layer->name() + ")", batched(node().shape));
  return here().tangent;
}

void PlanBuilder::require_gradients_read(std::size_t first_call) const {
  const std::vector<SlotId>& gradients = here().gradients;
  const auto read = [&](SlotId gradient) {
    return shared_gradient(gradient) ||
           std::any_of(contents_.calls.begin() + static_cast<std::ptrdiff_t>(first_call), contents_.calls.end(),
                       [&](const Call& call) {
                         return std::find(call.reads.begin(), call.reads.end(), gradient) != call.reads.end();
                       });
  };
  const auto count = std::count_if(gradients.begin(), gradients.end(), read);
  require<StateError>(gradients.size() < 2 || count == std::ssize(gradients), "plan: layer ", node().layer->name(),
                      " says that it takes ", node().layer->gradients_taken(),
                      " gradients of its output, and its backward reads ", count, " of ", gradients.size(),
                      ", expected all of them");
}

bool PlanBuilder::first_input_gradient(int i) const {
  const NodeState& from = producer(i);
  return from.trains && static_cast<int>(from.gradients.size()) < gradients_taken(producer_node(i));
}

GradientTarget PlanBuilder::input_gradient(int i, SlotId reuse, bool can_accumulate) {
  const Node& from = producer_node(i);
  if (!producer(i).trains) {
    return {};
  }
  std::vector<SlotId>& gradients = producer(i).gradients;
  const bool room = static_cast<int>(gradients.size()) < gradients_taken(from);
  const bool shared = !room && shared_gradient(gradients.back());
  if (!room && can_accumulate && !shared) {
    return {gradients.back(), ops::GradMode::accumulate};
  }
  const std::string name = "d(" + name_of(from) + ")";
  const Shape shape = batched(from.shape);
  const SlotId slot = reuse.valid() && !shared_gradient(reuse) ? alias(reuse, name, shape) : activation(name, shape);
  if (room) {
    gradients.push_back(slot);
  } else if (shared) {
    pending_merges_.push_back({gradients.back(), slot});
    gradients.back() = slot;
  } else {
    pending_merges_.push_back({slot, gradients.back()});
  }
  return {slot, ops::GradMode::overwrite};
}

GradientTarget PlanBuilder::parameter_gradient(const std::string& name) {
  SlotId slot = parameter(name);
  SlotInfo& info = info_of(slot);
  if (constants_ || !parameters_[static_cast<std::size_t>(info.source)].spec.trainable) {
    return {};
  }
  info.kind = SlotKind::gradient;
  info.name = "d(" + name + ")";
  pending_writes_.push_back(info.source);
  const int before = writes_so_far_[static_cast<std::size_t>(info.source)]++;
  return {slot, before == 0 ? ops::GradMode::overwrite : ops::GradMode::accumulate};
}

std::pair<GradientTarget, GradientTarget> PlanBuilder::parameter_gradients(const std::string& first,
                                                                           const std::string& second) {
  GradientTarget a = parameter_gradient(first);
  GradientTarget b = parameter_gradient(second);
  if (a.wanted() != b.wanted()) {
    GradientTarget& wanted = a.wanted() ? a : b;
    GradientTarget& other = a.wanted() ? b : a;
    const SlotId like = parameter(a.wanted() ? second : first);
    other = {statistics("unused d(" + (a.wanted() ? second : first) + ")", Shape(prototype(like).shape)), wanted.mode};
  }
  return {a, b};
}

}  // namespace lockstep::nn
