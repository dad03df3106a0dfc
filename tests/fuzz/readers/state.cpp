// The input is the state.json of a checkpoint.
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "tests/fuzz/support.hpp"
#include "tests/fuzz/tiny_model.hpp"

namespace lockstep::fuzz {

namespace {

/// A trainer. The input replaces the state.json of its checkpoint.
struct Run {
  Run() { trainer.start(); }
  CpuContext context{{.threads = 1}};
  std::unique_ptr<comm::Communicator> grad = comm::LocalGroup(1).communicator(0);
  std::unique_ptr<comm::Communicator> control = comm::LocalGroup(1).communicator(0);
  Stream stream = Stream::host_inline();
  std::vector<float> numbers{1, 2, 3, 4};
  std::vector<std::int32_t> labels{0, 1};
  nn::MemoryDataset data{"two",
                         {{nn::StateField::values, TensorView(std::span(numbers), {2, 2})},
                          {nn::StateField::labels, TensorView(std::span(labels), {2})}}};
  nn::Trainer trainer{context,
                      {*grad, *control, stream},
                      tiny_model(),
                      {data, data},
                      {.global_batch = 1, .schedule = {.total_steps = 2}, .loader_workers = 0}};
};

bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

void check_same(const nn::CheckpointState& a, const nn::CheckpointState& b) {
  check(a.identity.model == b.identity.model && a.identity.seed == b.identity.seed &&
            a.identity.ranks == b.identity.ranks && a.identity.threads == b.identity.threads &&
            a.identity.global_batch == b.identity.global_batch && a.identity.options == b.identity.options &&
            a.identity.layers == b.identity.layers && a.identity.choices == b.identity.choices &&
            a.identity.buckets == b.identity.buckets,
        "another identity when it is read again");
  const nn::RunProgress& p = a.progress;
  const nn::RunProgress& q = b.progress;
  check(p.position.epoch == q.position.epoch && p.position.batch == q.position.batch &&
            p.position.step == q.position.step && p.position.skipped == q.position.skipped &&
            p.test_loss == q.test_loss && p.test_accuracy == q.test_accuracy && p.best_by == q.best_by &&
            p.best == q.best && p.samples_seen == q.samples_seen && p.metrics.size() == q.metrics.size(),
        "another progress when it is read again");
  for (const auto& [name, value] : p.metrics) {
    check(q.metrics.count(name) == 1 && same(value, q.metrics.at(name)), "another metric when it is read again");
  }
}

void check_ranges(const nn::CheckpointState& state) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  const nn::Position& at = state.progress.position;
  for (const std::int64_t number : {at.epoch, at.batch, at.step, at.skipped}) {
    check(number >= 0 && number <= kMost, "a position of ", number);
  }
  check(state.identity.ranks >= 1 && state.identity.threads >= 1, "no ranks or threads");
  const std::optional<double>& accuracy = state.progress.test_accuracy;
  check(!accuracy || (*accuracy >= 0 && *accuracy <= 1), "an accuracy of ", accuracy.value_or(0));
  const std::optional<double>& best = state.progress.best;
  check(state.progress.best_by != "test_accuracy" || !best || (*best >= 0 && *best <= 1), "a best of ",
        best.value_or(0));
  for (const double seen : state.progress.samples_seen) {
    check(seen >= 0 && seen <= 0x1p53, seen, " samples seen");
  }
}

}  // namespace

void state(Input input) {
  static Run run;
  folder().clear();
  std::filesystem::create_directory(folder() / "last");
  folder().put("last/state.json", text_of(input));
  nn::CheckpointState state;
  if (!accepts<DataError>([&] { state = nn::read_checkpoint_state(folder() / "last"); })) {
    return;
  }
  check_ranges(state);
  nn::save_checkpoint(folder() / "again", run.trainer, *run.control, state.identity, state.progress);
  check_same(nn::read_checkpoint_state(folder() / "again"), state);
}

}  // namespace lockstep::fuzz
