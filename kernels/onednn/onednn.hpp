#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dnnl.hpp>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/context/context.hpp>

/// Code that the oneDNN providers share. Only onednn.cpp treats the differences between oneDNN 2 and 3.
namespace lockstep::ops::onednn {

/// oneDNN's engine and stream for the processor: one pair per Context.
struct Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};
[[nodiscard]] Library& library(Context& context);
[[nodiscard]] std::string library_version();  ///< returns the version at run time, such as "3.1.1"

/// Returns true for the element types that the oneDNN providers support.
[[nodiscard]] bool has_type(DType dtype);
/// Returns oneDNN's name for a type for which has_type() is true.
[[nodiscard]] dnnl::memory::data_type type_of(DType dtype);
/// Returns true if oneDNN multiplies bf16 with processor instructions (AVX512_BF16, AMX) instead of emulating them.
[[nodiscard]] bool multiplies_bf16();

/// Sets oneDNN's thread count for one scope, then restores the old count. oneDNN takes the count from OpenMP's setting
/// for the calling thread, both when a primitive is made and when it runs. A primitive waits for all of the threads for
/// which it was made, so the scope also forbids OpenMP to choose fewer (OMP_DYNAMIC).
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
  bool dynamic_;
};

namespace detail {
void run_elsewhere(int threads, const std::function<void()>& f);
}  // namespace detail

/// Calls f, which makes or runs primitives, with `threads` threads. Inside a parallel region of the host program OpenMP
/// may give only one thread. In that case a new thread outside of the region calls f, which costs the start and the end
/// of the thread.
template <class F>
void run_with_threads(int threads, F&& f) {
  if (given_threads(threads) == threads) {
    const ThreadScope scope(threads);
    f();
  } else {
    detail::run_elsewhere(threads, std::forward<F>(f));
  }
}

/// Calls f and turns oneDNN's errors into lockstep's: UnsupportedError for unimplemented work, OutOfMemory, or Error.
template <class F>
decltype(auto) translate_errors(std::string_view op, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const dnnl::error& error) {
    const std::string text = concat(op, ": oneDNN: ", error.what(), " (status ", static_cast<int>(error.status), ")");
    if (error.status == dnnl_unimplemented) {
      throw UnsupportedError(text);
    }
    if (error.status == dnnl_out_of_memory) {
      throw OutOfMemory(text);
    }
    throw Error(text);
  }
}

/// A primitive, the layouts that the primitive wants, and the name of its implementation.
struct Made {
  dnnl::primitive primitive;
  dnnl::memory::desc a;    ///< layout of the first input
  dnnl::memory::desc b;    ///< layout of the second input
  dnnl::memory::desc out;  ///< layout of the result
  dnnl::memory::desc scratchpad;
  std::string implementation;  ///< such as "jit:avx2"

  /// Returns true if the implementation is one of oneDNN's unoptimised reference loops.
  [[nodiscard]] bool is_reference() const { return implementation.rfind("ref", 0) == 0; }
};

/// A convolution in oneDNN's terms. A desc may leave the layout of its tensor to oneDNN (format_tag::any).
struct Convolution {
  dnnl::memory::desc x;
  dnnl::memory::desc weights;
  dnnl::memory::desc dx;        ///< output of backward_data, may have another type than x
  dnnl::memory::desc dweights;  ///< output of backward_weights, may have another type than weights
  dnnl::memory::desc bias;      ///< empty if there is no bias
  dnnl::memory::desc y;
  dnnl::memory::dims strides;
  dnnl::memory::dims dilates;  ///< dilation - 1 for each spatial axis: 0 if the taps are neighbours
  dnnl::memory::dims pad_before;
  dnnl::memory::dims pad_after;
};

// The make_ functions below make primitives whose scratchpads the caller provides, and throw dnnl::error for cases that
// oneDNN does not implement. The functions for convolutions take oneDNN's first implementation for which `refusal`
// returns an empty text. If `refusal` refuses all implementations, these functions throw UnsupportedError with the last
// text of `refusal`.
using Refusal = std::function<std::string(std::string_view implementation)>;
/// Makes a forward convolution: in Made, a is x, b is the weights, and out is y.
[[nodiscard]] Made make_forward(const Library& lib, const Convolution& c, const Refusal& refusal);
/// Makes a backward_data convolution: in Made, a is dy, b is the weights, and out is dx.
[[nodiscard]] Made make_backward_data(const Library& lib, const Convolution& c, const Refusal& refusal);
/// Makes a backward_weights convolution: in Made, a is x, b is dy, and out is dweights.
[[nodiscard]] Made make_backward_weights(const Library& lib, const Convolution& c, const Refusal& refusal);
[[nodiscard]] Made make_matmul(const Library& lib, const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                               const dnnl::memory::desc& bias, const dnnl::memory::desc& c, bool accumulate,
                               Activation activation);
/// Makes a reorder that copies `from` to `to`, or adds `from` to `to`.
[[nodiscard]] Made make_reorder(const Library& lib, const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                                bool accumulate);

/// Makes a memory object without memory. Program::run() sets the address.
[[nodiscard]] dnnl::memory make_memory(const Library& lib, const dnnl::memory::desc& desc);

/// The byte ranges of one workspace, each aligned to 64 bytes. In builds that guard workspaces (guards_workspaces())
/// each range is followed by a guard band.
class WorkspaceLayout {
 public:
  /// Adds a range and returns its offset.
  std::size_t add(std::size_t bytes);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  void write_guard_bands(std::byte* workspace) const;
  /// Throws Error when a guard band has changed; `by` names the implementation that ran.
  void check_guard_bands(const std::byte* workspace, std::string_view by) const;

 private:
  std::size_t bytes_ = 0;
  std::vector<std::size_t> ends_;  ///< ends of the ranges, at which their guard bands begin
};

/// A primitive with its memory objects. The constructor makes the list of arguments that each execute() passes. This
/// saves time: oneDNN's C++ interface would build a map and a vector in each call.
class Step {
 public:
  Step(dnnl::primitive primitive, std::vector<std::pair<int, dnnl::memory>> arguments);
  void execute(const dnnl::stream& stream) const;

 private:
  dnnl::primitive primitive_;
  std::vector<std::pair<int, dnnl::memory>> arguments_;  // owns the memory objects that list_ names
  std::vector<dnnl_exec_arg_t> list_;
};

/// A convolution or a matrix product on the caller's memory. The program runs a primitive. If the primitive needs an
/// operand in another layout or type than the caller's, a reorder copies the operand before or after the primitive.
/// Copies of operands, and scratchpads, are in one workspace.
class Program {
 public:
  explicit Program(const Library& library) : library_(library) {}

  /// Builds the list of steps: the primitive of `made`, and the reorders before and after the primitive. Call build()
  /// only once. `outer` describes the caller's a, b and out; `names` are oneDNN's numbers for these three arguments
  /// (DNNL_ARG_SRC, ...); `bias` describes the caller's bias, or is empty. If `add_copy` is true, the primitive writes
  /// its result to the workspace, and a reorder then adds the result to out.
  void build(const Made& made, const std::array<dnnl::memory::desc, 3>& outer, const std::array<int, 3>& names,
             const dnnl::memory::desc& bias, bool add_copy);
  [[nodiscard]] std::size_t workspace_bytes() const { return layout_.bytes(); }
  [[nodiscard]] const std::string& implementation() const { return implementation_; }  ///< such as "jit:avx2"
  void run(const std::array<void*, 3>& operands, void* bias, void* workspace) const;

 private:
  /// The caller's memory, and a copy in the workspace if oneDNN wants another layout or type.
  struct Operand {
    dnnl::memory outer;
    dnnl::memory inner;
    std::optional<std::size_t> offset;  // offset of inner in the workspace; if empty, inner is outer
  };
  void add_reorder(const dnnl::memory& from, const dnnl::memory& to, bool accumulate);
  void add_step(const Made& made, std::vector<std::pair<int, dnnl::memory>> arguments);

  Library library_;  // handles of the engine and stream of the context's Library
  std::array<Operand, 3> operands_;
  dnnl::memory bias_;
  std::vector<std::pair<dnnl::memory, std::size_t>> scratchpads_;
  std::vector<Step> steps_;
  std::string implementation_;
  WorkspaceLayout layout_;
};

}  // namespace lockstep::ops::onednn
