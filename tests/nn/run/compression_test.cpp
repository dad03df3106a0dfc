// Tests whole runs whose gradients are summed by a hook: PowerSGD, whose state is part of a checkpoint, and a user's
// own hook.
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::nn {
namespace {

using testing::to_doubles;

/// Returns options with which PowerSGD sends the gradient of a matrix as two factors of `rank` columns. If `rank` is 0,
/// whole matrices are sent.
comm::SumOptions low_rank(int rank) {
  return {.compress = rank == 0 ? "" : concat("powersgd:", rank)};
}

TrainerSetup compressing(int rank, int ranks) {
  TrainerSetup setup{.ranks = ranks};
  setup.options.step.sums = low_rank(rank);
  return setup;
}

class Compression : public TrainerTest {
 protected:
  [[nodiscard]] std::string bytes_of(RunSetup setup, const std::string& name) const {
    setup.dir = path(name);
    train(setup);
    return checkpoint_bytes(setup.dir + "/last");
  }
};

TEST_F(Compression, AContinuedRunIsTheUndisturbedOne) {
  for (const int ranks : {2, 4}) {
    for (const int rank : {1, 2}) {
      const OptimizerOptions clipped{.clip_norm = 0.5};
      RunSetup whole{.ranks = ranks,
                     .dir = path("whole"),
                     .optimizer = clipped,
                     .sums = low_rank(rank),
                     .checkpoint_every = 4,
                     .keep = 4};
      train(whole);
      RunSetup rest = whole;
      rest.dir = path("rest");
      rest.resume = path("whole/last.3");
      EXPECT_EQ(read_checkpoint_state(rest.resume).progress.position.step, 4);
      train(rest);
      EXPECT_TRUE(checkpoint_bytes(path("rest/last")) == checkpoint_bytes(path("whole/last"))) << ranks << ' ' << rank;
    }
  }
}

TEST_F(Compression, OverlapDoesNotChangeTheBits) {
  const std::string with = bytes_of({.ranks = 2, .sums = low_rank(2)}, "with");
  EXPECT_TRUE(bytes_of({.ranks = 2, .sums = low_rank(2), .overlap = false}, "without") == with);
  EXPECT_FALSE(bytes_of({.ranks = 2, .sums = low_rank(1)}, "other") == with) << "control: another rank";
}

/// Returns each rank's compression errors (error feedback) after load_state() on `ranks` ranks.
std::vector<std::vector<double>> errors_after_loading(const std::string& folder, int ranks) {
  std::vector<std::vector<double>> all(static_cast<std::size_t>(ranks));
  on_trainers(compressing(2, ranks), [&](Trainer& trainer, comm::Communicator& control) {
    (void)load_state(folder, trainer.context(), trainer.parameters(), control);
    trainer.require_same_state();
    all[static_cast<std::size_t>(control.rank())] = to_doubles(trainer.parameters().states().view("compression error"));
  });
  return all;
}

TEST_F(Compression, OnOtherRanksTheSumOfTheErrorsIsKept) {
  train({.ranks = 4, .dir = path("run"), .sums = low_rank(2)});
  const std::vector<std::vector<double>> same = errors_after_loading(path("run/last"), 4);
  EXPECT_NE(same[0], same[1]) << "each rank has its own";
  std::vector<double> sum(same[0].size());
  double largest = 0;
  for (const std::vector<double>& each : same) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += each[i];
    }
  }
  for (const double value : sum) {
    largest = std::max(largest, std::abs(value));
  }
  EXPECT_GT(largest, 0);
  for (const int ranks : {1, 2, 3}) {
    const std::vector<std::vector<double>> others = errors_after_loading(path("run/last"), ranks);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      double got = 0;
      for (const std::vector<double>& each : others) {
        EXPECT_EQ(each[i], others[0][i]);
        got += each[i];
      }
      ASSERT_NEAR(got, sum[i], 1e-6 * largest) << ranks << " ranks, element " << i;
    }
  }
}

TEST_F(Compression, CheckpointsHoldTheErrorsOfEveryRankAndTheFactors) {
  train({.ranks = 2, .dir = path("run"), .sums = low_rank(2)});
  const SafetensorsFile file(path("run/last/optimizer.safetensors"));
  for (const char* name : {"conv1.weight.error.0", "conv1.weight.error.1", "compression_factors"}) {
    EXPECT_NE(file.find(name), nullptr) << name;
  }
  EXPECT_EQ(file.find("conv1.weight.error.2"), nullptr);
  EXPECT_EQ(file.find("conv1.weight.error.0")->shape,
            SafetensorsFile(path("run/last/model.safetensors")).find("conv1.weight")->shape);
  // A run without compression (rank 0 of PowerSGD) loads the states other than PowerSGD's. A run with another rank of
  // PowerSGD keeps its newly drawn factors.
  for (const int rank : {0, 1}) {
    on_trainers(compressing(rank, 2), [&](Trainer& trainer, comm::Communicator& control) {
      const TensorView factors = trainer.parameters().states().view("compression factors");
      const std::vector<double> before = factors.given() ? to_doubles(factors) : std::vector<double>();
      (void)load_state(path("run/last"), trainer.context(), trainer.parameters(), control);
      if (rank == 1) {
        EXPECT_EQ(to_doubles(factors), before);
      }
    });
  }
}

TEST_F(Compression, IsPartOfTheIdentity) {
  const DataSplit data = small_data();
  TrainerOptions options;
  EXPECT_EQ(option_texts(options, data).count("gradient_hook"), 0U);
  options.step.sums = low_rank(2);
  EXPECT_EQ(option_texts(options, data).at("gradient_hook"), "powersgd rank 2");
  options.step.sums = low_rank(0);
  options.step.sums.hook = comm::make_gradient_hook("own 7", [](const TensorView&, Stream&, comm::Communicator&) {});
  EXPECT_EQ(option_texts(options, data).at("gradient_hook"), "own 7");
}

TEST_F(Compression, AProgramsOwnHookMakesTheSum) {
  const auto summing = [] {
    return comm::make_gradient_hook("sum", [](const TensorView& gradients, Stream& stream, comm::Communicator& ranks) {
      ranks.all_reduce(stream, gradients);
    });
  };
  const auto nothing = [] {  // the control: a hook that sends nothing
    return comm::make_gradient_hook("none", [](const TensorView&, Stream&, comm::Communicator&) {});
  };
  const std::string plain = bytes_of({.ranks = 2}, "plain");
  EXPECT_TRUE(bytes_of({.ranks = 2, .hook = summing}, "sum") == plain);
  EXPECT_FALSE(bytes_of({.ranks = 2, .hook = nothing}, "none") == plain);
}

TEST_F(Compression, AHookThatThrowsEndsTheRun) {
  const auto picky = [](TrainerOptions& options, int rank) {
    options.step.sums.hook = comm::make_gradient_hook(
        "picky", [rank](const TensorView& gradients, Stream& stream, comm::Communicator& ranks) {
          require<DataError>(rank == 0, "not this one");
          ranks.all_reduce(stream, gradients);
        });
  };
  const auto failures = with_trainers({.ranks = 2, .change = picky}, [](Trainer& trainer) { trainer.step(); });
  EXPECT_EQ(failures[1], "gradient hook picky, bucket 0: not this one");
  EXPECT_EQ(failures[0],
            "peer: all_reduce: rank 1 left the group while rank 0 waited for it, expected all ranks until the end");
}

TEST_F(Compression, IsRefusedBesideWhatDecidesTheSumToo) {
  const auto refused = [](const std::string& what, const std::string& text, const TrainStepOptions& step) {
    const TrainerOptions options{.global_batch = 11, .step = step};
    EXPECT_EQ(with_trainers({.options = options, .started = false}, [](Trainer&) {})[0],
              text.empty() ? "" : concat("gradient sums: ", what, text));
  };
  const auto own = comm::make_gradient_hook("own", [](const TensorView&, Stream&, comm::Communicator&) {});
  const std::string compress = "compress is powersgd:2 with ";
  const auto sums = [](const std::function<void(comm::SumOptions&)>& change) {
    comm::SumOptions all = low_rank(2);
    change(all);
    return TrainStepOptions{.sums = all};
  };
  refused("", "", sums([](comm::SumOptions&) {}));
  refused(compress, "a strategy that divides the gradients, expected ddp: all ranks get all gradients",
          {.sums = low_rank(2), .strategy = Strategy::zero1});
  refused(compress, "virtual ranks, expected none: their sums are of pairs", {.virtual_ranks = 2, .sums = low_rank(2)});
  refused(compress, "an order of sums, expected SumOrder::library",
          sums([](comm::SumOptions& o) { o.order = comm::SumOrder::ranks; }));
  refused(compress, "gradients that travel in 16 bits, expected f32",
          sums([](comm::SumOptions& o) { o.dtype = DType::bf16; }));
  refused(compress, "a loss scale, expected none: what is not sent would keep an old scale",
          {.optimizer = {.loss_scale = {.kind = LossScale::Kind::fixed}}, .sums = low_rank(2)});
  refused(compress, "a hook of the program, expected one of the two", sums([&](comm::SumOptions& o) { o.hook = own; }));
  refused("compress is 'powersgd:-1'", ", expected none, bf16, fp16, or powersgd:RANK with a rank of 1 to 64",
          {.sums = low_rank(-1)});
  refused("hook is own with ", "a strategy that divides the gradients, expected ddp: all ranks get all gradients",
          {.sums = {.hook = own}, .strategy = Strategy::zero1});
}

}  // namespace
}  // namespace lockstep::nn
