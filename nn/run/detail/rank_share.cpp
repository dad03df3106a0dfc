#include <lockstep/nn/run/detail/rank_share.hpp>

#include <algorithm>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::detail {

namespace {

std::unique_ptr<DevicePreprocessing> deferred_of(const Dataset& set, PicturesOn where) {
  if (where == PicturesOn::host) {
    return nullptr;
  }
  std::unique_ptr<DevicePreprocessing> deferred = set.device_preprocessing(where == PicturesOn::nvjpeg);
  require<UsageError>(deferred != nullptr, "trainer: pictures become images on '", name_of(where), "', and ",
                      set.name(), " leaves nothing to a device, expected 'host'");
  return deferred;
}

Sampler sampler_of(const Dataset& dataset, bool training, const Ranks& r, const TrainerOptions& o) {
  return Sampler({.size = dataset.size(),
                  .batch_size = o.global_batch,
                  .ranks = r.grad.size(),
                  .rank = r.grad.rank(),
                  .shuffle = training,
                  .keep_last = !training || o.keep_last,
                  .seed = o.step.seed,
                  .parts = o.step.virtual_ranks,
                  .chunk = training ? o.shuffle_chunk : 0});
}

}  // namespace

RankShare::RankShare(const Ranks& ranks, const TrainingData& data, const TrainerOptions& options)
    : options_(options),
      set_(data.train),
      preprocessing_(deferred_of(set_, options.pictures)),
      training_(sampler_of(set_, true, ranks, options)),
      test_(sampler_of(data.test, false, ranks, options)),
      loader_bytes_(Loader::memory_bytes(read_set(), training_, loader_options()) +
                    Loader::memory_bytes(data.test, test_, loader_options())) {
  const std::int64_t virtual_ranks = options.step.virtual_ranks;
  microbatches_ = virtual_ranks > 0 ? virtual_ranks / ranks.grad.size() : options.accumulate;
  capacity_ = virtual_ranks > 0 ? partition_of(options.global_batch, virtual_ranks, 0).count
                                : partition_of(training_.capacity(), options.accumulate, 0).count;
}

LoaderOptions RankShare::loader_options() const {
  return {.workers = options_.loader_workers, .prefetch = options_.prefetch, .epoch = 0, .batch = 0};
}

std::size_t RankShare::planned_bytes(Device device) const {
  return loader_bytes_ +
         (preprocessing_ != nullptr ? preprocessing_->preprocessor_bytes(device, training_.capacity()) : 0);
}

Partition RankShare::rows_of(const Batch& batch, std::int64_t number) const {
  return options_.step.virtual_ranks > 0 ? training_.part_of_share(batch.global_valid, number)
                                         : partition_of(batch.valid, options_.accumulate, number);
}

const Batch& RankShare::microbatch_of(const Batch& batch, std::int64_t number) {
  const Partition rows = rows_of(batch, number);
  // If the rank's share is a single micro-batch, the view also has the rows of zeros that follow the samples.
  const std::int64_t count = microbatches_ == 1 && options_.step.virtual_ranks == 0 ? capacity_ : rows.count;
  microbatch_.fields.resize(batch.fields.size());
  for (std::size_t i = 0; i < batch.fields.size(); ++i) {
    microbatch_.fields[i].field = batch.fields[i].field;
    microbatch_.fields[i].view = batch.fields[i].view.slice(0, rows.begin, rows.begin + count);
  }
  microbatch_.valid = rows.count;
  // With weights of the loss, TrainStep divides by the sum of the weights over all ranks, and does not use
  // global_valid.
  microbatch_.global_valid =
      options_.step.plan.weights != LossWeights::none ? 0 : std::max<std::int64_t>(batch.global_valid, 1);
  microbatch_.epoch = batch.epoch;
  return microbatch_;
}

void RankShare::go_to(const Position& position) {
  const std::int64_t batches = training_.batches(position.skipped);
  require<UsageError>(position.epoch >= 0 && position.step >= 0 && position.batch >= 0 && position.batch < batches,
                      "restore: epoch ", position.epoch, ", batch ", position.batch, ", step ", position.step,
                      ", expected a batch from 0 to ", batches - 1, " and nothing negative");
  position_ = position;
}

void RankShare::advance() {
  ++position_.step;
  if (++position_.batch == training_.batches(position_.skipped)) {
    position_.batch = 0;
    position_.skipped = 0;
    ++position_.epoch;
  }
}

std::int64_t RankShare::steps_until(std::int64_t epochs) const {
  const Position& at = position_;
  return epochs <= at.epoch ? 0
                            : training_.batches(at.skipped) - at.batch + (epochs - at.epoch - 1) * training_.batches();
}

Position RankShare::continued(const Position& saved, std::int64_t global_batch) const {
  const std::int64_t size = training_.options().size;
  const auto possible = [&](bool ok) {
    require<DataError>(ok, "epoch ", saved.epoch, ", batch ", saved.batch, " of ", global_batch, " samples after ",
                       saved.skipped, ", step ", saved.step, ", expected a position within epochs of ", size,
                       " samples");
  };
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  possible(saved.epoch >= 0 && saved.epoch <= kMost / training_.batches() && saved.batch >= 0 && saved.step >= 0 &&
           saved.step <= kMost && saved.skipped >= 0 && saved.skipped <= size && global_batch >= 0);
  if (global_batch == options_.global_batch || global_batch == 0) {
    require<DataError>(saved.batch < training_.batches(saved.skipped), "epoch ", saved.epoch, ", batch ", saved.batch,
                       ", expected a smaller batch: this run has ", training_.batches(saved.skipped),
                       " batches an epoch");
    return saved;
  }
  std::int64_t done = 0;
  possible(!__builtin_mul_overflow(saved.batch, global_batch, &done) &&
           !__builtin_add_overflow(done, saved.skipped, &done) && done <= size);
  Position at{.epoch = saved.epoch, .batch = 0, .step = saved.step, .skipped = done};
  if (training_.batches(done) == 0) {
    ++at.epoch;
    at.skipped = 0;
  }
  return at;
}

std::int64_t RankShare::scheduled() const {
  const Position& at = position_;
  return options_.schedule_by_updates
             ? at.step
             : at.epoch * training_.batches() + at.skipped / training_.options().batch_size + at.batch;
}

}  // namespace lockstep::nn::detail
