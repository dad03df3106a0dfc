// Tests how a library is chosen for each call. A clock with fixed times replaces measurements. Also tests the file of
// choices, and that two ranks agree on their choices.
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/library_choices.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan/microbatch_plans.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds, testing::get_file, testing::put_file;

constexpr std::int64_t kBatch = 2;

struct Fixture {
  CpuContext context{{.threads = 1}};
  Model model = cifar_resnet(8, 10, 8, 8);
  Plan plan{context, model, Mode::train, kBatch};
  ChoiceTable table;
  ChoiceReport report;
  Choices choose(const ChoiceOptions& options) {
    return choose_libraries(context, plan.library_plans(), options, table, &report);
  }
};

/// A clock that returns 1 s for choices that `is_fast` accepts and 2 s for others. It also runs the call.
struct Clock {
  std::function<bool(const std::string& choice)> is_fast;
  std::map<std::string, int> runs;
  CallTimer timer() {
    return [this](Context&, const std::string& choice, const std::function<void()>& run) {
      run();
      ++runs[choice];
      return is_fast(choice) ? 1.0 : 2.0;
    };
  }
};

std::vector<std::string> candidates_of(Context& context, const LibraryPlan& library) {
  if (const auto* conv = std::get_if<std::shared_ptr<const ops::ConvPlan>>(&library.plan)) {
    return ops::conv2d_choices(context, (*conv)->desc(), (*conv)->pass());
  }
  return ops::matmul_choices(context, std::get<std::shared_ptr<const ops::MatmulPlan>>(library.plan)->desc());
}

std::size_t workspace_of(Context& context, const LibraryPlan& library, const std::string& choice) {
  if (const auto* conv = std::get_if<std::shared_ptr<const ops::ConvPlan>>(&library.plan)) {
    return ops::plan_conv2d(context, (*conv)->desc(), (*conv)->pass(), choice)->workspace_bytes();
  }
  const ops::MatmulDesc& desc = std::get<std::shared_ptr<const ops::MatmulPlan>>(library.plan)->desc();
  return ops::plan_matmul(context, desc, choice)->workspace_bytes();
}

TEST(LibraryChoices, TheFasterOneIsTakenForEveryCallAndAPlanTakesIt) {
  for (const std::string fast : {"reference", "onednn"}) {
    Fixture f;
    Clock clock{.is_fast = [&](const std::string& choice) { return choice.starts_with(fast); }, .runs = {}};
    const Choices choices = f.choose({.timer = clock.timer()});
    ASSERT_EQ(choices.size(), f.plan.library_plans().size());
    for (const LibraryPlan& library : f.plan.library_plans()) {
      const std::vector<std::string> all = candidates_of(f.context, library);
      const bool there =
          std::any_of(all.begin(), all.end(), [&](const std::string& choice) { return choice.starts_with(fast); });
      EXPECT_EQ(choices.at(library.key).starts_with(fast), there) << library.key << ": " << choices.at(library.key);
    }
    EXPECT_EQ(f.report.calls, static_cast<int>(choices.size()));
    EXPECT_LT(f.report.distinct, f.report.calls) << "blocks of a stage are alike";
    EXPECT_EQ(f.report.timed, f.report.distinct);
    const Plan chosen(f.context, f.model, Mode::train, kBatch, {.choices = choices});
    EXPECT_EQ(chosen.choices(), choices);
  }
}

TEST(LibraryChoices, EqualCallsAreTimedOnceAndSlowOnesAreGivenUp) {
  Fixture f;
  int runs = 0;
  std::map<std::string, int> of;
  const CallTimer timer = [&](Context&, const std::string& choice, const std::function<void()>&) {
    ++runs;
    ++of[choice];
    return choice == "reference" ? 90.0 : 10.0;
  };
  static_cast<void>(f.choose({.runs = 3, .give_up = 8, .timer = timer}));
  // The reference is slow and the last candidate. If a call has other candidates, the reference gets one run and is
  // then given up. If it is the only candidate, it gets all four runs. Equal calls are timed once.
  EXPECT_LT(f.report.distinct, f.report.calls) << "blocks of a stage are alike";
  EXPECT_EQ(of["reference"], (of.size() > 1 ? 1 : 4) * f.report.distinct);
  EXPECT_EQ((runs - of["reference"]) % 4, 0) << "one to warm up and three that count";
}

TEST(LibraryChoices, ARefusedCandidateIsLeftOutAndAnErrorOfTheDeviceIsNot) {
  Fixture f;
  const CallTimer refuses = [](Context&, const std::string& choice, const std::function<void()>&) -> double {
    if (choice != "reference") {
      throw Error("status 7");
    }
    return 1;
  };
  const Choices choices = f.choose({.timer = refuses});
  std::size_t others = 0;
  for (const LibraryPlan& library : f.plan.library_plans()) {
    EXPECT_EQ(choices.at(library.key), "reference");
    others += candidates_of(f.context, library).size() - 1;
  }
  EXPECT_EQ(f.report.refused.empty(), others == 0);
  for (const std::string& line : f.report.refused) {
    EXPECT_TRUE(line.starts_with("conv2d ") || line.starts_with("matmul ")) << line;
    EXPECT_TRUE(line.ends_with(": status 7")) << line;
  }
  f.table.clear();
  const CallTimer refuses_all = [](Context&, const std::string&, const std::function<void()>&) -> double {
    throw UnsupportedError("status 8");
  };
  expect_holds(error_of<UsageError>([&] { (void)f.choose({.timer = refuses_all}); }), "status 8");
  const CallTimer breaks = [](Context&, const std::string&, const std::function<void()>&) -> double {
    throw CudaError("an illegal memory access was encountered");
  };
  EXPECT_THROW((void)f.choose({.timer = breaks}), CudaError);
}

TEST(LibraryChoices, TheMedianCounts) {
  Fixture f;
  // The first candidate takes 2 s, except 50 s in one run. All other candidates take 3 s, except 0.5 s in one run. The
  // median must decide, so the first candidate must be chosen.
  std::map<std::string, int> turn;
  std::string first;
  const CallTimer timer = [&](Context&, const std::string& choice, const std::function<void()>&) {
    first = first.empty() ? choice : first;
    const int n = turn[choice]++ % 6;
    return choice == first ? (n == 3 ? 50.0 : 2.0) : (n == 3 ? 0.5 : 3.0);
  };
  const Model model = mlp(Shape{4, 4, 4}, {}, 3);
  const Plan plan(f.context, model, Mode::evaluate, kBatch);
  ASSERT_EQ(plan.library_plans().size(), 1U);
  ChoiceTable table;
  const Choices choices = choose_libraries(f.context, plan.library_plans(), {.runs = 5, .timer = timer}, table);
  EXPECT_EQ(choices.begin()->second, first);
  EXPECT_EQ(table.begin()->second.begin()->second.seconds, 2.0);
}

TEST(LibraryChoices, TheWorkspaceIsCapped) {
  Fixture f;
  Clock clock{.is_fast = [](const std::string&) { return true; }, .runs = {}};
  std::size_t most_of_least = 0;  // smallest limit of the workspace with which every call has a choice
  for (const LibraryPlan& library : f.plan.library_plans()) {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const std::string& choice : candidates_of(f.context, library)) {
      least = std::min(least, workspace_of(f.context, library, choice));
    }
    most_of_least = std::max(most_of_least, least);
  }
  const ChoiceOptions tight{.workspace_limit = most_of_least, .timer = clock.timer()};
  const Choices choices = f.choose(tight);
  const Plan chosen(f.context, f.model, Mode::train, kBatch, {.choices = choices});
  for (const LibraryPlan& library : chosen.library_plans()) {
    EXPECT_LE(workspace_of(f.context, library, choices.at(library.key)), most_of_least) << library.key;
  }
  if (most_of_least > 0) {
    const ChoiceOptions none{.workspace_limit = most_of_least - 1, .timer = clock.timer()};
    const auto text = error_of<UsageError>([&] { (void)f.choose(none); });
    expect_holds(text, "expected room for the least, " + std::to_string(most_of_least));
  }
  EXPECT_NE(choice_key(f.context, {.engines = ops::Engines::precompiled}), choice_key(f.context, {}));
  // A choice under one limit says nothing about other limits, so each limit has its own key.
  EXPECT_NE(choice_key(f.context, tight), choice_key(f.context, {}));
}

TEST(LibraryChoices, WhatIsKnownIsNotTimedAgain) {
  Fixture f;
  Clock clock{.is_fast = [](const std::string&) { return true; }, .runs = {}};
  const ChoiceOptions options{.timer = clock.timer()};
  f.table["another machine"] = {{"conv2d x", {.choice = "z", .seconds = 1}}};
  const Choices first = f.choose(options);
  EXPECT_EQ(f.table.size(), 2U);
  clock.runs.clear();
  EXPECT_EQ(f.choose(options), first);
  EXPECT_TRUE(clock.runs.empty());
  EXPECT_EQ(f.report.timed, 0);
  auto& known = f.table.at(choice_key(f.context, options));
  known.erase(known.begin());
  EXPECT_EQ(f.choose(options), first);
  EXPECT_EQ(f.report.timed, 1);
  // If the stored choice of a call names a library that this build lacks, the call must be timed again.
  known.begin()->second.choice = "cudnn:eng1";
  EXPECT_EQ(f.choose(options), first);
  EXPECT_EQ(f.report.timed, 1);
  ASSERT_EQ(f.report.refused.size(), 1U);
  expect_holds(f.report.refused[0], ": cudnn:eng1: ");
  CpuContext other({.threads = 2});
  EXPECT_NE(choice_key(other, options), choice_key(f.context, options));
}

TEST(LibraryChoices, ADescriptionHasAllThatAChoiceDependsOn) {
  std::set<std::string> seen;
  int count = 0;
  const auto conv = [&](const auto& change, ops::ConvPass pass = ops::ConvPass::forward) {
    ops::ConvCall call{.desc = {.in_size = {8, 8, 1}, .kernel = {3, 3, 1}}, .pass = pass};
    change(call.desc);
    seen.insert(describe(call));
    ++count;
  };
  conv([](ops::ConvDesc&) {});
  conv([](ops::ConvDesc&) {}, ops::ConvPass::backward_data);
  conv([](ops::ConvDesc&) {}, ops::ConvPass::backward_weights);
  conv([](ops::ConvDesc& d) { d.spatial_rank = 3; });
  conv([](ops::ConvDesc& d) { d.dtype = DType::bf16; });
  conv([](ops::ConvDesc& d) { d.batch = 2; });
  conv([](ops::ConvDesc& d) { d.in_channels = 2; });
  conv([](ops::ConvDesc& d) { d.out_channels = 2; });
  conv([](ops::ConvDesc& d) { d.in_size[1] = 9; });
  conv([](ops::ConvDesc& d) { d.kernel[1] = 1; });
  conv([](ops::ConvDesc& d) { d.stride[0] = 2; });
  conv([](ops::ConvDesc& d) { d.pad_before[1] = 1; });
  conv([](ops::ConvDesc& d) { d.pad_after[1] = 1; });
  conv([](ops::ConvDesc& d) { d.dilation[1] = 2; });
  conv([](ops::ConvDesc& d) { d.groups = 2; });
  conv([](ops::ConvDesc& d) { d.pad_mode = ops::PadMode::circular; });
  conv([](ops::ConvDesc& d) { d.bias = true; });
  conv([](ops::ConvDesc& d) { d.grad_mode = ops::GradMode::accumulate; });
  conv([](ops::ConvDesc& d) { d.tf32 = true; });
  const auto matmul = [&](const ops::MatmulDesc& desc) {
    seen.insert(describe(desc));
    ++count;
  };
  matmul({});
  matmul({.dtype = DType::f16});
  matmul({.batch = 1});
  matmul({.m = 2});
  matmul({.n = 2});
  matmul({.k = 2});
  matmul({.transpose_a = true});
  matmul({.transpose_b = true});
  matmul({.bias = true});
  matmul({.activation = ops::Activation::relu});
  matmul({.activation = ops::Activation::gelu});
  matmul({.grad_mode = ops::GradMode::accumulate});
  matmul({.accumulator_output = true});
  matmul({.tf32 = true});
  EXPECT_EQ(static_cast<int>(seen.size()), count);
}

TEST(LibraryChoices, TheFileComesBackAsItWas) {
  const ChoiceTable table{{"a; b", {{"conv2d x", {.choice = "onednn:nhwc", .seconds = 1.5e-5}}}},
                          {"c", {{"matmul y", {.choice = "reference", .seconds = 0}}}}};
  EXPECT_EQ(parse_choices(choices_text(table), "file"), table);
  EXPECT_EQ(parse_choices(choices_text({}), "file"), ChoiceTable{});
}

TEST(LibraryChoices, WrongFilesAreNamed) {
  const auto refused = [](const std::string& text, const std::string& part) {
    const std::string what = error_of<DataError>([&] { (void)parse_choices(text, "my.json"); });
    expect_holds(what, "my.json");
    expect_holds(what, part);
  };
  const std::string good = choices_text({{"k", {{"c", {.choice = "x", .seconds = 1}}}}});
  refused(good.substr(0, good.size() / 2), "");
  refused("[]", "expected");
  refused(R"({"format": "other", "version": 1, "machines": {}})", "'other'");
  refused(R"({"format": "lockstep-choices", "version": 2, "machines": {}})", "'version' is 2, expected 1");
  refused(R"({"format": "lockstep-choices", "version": 1})", "machines");
  refused(R"({"format": "lockstep-choices", "version": 1, "machines": {"k": 3}})", "expected an object");
  refused(R"({"format": "lockstep-choices", "version": 1, "machines": {"k": {"c": {"seconds": 1}}}})", "choice");
  refused(R"({"format": "lockstep-choices", "version": 1, "machines": {"k": {"c": {"choice": "x", "seconds": -1}}}})",
          "at least 0");
  refused(R"({"format": "lockstep-choices", "version": 1, "machines": {"k": {"c": {"choice": "", "seconds": 1}}}})",
          "expected a name");
}

TEST(LibraryChoices, AllRanksGetTheChoicesOfRank0) {
  const testing::TemporaryFolder folder;
  const std::string file = folder / "choices.json";
  std::vector<Choices> got(2);
  std::vector<int> runs(2);
  const auto body = [&](comm::Communicator& control) {
    const auto rank = static_cast<std::size_t>(control.rank());
    Fixture f;
    // The two ranks find different choices fastest. They must agree on one choice.
    Clock clock{.is_fast = [&](const std::string& choice) { return choice.starts_with("ref") == (rank == 0); },
                .runs = {}};
    got[rank] = choose_libraries(control, f.context, f.plan.library_plans(), {.timer = clock.timer()}, file);
    for (const auto& [choice, count] : clock.runs) {
      runs[rank] += count;
    }
  };
  comm::on_ranks(2, body);
  EXPECT_EQ(got[0], got[1]);
  EXPECT_GT(runs[0], 0);
  EXPECT_EQ(runs[1], 0);
  for (const auto& [key, choice] : got[0]) {
    EXPECT_TRUE(choice.starts_with("reference")) << key << ' ' << choice;
  }
  // The next run takes the choices from the file, and does not change the file.
  const std::string text = get_file(file);
  runs = {0, 0};
  const std::vector<Choices> before = got;
  comm::on_ranks(2, body);
  EXPECT_EQ(got, before);
  EXPECT_EQ(runs[0], 0);
  EXPECT_EQ(get_file(file), text);
  // Rank 0 finds a damaged file. Its error must end all ranks.
  put_file(file, text.substr(0, text.size() / 2));
  const std::vector<std::string> failures = comm::run_ranks(2, body);
  expect_holds(failures[0], file);
  EXPECT_EQ(failures[0], failures[1]);
}

TEST(LibraryChoices, ASearchThatIsKilledKeepsWhatItTimed) {
  const testing::TemporaryFolder folder;
  const std::string file = folder / "choices.json";
  constexpr int kTimed = 3;
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    Fixture own;
    int calls = 0;
    ChoiceOptions options;
    options.timer = [&](Context&, const std::string&, const std::function<void()>&) -> double {
      if (calls == kTimed) {
        kill(getpid(), SIGKILL);
      }
      return 1;
    };
    options.progress = [&](int timed, int, double) { calls = timed; };
    (void)comm::run_ranks(1, [&](comm::Communicator& control) {
      (void)choose_libraries(control, own.context, own.plan.library_plans(), options, file);
    });
    _exit(0);  // not reached: the process is killed
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  const ChoiceTable kept = parse_choices(get_file(file), file);
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_EQ(kept.begin()->second.size(), static_cast<std::size_t>(kTimed));
  // The next run times the calls that have no choice yet.
  Fixture again;
  ChoiceReport report;
  std::vector<std::pair<int, int>> told;
  ChoiceOptions options;
  options.timer = [](Context&, const std::string&, const std::function<void()>&) { return 1.0; };
  options.progress = [&](int timed, int of, double seconds) {
    told.emplace_back(timed, of);
    EXPECT_GE(seconds, 0);
  };
  comm::on_ranks(1, [&](comm::Communicator& control) {
    (void)choose_libraries(control, again.context, again.plan.library_plans(), options, file, &report);
  });
  EXPECT_EQ(report.timed, report.distinct - kTimed);
  ASSERT_EQ(told.size(), static_cast<std::size_t>(report.timed));
  EXPECT_EQ(told.front(), std::pair(1, report.timed));
  EXPECT_EQ(told.back(), std::pair(report.timed, report.timed));
}

TEST(LibraryChoices, CallsAreFoundWithoutAskingALibrary) {
  Fixture f;
  const auto described = [](const std::vector<LibraryPlan>& plans, bool own) {
    std::map<std::string, std::string> calls;
    for (const LibraryPlan& library : plans) {
      calls[library.key] = std::visit(
          [own](const auto& plan) {
            EXPECT_TRUE(!own || plan->choice() == "reference") << plan->choice();
            if constexpr (requires { plan->pass(); }) {
              return describe(ops::ConvCall{plan->desc(), plan->pass()});
            } else {
              return describe(plan->desc());
            }
          },
          library.plan);
    }
    return calls;
  };
  EXPECT_EQ(described(library_calls(f.context, f.model, kBatch, 2, {}), true),
            described(MicrobatchPlans(f.context, f.model, kBatch, 2, {}).library_plans(), false));
}

TEST(LibraryChoices, EveryPassOfARunGetsThem) {
  Fixture f;
  const MicrobatchPlans first(f.context, f.model, kBatch, 2, {});
  Clock clock{.is_fast = [](const std::string& choice) { return choice.starts_with("reference"); }, .runs = {}};
  ChoiceTable table;
  ChoiceReport report;
  Choices choices = choose_libraries(f.context, first.library_plans(), {.timer = clock.timer()}, table, &report);
  EXPECT_EQ(choices.size(), 2 * first.train.choices().size() + first.evaluate.choices().size());
  EXPECT_LT(report.distinct, report.calls);  // the three plans have the same forward calls
  for (const auto& [call, choice] : choices) {
    EXPECT_TRUE(choice.starts_with("reference")) << call << ' ' << choice;
  }
  const MicrobatchPlans chosen(f.context, f.model, kBatch, 2, {.choices = choices});
  EXPECT_EQ(chosen.choices(), choices);
  EXPECT_EQ(chosen.evaluate.choices().at("conv1 forward"), "reference");
  // A call of evaluation may have its own choice. If it has none, it must take the choice of training.
  if (LOCKSTEP_HAS_ONEDNN) {
    choices["conv1 forward evaluate"] = "onednn";
    choices.erase("fc forward evaluate");
    const MicrobatchPlans other(f.context, f.model, kBatch, 2, {.choices = choices});
    EXPECT_TRUE(other.evaluate.choices().at("conv1 forward").starts_with("onednn"));
    EXPECT_EQ(other.train.choices().at("conv1 forward"), "reference");
    EXPECT_EQ(other.evaluate.choices().at("fc forward"), "reference");
  }
}

// In evaluation, the activation is fused into the product. Training makes no such call, so this call needs a choice of
// its own.
TEST(LibraryChoices, ACallOfEvaluationAloneGetsOne) {
  Fixture f;
  ModelBuilder b("gelu", {24});
  b.linear("fc", b.linear("hidden", b.input(), 16, {.activation = ops::Activation::gelu_tanh}), 3);
  const Model model = b.build();
  const MicrobatchPlans first(f.context, model, kBatch, 1, {});
  const std::string call = "hidden forward gelu_tanh";
  ASSERT_FALSE(first.train.choices().contains(call));
  ASSERT_TRUE(first.evaluate.choices().contains(call));
  PlanOptions given{.choices = first.choices()};
  ASSERT_TRUE(given.choices.contains(call + kEvaluating));
  given.choices[call + kEvaluating] = "reference";
  const MicrobatchPlans chosen(f.context, model, kBatch, 1, given);
  EXPECT_EQ(chosen.evaluate.choices().at(call), "reference");
  EXPECT_EQ(chosen.choices(), given.choices);
}

TEST(LibraryChoices, TheClockOfTheHost) {
  Fixture f;
  ChoiceTable table;
  const Model model = mlp(Shape{4, 4, 4}, {8}, 3);
  const Plan plan(f.context, model, Mode::train, kBatch);
  const Choices choices = choose_libraries(f.context, plan.library_plans(), {.runs = 2}, table);
  EXPECT_EQ(choices.size(), plan.library_plans().size());
  for (const auto& [call, timed] : table.begin()->second) {
    EXPECT_GT(timed.seconds, 0) << call;
    EXPECT_LT(timed.seconds, 1) << call;
  }
  EXPECT_THROW((void)choose_libraries(f.context, plan.library_plans(), {.runs = 0}, table), UsageError);
}

}  // namespace
}  // namespace lockstep::nn
