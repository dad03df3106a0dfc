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
/// evaluation. choose_libraries() times the candidates on the device, and can store the fastest in a file. The results
/// are Choices for PlanOptions. The trainer requires that all ranks have the same Choices, and checkpoints store the
/// Choices.
namespace lockstep::nn {

/// Description of a convolution or matrix product that a plan calls. Calls with equal descriptions are timed once.
using LibraryCall = std::variant<ops::ConvCall, ops::MatmulDesc>;
/// Returns a text with all properties of a call on which a choice depends: "conv2d forward f32 batch 64 in 32x32x16
/// kernel 3x3x16 ...". The text is the call's key in the file.
[[nodiscard]] std::string describe(const LibraryCall& call);

/// Function that calls run() once on `context` and returns the seconds that the enqueued work took. run() itself only
/// enqueues the work. `choice` is the candidate that run() uses.
using CallTimer = std::function<double(Context& context, const std::string& choice, const std::function<void()>& run)>;
/// Returns the default timer. On the host it measures run() and synchronize() with a clock. On a GPU it measures with
/// two events, after a copy of 128 MB. The copy evicts the operands from the L2 cache, as other calls of a step would
/// do. The copy also keeps the GPU busy while the host submits the run, so that the events measure only the GPU's work.
[[nodiscard]] CallTimer call_timer(Context& context);

/// Function that choose_libraries() calls after each timed call. `timed` is the number of calls timed so far, `of` the
/// number of calls to time, and `seconds` the time since the search began.
using ChoiceProgress = std::function<void(int timed, int of, double seconds)>;

struct ChoiceOptions {
  std::size_t workspace_limit = std::size_t{1} << 30;  ///< largest workspace of a candidate, in bytes
  bool deterministic = false;                          ///< true: use only candidates that always give the same bits
  ops::Engines engines = ops::Engines::all;            ///< engines of convolutions to try
  int runs = 5;  ///< number of timed runs after one warm-up; the median is the candidate's time
  /// A candidate is not timed if its warm-up takes more than give_up times the best time so far.
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
/// Reads the JSON that choices_text() writes. Throws DataError for text of another form or version, and for damaged
/// text. The error text names `source` and the position in the text.
[[nodiscard]] ChoiceTable parse_choices(const std::string& text, const std::string& source);

struct ChoiceReport {
  int calls = 0;       ///< number of library calls in the model's plans
  int distinct = 0;    ///< number of different texts of describe() among these calls
  int timed = 0;       ///< number of different texts that were timed, because `table` had no usable choice
  double seconds = 0;  ///< time of the whole search
  /// Errors, one line each: "conv2d forward ...: cudnn:...: why". A line is about a candidate that a library offered
  /// and then refused, or about a library that could not list its candidates.
  std::vector<std::string> refused{};
};

/// Returns the library calls of a model's plans (MicrobatchPlans). These plans use our own kernels, so no library needs
/// to run for this list.
[[nodiscard]] std::vector<LibraryPlan> library_calls(Context& context, const Model& model, std::int64_t batch,
                                                     std::int64_t microbatches, PlanOptions options);

/// Prepares, on several threads (ops::prepare_conv2d()), the library's plans of all calls for which `choices` has a
/// choice. The constructors of the model's plans then take little time.
void prepare_choices(Context& context, const std::vector<LibraryPlan>& calls, const Choices& choices);

/// Returns a choice for every call of `plans`, which must come from library_calls() or Plan::library_plans(). If
/// `table` has a choice for a call under choice_key(), and the choice can be planned here, the result has this choice.
/// The function times the candidates of each remaining call, one after the other, and takes the fastest. It adds each
/// choice that it has timed to `table` before it calls options.progress.
///
/// The inputs of timed calls are random numbers. Their memory comes from the context and is freed at the end. Up to 12
/// threads, at most one per processor, prepare the candidates of the next calls (ops::prepare_conv2d()). Waits for the
/// context's stream.
///
/// A candidate is skipped if its library refuses to plan or run it, or if there is no memory for its workspace. If
/// every candidate of a call is skipped, throws UsageError with the call, the workspace limit and the smallest
/// workspace needed. A CudaError ends the search.
[[nodiscard]] Choices choose_libraries(Context& context, const std::vector<LibraryPlan>& plans,
                                       const ChoiceOptions& options, ChoiceTable& table,
                                       ChoiceReport* report = nullptr);

/// Collective: rank 0 chooses, and every rank returns the choices of rank 0. `file` is the path of the table's file,
/// which need not exist. If the path is empty, no file is used. The file is replaced after every timed call, so that a
/// later search can continue from it. An error on rank 0 is thrown on every rank with the same text (comm/error.hpp);
/// bad input causes UsageError. Only rank 0 uses plans, context and file.
[[nodiscard]] Choices choose_libraries(comm::Communicator& control, Context& context,
                                       const std::vector<LibraryPlan>& plans, const ChoiceOptions& options,
                                       const std::string& file, ChoiceReport* report = nullptr);

}  // namespace lockstep::nn
