#include <lockstep/nn/plan/library_choices.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/kernels/library_versions.hpp>
#include <lockstep/nn/plan/detail/library_operands.hpp>
#include <lockstep/nn/plan/microbatch_plans.hpp>
#include <lockstep/nn/plan/norm_trial.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/processors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {
namespace {

constexpr const char* kFormat = "lockstep-choices";
constexpr int kVersion = 1;
constexpr int kMostThreads = 12;

std::string extents(const std::array<std::int64_t, 3>& values, int rank) {
  std::string text;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i) {
    text += concat(i == 0 ? "" : "x", values[i]);
  }
  return text;
}

const char* name_of(ops::ConvPass pass) {
  return pass == ops::ConvPass::forward         ? "forward"
         : pass == ops::ConvPass::backward_data ? "backward_data"
                                                : "backward_weights";
}

std::string grad_text(ops::GradMode mode) {
  return mode == ops::GradMode::accumulate ? " accumulate" : "";
}

std::string describe(const ops::ConvCall& call) {
  const ops::ConvDesc& d = call.desc;
  const int rank = d.spatial_rank;
  return concat("conv2d ", name_of(call.pass), ' ', d.dtype, d.tf32 ? " tf32" : "", " batch ", d.batch, " in ",
                extents(d.in_size, rank), 'x', d.in_channels, " kernel ", extents(d.kernel, rank), 'x', d.out_channels,
                " stride ", extents(d.stride, rank), " pad ", extents(d.pad_before, rank), '+',
                extents(d.pad_after, rank), d.pad_mode == ops::PadMode::circular ? " circular" : "", " dilation ",
                extents(d.dilation, rank), " groups ", d.groups, d.bias ? " bias" : "", grad_text(d.grad_mode),
                d.norm.wanted ? " beside a norm" : "", d.norm.addend ? " addend" : "", d.norm.pair ? " pair" : "");
}

std::string describe(const ops::MatmulDesc& d) {
  return concat("matmul ", d.dtype, d.tf32 ? " tf32" : "", " batch ", d.batch, ' ', d.m, 'x', d.n, 'x', d.k,
                d.transpose_a ? " a transposed" : "", d.transpose_b ? " b transposed" : "", d.bias ? " bias" : "",
                d.activation == ops::Activation::identity ? "" : concat(' ', ops::name_of(d.activation)),
                d.accumulator_output ? " accumulator" : "", grad_text(d.grad_mode));
}

using Operands = LibraryOperands;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::size_t bytes_of(const TensorView& view) {
  return view.shape.rank() == 0 && !view.given() ? 0 : view.bytes();
}

/// Memory for one operand, which all timed calls share. The memory has the size that the largest call needs.
class Arena {
 public:
  void need(const TensorView& view) { bytes_ = std::max(bytes_, bytes_of(view)); }

  /// Fills the memory with random 16-bit numbers in [0, 1). A call with a wider type reads the same bits as small,
  /// finite numbers.
  void fill(Context& context, std::uint64_t seed) {
    memory_ = small_random_numbers(context, static_cast<std::int64_t>((bytes_ + 7) / 8 * 4), seed);
  }

  [[nodiscard]] TensorView at(const TensorView& prototype) const {
    return bytes_of(prototype) == 0
               ? TensorView()
               : TensorView(memory_.view().data, prototype.dtype, prototype.device, prototype.shape);
  }

 private:
  std::size_t bytes_ = 0;
  Tensor memory_;
};

struct Arenas {
  Arena a, b, bias, out;
  [[nodiscard]] Operands at(const Operands& o) const { return {a.at(o.a), b.at(o.b), bias.at(o.bias), out.at(o.out)}; }
};

/// A candidate for a library call, with its plan.
struct Candidate {
  std::shared_ptr<const void> plan;
  std::string choice;
  std::size_t workspace_bytes = 0;
  bool deterministic = false;
  std::function<void(const Operands&, const TensorView& workspace)> run;
  /// Compares the convolution's results with those of a convolution that does not compute the norm's sums
  /// (NormTrial::check()). If no batch norm follows or precedes the convolution, this function is empty.
  std::function<void(const Operands&, const TensorView& workspace)> check{};
};

template <class Plan>
Candidate candidate_of(Context& context, std::shared_ptr<const Plan> plan) {
  return {.plan = plan,
          .choice = plan->choice(),
          .workspace_bytes = plan->workspace_bytes(),
          .deterministic = plan->deterministic(),
          .run = [&context, plan](const Operands& o, const TensorView& w) { enqueue(context, *plan, o, w); }};
}

Candidate plan_candidate(Context& context, const LibraryCall& call, const std::string& choice, NormTrial* norm) {
  const auto* const conv = std::get_if<ops::ConvCall>(&call);
  if (conv == nullptr) {
    return candidate_of<ops::MatmulPlan>(context, ops::plan_matmul(context, std::get<ops::MatmulDesc>(call), choice));
  }
  const std::shared_ptr<const ops::ConvPlan> plan = ops::plan_conv2d(context, conv->desc, conv->pass, choice);
  Candidate candidate = candidate_of(context, plan);
  if (norm != nullptr) {
    candidate.run = [norm, plan](const Operands& o, const TensorView& w) { norm->run(*plan, {o.a, o.b, o.out, w}); };
  }
  if (norm != nullptr && (plan->serves_norm() || !norm->checks())) {
    candidate.check = [norm, plan](const Operands& o, const TensorView& w) {
      norm->check(*plan, {o.a, o.b, o.out, w});
    };
  }
  return candidate;
}

/// Returns the median time of a candidate's runs. Returns nullopt if the warm-up took more than options.give_up times
/// `best`, the best time so far.
std::optional<double> time_candidate(Context& context, const Candidate& candidate, const Operands& operands,
                                     const ChoiceOptions& options, double best) {
  const Buffer workspace(candidate.workspace_bytes, context);
  const TensorView workspace_view = candidate.workspace_bytes == 0
                                        ? TensorView()
                                        : TensorView(workspace.data(), DType::u8, context.device(),
                                                     Shape{static_cast<std::int64_t>(candidate.workspace_bytes)});
  const std::function<void()> run = [&] { candidate.run(operands, workspace_view); };
  std::vector<double> seconds;
  try {
    if (candidate.check) {
      candidate.check(operands, workspace_view);
    }
    const double first = options.timer(context, candidate.choice, run);
    if (first <= best * options.give_up) {
      for (int i = 0; i < options.runs; ++i) {
        seconds.push_back(options.timer(context, candidate.choice, run));
      }
    }
  } catch (const Error&) {
    context.synchronize();
    throw;
  }
  context.synchronize();  // the runs must end before the workspace is freed
  if (seconds.empty()) {
    return std::nullopt;
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

/// A timed choice and its plan. The shared pointer keeps the plan in the library's cache.
struct Chosen {
  TimedChoice timed;
  std::shared_ptr<const void> plan;
};

Chosen choose(Context& context, const LibraryCall& call, const Operands& operands, const ChoiceOptions& options,
              std::vector<std::string>& refused) {
  TimedChoice best{.choice = {}, .seconds = std::numeric_limits<double>::infinity()};
  std::shared_ptr<const void> best_plan;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  bool any_deterministic = false;
  std::string refusal;
  std::optional<NormTrial> norm;
  if (const auto* conv = std::get_if<ops::ConvCall>(&call); conv != nullptr && conv->desc.norm.wanted) {
    try {
      norm.emplace(context, conv->desc, conv->pass);
    } catch (const OutOfMemory& error) {
      refused.push_back(concat(nn::describe(call), ": what serves the norm cannot be compared: ", error.what()));
    }
  }
  std::vector<std::string> failures;
  const std::vector<std::string> all = choices_of(context, call, {.engines = options.engines, .refused = &failures});
  for (const std::string& failure : failures) {
    refused.push_back(concat(nn::describe(call), ": ", failure));
  }
  for (const std::string& choice : all) {
    if (!norm && choice.find(":norm") != std::string::npos) {  // without a NormTrial, the results cannot be checked
      continue;
    }
    try {
      const Candidate candidate = plan_candidate(context, call, choice, norm ? &*norm : nullptr);
      if (options.deterministic && !candidate.deterministic) {
        continue;
      }
      any_deterministic = true;
      least = std::min(least, candidate.workspace_bytes);
      if (candidate.workspace_bytes > options.workspace_limit) {
        continue;
      }
      const std::optional<double> seconds = time_candidate(context, candidate, operands, options, best.seconds);
      if (seconds && *seconds < best.seconds) {
        best = {.choice = candidate.choice, .seconds = *seconds};
        best_plan = candidate.plan;
      }
    } catch (const CudaError&) {
      throw;                        // no further candidate can run, because the device has failed
    } catch (const OutOfMemory&) {  // no memory for the candidate's workspace; tries the next candidate
    } catch (const Error& error) {  // the library offers the candidate, but cannot run it
      refused.push_back(concat(nn::describe(call), ": ", choice, ": ", error.what()));
      refusal = refusal.empty() ? concat("; ", choice, ": ", error.what()) : refusal;
    }
  }
  require<UsageError>(!best.choice.empty() || any_deterministic, "choices: ", nn::describe(call), " on ",
                      context.device(), " has no ", options.deterministic ? "deterministic " : "",
                      "candidate, expected at least one", refusal);
  require<UsageError>(!best.choice.empty(), "choices: ", nn::describe(call), " on ", context.device(),
                      ": every candidate needs more than the limit of ", options.workspace_limit,
                      " bytes of workspace, or than there are; expected room for the least, ", least, " bytes",
                      refusal);
  return {std::move(best), std::move(best_plan)};
}

/// Returns true if `choice` can be planned here. A choice from a file may be missing in another version of a library.
bool can_be_planned(Context& context, const LibraryCall& call, const std::string& choice,
                    std::vector<std::string>& refused) {
  try {
    (void)plan_candidate(context, call, choice, nullptr);
    return true;
  } catch (const CudaError&) {
    throw;
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) {
    refused.push_back(concat(nn::describe(call), ": ", choice, ": ", error.what()));
    return false;
  }
}

int planning_threads() {
  return std::clamp(ProcessorSet::of_process().count(), 1, kMostThreads);
}

/// Times the candidates of every call, and stores the fastest in `known`. After each call, options.progress gets the
/// seconds since `begin`.
void choose_all(Context& context, const std::map<std::string, LibraryCall>& calls, const ChoiceOptions& options,
                std::chrono::steady_clock::time_point begin, std::map<std::string, TimedChoice>& known,
                std::vector<std::string>& refused) {
  std::map<std::string, Operands> operands;
  Arenas arenas;
  for (const auto& [text, call] : calls) {
    const Operands o = operands_of(call, context.device());
    arenas.a.need(o.a);
    arenas.b.need(o.b);
    arenas.bias.need(o.bias);
    arenas.out.need(o.out);
    operands.emplace(text, o);
  }
  std::uint64_t seed = 1;
  for (Arena* arena : {&arenas.a, &arenas.b, &arenas.bias, &arenas.out}) {
    arena->fill(context, seed++);
  }
  // Plans of the fastest choices, kept alive because prepare_conv2d() drops unused plans.
  std::vector<std::shared_ptr<const void>> chosen;
  const int threads = planning_threads();
  int timed = 0;
  for (auto next = calls.begin(); next != calls.end();) {
    // Prepares two calls per thread at a time. With more than one call per thread, no thread waits long for the last
    // plan. With only two, the rejected plans take little memory.
    std::vector<ops::ConvCall> ahead;
    auto end = next;
    for (int i = 0; i < 2 * threads && end != calls.end(); ++i, ++end) {
      if (const auto* conv = std::get_if<ops::ConvCall>(&end->second)) {
        ahead.push_back(*conv);
      }
    }
    ops::prepare_conv2d(context, ahead, options.engines, threads);
    for (; next != end; ++next) {
      const auto& [text, call] = *next;
      Chosen one = choose(context, call, arenas.at(operands.at(text)), options, refused);
      known[text] = std::move(one.timed);
      chosen.push_back(std::move(one.plan));
      if (options.progress) {
        options.progress(++timed, static_cast<int>(calls.size()), seconds_since(begin));
      }
    }
  }
}

/// Returns the convolutions among the calls, each with its choice.
std::vector<ops::ConvCall> with_choices(const std::map<std::string, LibraryCall>& calls,
                                        const std::map<std::string, TimedChoice>& known) {
  std::vector<ops::ConvCall> all;
  for (const auto& [text, call] : calls) {
    if (const auto* conv = std::get_if<ops::ConvCall>(&call)) {
      all.push_back({conv->desc, conv->pass, known.at(text).choice});
    }
  }
  return all;
}

LibraryCall call_of(const LibraryPlan& library) {
  return std::visit([](const auto& planned) { return nn::call_of(*planned); }, library.plan);
}

std::string host_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (const std::size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "cpu";
}

/// Throws, on all ranks in the same way, the error that rank 0 has sent instead of choices.
[[noreturn]] void throw_together(const std::string& text, int code) {
  if (code == exit_code::kBadInput) {
    throw comm::CollectiveError<UsageError>(text);
  }
  throw comm::CollectiveError<Error>(text);
}

}  // namespace

std::string describe(const LibraryCall& call) {
  return std::visit([](const auto& one) { return describe(one); }, call);
}

CallTimer call_timer(Context& context) {
  if (context.device().kind == DeviceKind::cuda) {
    // Number of bytes that are copied: more than the L2 cache of an H200 (50 MB) holds. An H200 copies them in 60 us.
    constexpr std::int64_t kHalf = std::int64_t{128} << 20;
    const auto halves = std::make_shared<const Tensor>(Tensor::zeros(context, Shape{2, kHalf}, DType::u8));
    return [halves](Context& on, const std::string& /*choice*/, const std::function<void()>& run) {
      Event begin(on.device(), Event::Timing::on);
      Event end(on.device(), Event::Timing::on);
      copy(on, halves->view().slice(0, 0, 1), halves->view().slice(0, 1, 2));
      on.stream().record(begin);
      run();
      on.stream().record(end);
      end.synchronize();
      return end.seconds_since(begin);
    };
  }
  return [](Context& on, const std::string& /*choice*/, const std::function<void()>& run) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    on.synchronize();
    return seconds_since(begin);
  };
}

std::string choice_key(Context& context, const ChoiceOptions& options) {
  const auto* host = dynamic_cast<const CpuContext*>(&context);
  const std::string device = host != nullptr ? concat(host_name(), ", ", host->threads(), " threads")
                                             : list_gpus().at(static_cast<std::size_t>(context.device().index)).name;
  return concat(ops::library_versions(context.device().kind), "; ", device, "; workspace ", options.workspace_limit,
                options.deterministic ? "; deterministic" : "",
                options.engines == ops::Engines::precompiled ? "; precompiled" : "");
}

std::string choices_text(const ChoiceTable& table) {
  Json::Object machines;
  for (const auto& [key, calls] : table) {
    Json::Object entries;
    for (const auto& [call, timed] : calls) {
      entries[call] = Json::Object{{"choice", timed.choice}, {"seconds", timed.seconds}};
    }
    machines[key] = std::move(entries);
  }
  return Json(Json::Object{{"format", kFormat}, {"version", kVersion}, {"machines", std::move(machines)}}).text(2) +
         "\n";
}

ChoiceTable parse_choices(const std::string& text, const std::string& source) {
  const Json json = parse_json(text, source);
  const auto format = json.get<std::string>("format", source);
  require<DataError>(format == kFormat, source, ": 'format' is ", printable(format), ", expected '", kFormat, "'");
  const int version = json.get<int>("version", source);
  require<DataError>(version == kVersion, source, ": 'version' is ", version, ", expected ", kVersion);
  ChoiceTable table;
  for (const auto& [key, calls] : json.get<Json::Object>("machines", source)) {
    for (const auto& [call, entry] : calls.as<Json::Object>(concat(source, ": ", printable(key)))) {
      const std::string where = concat(source, ": ", printable(call));
      TimedChoice timed{.choice = entry.get<std::string>("choice", where),
                        .seconds = entry.get<double>("seconds", where)};
      require<DataError>(!timed.choice.empty() && std::isfinite(timed.seconds) && timed.seconds >= 0, where,
                         ": choice ", printable(timed.choice), " in ", timed.seconds,
                         " s, expected a name and a time of at least 0");
      table[key][call] = std::move(timed);
    }
  }
  return table;
}

std::vector<LibraryPlan> library_calls(Context& context, const Model& model, std::int64_t batch,
                                       std::int64_t microbatches, PlanOptions options) {
  options.choices = {};
  options.default_choice = own_kernels(context.device());
  return MicrobatchPlans(context, model, batch, microbatches, options).library_plans();
}

void prepare_choices(Context& context, const std::vector<LibraryPlan>& calls, const Choices& choices) {
  std::vector<ops::ConvCall> chosen;
  for (const LibraryPlan& library : calls) {
    const LibraryCall call = call_of(library);
    const auto found = choices.find(library.key);
    if (const auto* conv = std::get_if<ops::ConvCall>(&call); conv != nullptr && found != choices.end()) {
      chosen.push_back({conv->desc, conv->pass, found->second});
    }
  }
  ops::prepare_conv2d(context, chosen, ops::Engines::all, planning_threads());
}

Choices choose_libraries(Context& context, const std::vector<LibraryPlan>& plans, const ChoiceOptions& given,
                         ChoiceTable& table, ChoiceReport* report) {
  ChoiceOptions options = given;
  if (!options.timer) {
    options.timer = call_timer(context);
  }
  require<UsageError>(options.runs >= 1 && options.give_up >= 1, "choices: runs is ", options.runs, ", give_up ",
                      options.give_up, ", expected at least 1");
  const auto begin = std::chrono::steady_clock::now();
  std::map<std::string, TimedChoice>& known = table[choice_key(context, options)];
  std::map<std::string, LibraryCall> missing;
  std::map<std::string, LibraryCall> stored;
  std::map<std::string, std::string> of_call;  // maps a call's key in Choices to its description
  for (const LibraryPlan& library : plans) {
    const LibraryCall call = call_of(library);
    const std::string text = describe(call);
    of_call[library.key] = text;
    const auto found = known.find(text);
    (found == known.end() ? missing : stored).emplace(text, call);
  }
  std::vector<std::string> refused;
  ops::prepare_conv2d(context, with_choices(stored, known), options.engines, planning_threads());
  for (const auto& [text, call] : stored) {
    if (!can_be_planned(context, call, known.at(text).choice, refused)) {
      missing.emplace(text, call);
    }
  }
  if (!missing.empty()) {
    choose_all(context, missing, options, begin, known, refused);
  }
  Choices choices;
  std::map<std::string, int> distinct;
  for (const auto& [key, text] : of_call) {
    choices[key] = known.at(text).choice;
    ++distinct[text];
  }
  if (report != nullptr) {
    *report = {.calls = static_cast<int>(of_call.size()),
               .distinct = static_cast<int>(distinct.size()),
               .timed = static_cast<int>(missing.size()),
               .seconds = seconds_since(begin),
               .refused = std::move(refused)};
  }
  return choices;
}

Choices choose_libraries(comm::Communicator& control, Context& context, const std::vector<LibraryPlan>& plans,
                         const ChoiceOptions& options, const std::string& file, ChoiceReport* report) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  Json::Object message;
  if (control.rank() == 0) {
    try {
      ChoiceTable table;
      if (!file.empty() && file_exists(file)) {
        table = parse_choices(read_file(file, kMostBytes), file);
      }
      ChoiceOptions keeping = options;
      keeping.progress = [&](int timed, int of, double seconds) {
        if (!file.empty()) {
          replace_file(file, choices_text(table));
        }
        if (options.progress) {
          options.progress(timed, of, seconds);
        }
      };
      Json::Object chosen;
      for (const auto& [key, choice] : choose_libraries(context, plans, keeping, table, report)) {
        chosen[key] = choice;
      }
      message["choices"] = std::move(chosen);
    } catch (const Error& error) {
      message["error"] = error.what();
      message["code"] = error.code();
    } catch (const std::exception& error) {
      message["error"] = error.what();
      message["code"] = exit_code::kFailure;
    }
  }
  const std::string source = "rank 0's library choices";
  const Json received = parse_json(comm::broadcast_text(control, Json(std::move(message)).text()), source);
  if (received.has("error")) {
    throw_together(received.get<std::string>("error", source), received.get<int>("code", source));
  }
  Choices choices;
  for (const auto& [key, choice] : received.get<Json::Object>("choices", source)) {
    choices[key] = choice.as<std::string>(source);
  }
  return choices;
}

}  // namespace lockstep::nn
