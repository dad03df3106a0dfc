#include <lockstep/nn/step/state_file.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/nn/model/detail/checksums.hpp>
#include <lockstep/nn/model/detail/tensor_pieces.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/safetensors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

using Kind = ParameterSet::Persistent::Kind;

/// Names in the optimizer's file.
constexpr const char* kLossScale = "loss_scale";
constexpr const char* kLossScaleGood = "loss_scale_good";
constexpr const char* kRankBuffers = "rank_buffers";
constexpr const char* kRankAverages = "rank_buffers_ema";
constexpr const char* kFactors = "compression_factors";
constexpr const char* kError = ".error.";        ///< of each parameter, with a rank behind: what it has not sent yet
constexpr const char* kSquares = ".exp_avg_sq";  ///< of each parameter: Adam's mean of squared gradients
/// Names in the metadata of a step.
constexpr const char* kSteps = "lockstep.steps";
constexpr const char* kMicrobatches = "lockstep.microbatches";

/// The optimizer's states as whole arenas (trainable_numel): those of the set or, where ranks have divided them, copies
/// on the host.
class WholeStates {
 public:
  /// keep: whether this rank needs the whole arenas.
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
  /// Fills the arenas of rank 0. Collective.
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
  /// Copies this rank's elements from the arenas into the set.
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
  /// Copies elements [begin, end) of the arena that this rank has to the host.
  void own(const std::string& name, std::int64_t begin, std::int64_t end, const TensorView& to) {
    if (begin < end) {
      copy_now(context_, parameters_.state_range(parameters_.state(name), begin, end), to);
    }
  }
  Context& context_;
  const ParameterSet& parameters_;
  std::map<std::string, std::vector<std::byte>> copies_;
};

/// What a compression of gradients has not sent yet, of all ranks, on the host of rank 0; the other ranks and runs
/// without compression have none. Collective.
std::vector<std::vector<std::byte>> gather_errors(Context& context, const ParameterSet& parameters,
                                                  comm::Communicator& control) {
  std::vector<std::vector<std::byte>> all;
  const TensorView errors = parameters.compression_errors();
  if (!errors.given()) {
    return all;
  }
  Stream stream = Stream::host_inline();
  all.resize(control.rank() == 0 ? static_cast<std::size_t>(control.size()) : 1);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    all[rank].resize(errors.bytes());
    const TensorView host(all[rank].data(), errors.dtype, Device::cpu(), errors.shape);
    if (rank == 0) {
      copy_now(context, errors, host);
    } else {
      control.recv(stream, host, static_cast<int>(rank));
    }
  }
  if (control.rank() != 0) {
    control.send(stream, TensorView(all.front().data(), errors.dtype, Device::cpu(), errors.shape), 0);
    all.clear();
  }
  return all;
}

/// A number of the optimizer in the file: a counter, the loss scale, or its good updates.
struct Number {
  std::string name;  ///< in the file
  TensorView view;
  bool floating = false;
  bool required = true;
};

/// The entries of persistent() that are part of the optimizer's state, without the statistics.
struct OptimizerParts {
  std::vector<Piece> pieces;  ///< "<parameter>.<state>"
  std::vector<Number> numbers;
};

OptimizerParts optimizer_parts(const ParameterSet& parameters, WholeStates& states) {
  OptimizerParts parts;
  for (const ParameterSet::Persistent& each : parameters.persistent()) {
    switch (each.kind) {
      case Kind::state:
        add_parameter_pieces(parts.pieces, parameters, states.of(each.name), "." + each.name);
        break;
      case Kind::counter:
        parts.numbers.push_back({.name = each.name, .view = each.view.reshape({})});
        break;
      case Kind::loss_scale:
        if (parameters.dynamic_loss_scale()) {
          parts.numbers.push_back({.name = kLossScale, .view = each.view, .floating = true, .required = false});
        }
        break;
      case Kind::good_updates:
        if (parameters.dynamic_loss_scale()) {
          parts.numbers.push_back({.name = kLossScaleGood, .view = each.view, .required = false});
        }
        break;
      case Kind::parameters:
      case Kind::averaged_statistics:  // in the model's file
      case Kind::average:              // in a file of its own
      case Kind::average_buffers:      // there, too
      case Kind::average_statistics:   // of each rank
      case Kind::statistics:           // of each rank
      case Kind::errors:               // likewise
      case Kind::factors:              // a file may have those of another compression
        break;
    }
  }
  return parts;
}

/// The moving average's part of a folder: as the pieces of a model. Parameters that are frozen have none.
std::vector<Piece> average_pieces(const ParameterSet& parameters, WholeStates& states) {
  std::vector<Piece> pieces;
  add_parameter_pieces(pieces, parameters, states.of(ParameterSet::kAverage), "");
  add_buffer_pieces(pieces, parameters, parameters.average_buffer_arena());
  return pieces;
}

void write_average(const std::string& path, Context& context, const ParameterSet& parameters, WholeStates& states,
                   const Metadata& metadata) {
  std::vector<Piece> pieces = average_pieces(parameters, states);
  std::vector<Piece> all;
  add_parameter_pieces(all, parameters, parameters.values(), "");
  const auto frozen = static_cast<std::ptrdiff_t>(parameters.trainable().size());
  pieces.insert(pieces.begin() + frozen, all.begin() + frozen, all.end());
  write_pieces(path, context, pieces, {}, metadata);
}

/// A number on the host, as f64 or i64.
struct HostNumber {
  double real = 0;
  std::int64_t count = 0;
  [[nodiscard]] TensorView view(bool floating) {
    return floating ? TensorView(std::span(&real, 1), Shape{}) : TensorView(std::span(&count, 1), Shape{});
  }
};

HostNumber read_number(const TensorFile& file, const Number& number) {
  HostNumber value;
  const Shape one{1};  // g++ 14 takes the entry for a part of a temporary
  if (number.floating) {
    const TensorEntry& entry = floating_entry_of(file, number.name, one, kModelOrOptimizer);
    read_entry(file, entry, TensorView(std::span(&value.real, 1), {1}));
    // In f32, too, it is neither 0 nor infinite.
    require<DataError>(value.real >= 0x1p-126 && value.real <= 3e38, file.path(), ": tensor '", number.name, "' holds ",
                       value.real, ", expected a positive number, 2^-126 to 3e38");
    return value;
  }
  const TensorEntry& entry = entry_of(file, number.name, one, kModelOrOptimizer);
  require<DataError>(entry.type() == DType::i64, file.path(), ": tensor '", number.name, "' is ", entry.dtype,
                     ", expected I64");
  file.read(entry, std::as_writable_bytes(std::span(&value.count, 1)));
  require<DataError>(value.count >= 0 && value.count <= std::int64_t{1} << 53, file.path(), ": tensor '", number.name,
                     "' holds ", value.count, ", expected a count of at least 0, at most 2^53");
  return value;
}

/// DataError unless all numbers of a mean of squares are at least 0: of a damaged file, or of a run that had diverged.
void require_squares(const TensorFile& file, const Piece& piece) {
  std::vector<double> values(static_cast<std::size_t>(piece.shape.numel()));
  read_entry(file, *file.find(piece.name), TensorView(std::span(values), {piece.shape.numel()}));
  const auto wrong = std::find_if(values.begin(), values.end(), [](double value) { return !(value >= 0); });
  require<DataError>(wrong == values.end(), file.path(), ": tensor '", piece.name, "' holds ",
                     wrong == values.end() ? 0 : *wrong, ", expected squares, which are at least 0");
}

void write_optimizer(const std::string& path, Context& context, const ParameterSet& parameters, WholeStates& states,
                     std::int64_t ranks, const std::vector<double>& rank_buffers,
                     const std::vector<double>& rank_averages, std::vector<std::vector<std::byte>>& errors) {
  OptimizerParts parts = optimizer_parts(parameters, states);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    const TensorView arena(errors[rank].data(), parameters.dtype(), Device::cpu(), {parameters.trainable_numel()});
    add_parameter_pieces(parts.pieces, parameters, arena, concat(kError, rank));
  }
  // Each rank's own statistics as they lie in the arena.
  const auto of_ranks = [ranks](const char* name, const std::vector<double>& rows) -> SafetensorsTensor {
    return {.name = name,
            .dtype = DType::f64,
            .shape = {ranks, static_cast<std::int64_t>(rows.size()) / ranks},
            .data = std::as_bytes(std::span(rows)),
            .fill = {}};
  };
  std::vector<SafetensorsTensor> more{of_ranks(kRankBuffers, rank_buffers)};
  if (parameters.averages()) {
    more.push_back(of_ranks(kRankAverages, rank_averages));
  }
  std::vector<double> factors;
  if (const TensorView view = parameters.compression_factors(); view.given()) {
    factors.resize(static_cast<std::size_t>(view.numel()));
    copy_now(context, view, TensorView(std::span<double>(factors), view.shape));
    more.push_back({.name = kFactors,
                    .dtype = DType::f64,
                    .shape = {view.numel()},
                    .data = std::as_bytes(std::span(factors)),
                    .fill = {}});
  }
  std::deque<HostNumber> values;  // they stay where they are
  for (const Number& number : parts.numbers) {
    HostNumber& value = values.emplace_back();
    copy(context, number.view, value.view(number.floating));
    more.push_back(
        {.name = number.name,
         .dtype = number.floating ? DType::f64 : DType::i64,
         .shape = {1},
         .data = number.floating ? std::as_bytes(std::span(&value.real, 1)) : std::as_bytes(std::span(&value.count, 1)),
         .fill = {}});
  }
  context.synchronize();
  write_pieces(path, context, parts.pieces, std::move(more));
}

/// A communicator for a rank that trains alone.
std::unique_ptr<comm::Communicator> alone() {
  return comm::LocalGroup(1).communicator(0);
}

void require_ranks(const TrainStep& step, int ranks) {
  require<UsageError>(step.ranks() == ranks, "state of a train step: the communicator has ", ranks,
                      ranks == 1 ? " rank, expected " : " ranks, expected ", step.ranks(), ", those of the step");
}

/// A count in the metadata, which is removed from it; empty when there is none.
std::optional<std::int64_t> take_count(Metadata& metadata, const std::string& name, const std::string& folder) {
  const auto found = metadata.find(name);
  if (found == metadata.end()) {
    return std::nullopt;
  }
  std::string text = std::move(found->second);
  metadata.erase(found);
  std::int64_t count = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  require<DataError>(error == std::errc() && stop == text.data() + text.size() && count >= 0, folder, "/", kModelFile,
                     ": metadata '", name, "' is '", text, "', expected a count of at least 0");
  return count;
}

/// Checks everything in a folder, then reads it.
class StateFolder {
 public:
  StateFolder(const std::string& folder, Context& context, const ParameterSet& parameters, int ranks)
      : model_(open_model_file(existing(folder))),
        optimizer_(existing(folder) + "/" + kOptimizerFile),
        states_(context, parameters, true),
        parts_(optimizer_parts(parameters, states_)) {
    require_model(model_, parameters);
    require_pieces(optimizer_, parts_.pieces, kModelOrOptimizer);
    for (const Number& number : parts_.numbers) {
      const bool there = number.required || optimizer_.find(kLossScale) != nullptr;
      values_.push_back(there ? std::optional(read_number(optimizer_, number)) : std::nullopt);
    }
    const std::int64_t elements = parameters.buffer_arena().numel();
    const TensorEntry* entry = optimizer_.find(kRankBuffers);
    if (ranks == 0 && entry != nullptr && entry->shape.size() == 2 && entry->shape[0] >= 1 &&
        entry->shape[0] <= INT32_MAX) {
      ranks = static_cast<int>(entry->shape[0]);
    }
    ranks_ = std::max(ranks, 1);
    static_cast<void>(floating_entry_of(optimizer_, kRankBuffers, {ranks_, elements}, kModelOrOptimizer));
    check_compression(parameters);
    if (parameters.averages() && file_exists(existing(folder) + "/" + kAverageFile)) {
      average_.emplace(existing(folder) + "/" + kAverageFile);
      average_pieces_ = average_pieces(parameters, states_);
      require_pieces(*average_, average_pieces_, kModelOrOptimizer);
      static_cast<void>(floating_entry_of(optimizer_, kRankAverages, {ranks_, elements}, kModelOrOptimizer));
    }
    metadata_ = model_.metadata();
    metadata_.erase("format");
    require_checksums(existing(folder));
    for (const Piece& piece : parts_.pieces) {
      if (piece.name.ends_with(kSquares)) {
        require_squares(optimizer_, piece);
      }
    }
  }

  [[nodiscard]] LoadedState read(Context& context, ParameterSet& parameters, int rank, int ranks) {
    read_model(model_, context, parameters);
    read_pieces(optimizer_, context, parts_.pieces);
    if (average_) {
      read_pieces(*average_, context, average_pieces_);
    }
    states_.scatter();
    for (std::size_t i = 0; i < parts_.numbers.size(); ++i) {
      if (std::optional<HostNumber> value = values_[i]) {
        copy_now(context, value->view(parts_.numbers[i].floating), parts_.numbers[i].view);
      }
    }
    read_compression(context, parameters, rank, ranks);
    // Otherwise the averages, which read_model() has put there, replace each rank's own statistics.
    const std::int64_t rows = parameters.statistics_rows();
    const std::int64_t elements = parameters.buffer_arena().numel();
    const auto read_rows = [&](const char* name, const TensorView& statistics) {
      std::vector<double> all(static_cast<std::size_t>(ranks_ * elements));
      const TensorView view(std::span<double>(all), {ranks_, elements});
      read_entry(optimizer_, *optimizer_.find(name), view);
      copy_now(context, view.slice(0, rank * rows, (rank + 1) * rows), statistics);
    };
    if (ranks * rows == ranks_ && elements > 0) {
      read_rows(kRankBuffers, parameters.statistics());
    }
    if (!average_) {
      parameters.begin_average(context);
    } else if (ranks * rows == ranks_ && elements > 0) {
      read_rows(kRankAverages, parameters.average_statistics());
    } else {
      for (std::int64_t row = 0; elements > 0 && row < rows; ++row) {
        copy_now(context, parameters.average_buffer_arena().reshape({1, elements}),
                 parameters.average_statistics().slice(0, row, row + 1));
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
  /// The tensors of rank `rank` in the file, as they lie in `arena`.
  static std::vector<Piece> errors_of(const ParameterSet& parameters, const TensorView& arena, int rank) {
    std::vector<Piece> pieces;
    add_parameter_pieces(pieces, parameters, arena, concat(kError, rank));
    return pieces;
  }
  void check_compression(const ParameterSet& parameters) {
    if (const TensorView arena = parameters.compression_errors(); arena.given() && arena.numel() > 0) {
      while (optimizer_.find(errors_of(parameters, arena, error_ranks_).front().name) != nullptr) {
        require_pieces(optimizer_, errors_of(parameters, arena, error_ranks_), kModelOrOptimizer);
        ++error_ranks_;
      }
    }
    const TensorEntry* entry = optimizer_.find(kFactors);
    const TensorView factors = parameters.compression_factors();
    has_factors_ = factors.given() && entry != nullptr && entry->shape == std::vector<std::int64_t>{factors.numel()} &&
                   entry->type() == DType::f64;
  }
  /// On as many ranks as wrote the file each takes its own errors, on others an equal part of their sum: later steps
  /// send the same in all.
  void read_compression(Context& context, ParameterSet& parameters, int rank, int ranks) {
    const TensorView errors = parameters.compression_errors();
    if (!errors.given() || errors.numel() == 0) {
      return;
    }
    if (error_ranks_ == ranks) {
      read_pieces(optimizer_, context, errors_of(parameters, errors, rank));
    } else {
      CpuContext host({.threads = 1});
      std::vector<double> sum(static_cast<std::size_t>(errors.numel()));
      for (int each = 0; each < error_ranks_; ++each) {
        std::vector<double> one(sum.size());
        read_pieces(optimizer_, host, errors_of(parameters, TensorView(std::span(one), errors.shape), each));
        std::transform(sum.begin(), sum.end(), one.begin(), sum.begin(), std::plus<>());
      }
      std::for_each(sum.begin(), sum.end(), [&](double& value) { value /= ranks; });
      copy_now(context, TensorView(std::span(sum), errors.shape), errors);
    }
    if (has_factors_) {
      const TensorView factors = parameters.compression_factors();
      std::vector<double> read(static_cast<std::size_t>(factors.numel()));
      read_entry(optimizer_, *optimizer_.find(kFactors), TensorView(std::span(read), factors.shape));
      copy_now(context, TensorView(std::span(read), factors.shape), factors);
    }
  }

  TensorFile model_;
  SafetensorsFile optimizer_;
  WholeStates states_;
  OptimizerParts parts_;
  std::optional<SafetensorsFile> average_;  ///< none: there is no average, or none in the folder
  std::vector<Piece> average_pieces_;
  int error_ranks_ = 0;       ///< whose errors the file has
  bool has_factors_ = false;  ///< of this compression: others begin anew
  std::vector<std::optional<HostNumber>> values_;
  int ranks_ = 1;
  Metadata metadata_;
};

/// Every rank's rows, in rank order, on rank 0; empty on the others. Collective.
std::vector<double> gather_rows(Context& context, const TensorView& statistics, comm::Communicator& control) {
  const std::int64_t n = statistics.numel();
  std::vector<double> own(static_cast<std::size_t>(n));
  std::vector<double> all(static_cast<std::size_t>(n * control.size()));
  copy_now(context, statistics, TensorView(std::span<double>(own), statistics.shape));
  Stream inline_stream = Stream::host_inline();
  control.all_gather(inline_stream, TensorView(std::span<double>(own), {n}),
                     TensorView(std::span<double>(all), {n * control.size()}));
  if (control.rank() != 0) {
    all.clear();
  }
  return all;
}

/// The mean of the rows of all ranks, by weights that sum to `total`, in rank order; for every rank. Collective.
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

std::vector<double> gather_statistics(Context& context, const ParameterSet& parameters, comm::Communicator& control) {
  return gather_rows(context, parameters.statistics(), control);
}

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
  average_rows(context, parameters.statistics(), control, weights, total, parameters.evaluation_buffer_arena());
  if (parameters.averages()) {
    average_rows(context, parameters.average_statistics(), control, weights, total, parameters.average_buffer_arena());
  }
}

void save_state(const std::string& folder, Context& context, const ParameterSet& parameters, const Metadata& metadata) {
  save_state(folder, context, parameters, *alone(), {.metadata = metadata});
}

void save_state(const std::string& folder, Context& context, const ParameterSet& parameters,
                comm::Communicator& control, const StateExtras& extras) {
  require<UsageError>(parameters.state_shards().empty() || parameters.shard_ranks() == control.size(),
                      "state of a train step: ", parameters.shard_ranks(),
                      " ranks have divided the optimizer's states, "
                      "and the communicator has ",
                      control.size(), ", expected all of them");
  const std::vector<double> rank_buffers = gather_statistics(context, parameters, control);
  const std::vector<double> rank_averages =
      parameters.averages() ? gather_rows(context, parameters.average_statistics(), control) : std::vector<double>();
  WholeStates states(context, parameters, control.rank() == 0);
  states.gather(control);
  std::vector<std::vector<std::byte>> errors = gather_errors(context, parameters, control);
  std::string failure;
  if (control.rank() == 0) {
    try {
      AtomicFolder made(folder);
      write_model(made.file(kModelFile), context, parameters, extras.metadata);
      write_optimizer(made.file(kOptimizerFile), context, parameters, states,
                      control.size() * parameters.statistics_rows(), rank_buffers, rank_averages, errors);
      std::vector<std::string> names{kModelFile, kOptimizerFile};
      if (parameters.averages()) {
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
                      kSteps, "' and '", kMicrobatches, "' are taken, expected others");
  step.synchronize();
  const std::vector<double> microbatches = comm::all_gather_value(control, static_cast<double>(step.microbatches()));
  if (step.steps() > 0) {  // else the averages are the loaded ones, or the model's initial ones
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
  step.continue_from(steps.value_or(0), microbatches.value_or(0));  // first, as it refuses a step that has begun
  return saved.read(step.context(), step.parameters(), control.rank(), control.size());
}

}  // namespace lockstep::nn
