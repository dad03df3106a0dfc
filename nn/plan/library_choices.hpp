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

/// Autotuning: chooses the library and algorithm of each convolution and matrix product of a model, for training and
/// evaluation. Candidates are timed on real buffers, and the fastest is stored in a file. The results are Choices for
/// PlanOptions, which the trainer compares over the ranks and which checkpoints keep.
namespace lockstep::nn {

/// The computation of one planned call. Calls with equal descriptions are timed once.
using LibraryCall = std::variant<ops::ConvCall, ops::MatmulDesc>;
/// Describes everything in a call that a choice depends on: "conv2d forward f32 batch 64 in 32x32x16 kernel 3x3x16
/// ...". The text is the call's key in the file.
[[nodiscard]] std::string describe(const LibraryCall& call);

/// Returns the seconds of one run() on the context; run() may only enqueue work. choice: the candidate that run() uses.
using CallTimer = std::function<double(Context& context, const std::string& choice, const std::function<void()>& run)>;
/// Returns the usual timer. On the host it is the clock around run() and synchronize(). On a GPU it uses events, after
/// a copy of 128 MB in the context's memory. Like other calls of a step, the copy leaves none of the operands in the L2
/// cache. It also keeps the GPU busy while the host submits the run, so that the events enclose the GPU's work alone.
[[nodiscard]] CallTimer call_timer(Context& context);

/// Progress of choose_libraries(), called after each call that was timed: number timed so far, number in all, seconds.
using ChoiceProgress = std::function<void(int timed, int of, double seconds)>;

struct ChoiceOptions {
  std::size_t workspace_limit = std::size_t{1} << 30;  ///< most bytes of workspace of a call's candidate
  bool deterministic = false;                          ///< use only candidates that always give the same bits
  ops::Engines engines = ops::Engines::all;            ///< engines of convolutions to try
  int runs = 5;                                        ///< timed runs after one warm-up; their median counts
  /// A candidate whose warm-up takes more than give_up times the best time so far is not timed.
  double give_up = 8;
  CallTimer timer = {};  ///< empty: call_timer()
  ChoiceProgress progress = {};
};

/// A choice and the time of its call.
struct TimedChoice {
  std::string choice;
  double seconds = 0;
  friend bool operator==(const TimedChoice&, const TimedChoice&) = default;
};

/// The results by machine (choice_key()) and call (describe()).
using ChoiceTable = std::map<std::string, std::map<std::string, TimedChoice>>;

/// Returns the machine's key in a table, a text of all that the entries depend on: versions of the libraries, name of
/// the device, threads on the host, and the options that exclude candidates.
[[nodiscard]] std::string choice_key(Context& context, const ChoiceOptions& options);

[[nodiscard]] std::string choices_text(const ChoiceTable& table);  ///< formats a table as JSON
/// Reads the JSON of choices_text(). Throws DataError, which names source and place, for other text, another version,
/// or damage.
[[nodiscard]] ChoiceTable parse_choices(const std::string& text, const std::string& source);

struct ChoiceReport {
  int calls = 0;       ///< number of library calls of the model
  int distinct = 0;    ///< number of different descriptions of these calls
  int timed = 0;       ///< number of descriptions that were timed, because the table lacked a usable choice
  double seconds = 0;  ///< time of the whole search
  /// Candidates that a library offered and then refused, or failed to list, one line each: "conv2d forward ...:
  /// cudnn:...: why".
  std::vector<std::string> refused{};
};

/// Returns the library calls of a model's plans (MicrobatchPlans). They are planned with our own kernels, without a
/// call to any library.
[[nodiscard]] std::vector<LibraryPlan> library_calls(Context& context, const Model& model, std::int64_t batch,
                                                     std::int64_t microbatches, PlanOptions options);

/// Prepares the choices of these calls, several at a time (ops::prepare_conv2d()), so that planning the model is quick.
/// A call without an entry in `choices` is left out.
void prepare_choices(Context& context, const std::vector<LibraryPlan>& calls, const Choices& choices);

/// Returns a choice for every call of library_calls() or Plan::library_plans(). A call is timed if `table` does not
/// have it under choice_key(), or has a choice that cannot be planned here. Calls are timed one after the other, and
/// each result is added to `table` before progress() is called.
///
/// Candidates are prepared ahead (ops::prepare_conv2d()), some calls at a time, by as many threads as the process has
/// processors, up to 12. Inputs are random numbers. Buffers for the largest call come from the context's memory and are
/// freed at the end. A candidate that its library refuses to plan or to run, or that finds no memory, is left out; a
/// CudaError ends the search. Throws UsageError, which names the call, the limit and the least workspace needed, when
/// no candidate is left. Waits for the context's stream.
[[nodiscard]] Choices choose_libraries(Context& context, const std::vector<LibraryPlan>& plans,
                                       const ChoiceOptions& options, ChoiceTable& table,
                                       ChoiceReport* report = nullptr);

/// Collective: rank 0 chooses for all ranks, and every rank returns the choices of rank 0. file: path of the table;
/// empty: none. The file need not exist. It is replaced after every call that was timed, so a search that was stopped
/// can continue. An error on rank 0 is thrown on every rank with the same text (comm/error.hpp), bad input as
/// UsageError. Only rank 0 uses plans, context and file.
[[nodiscard]] Choices choose_libraries(comm::Communicator& control, Context& context,
                                       const std::vector<LibraryPlan>& plans, const ChoiceOptions& options,
                                       const std::string& file, ChoiceReport* report = nullptr);

}  // namespace lockstep::nn
