#include "bench/support/load.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <span>
#include <thread>
#include <vector>

#include <lockstep/comm/text.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/buffer.hpp>
#include <lockstep/runtime/error.hpp>
#include <lockstep/runtime/tensor.hpp>

namespace lockstep::bench {

struct Load::State {
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> pieces{0};
  std::atomic<bool> ended{false};
  std::exception_ptr failure;
  std::thread thread;
  Clock::time_point begin;
  std::int64_t before = 0;  ///< pieces at begin
};

Load::Load() = default;

Load::~Load() {
  end();
}

void Load::end() noexcept {
  if (state_) {
    state_->stop = true;
    state_->thread.join();
    state_.reset();
  }
}

bool Load::stopped() const {
  return state_->stop;
}

void Load::done() {
  ++state_->pieces;
}

void Load::start() {
  require<StateError>(state_ == nullptr, "load: started twice");
  state_ = std::make_unique<State>();
  State& state = *state_;
  state.thread = std::thread([this, &state] {
    try {
      run();
    } catch (...) {
      state.failure = std::current_exception();
    }
    state.ended = true;
  });
  while (state.pieces == 0 && !state.ended) {
    std::this_thread::yield();
  }
  state.before = state.pieces;
  state.begin = Clock::now();
}

double Load::stop() {
  require<StateError>(state_ != nullptr, "load: stopped before it was started");
  const std::int64_t pieces = state_->pieces - state_->before;
  const double seconds = seconds_since(state_->begin);
  state_->stop = true;
  state_->thread.join();
  const std::exception_ptr failure = state_->failure;
  state_.reset();
  if (failure) {
    std::rethrow_exception(failure);
  }
  return static_cast<double>(pieces) / seconds;
}

namespace {

class MatmulLoad final : public Load {
 public:
  explicit MatmulLoad(Context& context)
      : context_(context),
        plan_(ops::plan_matmul(context, desc())),
        a_(Tensor::zeros(context, desc().a_shape(), DType::f32)),
        b_(Tensor::zeros(context, desc().b_shape(), DType::f32)),
        c_(Tensor::zeros(context, desc().c_shape(), DType::f32)),
        workspace_(Tensor::empty(context, Shape{static_cast<std::int64_t>(plan_->workspace_bytes())}, DType::u8)) {
    context_.synchronize();
  }
  ~MatmulLoad() override { end(); }

 private:
  static ops::MatmulDesc desc() {
    ops::MatmulDesc d;
    d.m = d.n = d.k = 512;
    return d;
  }
  void run() override {
    while (!stopped()) {
      ops::matmul(context_, *plan_, a_, b_, {}, c_, workspace_);
      context_.synchronize();
      done();
    }
  }

  Context& context_;
  std::unique_ptr<ops::MatmulPlan> plan_;
  Tensor a_, b_, c_, workspace_;
};

class AllReduceLoad final : public Load {
 public:
  AllReduceLoad(comm::Communicator& communicator, std::int64_t bytes)
      : communicator_(communicator), data_(static_cast<std::size_t>(std::max<std::int64_t>(bytes / 4, 1))) {}
  ~AllReduceLoad() override { end(); }

 private:
  void run() override {
    Stream stream = Stream::host_worker("load");
    const TensorView view{std::span(data_), Shape{static_cast<std::int64_t>(data_.size())}};
    // The first element counts the ranks that want to end; the others stay zero.
    do {
      data_[0] = stopped() ? 1.0F : 0.0F;
      communicator_.all_reduce(stream, view);
      stream.synchronize();
      done();
    } while (data_[0] != static_cast<float>(communicator_.size()));
  }

  comm::Communicator& communicator_;
  std::vector<float> data_;
};

}  // namespace

std::unique_ptr<Load> matmul_load(Context& context) {
  return std::make_unique<MatmulLoad>(context);
}

std::unique_ptr<Load> all_reduce_load(comm::Communicator& communicator, std::int64_t bytes) {
  require<UsageError>(communicator.size() > 1, "all-reduces as a load need several ranks, here is one");
  require<StateError>(
      communicator.any_thread(),
      "all-reduces as a load need a communicator that a thread may use beside others (MPI_THREAD_MULTIPLE)");
  return std::make_unique<AllReduceLoad>(communicator, bytes);
}

Line measure_beside(comm::Communicator& ranks, Load& load, const std::function<Measurement()>& measure) {
  const Clock::time_point begin = Clock::now();
  const double alone = measure().samples.median();
  const std::vector<double> times = comm::all_gather_value(ranks, seconds_since(begin));
  load.start();
  std::this_thread::sleep_for(std::chrono::duration<double>(times.front()));
  const double rate_alone = load.stop();
  load.start();
  Line line;
  line.measurement = measure();
  const double rate = load.stop();
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // not one piece was finished
  const std::vector<double> slowdowns = comm::all_gather_value(ranks, rate > 0 ? rate_alone / rate : kUnknown);
  line.counters = {{"alone_ns", alone * 1e9},
                   {"slowdown", line.measurement.samples.median() / alone},
                   {"load_slowdown", *std::max_element(slowdowns.begin(), slowdowns.end())}};
  return line;
}

}  // namespace lockstep::bench
