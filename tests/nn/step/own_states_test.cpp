// Tests states that a program registers with a step. They must be broadcast, compared, saved, loaded and divided as the
// step's own states are.

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds, testing::to_doubles;
using Texts = std::vector<std::string>;

Model regression() {
  ModelBuilder b("regression", {20});
  b.linear("2", b.linear("1", b.input(), 33), 3);
  return b.build();
}

TrainStepOptions options_of(Strategy strategy) {
  return {.max_batch = 4,
          .seed = 11,
          .plan = {.loss = Loss::mse},
          .buckets = {.bucket_bytes = 1 << 20},
          .strategy = strategy};
}

/// A step with one registered state of each Sharing, and a counter.
struct Stateful {
  Stateful(comm::Communicator& ranks, Strategy strategy)
      : step(context, {ranks, context.stream()}, regression(), options_of(strategy)),
        count(step.register_state({.name = "draws", .dtype = DType::i64, .initial = 5})),
        scale(step.register_state({.name = "scale", .shape = {2, 3}, .initial = 1})),
        own(step.register_state({.name = "own", .shape = {4}, .sharing = Sharing::of_rank, .initial = -1})),
        part(
            step.register_state({.name = "part", .shape = {3}, .sharing = Sharing::sum_of_ranks, .dtype = DType::f64})),
        shard(step.register_state({.name = "trace", .sharing = Sharing::shard, .initial = 2})) {}
  /// Sets all states to other numbers. States that may differ between ranks depend on `rank`.
  void change(int rank) {
    count.as<std::int64_t>()[0] = (std::int64_t{1} << 60) + 1;
    set(scale, [](std::int64_t i) { return 0.5 + static_cast<double>(i); });
    set(own, [rank](std::int64_t i) { return 10.0 * rank + static_cast<double>(i); });
    for (std::int64_t i = 0; i < 3; ++i) {
      part.as<double>()[i] = 100 * rank + static_cast<double>(i);
    }
    const ParameterSet& parameters = step.parameters();
    for (const auto& [begin, end] : parameters.state_pieces()) {
      const std::int64_t first = begin;
      set(parameters.state_range(shard, begin, end),
          [first](std::int64_t i) { return static_cast<double>(first + i); });
    }
  }
  static void set(const TensorView& view, const std::function<double(std::int64_t)>& value) {
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      view.as<float>()[i] = static_cast<float>(value(i));
    }
  }
  CpuContext context{{.threads = 1}};
  TrainStep step;
  TensorView count, scale, own, part, shard;
};

class OwnStates : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void save(const std::string& name, int ranks, Strategy strategy) const {
    comm::on_ranks(ranks, [&](comm::Communicator& grad, comm::Communicator& control) {
      Stateful saved(grad, strategy);
      saved.change(grad.rank());
      save_state(path(name), saved.step, control);
    });
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(OwnStates, GoOnWithTheBitsOfASavedRun) {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1}) {
    save("run", 2, strategy);
    comm::on_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
      Stateful saved(grad, strategy);
      Stateful loaded(grad, strategy);
      for (const TensorView& view : {loaded.count, loaded.scale, loaded.own, loaded.part, loaded.shard}) {
        const double initial = to_doubles(view).front();
        EXPECT_EQ(to_doubles(view), std::vector<double>(static_cast<std::size_t>(view.numel()), initial));
      }
      EXPECT_EQ(loaded.count.as<std::int64_t>()[0], 5);
      saved.change(grad.rank());
      load_state(path("run"), loaded.step, control);
      EXPECT_EQ(loaded.count.as<std::int64_t>()[0], (std::int64_t{1} << 60) + 1);
      EXPECT_EQ(to_doubles(loaded.scale), to_doubles(saved.scale));
      EXPECT_EQ(to_doubles(loaded.own), to_doubles(saved.own));
      EXPECT_EQ(to_doubles(loaded.part), to_doubles(saved.part));
      for (const auto& [begin, end] : loaded.step.parameters().state_pieces()) {
        for (std::size_t i = 0; i < loaded.step.parameters().trainable().size(); ++i) {
          // Compares whole parameters without padding, because files hold no padding.
          const ParameterInfo& info = loaded.step.parameters().trainable()[i];
          for (std::int64_t at = std::max(begin, info.offset); at < std::min(end, info.offset + info.numel); ++at) {
            ASSERT_EQ(to_doubles(loaded.step.parameters().state_range(loaded.shard, at, at + 1)).front(),
                      static_cast<double>(at));
          }
        }
      }
      loaded.step.require_same_state(control);
    });
  }
}

/// The files must be the same whether the ranks divide a state or not.
TEST_F(OwnStates, AreTheSameFilesWhetherDividedOrNot) {
  save("ddp", 2, Strategy::ddp);
  save("zero1", 2, Strategy::zero1);
  const std::string file = std::string("/") + kOptimizerFile;
  EXPECT_TRUE(read_file(path("ddp") + file, 1 << 24) == read_file(path("zero1") + file, 1 << 24));
  const SafetensorsFile saved(path("ddp") + file);
  EXPECT_EQ(saved.find("1.weight.trace")->shape, (std::vector<std::int64_t>{33, 20}));
  EXPECT_EQ(saved.find("scale")->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(saved.find("draws")->type(), DType::i64);
  EXPECT_EQ(saved.find("own")->shape, (std::vector<std::int64_t>{2, 4})) << "of two ranks";
}

TEST_F(OwnStates, OnOtherRanksPartsOfASumAreDividedAndOthersBeginAnew) {
  save("run", 2, Strategy::zero1);
  for (const int ranks : {1, 3}) {
    comm::on_ranks(ranks, [&](comm::Communicator& grad, comm::Communicator& control) {
      Stateful loaded(grad, Strategy::zero1);
      loaded.own.as<float>()[2] = 77;
      load_state(path("run"), loaded.step, control);
      EXPECT_EQ(to_doubles(loaded.scale)[5], 5.5);
      EXPECT_EQ(to_doubles(loaded.own), std::vector<double>(4, -1));
      for (std::int64_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(loaded.part.as<double>()[i], (100 + 2 * static_cast<double>(i)) / ranks, 1e-12);
      }
    });
  }
}

TEST_F(OwnStates, AreBroadcastAndCompared) {
  comm::on_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
    Stateful stateful(grad, Strategy::ddp);
    stateful.change(grad.rank());
    stateful.scale.as<float>()[1] += static_cast<float>(grad.rank());
    expect_holds(error_of<UsageError>([&] { stateful.step.require_same_state(control); }), "'scale with hash");
    stateful.step.broadcast();
    stateful.step.require_same_state(control);
    EXPECT_EQ(to_doubles(stateful.scale)[1], 1.5);
    EXPECT_EQ(to_doubles(stateful.own)[1], 1) << "rank 0's";
    EXPECT_EQ(to_doubles(stateful.part)[1], 100 * grad.rank() + 1) << "each rank's own";
  });
}

TEST_F(OwnStates, ANameThatIsTakenIsRefused) {
  comm::on_ranks(2, [](comm::Communicator& grad) {
    Stateful stateful(grad, Strategy::zero1);
    const auto refused = [&](const std::string& name, Sharing sharing = Sharing::same) {
      return error_of<StateError>([&] { stateful.step.register_state({.name = name, .sharing = sharing}); });
    };
    EXPECT_EQ(refused("scale"), "states: the name 'scale' is taken by state 'scale', expected another name");
    EXPECT_EQ(refused("momentum_buffer", Sharing::shard),
              "states: the name 'momentum_buffer' is taken by state 'momentum_buffer', expected another name");
    EXPECT_EQ(refused("parameters"), "states: there is a state 'parameters' already, expected another name");
    EXPECT_EQ(refused("rank_buffers"),
              "states: the name 'rank_buffers' is taken by state 'statistics', expected another name");
    EXPECT_EQ(refused("1.weight.trace"),
              "states: the name '1.weight.trace' is taken by parameter '1.weight', expected another name");
    EXPECT_EQ(refused(""), "states: the name of a state is empty, expected at least one character");
    EXPECT_EQ(error_of<UsageError>([&] {
                stateful.step.register_state({.name = "n", .sharing = Sharing::of_rank, .dtype = DType::i64});
              }),
              "states: 'n' is i64, expected f32, f64, or i64 with Sharing::same");
    expect_holds(error_of<UsageError>([&] { stateful.step.register_state({.name = "n", .shape = {0}}); }), "(0)");
  });
}

TEST_F(OwnStates, AnotherShapeThanInTheFileIsRefusedOnEveryRank) {
  save("run", 2, Strategy::ddp);
  struct Case {
    std::string name;
    Sharing sharing;
    Shape shape;
  };
  // load_state() must refuse these shapes, even if they divide the number of saved elements.
  for (const auto& [name, sharing, shape] : {Case{"scale", Sharing::same, {5}},
                                             {"own", Sharing::of_rank, {5}},
                                             {"own", Sharing::of_rank, {2}},
                                             {"own", Sharing::of_rank, {8}},
                                             {"own", Sharing::of_rank, {4, 1}},
                                             {"part", Sharing::sum_of_ranks, {1}},
                                             {"part", Sharing::sum_of_ranks, {6}}}) {
    const Texts failures = comm::run_ranks(
        2, [&, name = name, sharing = sharing, shape = shape](comm::Communicator& grad, comm::Communicator& control) {
          Step step(grad, regression(), options_of(Strategy::ddp));
          step.register_state({.name = name, .shape = shape, .sharing = sharing});
          load_state(path("run"), step, control);
        });
    EXPECT_EQ(failures[1], failures[0]);
    expect_holds(failures[0], "optimizer.safetensors: tensor '" + name + "' has shape ");
    expect_holds(failures[0], "expected ");
  }
}

TEST_F(OwnStates, OneThatARankLacksIsRefusedOnEveryRank) {
  for (const bool saves : {true, false}) {
    const Texts failures = comm::run_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
      Step step(grad, regression(), options_of(Strategy::ddp));
      if (grad.rank() == 0) {
        step.register_state({.name = "seen", .shape = {5}});
      }
      if (saves) {
        save_state(path("lacking"), step, control);
      } else {
        step.require_same_state(control);
      }
    });
    EXPECT_EQ(failures[1], failures[0]);
    EXPECT_EQ(failures[0].substr(0, failures[0].find(", rank 1")),
              "the ranks do not agree: rank 0 has 'state 'seen' f32 (5) the same on all ranks'");
  }
}

TEST_F(OwnStates, AFileFromBeforeThemIsReadWhereTheyAreOptional) {
  {
    Step step(regression(), options_of(Strategy::ddp));
    save_state(path("before"), step);
  }
  for (const Sharing sharing : {Sharing::same, Sharing::of_rank, Sharing::sum_of_ranks, Sharing::shard}) {
    Step step(regression(), options_of(Strategy::ddp));
    const TensorView kept = step.register_state({.name = "later", .sharing = sharing, .initial = 3, .optional = true});
    load_state(path("before"), step);
    EXPECT_EQ(to_doubles(kept).front(), 3);
    Step strict(regression(), options_of(Strategy::ddp));
    strict.register_state({.name = "later", .sharing = sharing});
    expect_holds(error_of<DataError>([&] { load_state(path("before"), strict); }),
                 sharing == Sharing::shard ? "'2.weight.later'" : "'later'");
  }
}

/// A program's own BucketSum with a state: the state counts the buckets that were summed.
class Counting final : public comm::BucketSum {
 public:
  [[nodiscard]] std::string name() const override { return "counting"; }
  [[nodiscard]] std::vector<comm::SumState> state(std::span<const comm::GradientRange> ranges) const override {
    EXPECT_EQ(ranges[0].rows * ranges[0].columns, 3 * 33) << "weights are matrices";
    return {{.name = "buckets", .elements = 2}};
  }
  void keep_in(std::span<const TensorView> state) override { kept = state[0]; }
  void initialise(Context& /*context*/) override { kept.as<float>()[1] = 40; }
  void reduce(comm::SumPlace& place, int /*bucket*/, const TensorView& gradients) override {
    place.communicator.all_reduce(place.stream, gradients);
    kept.as<float>()[0] += 1;
  }
  TensorView kept;
};

TEST_F(OwnStates, ASumOfOnesOwnKeepsItsState) {
  std::vector<float> x(80, 0.5F), y(12, 1);
  for (const bool resumed : {false, true}) {
    const auto sum = std::make_shared<Counting>();
    TrainStepOptions options = options_of(Strategy::ddp);
    options.sums.hook = sum;
    Step step(regression(), options);
    EXPECT_EQ(to_doubles(sum->kept), (std::vector<double>{0, 40}));
    if (resumed) {
      load_state(path("counting"), step);
    }
    for (int i = 0; i < 3; ++i) {
      step.update({{StateField::values, TensorView(std::span(x), {4, 20})},
                   {StateField::targets, TensorView(std::span(y), {4, 3})}},
                  1e-3);
    }
    EXPECT_EQ(to_doubles(sum->kept), (std::vector<double>{resumed ? 6.0 : 3.0, 40}));
    save_state(path("counting"), step);
    const SafetensorsFile saved(path("counting") + "/" + kOptimizerFile);
    EXPECT_EQ(saved.find("compression_buckets")->shape, std::vector<std::int64_t>{2});
  }
}

}  // namespace
}  // namespace lockstep::nn
