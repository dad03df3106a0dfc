#include <lockstep/nn/data/loader.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <lockstep/nn/data/partition.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {
namespace {

// Number of batches that the caller may use: the last one that next() returned, and the two before it.
constexpr std::int64_t kHeld = 3;

std::size_t aligned(std::size_t bytes) {
  return align_up(bytes, kAlignment);
}

std::size_t checked_bytes(std::int64_t rows, std::int64_t row_bytes) {
  std::int64_t bytes = 0;
  require<UsageError>(!__builtin_mul_overflow(rows, row_bytes, &bytes) && bytes < (std::int64_t{1} << 48),
                      "loader: ", rows, " rows of ", row_bytes, " bytes, expected a batch of less than 2^48 bytes");
  return static_cast<std::size_t>(bytes);
}

/// Byte offsets of the tensors of a batch in its buffer: first the data set's fields, then the sample ids.
struct Layout {
  Layout(const Dataset& dataset, const Sampler& sampler) {
    const auto place = [&](std::size_t row_bytes) {
      offsets.push_back(bytes);
      bytes += aligned(checked_bytes(sampler.capacity(), static_cast<std::int64_t>(row_bytes)));
    };
    for (const SampleField& field : dataset.fields()) {
      place(field.bytes());
    }
    place(sizeof(std::int64_t));
  }
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
};

TensorView view_of(std::byte* data, const SampleField& field, std::int64_t rows) {
  Shape shape{rows};
  for (const std::int64_t extent : field.shape) {
    shape.push_back(extent);
  }
  return {data, field.dtype, Device::cpu(), shape};
}

void check_amounts(const LoaderOptions& options) {
  require<UsageError>(options.workers >= 0 && options.workers <= Loader::kMaxWorkers, "loader: workers is ",
                      options.workers, ", expected 0 to ", Loader::kMaxWorkers);
  require<UsageError>(options.prefetch >= 1 && options.prefetch <= Loader::kMaxPrefetch, "loader: prefetch is ",
                      options.prefetch, ", expected 1 to ", Loader::kMaxPrefetch);
}

std::int64_t slot_count(const LoaderOptions& options) {
  return kHeld + (options.workers > 0 ? options.prefetch : 0);
}

}  // namespace

// Batches are numbered 0, 1, .. from the start position. Batch t lies in slot t % slots. All workers fill the same
// batch together, each a different piece of its rows, so that the batch is ready soon and few batches are in progress.
// A worker may begin batch t when the caller no longer uses batch t - slots, the slot's previous batch.
struct Loader::Impl {
  using Row = std::vector<std::span<std::byte>>;  // for each field of the data set, the bytes of one sample
  struct Slot {
    Buffer buffer;
    Batch batch;
    std::int64_t left = 0;    // number of pieces of the slot's batch that no worker has filled yet
    std::int64_t ready = -1;  // number of the last batch that was filled in this slot
    std::exception_ptr error;
  };

  Impl(const Dataset& dataset_in, const Sampler& sampler_in, const LoaderOptions& options_in)
      : dataset(dataset_in),
        sampler(sampler_in),
        options(options_in),
        stream(Stream::host_inline()),
        own(dataset, sampler) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    space.notify_all();
    for (std::thread& worker : workers) {
      worker.join();
    }
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Writes the epoch, the index and the numbers of samples of batch `number` to its slot. fill() writes the rows
  /// later.
  void prepare(std::int64_t number, Slot& slot) const {
    Batch& batch = slot.batch;
    // The first epoch has fewer batches than later epochs if positions are skipped.
    const std::int64_t after_first = options.batch + number - sampler.batches(options.skipped);
    const bool first = after_first < 0;
    const std::int64_t skipped = first ? options.skipped : 0;
    batch.epoch = options.epoch + (first ? 0 : 1 + after_first / sampler.batches());
    batch.index = first ? options.batch + number : after_first % sampler.batches();
    batch.last_of_epoch = batch.index + 1 == sampler.batches(skipped);
    batch.valid = sampler.share(batch.index, skipped).count;
    batch.global_valid = sampler.samples(batch.index, skipped);
    slot.left = pieces;
  }

  /// Memory that a thread allocates once and uses for all batches.
  struct Memory {
    Memory(const Dataset& dataset, const Sampler& sampler) : row(dataset.fields().size()) {
      if (sampler.options().shuffle && sampler.options().chunk > 0) {
        ids.reserve(static_cast<std::size_t>(sampler.order(0).most_positions()));
      }
    }
    Row row;
    std::vector<std::int64_t> ids;
  };

  /// Calls the data set's ahead() for the samples of window `window` of epoch `epoch` that this rank will read. The
  /// memory of `ids` is reused.
  void announce(std::int64_t epoch, std::int64_t window, std::vector<std::int64_t>& ids) const {
    const std::int64_t skipped = epoch == options.epoch ? options.skipped : 0;
    const std::int64_t size = sampler.options().batch_size;
    const Sampler::Order order = sampler.order(epoch);
    const Partition positions = order.positions_of(window);
    const std::int64_t end = positions.begin + positions.count;
    ids.clear();
    for (std::int64_t batch = std::max<std::int64_t>(positions.begin - skipped, 0) / size;
         batch < sampler.batches(skipped) && skipped + batch * size < end; ++batch) {
      const Partition share = sampler.share(batch, skipped);
      const std::int64_t from = std::max(share.begin, positions.begin);
      const std::int64_t to = std::min(share.begin + share.count, end);
      for (std::int64_t position = from; position < to; ++position) {
        ids.push_back(order(position));
      }
    }
    std::sort(ids.begin(), ids.end());
    for (std::size_t first = 0, next = 0; first < ids.size(); first = next) {
      for (next = first + 1; next < ids.size() && ids[next] == ids[next - 1] + 1;) {
        ++next;
      }
      dataset.ahead(ids[first], static_cast<std::int64_t>(next - first));
    }
  }

  /// Announces to the data set the windows that follow the windows of `batch`, unless an earlier batch has announced
  /// them. After the last window of an epoch comes the first window of the next epoch.
  void announce_behind(const Batch& batch, std::int64_t number, std::vector<std::int64_t>& ids) const {
    if (!sampler.options().shuffle || sampler.options().chunk == 0) {
      return;
    }
    const std::int64_t skipped = batch.epoch == options.epoch ? options.skipped : 0;
    const Sampler::Order order = sampler.order(batch.epoch);
    const std::int64_t begin = skipped + batch.index * sampler.options().batch_size;
    const std::int64_t windows = order.windows();
    const auto behind = [&](std::int64_t position) { return std::min(order.window_of(position) + 1, windows); };
    std::int64_t next = number == 0 ? order.window_of(begin) : batch.index == 0 ? 1 : behind(begin - 1) + 1;
    const std::int64_t last = batch.last_of_epoch ? windows : behind(begin + batch.global_valid - 1);
    for (; next <= last; ++next) {
      announce(batch.epoch + (next == windows ? 1 : 0), next == windows ? 0 : next, ids);
    }
  }

  /// Reads the rows of piece `piece` of a batch, after prepare(). The memory of `row` is reused.
  void fill(const Batch& batch, std::int64_t piece, Row& row) const {
    const std::int64_t skipped = batch.epoch == options.epoch ? options.skipped : 0;
    const Partition share = sampler.share(batch.index, skipped);
    const Sampler::Order order = sampler.order(batch.epoch);
    const auto ids = batch.view(StateField::sample_ids).span<std::int64_t>();
    const Partition rows = partition_of(sampler.capacity(), pieces, piece);
    for (std::int64_t at = rows.begin; at < rows.begin + rows.count; ++at) {
      const auto r = static_cast<std::size_t>(at);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::size_t bytes = dataset.fields()[i].bytes();
        row[i] = {static_cast<std::byte*>(batch.fields[i].view.data) + r * bytes, bytes};
      }
      if (at < share.count) {
        if (stop.load(std::memory_order_relaxed)) {
          return;
        }
        const std::int64_t id = order(share.begin + at);
        dataset.read_sample_in(batch.epoch, id, row);
        ids[r] = id;
      } else {
        for (const std::span<std::byte> bytes : row) {
          std::memset(bytes.data(), 0, bytes.size());
        }
        ids[r] = 0;
      }
    }
  }

  /// Fills a piece of a batch. Returns the exception that was thrown, or nullptr if none was thrown.
  [[nodiscard]] std::exception_ptr try_to_fill(const Batch& batch, std::int64_t number, std::int64_t piece,
                                               Memory& memory) const noexcept {
    try {
      if (piece == 0) {
        announce_behind(batch, number, memory.ids);
      }
      fill(batch, piece, memory.row);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  void work() {
    Memory memory(dataset, sampler);
    std::unique_lock lock(mutex);
    for (;;) {
      // The caller may use batches taken - kHeld to taken - 1, so the slots of these batches must not be filled.
      space.wait(lock, [&] { return stop || next_batch < taken - kHeld + count; });
      if (stop) {
        return;
      }
      const std::int64_t number = next_batch;
      const std::int64_t piece = next_piece;
      Slot& slot = slots[static_cast<std::size_t>(number % count)];
      if (piece == 0) {
        prepare(number, slot);
      }
      next_piece = piece + 1 < pieces ? piece + 1 : 0;
      next_batch += next_piece == 0 ? 1 : 0;
      lock.unlock();
      const std::exception_ptr error = try_to_fill(slot.batch, number, piece, memory);
      lock.lock();
      if (slot.error == nullptr) {
        slot.error = error;
      }
      if (--slot.left == 0) {
        slot.ready = number;
        filled.notify_all();
      }
    }
  }

  const Dataset& dataset;
  const Sampler sampler;
  const LoaderOptions options;
  Stream stream;
  std::vector<Slot> slots;
  std::int64_t count = 0;

  std::mutex mutex;
  std::condition_variable space;   // notified when a slot may be filled again
  std::condition_variable filled;  // notified when all pieces of a slot's batch are filled
  std::atomic<bool> stop{false};
  std::int64_t pieces = 1;      // number of pieces in each batch
  std::int64_t next_batch = 0;  // number of the batch whose piece a worker takes next
  std::int64_t next_piece = 0;  // number of the piece that a worker takes next
  std::int64_t taken = 0;       // number of batches that next() has returned or waits for
  Memory own;                   // memory of next(), used if there are no workers
  std::exception_ptr failed;
  std::vector<std::thread> workers;
};

Loader::Loader(const Dataset& dataset, const Sampler& sampler, MemoryResource& memory, const LoaderOptions& options) {
  check_amounts(options);
  const std::int64_t batches = sampler.batches(options.skipped);
  require<UsageError>(options.epoch >= 0 && options.batch >= 0 && options.batch < batches, "loader: start at batch ",
                      options.batch, " of epoch ", options.epoch, ", expected a batch of 0 to ", batches - 1,
                      " and an epoch of at least 0");
  require<UsageError>(sampler.options().size == dataset.size(), "loader: the sampler is for ", sampler.options().size,
                      " samples, expected one for the ", dataset.size(), " samples of ", dataset.name());
  require<DeviceError>(memory.device() == Device::cpu(), "loader: the memory resource is on ", memory.device(),
                       ", expected one of the host");
  impl_ = std::make_unique<Impl>(dataset, sampler, options);
  const std::int64_t rows = sampler.capacity();
  const Layout layout(dataset, sampler);
  impl_->count = slot_count(options);
  impl_->slots.resize(static_cast<std::size_t>(impl_->count));
  for (auto& slot : impl_->slots) {
    slot.buffer = Buffer(layout.bytes, memory, impl_->stream);
    for (std::size_t i = 0; i < dataset.fields().size(); ++i) {
      const SampleField& field = dataset.fields()[i];
      slot.batch.fields.push_back({field.field, view_of(slot.buffer.data() + layout.offsets[i], field, rows)});
    }
    slot.batch.fields.push_back({StateField::sample_ids, TensorView(slot.buffer.data() + layout.offsets.back(),
                                                                    DType::i64, Device::cpu(), {rows})});
  }
  impl_->pieces = std::clamp<std::int64_t>(rows, 1, std::max(options.workers, 1));
  for (int i = 0; i < options.workers; ++i) {
    impl_->workers.push_back(helper_thread([state = impl_.get()] { state->work(); }));
  }
}

std::size_t Loader::memory_bytes(const Dataset& dataset, const Sampler& sampler, const LoaderOptions& options) {
  check_amounts(options);
  return static_cast<std::size_t>(slot_count(options)) * Layout(dataset, sampler).bytes;
}

Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;
Loader::~Loader() = default;

const Batch& Loader::next() {
  Impl& state = *impl_;
  if (state.failed != nullptr) {
    std::rethrow_exception(state.failed);
  }
  const std::int64_t number = state.taken;
  Impl::Slot& slot = state.slots[static_cast<std::size_t>(number % state.count)];
  if (state.workers.empty()) {
    state.taken = number + 1;
    state.prepare(number, slot);
    slot.error = state.try_to_fill(slot.batch, number, 0, state.own);
  } else {
    std::unique_lock lock(state.mutex);
    state.taken = number + 1;
    state.space.notify_all();
    state.filled.wait(lock, [&] { return slot.ready == number; });
  }
  if (slot.error != nullptr) {
    state.failed = slot.error;
    std::rethrow_exception(state.failed);
  }
  return slot.batch;
}

}  // namespace lockstep::nn
