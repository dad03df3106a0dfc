#include <lockstep/nn/model/parameter_set.hpp>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/fnv1a.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

TensorView arena_view(const Buffer& buffer, DType dtype, std::int64_t numel) {
  return {buffer.data(), dtype, buffer.device(), {numel}};
}

/// Returns the alignment of buffers in their arena, in elements: the offset of each buffer is a multiple of this
/// number.
std::int64_t buffer_step(DType dtype) {
  return static_cast<std::int64_t>(kAlignment / size_of(dtype));
}

TensorView part(const TensorView& arena, std::int64_t offset, const Shape& shape) {
  return {static_cast<std::byte*>(arena.data) + static_cast<std::size_t>(offset) * size_of(arena.dtype), arena.dtype,
          arena.device, shape};
}

/// Returns `view` with the shape spec.dims if `view` has the shape spec.shape. For example, the weight of a linear
/// layer over an image, (out, C H W), becomes (out, C, H, W). Returns all other views unchanged.
TensorView in_dims(const ParameterSpec& spec, const TensorView& view) {
  if (view.shape != spec.shape || spec.shape == spec.dims) {
    return view;
  }
  TensorView split = view;
  split.shape = spec.dims;
  split.strides = spec.dims;
  int axis = spec.dims.rank();
  for (int whole = spec.shape.rank(); whole-- > 0;) {
    std::int64_t stride = view.strides[whole];
    for (std::int64_t parts = 1; axis > 0 && (parts < spec.shape[whole] || spec.dims[axis - 1] == 1);
         parts *= spec.dims[axis]) {
      split.strides[--axis] = stride;
      stride *= spec.dims[axis];
    }
  }
  return split;
}

/// Throws ShapeError or DeviceError unless `view` is host memory of shape `shape`. `what` is "parameter" or "buffer".
void require_host_value(const char* what, const std::string& name, const Shape& shape, const TensorView& view) {
  require<ShapeError>(view.shape == shape, what, " '", name, "' is ", shape, ", the given tensor ", view.shape,
                      ", expected equal shapes");
  require<DeviceError>(view.device == Device::cpu(), what, " '", name, "': the given tensor is on ", view.device,
                       ", expected host memory");
}

void require_separate(std::initializer_list<std::pair<std::string_view, TensorView>> arenas) {
  for (const auto& [name, view] : arenas) {
    for (const auto& [other_name, other] : arenas) {
      require<ShapeError>(name == other_name || !overlaps(view, other), "parameters: the memory lent for ", name,
                          " and that for ", other_name, " overlap, expected memory of its own for each");
    }
  }
}

/// Sets the first min(K, C) filters of a weight (K, C, R, ...) to the identity: filter k is 1 in channel k at the
/// middle position (r / 2 for each extent r), and 0 elsewhere.
void put_identity(const Shape& dims, std::span<double> values) {
  const std::int64_t filters = std::min(dims[0], dims[1]);
  std::int64_t positions = 1;
  std::int64_t middle = 0;
  for (int i = 2; i < dims.rank(); ++i) {
    positions *= dims[i];
    middle = middle * dims[i] + dims[i] / 2;
  }
  for (std::int64_t k = 0; k < filters; ++k) {
    const std::span<double> filter = values.subspan(static_cast<std::size_t>(k * dims[1] * positions),
                                                    static_cast<std::size_t>(dims[1] * positions));
    std::fill(filter.begin(), filter.end(), 0.0);
    filter[static_cast<std::size_t>(k * positions + middle)] = 1;
  }
}

double decay_of(const ParameterSetOptions& options, ParameterRole role) {
  const double common = options.decay_all || role == ParameterRole::weight ? options.weight_decay : 0;
  return role == ParameterRole::weight ? common
         : role == ParameterRole::bias ? options.groups.bias_weight_decay.value_or(common)
                                       : options.groups.norm_weight_decay.value_or(common);
}

}  // namespace

ParameterArenaBytes parameter_arena_bytes(const Model& model, DType dtype) {
  const DType stored = ops::accumulation_dtype(dtype);
  std::int64_t numel = 0;
  std::int64_t trainable = 0;
  for (const Model::Parameter& parameter : model.parameters()) {
    const std::int64_t elements = align_up(parameter.spec.stored_shape().numel(), kArenaStep);
    numel += elements;
    trainable += parameter.spec.trainable ? elements : 0;
  }
  std::int64_t buffer_numel = 0;
  for (const BufferSpec& spec : model.buffers()) {
    buffer_numel += align_up(spec.stored_shape().numel(), buffer_step(stored));
  }
  const auto bytes = [](std::int64_t count, DType type) { return static_cast<std::size_t>(count) * size_of(type); };
  return {.values = bytes(numel, stored),
          .gradients = bytes(trainable + kArenaStep, stored),
          .weights = stored == dtype ? 0 : bytes(numel, dtype),
          .buffers = bytes(buffer_numel, stored),
          .evaluation_buffers = bytes(buffer_numel, stored)};
}

ParameterArenas ParameterSet::arenas() const {
  return {.values = values(),
          .gradients = gradients_and_weight_sum(),
          .weights = rounds() ? weights() : TensorView(),
          .buffers = buffer_arena(),
          .evaluation_buffers = evaluation_buffer_arena(),
          .version = version_};
}

ParameterSet::ParameterSet(Context& context, const Model& model, DType dtype, const ParameterSetOptions& options)
    : dtype_(ops::accumulation_dtype(dtype)),
      weight_dtype_(dtype),
      device_(context.device()),
      memory_(options.memory != nullptr ? options.memory : &context.memory()),
      buffer_specs_(model.buffers()),
      statistics_rows_(options.statistics_rows),
      version_(options.lent.version != nullptr ? options.lent.version : std::make_shared<std::uint64_t>(0)) {
  require<UsageError>(std::isfinite(options.weight_decay) && options.weight_decay >= 0, "parameters: weight_decay is ",
                      options.weight_decay, ", expected a number of at least 0");
  for (Model::Parameter& parameter : model.parameters()) {
    ParameterInfo info{.spec = std::move(parameter.spec),
                       .offset = numel_,
                       .numel = 0,
                       .writes = parameter.writes,
                       .beginning = std::move(parameter.beginning)};
    info.numel = info.spec.stored_shape().numel();
    numel_ += align_up(info.numel, kArenaStep);
    if (info.spec.trainable) {
      trainable_numel_ = numel_;
      ++trainable_;
    }
    const bool weight = info.spec.role == ParameterRole::weight;
    const ops::ArenaSegment segment{.offset = info.offset,
                                    .count = numel_ - info.offset,
                                    .learning_rate_scale = rate_of(options.groups, info.spec.name),
                                    .weight_decay = decay_of(options, info.spec.role),
                                    .trainable = info.spec.trainable,
                                    .adapts = weight};
    tensor_segments_.push_back(segment);
    if (!segments_.empty() && segments_.back().weight_decay == segment.weight_decay &&
        segments_.back().learning_rate_scale == segment.learning_rate_scale &&
        segments_.back().trainable == segment.trainable) {
      segments_.back().count += segment.count;
    } else {
      segments_.push_back(segment);
    }
    infos_.push_back(std::move(info));
  }
  for (const BufferSpec& spec : buffer_specs_) {
    buffer_offsets_.push_back(buffer_numel_);
    buffer_numel_ += align_up(spec.stored_shape().numel(), buffer_step(dtype_));
  }
  std::vector<std::string> names;
  std::transform(infos_.begin(), infos_.end(), std::back_inserter(names),
                 [](const ParameterInfo& info) { return info.spec.name; });
  require_groups(options.groups, names);
  const ParameterArenaBytes bytes = parameter_arena_bytes(model, dtype);
  const auto make = [&](std::string_view name, const TensorView& lent, std::size_t size) {
    return lent.given() ? Buffer::lent(concat("parameters: the memory lent for ", name), lent, size, device_)
                        : Buffer(size, *memory_, context.stream());
  };
  values_ = make("values", options.lent.values, bytes.values);
  gradients_ = make("gradients", options.lent.gradients, bytes.gradients);
  if (rounds()) {
    weights_ = make("weights", options.lent.weights, bytes.weights);
  }
  buffers_ = make("buffers", options.lent.buffers, bytes.buffers);
  if (statistics_rows_ > 1) {
    statistics_ = Buffer(static_cast<std::size_t>(statistics_rows_) * bytes.buffers, *memory_, context.stream());
  }
  evaluation_buffers_ = make("evaluation_buffers", options.lent.evaluation_buffers, bytes.evaluation_buffers);
  require_separate({{"values", values()},
                    {"gradients", gradients_and_weight_sum()},
                    {"weights", rounds() ? weights() : TensorView()},
                    {"buffers", buffer_arena()},
                    {"evaluation_buffers", evaluation_buffer_arena()}});
  // All memory must be allocated before work is enqueued. Otherwise an error of an allocation would free memory that
  // enqueued work still uses.
  ops::fill(context, 0, values());
  ops::fill(context, 0, gradients_and_weight_sum());
  round_weights(context);
  ops::fill(context, 0, buffer_arena());
  spread_statistics(context);
  ops::fill(context, 0, evaluation_buffer_arena());
  states_.add({.name = "parameters", .view = values(), .layout = StateLayout::parameters, .file = StateFile::model});
  states_.add({.name = "statistics",
               .view = statistics(),
               .sharing = Sharing::of_rank,
               .saved_as = "rank_buffers",
               .mean = "averaged statistics"});
  states_.add({.name = "averaged statistics",
               .view = evaluation_buffer_arena(),
               .layout = StateLayout::buffers,
               .file = StateFile::model});
}

int ParameterSet::find(const std::string& name) const {
  const auto found =
      std::find_if(infos_.begin(), infos_.end(), [&](const ParameterInfo& info) { return info.spec.name == name; });
  require<UsageError>(found != infos_.end(), "there is no parameter '", name, "', expected a name of parameters()");
  return static_cast<int>(found - infos_.begin());
}

int ParameterSet::find_buffer(const std::string& name) const {
  const auto found = std::find_if(buffer_specs_.begin(), buffer_specs_.end(),
                                  [&](const BufferSpec& spec) { return spec.name == name; });
  require<UsageError>(found != buffer_specs_.end(), "there is no buffer '", name, "', expected a name of buffers()");
  return static_cast<int>(found - buffer_specs_.begin());
}

TensorView ParameterSet::values() const {
  return arena_view(values_, dtype_, numel_);
}
TensorView ParameterSet::gradients() const {
  return arena_view(gradients_, dtype_, trainable_numel_);
}

TensorView ParameterSet::gradients_and_weight_sum() const {
  return arena_view(gradients_, dtype_, trainable_numel_ + kArenaStep);
}

TensorView ParameterSet::weight_sum() const {
  return part(gradients_and_weight_sum(), trainable_numel_, Shape{});
}

TensorView ParameterSet::weights() const {
  return rounds() ? arena_view(weights_, weight_dtype_, numel_) : values();
}

TensorView ParameterSet::value(int index) const {
  const ParameterInfo& info = infos_[static_cast<std::size_t>(index)];
  return part(values(), info.offset, info.spec.stored_shape());
}

TensorView ParameterSet::gradient(int index) const {
  return gradient_in(index, gradients());
}

TensorView ParameterSet::gradient_in(int index, const TensorView& arena) const {
  const ParameterInfo& info = infos_[static_cast<std::size_t>(index)];
  require<UsageError>(info.spec.trainable, "parameter '", info.spec.name,
                      "' is frozen and has no gradient, expected a parameter that trains");
  return part(arena, info.offset, info.spec.stored_shape());
}

TensorView ParameterSet::weight(int index) const {
  const ParameterInfo& info = infos_[static_cast<std::size_t>(index)];
  return part(weights(), info.offset, info.spec.stored_shape());
}

void ParameterSet::round_weights(Context& context) const {
  changed();
  if (rounds()) {
    ops::strided_copy(context, values(), weights());
  }
}

TensorView ParameterSet::logical(int index, const TensorView& arena) const {
  const ParameterInfo& info = infos_[static_cast<std::size_t>(index)];
  const ParameterSpec& spec = info.spec;
  const TensorView stored = part(arena, info.offset, spec.stored_shape());
  // Stored axis i is logical axis axes[i]. The view leaves out the padding of the last stored axis.
  TensorView view = stored;
  view.shape = spec.dims;
  view.strides = spec.dims;
  for (int i = 0; i < spec.dims.rank(); ++i) {
    view.strides[spec.axes[static_cast<std::size_t>(i)]] = stored.strides[i];
  }
  return view;
}

void ParameterSet::read(Context& context, const std::string& name, const TensorView& out) const {
  const int index = find(name);
  const TensorView to = in_dims(infos_[static_cast<std::size_t>(index)].spec, out);
  require_host_value("parameter", name, infos_[static_cast<std::size_t>(index)].spec.dims, to);
  const SyncScope scope(context.stream(), "ParameterSet::read", SyncReason::host_data, out.bytes());
  copy_now(context, logical(index, values()), to);
}

void ParameterSet::write(Context& context, const std::string& name, const TensorView& value) {
  const int index = find(name);
  const TensorView from = in_dims(infos_[static_cast<std::size_t>(index)].spec, value);
  require_host_value("parameter", name, infos_[static_cast<std::size_t>(index)].spec.dims, from);
  const SyncScope scope(context.stream(), "ParameterSet::write", SyncReason::host_data, value.bytes());
  copy_now(context, from, logical(index, values()));
  changed();
  if (rounds()) {
    ops::strided_copy(context, this->value(index), weight(index));
  }
}

void ParameterSet::shard_states(std::vector<comm::Shards> ranges, int rank, int ranks) {
  require<StateError>(state_names().empty(),
                      "parameters: shard_states() is called after states were added, expected it before");
  std::int64_t end = 0;
  for (const comm::Shards& range : ranges) {
    require<ShapeError>(
        range.begin == end && range.part >= 0 && range.rest == range.first_of(ranks) && range.end >= range.rest,
        "parameters: a range of divided states is [", range.begin, ", ", range.end, ") with ", ranks, " parts of ",
        range.part, ", expected it to begin at ", end, " and to hold its parts");
    end = range.end;
  }
  require<ShapeError>(end == trainable_numel_, "parameters: the ranges of divided states end at ", end, ", expected ",
                      trainable_numel_);
  state_shards_ = std::move(ranges);
  shard_ = rank;
  shard_ranks_ = ranks;
}

std::int64_t ParameterSet::state_numel() const {
  if (state_shards_.empty()) {
    return trainable_numel_;
  }
  std::int64_t numel = 0;
  for (const comm::Shards& range : state_shards_) {
    numel += range.part + range.end - range.rest;
  }
  return numel;
}

TensorView ParameterSet::state_range(const TensorView& state, std::int64_t begin, std::int64_t end) const {
  if (state_shards_.empty()) {
    return state.slice(0, begin, end);
  }
  std::int64_t offset = 0;
  for (const comm::Shards& range : state_shards_) {
    const std::int64_t first = range.first_of(shard_);
    if (begin >= first && end <= first + range.part) {
      return state.slice(0, offset + begin - first, offset + end - first);
    }
    offset += range.part;
    if (begin >= range.rest && end <= range.end) {
      return state.slice(0, offset + begin - range.rest, offset + end - range.rest);
    }
    offset += range.end - range.rest;
  }
  throw ShapeError(concat("parameters: this rank has no states of elements [", begin, ", ", end,
                          "), expected a range in its own part or in the rest of one bucket"));
}

TensorView ParameterSet::add(Context& context, State state) {
  if (state.sharing == Sharing::shard) {
    state.view = TensorView(nullptr, dtype_, device_, {state_numel()});
    state.sharing = state_shards_.empty() ? Sharing::same : Sharing::shard;
    state.layout = StateLayout::parameters;
  }
  return states_.make(context, *memory_, std::move(state));
}

TensorView ParameterSet::add_state(Context& context, const std::string& name) {
  return add(context, {.name = name, .view = {}, .sharing = Sharing::shard, .saved_as = "." + name});
}
std::vector<std::string> ParameterSet::state_names() const {
  std::vector<std::string> names;
  for (const State& state : states_.all()) {
    if (state.in_arena() && state.file != StateFile::model) {
      names.push_back(state.name);
    }
  }
  return names;
}
TensorView ParameterSet::state(const std::string& name) const {
  return states_.of(name).view;
}

TensorView ParameterSet::add_counter(Context& context, const std::string& name) {
  return add(context, {.name = name,
                       .view = TensorView(nullptr, DType::i64, device_, {1}),
                       .saved_as = name,
                       .numbers = Numbers::counts});
}
TensorView ParameterSet::register_state(Context& context, const StateSpec& spec) {
  const auto taken = [&](bool is, const std::string& what) {
    require<StateError>(!is, "states: the name '", spec.name, "' is taken by ", what, ", expected another name");
  };
  for (const State& state : states_.all()) {
    taken(!spec.name.empty() && (state.saved_as == spec.name || state.saved_as == "." + spec.name),
          "state '" + state.name + "'");
  }
  for (const ParameterInfo& info : infos_) {
    taken(spec.name.starts_with(info.spec.name + "."), "parameter '" + info.spec.name + "'");
  }
  const bool shard = spec.sharing == Sharing::shard;
  require<UsageError>(shard || spec.dtype == DType::f32 || spec.dtype == DType::f64 ||
                          (spec.dtype == DType::i64 && spec.sharing == Sharing::same),
                      "states: '", spec.name, "' is ", spec.dtype, ", expected f32, f64, or i64 with Sharing::same");
  require<UsageError>(shard || spec.shape.numel() > 0, "states: '", spec.name, "' has shape ", spec.shape,
                      ", expected at least one element");
  return add(context, {.name = spec.name,
                       .view = TensorView(nullptr, spec.dtype, device_, spec.shape),
                       .sharing = spec.sharing,
                       .saved_as = shard ? "." + spec.name : spec.name,
                       .missing = spec.optional ? Missing::kept : Missing::refused,
                       .initial = spec.initial});
}

std::vector<ops::ArenaPiece> ParameterSet::state_pieces() const {
  if (state_shards_.empty()) {
    return {{0, trainable_numel_}};
  }
  std::vector<ops::ArenaPiece> pieces;
  for (const comm::Shards& range : state_shards_) {
    const std::int64_t first = range.first_of(shard_);
    for (const ops::ArenaPiece piece :
         {ops::ArenaPiece{first, first + range.part}, ops::ArenaPiece{range.rest, range.end}}) {
      if (piece.begin < piece.end) {
        pieces.push_back(piece);
      }
    }
  }
  return pieces;
}

TensorView ParameterSet::buffer_arena() const {
  return arena_view(buffers_, dtype_, buffer_numel_);
}
TensorView ParameterSet::evaluation_buffer_arena() const {
  return arena_view(evaluation_buffers_, dtype_, buffer_numel_);
}

TensorView ParameterSet::statistics() const {
  const Buffer& kept = statistics_rows_ > 1 ? statistics_ : buffers_;
  return {kept.data(), dtype_, kept.device(), {statistics_rows_, buffer_numel_}};
}

void ParameterSet::take_statistics(Context& context, std::int64_t row) const {
  if (statistics_rows_ > 1 && buffer_numel_ > 0) {
    ops::strided_copy(context, statistics().slice(0, row, row + 1).reshape({buffer_numel_}), buffer_arena());
  }
}

void ParameterSet::keep_statistics(Context& context, std::int64_t row) const {
  if (statistics_rows_ > 1 && buffer_numel_ > 0) {
    ops::strided_copy(context, buffer_arena(), statistics().slice(0, row, row + 1).reshape({buffer_numel_}));
  }
}

void ParameterSet::spread_statistics(Context& context) const {
  for (std::int64_t row = 0; row < statistics_rows_; ++row) {
    keep_statistics(context, row);
  }
}

TensorView ParameterSet::buffer_in(int index, const TensorView& arena) const {
  const auto i = static_cast<std::size_t>(index);
  return part(arena, buffer_offsets_[i], buffer_specs_[i].stored_shape());
}

TensorView ParameterSet::buffer(int index) const {
  return buffer_in(index, buffer_arena());
}

TensorView ParameterSet::evaluation_buffer(int index) const {
  return buffer_in(index, evaluation_buffer_arena());
}

TensorView ParameterSet::logical_buffer(int index, const TensorView& stored) const {
  const Shape& shape = buffer_specs_[static_cast<std::size_t>(index)].shape;
  return stored.slice(shape.rank() - 1, 0, shape.back());
}

void ParameterSet::read_buffer(Context& context, const std::string& name, const TensorView& out) const {
  const int index = find_buffer(name);
  require_host_value("buffer", name, buffer_specs_[static_cast<std::size_t>(index)].shape, out);
  const SyncScope scope(context.stream(), "ParameterSet::read_buffer", SyncReason::host_data, out.bytes());
  copy_now(context, logical_buffer(index, evaluation_buffer(index)), out);
}

void ParameterSet::write_buffer(Context& context, const std::string& name, const TensorView& value) {
  const int index = find_buffer(name);
  require_host_value("buffer", name, buffer_specs_[static_cast<std::size_t>(index)].shape, value);
  const SyncScope scope(context.stream(), "ParameterSet::write_buffer", SyncReason::host_data, value.bytes());
  copy_now(context, value, logical_buffer(index, evaluation_buffer(index)));
  const TensorView to = buffer(index);
  copy_now(context, value, logical_buffer(index, to));
  const auto offset = buffer_offsets_[static_cast<std::size_t>(index)];
  for (std::int64_t row = 0; statistics_rows_ > 1 && row < statistics_rows_; ++row) {
    const TensorView kept = statistics().slice(0, row, row + 1).reshape({buffer_numel_});
    ops::strided_copy(context, to.reshape({to.numel()}), kept.slice(0, offset, offset + to.numel()));
  }
}

void ParameterSet::initialise(Context& context, std::uint64_t seed) {
  const SyncScope scope(context.stream(), "ParameterSet::initialise", SyncReason::host_data);
  ops::fill(context, 0, values());
  ops::fill(context, 0, gradients());
  states_.initialise(context);
  std::vector<double> drawn;
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const ParameterSpec& spec = infos_[i].spec;
    const InitialValue& beginning = infos_[i].beginning;
    if (beginning.values != nullptr) {
      drawn = *beginning.values;
    } else if (spec.init.kind == Initialiser::Kind::constant) {
      drawn.assign(static_cast<std::size_t>(spec.dims.numel()), spec.init.value);
    } else {
      Random random(seed, RandomUse::initialise, fnv1a(std::as_bytes(std::span(spec.name))));
      drawn.resize(static_cast<std::size_t>(spec.dims.numel()));
      for (double& value : drawn) {
        value = spec.init.kind == Initialiser::Kind::normal ? random.normal() * spec.init.value
                                                            : (2 * random.uniform() - 1) * spec.init.value;
      }
    }
    if (beginning.identity) {
      put_identity(spec.dims, drawn);
    }
    copy_now(context, TensorView(std::span<double>(drawn), spec.dims), logical(static_cast<int>(i), values()));
  }
  round_weights(context);
  for (std::size_t i = 0; i < buffer_specs_.size(); ++i) {
    ops::fill(context, buffer_specs_[i].initial, buffer(static_cast<int>(i)));
    ops::fill(context, buffer_specs_[i].initial, evaluation_buffer(static_cast<int>(i)));
    if (std::vector<double>& values = buffer_specs_[i].values; !values.empty()) {
      write_buffer(context, buffer_specs_[i].name, TensorView(std::span<double>(values), buffer_specs_[i].shape));
    }
  }
  spread_statistics(context);
  states_.follow(context);
}

std::size_t ParameterSet::state_bytes() const {
  return state_names().size() * static_cast<std::size_t>(state_numel()) * size_of(dtype_);
}

std::size_t ParameterSet::bytes() const {
  return values_.bytes() + gradients_.bytes() + weights_.bytes() + buffers_.bytes() + statistics_.bytes() +
         evaluation_buffers_.bytes() + states_.bytes();
}

}  // namespace lockstep::nn
