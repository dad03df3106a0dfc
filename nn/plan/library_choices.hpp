#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/nn/plan/plan.hpp>

/// Which algorithm of which library computes each convolution and matrix product of a model, in training and in
/// evaluation: candidates are timed on real buffers, and what was fastest is kept in a file. What comes out are Choices
/// for PlanOptions, which the trainer compares over the ranks and checkpoints keep.
namespace lockstep::nn {

/// What one planned call computes. Equal descriptions are timed once.
struct ConvCall {
  ops::ConvDesc desc;
  ops::ConvPass pass;
};
using LibraryCall = std::variant<ConvCall, ops::MatmulDesc>;
/// Everything that a choice depends on: "conv2d forward f32 64x32x32x16 kernel 3x3x16 ...". The key in the file.
[[nodiscard]] std::string describe(const LibraryCall& call);

/// Seconds of one run() on the context, which may only enqueue. `choice` is what runs.
using CallTimer = std::function<double(Context& context, const std::string& choice, const std::function<void()>& run)>;
/// By events on a GPU, by the clock around run() and synchronize() on the host.
[[nodiscard]] double time_call(Context& context, const std::string& choice, const std::function<void()>& run);

struct ChoiceOptions {
  std::size_t workspace_limit = std::size_t{1} << 30;  ///< bytes of one call; what needs more is not taken
  bool deterministic = false;                          ///< only what gives the same bits whenever it runs
  int runs = 5;                                        ///< timed after one to warm up; their median counts
  /// What was this much slower than the best so far when it warmed up is not run again.
  double give_up = 8;
  CallTimer timer = time_call;
};

/// A choice and how long it took.
struct TimedChoice {
  std::string choice;
  double seconds = 0;
  friend bool operator==(const TimedChoice&, const TimedChoice&) = default;
};

/// What was found out, by machine (choice_key()) and call (describe()).
using ChoiceTable = std::map<std::string, std::map<std::string, TimedChoice>>;

/// What the entries of a table hold for: versions of the libraries, name of the device, threads on the host, and what
/// of the options rules candidates out.
[[nodiscard]] std::string choice_key(Context& context, const ChoiceOptions& options);

[[nodiscard]] std::string choices_text(const ChoiceTable& table);  ///< as JSON
/// DataError naming source and place when the text is no such JSON, of another version or damaged.
[[nodiscard]] ChoiceTable parse_choices(const std::string& text, const std::string& source);

struct ChoiceReport {
  int calls = 0;       ///< library calls of the model
  int distinct = 0;    ///< of different descriptions
  int timed = 0;       ///< of those, not found in the table
  double seconds = 0;  ///< spent
  /// Candidates that a library offered and then refused: "conv2d forward ...: cudnn:...: why", a line each.
  std::vector<std::string> refused{};
};

/// Times the calls (Plan::library_plans(), MicrobatchPlans::library_plans()) that `table` says nothing about under
/// choice_key(), and adds what it finds there.
/// Returns a choice for every call. Inputs are random numbers; buffers for the largest call come from the context's
/// memory and go back. A candidate that its library refuses to plan or to run, or that
/// finds no memory, is left out; a CudaError ends it all. UsageError naming the call,
/// the limit and the least that is needed, when no candidate is left. Waits for the context's stream.
[[nodiscard]] Choices choose_libraries(Context& context, const std::vector<LibraryPlan>& plans,
                                       const ChoiceOptions& options, ChoiceTable& table,
                                       ChoiceReport* report = nullptr);

/// Collective: rank 0 does that for all, with the table in `file` (empty: none), which need not exist and is replaced
/// when something was added; every rank returns rank 0's choices. What goes wrong on rank 0 is thrown on every rank
/// with one text (comm/error.hpp), bad input as UsageError. plans, context and file are used on rank 0 alone.
[[nodiscard]] Choices choose_libraries(comm::Communicator& control, Context& context,
                                       const std::vector<LibraryPlan>& plans, const ChoiceOptions& options,
                                       const std::string& file, ChoiceReport* report = nullptr);

}  // namespace lockstep::nn
