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
/// evaluation. choose_libraries() times candidates on real buffers, and can store the fastest in a file. The results
/// are Choices for PlanOptions. The trainer requires that all ranks have the same Choices, and checkpoints store the
/// Choices.
namespace lockstep::nn {

/// Description of a convolution or matrix product that a plan calls. Calls with equal descriptions are timed once.
using LibraryCall = std::variant<ops::ConvCall, ops::MatmulDesc>;
/// Describes everything in a call on which a choice depends: "conv2d forward f32 batch 64 in 32x32x16 kernel 3x3x16
/// ...". The text is the call's key in the file.
[[nodiscard]] std::string describe(const LibraryCall& call);

/// Function that calls run() once on `context` and returns the seconds that this took. run() only enqueues work.
/// `choice` is the candidate that run() uses.
using CallTimer = std::function<double(Context& context, const std::string& choice, const std::function<void()>& run)>;
/// Returns the usual timer. On the host it uses the clock around run() and synchronize(). On a GPU it uses events,
/// after a copy of 128 MB in the context's memory. The copy removes the operands from the L2 cache, as other calls of a
/// step do. It also keeps the GPU busy while the host submits the run, so that the events enclose only the GPU's work.
[[nodiscard]] CallTimer call_timer(Context& context);

/// Function that choose_libraries() calls after each timed call. `timed` of `of` calls are then done, in `seconds` so
/// far.
using ChoiceProgress = std::function<void(int timed, int of, double seconds)>;

struct ChoiceOptions {
  std::size_t workspace_limit = std::size_t{1} << 30;  ///< largest workspace of a candidate, in bytes
  bool deterministic = false;                          ///< true: use only candidates that always give the same bits
  ops::Engines engines = ops::Engines::all;            ///< engines of convolutions to try
  int runs = 5;                                        ///< number of timed runs after one warm-up; their median counts
  /// Limit on a candidate's warm-up: if it takes more than give_up times the best time so far, the candidate is not
  /// timed.
  double give_up = 8;
  CallTimer timer = {};  ///< function that times a run; if empty, call_timer() is used
  ChoiceProgress progress = {};
};

/// The choice for a call, and the time that the call takes with this choice.
struct TimedChoice {
  std::string choice;
  double seconds = 0;
  friend bool operator==(const TimedChoice&, const TimedChoice&) = default;
};

/// Fastest choices, by machine (key: choice_key()) and then by call (key: describe()).
using ChoiceTable = std::map<std::string, std::map<std::string, TimedChoice>>;

/// Returns the machine's key in a table. The key names everything on which the choices of a machine depend: versions of
/// the libraries, name of the device, threads on the host, and the options that exclude candidates.
[[nodiscard]] std::string choice_key(Context& context, const ChoiceOptions& options);

[[nodiscard]] std::string choices_text(const ChoiceTable& table);  ///< formats a table as JSON
/// Reads the JSON of choices_text(). Throws DataError, whose text names `source` and the place, for text of another
/// form or version and for damaged text.
[[nodiscard]] ChoiceTable parse_choices(const std::string& text, const std::string& source);

struct ChoiceReport {
  int calls = 0;       ///< number of library calls of the model
  int distinct = 0;    ///< number of different descriptions of these calls
  int timed = 0;       ///< number of descriptions that were timed because the table lacked a usable choice
  double seconds = 0;  ///< time of the whole search
  /// Errors, one line each, of candidates that a library offered and then refused, or failed to list: "conv2d forward
  /// ...: cudnn:...: why".
  std::vector<std::string> refused{};
};

/// Returns the library calls of a model's plans (MicrobatchPlans). The plans are made with our own kernels, so no
/// library is called.
[[nodiscard]] std::vector<LibraryPlan> library_calls(Context& context, const Model& model, std::int64_t batch,
                                                     std::int64_t microbatches, PlanOptions options);

/// Prepares the plans of `calls` with their choices, several at a time (ops::prepare_conv2d()), so that planning the
/// model is quick. Does nothing for a call that `choices` lacks.
void prepare_choices(Context& context, const std::vector<LibraryPlan>& calls, const Choices& choices);

/// Returns a choice for every call of library_calls() or Plan::library_plans(). A call is timed if `table` lacks it
/// under choice_key(), or has a choice that cannot be planned here. Calls are timed one after the other. Each result is
/// added to `table` before progress() is called.
///
/// Candidates are prepared ahead (ops::prepare_conv2d()), some calls at a time, by as many threads as the process has
/// processors, up to 12. Inputs are random numbers. Buffers for the largest call come from the context's memory, and
/// are freed at the end. A candidate is left out if its library refuses to plan or run it, or if memory for its
/// workspace is lacking; a CudaError ends the search. If no candidate is left, throws UsageError with the call, the
/// limit and the least workspace needed. Waits for the context's stream.
[[nodiscard]] Choices choose_libraries(Context& context, const std::vector<LibraryPlan>& plans,
                                       const ChoiceOptions& options, ChoiceTable& table,
                                       ChoiceReport* report = nullptr);

/// Collective: rank 0 chooses for all ranks, and every rank returns the choices of rank 0. `file` is the path of the
/// table's file, which need not exist; if the path is empty, no file is used. The file is replaced after every timed
/// call, so that a stopped search can continue. An error on rank 0 is thrown on every rank with the same text
/// (comm/error.hpp), bad input as UsageError. Only rank 0 uses plans, context and file.
[[nodiscard]] Choices choose_libraries(comm::Communicator& control, Context& context,
                                       const std::vector<LibraryPlan>& plans, const ChoiceOptions& options,
                                       const std::string& file, ChoiceReport* report = nullptr);

}  // namespace lockstep::nn
