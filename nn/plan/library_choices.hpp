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

/// Chooses the library and algorithm of each convolution and matrix product of a model, for training and evaluation:
/// candidates are timed on real buffers, and the fastest is stored in a file. The results are Choices for PlanOptions,
/// which the trainer compares over the ranks and checkpoints keep.
namespace lockstep::nn {

/// What one planned call computes. Equal descriptions are timed once.
using LibraryCall = std::variant<ops::ConvCall, ops::MatmulDesc>;
/// Everything that a choice depends on: "conv2d forward f32 64x32x32x16 kernel 3x3x16 ...". The key in the file.
[[nodiscard]] std::string describe(const LibraryCall& call);

/// The seconds of one run() on the context; run() may only enqueue. `choice` is the candidate.
using CallTimer = std::function<double(Context& context, const std::string& choice, const std::function<void()>& run)>;
/// On the host the clock around run() and synchronize(). On a GPU events, behind a copy of 128 MB in the context's
/// memory: the copy leaves nothing of the operands in the L2 cache, as other calls of a step do, and keeps the GPU busy
/// while the host submits, so that the events enclose the GPU's work alone.
[[nodiscard]] CallTimer call_timer(Context& context);

/// How far a choice is: called after each call that was timed.
using ChoiceProgress = std::function<void(int timed, int of, double seconds)>;

struct ChoiceOptions {
  std::size_t workspace_limit = std::size_t{1} << 30;  ///< bytes of one call; candidates that need more are not used
  bool deterministic = false;                          ///< only candidates that always give the same bits
  ops::Engines engines = ops::Engines::all;            ///< of convolutions
  int runs = 5;                                        ///< timed runs after one warm-up; their median counts
  /// A candidate whose warm-up is this many times slower than the best so far is not timed.
  double give_up = 8;
  CallTimer timer = {};  ///< empty: call_timer()
  ChoiceProgress progress = {};
};

/// A choice and how long it took.
struct TimedChoice {
  std::string choice;
  double seconds = 0;
  friend bool operator==(const TimedChoice&, const TimedChoice&) = default;
};

/// The results by machine (choice_key()) and call (describe()).
using ChoiceTable = std::map<std::string, std::map<std::string, TimedChoice>>;

/// What a table's entries depend on: versions of the libraries, name of the device, threads on the host, and the
/// options that exclude candidates.
[[nodiscard]] std::string choice_key(Context& context, const ChoiceOptions& options);

[[nodiscard]] std::string choices_text(const ChoiceTable& table);  ///< as JSON
/// DataError naming source and place when the text is not such JSON, has another version, or is damaged.
[[nodiscard]] ChoiceTable parse_choices(const std::string& text, const std::string& source);

struct ChoiceReport {
  int calls = 0;       ///< library calls of the model
  int distinct = 0;    ///< different descriptions among them
  int timed = 0;       ///< of these, the ones that were not in the table
  double seconds = 0;  ///< spent
  /// What a library offered and then refused, or failed to list, one line each: "conv2d forward ...: cudnn:...: why".
  std::vector<std::string> refused{};
};

/// The calls of a model's plans (MicrobatchPlans), planned with our own kernels: no library is asked for anything.
[[nodiscard]] std::vector<LibraryPlan> library_calls(Context& context, const Model& model, std::int64_t batch,
                                                     std::int64_t microbatches, PlanOptions options);

/// Makes the plans of these calls' choices ready, several at a time (ops::prepare_conv2d()), so that the plans of a
/// model find them. A call without an entry in `choices` is left out.
void prepare_choices(Context& context, const std::vector<LibraryPlan>& calls, const Choices& choices);

/// Returns a choice for every call. Calls (library_calls(), Plan::library_plans()) that `table` does not have under
/// choice_key(), or has with a choice that cannot be planned here, are timed one after the other, and each is added to
/// `table` before progress() hears of it. Candidates are made ready ahead (ops::prepare_conv2d()), some calls at a
/// time, by as many threads as the process has processors, up to 12. Inputs are random numbers; buffers for the largest
/// call come from the context's memory and are given back. A candidate that its library refuses to plan or to run, or
/// that finds no memory, is left out; a CudaError ends the search. UsageError when no candidate is left, naming the
/// call, the limit and the least workspace needed. Waits for the context's stream.
[[nodiscard]] Choices choose_libraries(Context& context, const std::vector<LibraryPlan>& plans,
                                       const ChoiceOptions& options, ChoiceTable& table,
                                       ChoiceReport* report = nullptr);

/// Collective: rank 0 does so for all ranks and every rank returns its choices. `file` holds the table (empty: none);
/// it need not exist, and is replaced after every call that was timed: a search that is stopped goes on there. An error
/// on rank 0 is thrown on every rank with one text (comm/error.hpp), bad input as UsageError. plans, context and file
/// are used on rank 0 alone.
[[nodiscard]] Choices choose_libraries(comm::Communicator& control, Context& context,
                                       const std::vector<LibraryPlan>& plans, const ChoiceOptions& options,
                                       const std::string& file, ChoiceReport* report = nullptr);

}  // namespace lockstep::nn
