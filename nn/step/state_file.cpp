#include <lockstep/nn/step/state_file.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <new>
#include <optional>
#include <span>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/nn/model/checkpoint_files.hpp>
#include <lockstep/nn/model/detail/tensor_pieces.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/safetensors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

/// Tensor in the optimizer's file with the running statistics of all ranks.
constexpr const char* kRankBuffers = "rank_buffers";
constexpr const char* kSquares = ".exp_avg_sq";  ///< name ending of Adam's means of squared gradients
/// Metadata entries for the numbers of updates and of micro-batches of a step.
constexpr const char* kSteps = "lockstep.steps";
constexpr const char* kMicrobatches = "lockstep.microbatches";

std::vector<std::int64_t> extents_of(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

/// Optimizer states as whole arenas of trainable_numel elements. If zero1 divides the states over the ranks, the arenas
/// are copies on the host. Otherwise the arenas are those of the parameter set.
class WholeStates {
 public:
  /// `keep` must be true on ranks that need whole arenas.
  WholeStates(Context& context, const ParameterSet& parameters, bool keep)
      : context_(context), parameters_(parameters) {
    if (divided() && keep) {
      for (const std::string& name : parameters.state_names()) {
        copies_[name].resize(static_cast<std::size_t>(parameters.trainable_numel()) * size_of(parameters.dtype()));
      }
    }
  }
  [[nodiscard]] TensorView of(const std::string& name) {
    if (!divided()) {
      return parameters_.state(name);
    }
    return {copies_.at(name).data(), parameters_.dtype(), Device::cpu(), {parameters_.trainable_numel()}};
  }
  /// Collects the parts of all ranks in rank 0's arenas. Collective.
  void gather(comm::Communicator& control) {
    if (!divided()) {
      return;
    }
    Stream stream = Stream::host_inline();
    std::vector<std::byte> sent;
    for (const std::string& name : parameters_.state_names()) {
      for (const comm::Shards& range : parameters_.state_shards()) {
        const std::int64_t first = range.first_of(control.rank());
        if (control.rank() == 0) {
          const TensorView whole = of(name);
          own(name, first, first + range.part, whole.slice(0, first, first + range.part));
          own(name, range.rest, range.end, whole.slice(0, range.rest, range.end));
          for (int rank = 1; rank < control.size() && range.part > 0; ++rank) {
            control.recv(stream, whole.slice(0, range.first_of(rank), range.first_of(rank) + range.part), rank);
          }
        } else if (range.part > 0) {
          sent.resize(static_cast<std::size_t>(range.part) * size_of(parameters_.dtype()));
          const TensorView view(sent.data(), parameters_.dtype(), Device::cpu(), {range.part});
          own(name, first, first + range.part, view);
          control.send(stream, view, 0);
        }
      }
    }
  }
  /// Drops the copy of state `name`, which is not in the file, so that scatter() does not change this state.
  void leave(const std::string& name) { copies_.erase(name); }
  /// Copies this rank's elements from the whole arenas into the parameter set.
  void scatter() {
    for (const auto& [name, bytes] : copies_) {
      const TensorView whole = of(name);
      for (const comm::Shards& range : parameters_.state_shards()) {
        const std::int64_t first = range.first_of(parameters_.shard());
        for (const auto& [begin, end] : {std::pair{first, first + range.part}, std::pair{range.rest, range.end}}) {
          if (begin < end) {
            copy_now(context_, whole.slice(0, begin, end),
                     parameters_.state_range(parameters_.state(name), begin, end));
          }
        }
      }
    }
  }

 private:
  [[nodiscard]] bool divided() const { return !parameters_.state_shards().empty(); }
  /// Copies elements [begin, end) of the arena of state `name` to `to` on the host. This rank must own these elements.
  void own(const std::string& name, std::int64_t begin, std::int64_t end, const TensorView& to) {
    if (begin < end) {
      copy_now(context_, parameters_.state_range(parameters_.state(name), begin, end), to);
    }
  }
  Context& context_;
  const ParameterSet& parameters_;
  std::map<std::string, std::vector<std::byte>> copies_;
};

/// Numbers of a state in host memory, with the type that they have in a file (f64 or i64). The numbers come from one
/// rank, or from all ranks in rank order.
struct HostTensor {
  std::vector<double> reals;
  std::vector<std::int64_t> counts;
  HostTensor(bool floating, std::int64_t elements)
      : reals(static_cast<std::size_t>(floating ? elements : 0)),
        counts(static_cast<std::size_t>(floating ? 0 : elements)) {}
  [[nodiscard]] TensorView view(const Shape& shape) {
    return counts.empty() ? TensorView(std::span(reals), shape) : TensorView(std::span(counts), shape);
  }
};

/// Returns the shape that a state has in a file. A scalar has the shape (1).
Shape file_shape(const State& state) {
  return state.view.shape.rank() == 0 ? Shape{1} : state.view.shape;
}

/// Returns the shape in a file of a state that differs between `ranks` ranks. A state with a mean (State::mean) has the
/// rows of all ranks in rank order. Any other state has the shape (ranks, state shape..).
Shape file_shape(const State& state, std::int64_t ranks) {
  if (!state.mean.empty()) {
    Shape rows = file_shape(state);
    rows[0] *= ranks;
    return rows;
  }
  Shape shape{ranks};
  std::for_each(state.view.shape.begin(), state.view.shape.end(),
                [&](std::int64_t extent) { shape.push_back(extent); });
  return shape;
}

bool of_each_rank(const State& state) {
  return state.sharing == Sharing::of_rank || state.sharing == Sharing::sum_of_ranks;
}

/// Returns the rows of all ranks in rank order on rank 0, and an empty vector on all other ranks. Collective.
std::vector<double> gather_rows(Context& context, const TensorView& rows, comm::Communicator& control) {
  std::vector<double> own(static_cast<std::size_t>(rows.numel()));
  copy_now(context, rows, TensorView(std::span<double>(own), rows.shape));
  std::vector<double> all = comm::all_gather_values(control, std::move(own));
  if (control.rank() != 0) {
    all.clear();
  }
  return all;
}

/// Returns copies of all ranks' arenas in host memory on rank 0, and an empty vector on all other ranks. Collective.
std::vector<std::vector<std::byte>> gather_arenas(Context& context, const TensorView& arena,
                                                  comm::Communicator& control) {
  Stream stream = Stream::host_inline();
  std::vector<std::vector<std::byte>> all(control.rank() == 0 ? static_cast<std::size_t>(control.size()) : 1);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    all[rank].resize(arena.bytes());
    const TensorView host(all[rank].data(), arena.dtype, Device::cpu(), arena.shape);
    if (rank == 0) {
      copy_now(context, arena, host);
    } else {
      control.recv(stream, host, static_cast<int>(rank));
    }
  }
  if (control.rank() != 0) {
    control.send(stream, TensorView(all.front().data(), arena.dtype, Device::cpu(), arena.shape), 0);
    all.clear();
  }
  return all;
}

/// States that differ between the ranks, collected on rank 0.
struct RankStates {
  std::map<std::string, std::vector<double>> rows;
  std::map<std::string, std::vector<std::vector<std::byte>>> arenas;
  RankStates(Context& context, const ParameterSet& parameters, comm::Communicator& control) {
    for (const State& state : parameters.states().all()) {
      if (!of_each_rank(state)) {
        continue;
      }
      if (state.layout == StateLayout::parameters) {
        arenas[state.name] = gather_arenas(context, state.view, control);
      } else {
        rows[state.name] = gather_rows(context, state.view, control);
      }
    }
  }
};

/// Returns true if the parameter set has a moving average.
bool averages(const ParameterSet& parameters) {
  const std::span<const State> all = parameters.states().all();
  return std::any_of(all.begin(), all.end(), [](const State& state) { return state.file == StateFile::average; });
}

/// Returns one piece per parameter for each arena in `file`. Arenas that differ between the ranks are not included.
std::vector<Piece> arena_pieces(const ParameterSet& parameters, WholeStates& states, StateFile file) {
  std::vector<Piece> pieces;
  for (const State& state : parameters.states().all()) {
    if (state.file == file && state.layout != StateLayout::tensor && !of_each_rank(state)) {
      add_state_pieces(pieces, parameters, state, state.in_arena() ? states.of(state.name) : state.view);
    }
  }
  return pieces;
}

/// Returns the file pieces, one per parameter, of a state that differs between the ranks: those of rank number `rank`.
std::vector<Piece> rank_pieces(const ParameterSet& parameters, const State& state, const TensorView& arena,
                               std::size_t rank) {
  std::vector<Piece> pieces;
  add_parameter_pieces(pieces, parameters, arena, concat(state.saved_as, '.', rank));
  return pieces;
}

void write_average(const std::string& path, Context& context, const ParameterSet& parameters, WholeStates& states,
                   const Metadata& metadata) {
  std::vector<Piece> pieces = arena_pieces(parameters, states, StateFile::average);
  std::vector<Piece> all;
  add_parameter_pieces(all, parameters, parameters.values(), "");
  const auto frozen = static_cast<std::ptrdiff_t>(parameters.trainable().size());
  pieces.insert(pieces.begin() + frozen, all.begin() + frozen, all.end());
  write_pieces(path, context, pieces, {}, metadata);
}

/// Reads a state that is equal on all ranks. Throws DataError if a number is not valid for the state.
HostTensor read_tensor(const TensorFile& file, const State& state) {
  const Shape shape = file_shape(state);
  const bool floating = is_floating(state.view.dtype);
  HostTensor value(floating, shape.numel());
  const auto need = [&](bool right, const auto& number, const char* expected) {
    require<DataError>(right, file.path(), ": tensor '", state.saved_as, "' holds ", number, ", expected ", expected);
  };
  if (floating) {
    read_entry(file, floating_entry_of(file, state.saved_as, shape, kModelOrOptimizer), value.view(shape));
  } else {
    const TensorEntry& entry = entry_of(file, state.saved_as, shape, kModelOrOptimizer);
    require<DataError>(entry.type() == DType::i64, file.path(), ": tensor '", state.saved_as, "' is ", entry.dtype,
                       ", expected I64");
    file.read(entry, std::as_writable_bytes(std::span(value.counts)));
  }
  for (const double real : state.numbers == Numbers::scale ? value.reals : std::vector<double>()) {
    // In f32, a scale in this range is neither 0 nor infinite.
    need(real >= 0x1p-126 && real <= 3e38, real, "a positive number, 2^-126 to 3e38");
  }
  for (const std::int64_t count : state.numbers == Numbers::counts ? value.counts : std::vector<std::int64_t>()) {
    need(count >= 0 && count <= std::int64_t{1} << 53, count, "a count of at least 0, at most 2^53");
  }
  return value;
}

/// Throws DataError unless all numbers of the piece, which are means of squares, are at least 0. Negative numbers and
/// NaN come from a damaged file, or from a run that has diverged.
void require_squares(const TensorFile& file, const Piece& piece) {
  std::vector<double> values(static_cast<std::size_t>(piece.shape.numel()));
  read_entry(file, *file.find(piece.name), TensorView(std::span(values), {piece.shape.numel()}));
  const auto wrong = std::find_if(values.begin(), values.end(), [](double value) { return !(value >= 0); });
  require<DataError>(wrong == values.end(), file.path(), ": tensor '", piece.name, "' holds ",
                     wrong == values.end() ? 0 : *wrong, ", expected squares, which are at least 0");
}

void write_optimizer(const std::string& path, Context& context, const ParameterSet& parameters, WholeStates& states,
                     std::int64_t ranks, RankStates& of_ranks) {
  std::vector<Piece> pieces = arena_pieces(parameters, states, StateFile::optimizer);
  std::vector<SafetensorsTensor> tensors;
  std::deque<HostTensor> values;  // a deque, because it never moves its elements, to which the tensors point
  for (const State& state : parameters.states().all()) {
    if (state.layout == StateLayout::tensor && of_each_rank(state)) {
      tensors.push_back({.name = state.saved_as,
                         .dtype = DType::f64,
                         .shape = extents_of(file_shape(state, ranks)),
                         .data = std::as_bytes(std::span(of_ranks.rows.at(state.name))),
                         .fill = {}});
    } else if (state.layout == StateLayout::parameters && of_each_rank(state)) {
      std::vector<std::vector<std::byte>>& arenas = of_ranks.arenas.at(state.name);
      for (std::size_t rank = 0; rank < arenas.size(); ++rank) {
        const TensorView arena(arenas[rank].data(), state.view.dtype, Device::cpu(), state.view.shape);
        const std::vector<Piece> more = rank_pieces(parameters, state, arena, rank);
        pieces.insert(pieces.end(), more.begin(), more.end());
      }
    } else if (state.layout == StateLayout::tensor && !state.saved_as.empty()) {
      const bool floating = is_floating(state.view.dtype);
      HostTensor& value = values.emplace_back(floating, state.view.numel());
      copy(context, state.view, value.view(state.view.shape));
      tensors.push_back(
          {.name = state.saved_as,
           .dtype = floating ? DType::f64 : DType::i64,
           .shape = extents_of(file_shape(state)),
           .data = floating ? std::as_bytes(std::span(value.reals)) : std::as_bytes(std::span(value.counts)),
           .fill = {}});
    }
  }
  context.synchronize();
  write_pieces(path, context, pieces, std::move(tensors));
}

/// Returns a communicator with a single rank.
std::unique_ptr<comm::Communicator> alone() {
  return comm::LocalGroup(1).communicator(0);
}

void require_ranks(const TrainStep& step, int ranks) {
  require<UsageError>(step.ranks() == ranks, "state of a train step: the communicator has ", ranks,
                      ranks == 1 ? " rank, expected " : " ranks, expected ", step.ranks(), ", those of the step");
}

/// Removes entry `name`, a count, from the metadata and returns it. Returns no value if there is no such entry.
std::optional<std::int64_t> take_count(Metadata& metadata, const std::string& name, const std::string& folder) {
  const auto found = metadata.find(name);
  if (found == metadata.end()) {
    return std::nullopt;
  }
  const std::string text = std::move(found->second);
  metadata.erase(found);
  const std::optional<std::int64_t> count = number_in<std::int64_t>(text);
  require<DataError>(count && *count >= 0, folder, "/", kModelFile, ": metadata '", name, "' is '", text,
                     "', expected a count of at least 0");
  return count;
}

/// Reads a folder of saved state. The constructor checks all contents before a state in memory changes.
class StateFolder {
 public:
  StateFolder(const std::string& folder, Context& context, const ParameterSet& parameters, int ranks)
      : model_(open_model_file(existing(folder))),
        optimizer_(existing(folder) + "/" + kOptimizerFile),
        states_(context, parameters, true) {
    require_model(model_, parameters);
    if (averages(parameters) && file_exists(existing(folder) + "/" + kAverageFile)) {
      average_.emplace(existing(folder) + "/" + kAverageFile);
    }
    check_arenas(parameters);
    for (const State& state : parameters.states().all()) {
      if (state.layout == StateLayout::tensor && !of_each_rank(state) && has(state)) {
        values_.emplace_back(&state, read_tensor(optimizer_, state));
      }
    }
    const TensorEntry* entry = optimizer_.find(kRankBuffers);
    if (ranks == 0 && entry != nullptr && entry->shape.size() == 2 && entry->shape[0] >= 1 &&
        entry->shape[0] <= INT32_MAX) {
      ranks = static_cast<int>(entry->shape[0]);
    }
    ranks_ = std::max(ranks, 1);
    check_rank_states(parameters);
    if (average_) {
      average_pieces_ = arena_pieces(parameters, states_, StateFile::average);
      require_pieces(*average_, average_pieces_, kModelOrOptimizer);
    }
    metadata_ = model_.metadata();
    metadata_.erase("format");
    require_checksums(existing(folder));
    for (const Piece& piece : pieces_) {
      if (piece.name.ends_with(kSquares)) {
        require_squares(optimizer_, piece);
      }
    }
  }

  [[nodiscard]] LoadedState read(Context& context, ParameterSet& parameters, int rank, int ranks) {
    read_model(model_, context, parameters);
    read_pieces(optimizer_, context, pieces_);
    if (average_) {
      read_pieces(*average_, context, average_pieces_);
    }
    states_.scatter();
    for (auto& [state, value] : values_) {
      copy_now(context, value.view(state->view.shape), state->view);
    }
    for (const State& state : parameters.states().all()) {
      if (state.file == StateFile::average && !average_) {
        state.follow(context, state.view);
      } else if (of_each_rank(state) && state.layout == StateLayout::parameters) {
        read_rank_arena(context, parameters, state, rank, ranks);
      } else if (of_each_rank(state)) {
        read_rows(context, parameters, state, rank, ranks);
      }
    }
    return {metadata_, ranks_};
  }
  [[nodiscard]] Metadata& metadata() { return metadata_; }

 private:
  static std::string existing(const std::string& folder) {
    std::string found = find_folder(folder);
    require<FileError>(!found.empty(), folder, ": there is no such folder, expected one with ", kModelFile, " and ",
                       kOptimizerFile);
    return found;
  }
  /// Returns true if the state is to be read from the optimizer's file. The result is also true for a required state
  /// that the file lacks, so that reading the state throws DataError.
  [[nodiscard]] bool has(const State& state) const {
    if (state.saved_as.empty()) {
      return false;
    }
    const TensorEntry* const entry = optimizer_.find(state.saved_as);
    if (state.missing == Missing::refused) {
      return state.beside.empty() || optimizer_.find(state.beside) != nullptr;
    }
    const bool kept = state.missing == Missing::kept;
    return entry != nullptr && (kept || (entry->shape == extents_of(file_shape(state)) && entry->type() == DType::f64));
  }
  /// Checks the arenas in the optimizer's file. An optional arena is read only if the file has the arena's first
  /// tensor.
  void check_arenas(const ParameterSet& parameters) {
    for (const State& state : parameters.states().all()) {
      if (state.file != StateFile::optimizer || !state.in_arena()) {
        continue;
      }
      std::vector<Piece> pieces;
      add_state_pieces(pieces, parameters, state, states_.of(state.name));
      if (state.missing == Missing::refused || pieces.empty() || optimizer_.find(pieces.front().name) != nullptr) {
        pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
      } else {
        states_.leave(state.name);
      }
    }
    require_pieces(optimizer_, pieces_, kModelOrOptimizer);
  }
  void check_rank_states(const ParameterSet& parameters) {
    for (const State& state : parameters.states().all()) {
      if (!of_each_rank(state) || (state.file == StateFile::average && !average_)) {
        continue;
      }
      if (state.layout == StateLayout::parameters) {
        int& ranks = arena_ranks_[state.name];
        while (state.view.numel() > 0 &&
               optimizer_.find(rank_pieces(parameters, state, state.view, ranks).front().name) != nullptr) {
          require_pieces(optimizer_, rank_pieces(parameters, state, state.view, ranks), kModelOrOptimizer);
          ++ranks;
        }
      } else if (!state.mean.empty()) {
        Shape shape = file_shape(state);
        shape[0] = ranks_;
        static_cast<void>(floating_entry_of(optimizer_, state.saved_as, shape, kModelOrOptimizer));
      } else if (has(state)) {  // a run with another number of ranks may have written the file
        const TensorEntry* const entry = optimizer_.find(state.saved_as);
        const bool several = entry != nullptr && !entry->shape.empty();
        const std::int64_t wrote = several ? std::max<std::int64_t>(entry->shape[0], 1) : 1;
        static_cast<void>(floating_entry_of(optimizer_, state.saved_as, file_shape(state, wrote), kModelOrOptimizer));
      }
    }
  }
  /// Reads this rank's arena of a state, if `ranks` ranks wrote the file. For another number of ranks, each rank gets
  /// an equal part of the sum of all arenas. The arenas hold gradients that the ranks have not sent yet, so only their
  /// sum matters.
  void read_rank_arena(Context& context, const ParameterSet& parameters, const State& state, int rank, int ranks) {
    const TensorView& arena = state.view;
    const int wrote = arena_ranks_.at(state.name);
    if (arena.numel() == 0) {
      return;
    }
    if (wrote == ranks) {
      read_pieces(optimizer_, context, rank_pieces(parameters, state, arena, static_cast<std::size_t>(rank)));
      return;
    }
    CpuContext host({.threads = 1});
    std::vector<double> sum(static_cast<std::size_t>(arena.numel()));
    for (std::size_t each = 0; each < static_cast<std::size_t>(wrote); ++each) {
      std::vector<double> one(sum.size());
      read_pieces(optimizer_, host, rank_pieces(parameters, state, TensorView(std::span(one), arena.shape), each));
      std::transform(sum.begin(), sum.end(), one.begin(), sum.begin(), std::plus<>());
    }
    std::for_each(sum.begin(), sum.end(), [&](double& value) { value /= ranks; });
    copy_now(context, TensorView(std::span(sum), arena.shape), arena);
  }
  /// Reads this rank's rows of a state, if `ranks` ranks wrote the file. For another number of ranks, the rows depend
  /// on the state: a state with a mean (State::mean) gets this mean in each row; with Sharing::sum_of_ranks, each rank
  /// gets an equal part of the sum; any other state gets State::initial.
  void read_rows(Context& context, const ParameterSet& parameters, const State& state, int rank, int ranks) {
    const TensorEntry* const entry = has(state) ? optimizer_.find(state.saved_as) : nullptr;
    const std::int64_t numel = state.view.numel();
    if (numel == 0 || entry == nullptr) {
      return;
    }
    const std::int64_t rows = state.mean.empty() ? 1 : file_shape(state)[0];
    const std::int64_t wrote = entry->shape[0] / rows;
    if (wrote * rows == entry->shape[0] && wrote == ranks) {
      std::vector<double> all(static_cast<std::size_t>(numel * ranks));
      read_entry(optimizer_, *entry, TensorView(std::span<double>(all), file_shape(state, ranks)));
      const TensorView by_rank(std::span<double>(all), {ranks, numel});
      copy_now(context, by_rank.slice(0, rank, rank + 1).reshape(state.view.shape), state.view);
    } else if (!state.mean.empty()) {
      const TensorView mean = parameters.states().view(state.mean);
      for (std::int64_t row = 0; row < rows; ++row) {
        copy_now(context, mean.reshape({1, mean.numel()}), state.view.slice(0, row, row + 1));
      }
    } else {
      std::vector<double> all(static_cast<std::size_t>(numel * wrote));
      read_entry(optimizer_, *entry, TensorView(std::span<double>(all), file_shape(state, wrote)));
      const bool summed = state.sharing == Sharing::sum_of_ranks;
      std::vector<double> part(static_cast<std::size_t>(numel), summed ? 0 : state.initial);
      for (std::size_t i = 0; summed && i < all.size(); ++i) {
        part[i % part.size()] += all[i] / ranks;
      }
      copy_now(context, TensorView(std::span<double>(part), state.view.shape), state.view);
    }
  }

  TensorFile model_;
  SafetensorsFile optimizer_;
  WholeStates states_;
  std::vector<Piece> pieces_;  ///< tensors of the optimizer's file
  /// File of the moving average; empty if the parameter set or the folder has no average.
  std::optional<SafetensorsFile> average_;
  std::vector<Piece> average_pieces_;
  std::vector<std::pair<const State*, HostTensor>> values_;
  std::map<std::string, int> arena_ranks_;  ///< for each state: number of ranks with an arena in the file
  int ranks_ = 1;
  Metadata metadata_;
};

/// Computes the weighted mean of all ranks' rows, summed in rank order, and writes it to `to` on every rank. `total` is
/// the sum of the weights. Collective.
void average_rows(Context& context, const TensorView& statistics, comm::Communicator& control,
                  const std::vector<double>& weights, double total, const TensorView& to) {
  const std::int64_t n = to.numel();
  const std::vector<double> all = gather_rows(context, statistics, control);
  std::vector<double> mean(static_cast<std::size_t>(n), 0.0);
  if (control.rank() == 0) {
    for (std::size_t r = 0; r < weights.size(); ++r) {
      const double weight = weights[r] / total;
      for (std::size_t i = 0; i < mean.size(); ++i) {
        mean[i] += weight * all[r * mean.size() + i];
      }
    }
  }
  Stream inline_stream = Stream::host_inline();
  const TensorView view(std::span<double>(mean), {n});
  control.broadcast(inline_stream, view, 0);
  copy_now(context, view, to);
}

}  // namespace

void average_statistics(Context& context, ParameterSet& parameters, comm::Communicator& control,
                        const std::vector<double>& weights) {
  const std::int64_t rows = control.size() * parameters.statistics_rows();
  require<UsageError>(static_cast<std::int64_t>(weights.size()) == rows, "average of the statistics: ", weights.size(),
                      " weights, expected one for each of the ", rows, " ranks");
  double total = 0;
  for (const double weight : weights) {
    total += weight;
  }
  require<UsageError>(total > 0, "average of the statistics: the weights sum to ", total, ", expected more than 0");
  if (parameters.buffer_arena().numel() == 0) {
    return;
  }
  for (const State& state : parameters.states().all()) {
    if (!state.mean.empty()) {
      average_rows(context, state.view, control, weights, total, parameters.states().view(state.mean));
    }
  }
}

void save_state(const std::string& folder, Context& context, const ParameterSet& parameters, const Metadata& metadata) {
  save_state(folder, context, parameters, *alone(), {.metadata = metadata});
}

void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                comm::Communicator& control, const StateExtras& extras) {
  require<UsageError>(parameters.state_shards().empty() || parameters.shard_ranks() == control.size(),
                      "state of a train step: ", parameters.shard_ranks(),
                      " ranks have divided the optimizer's states, and the communicator has ", control.size(),
                      ", expected equal numbers");
  comm::require_same_on_all_ranks(control, parameters.states().text());
  WholeStates states(context, parameters, control.rank() == 0);
  states.gather(control);
  RankStates of_ranks(context, parameters, control);
  std::string failure;
  if (control.rank() == 0) {
    try {
      AtomicFolder made(folder);
      write_model(made.file(kModelFile), context, parameters, extras.metadata);
      write_optimizer(made.file(kOptimizerFile), context, parameters, states, control.size(), of_ranks);
      std::vector<std::string> names{kModelFile, kOptimizerFile};
      if (averages(parameters)) {
        write_average(made.file(kAverageFile), context, parameters, states, extras.metadata);
        names.emplace_back(kAverageFile);
      }
      for (const auto& [name, text] : extras.files) {
        write_file(made.file(name), text);
        names.push_back(name);
      }
      write_file(made.file(kChecksumsFile), checksums_text(made.folder(), names));
      made.commit(extras.keep);
    } catch (const std::bad_alloc&) {
      failure = concat(folder, ": cannot be written: out of host memory");
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  failure = comm::broadcast_text(control, failure);
  require<comm::CollectiveError<WriteError>>(failure.empty(), failure);
}

void save_state(const std::string& folder, TrainStep& step, const Metadata& metadata) {
  save_state(folder, step, *alone(), metadata);
}

void save_state(const std::string& folder, TrainStep& step, comm::Communicator& control, const Metadata& metadata) {
  require_ranks(step, control.size());
  step.require_not_averaged("save_state()");
  require<UsageError>(metadata.count(kSteps) == 0 && metadata.count(kMicrobatches) == 0, "metadata: the names '",
                      kSteps, "' and '", kMicrobatches, "' are the step's own, expected other names");
  step.synchronize();
  const std::vector<double> microbatches = comm::all_gather_value(control, static_cast<double>(step.microbatches()));
  if (step.steps() > 0) {  // before the first step, the evaluation buffers already hold the averages
    const std::int64_t rows = control.size() * step.parameters().statistics_rows();
    average_statistics(step.context(), step.parameters(), control,
                       std::vector<double>(static_cast<std::size_t>(rows), 1.0));
  }
  StateExtras extras{.metadata = metadata};
  extras.metadata[kSteps] = std::to_string(step.steps());
  extras.metadata[kMicrobatches] =
      std::to_string(static_cast<std::int64_t>(*std::max_element(microbatches.begin(), microbatches.end())));
  save_state(folder, step.context(), step.parameters(), control, extras);
}

void require_state(const std::string& folder, TrainStep& step) {
  StateFolder saved(folder, step.context(), step.parameters(), 0);
  static_cast<void>(take_count(saved.metadata(), kSteps, folder));
  static_cast<void>(take_count(saved.metadata(), kMicrobatches, folder));
}

LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters) {
  return load_state(folder, context, parameters, *alone());
}

LoadedState load_state(const std::string& folder, Context& context, ParameterSet& parameters,
                       comm::Communicator& control, int ranks) {
  return StateFolder(folder, context, parameters, ranks).read(context, parameters, control.rank(), control.size());
}

LoadedState load_state(const std::string& folder, TrainStep& step) {
  return load_state(folder, step, *alone());
}

LoadedState load_state(const std::string& folder, TrainStep& step, comm::Communicator& control) {
  require_ranks(step, control.size());
  step.require_not_averaged("load_state()");
  StateFolder saved(folder, step.context(), step.parameters(), 0);
  const std::optional<std::int64_t> steps = take_count(saved.metadata(), kSteps, folder);
  const std::optional<std::int64_t> microbatches = take_count(saved.metadata(), kMicrobatches, folder);
  step.synchronize();
  // continue_from() throws if a step is in progress. It must therefore be called before read() changes anything.
  step.continue_from(steps.value_or(0), microbatches.value_or(0));
  return saved.read(step.context(), step.parameters(), control.rank(), control.size());
}

}  // namespace lockstep::nn
