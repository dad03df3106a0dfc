#include <lockstep/kernels/onednn/onednn.hpp>

#include <exception>
#include <memory>

#include <omp.h>

#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>
#include <lockstep/runtime/memory/guard_band.hpp>

namespace lockstep::ops::onednn {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;

constexpr std::size_t kAlignment = 64;

algorithm eltwise(Activation activation) {
  static constexpr algorithm kAlgorithms[] = {
      algorithm::eltwise_gelu_erf, algorithm::eltwise_gelu_tanh, algorithm::eltwise_swish, algorithm::eltwise_tanh,
      algorithm::eltwise_logistic, algorithm::eltwise_relu,      algorithm::undef};
  return kAlgorithms[static_cast<std::size_t>(activation)];
}

dnnl::primitive_attr attributes(bool accumulate, Activation activation = Activation::identity) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops ops;
  if (accumulate) {
    ops.append_sum(1.0F);
  }
  if (activation != Activation::identity) {
    const float alpha = activation == Activation::silu ? 1.0F : 0.0F;  // silu: x * sigma(alpha * x); relu: no leak
#if DNNL_VERSION_MAJOR >= 3
    ops.append_eltwise(eltwise(activation), alpha, 0.0F);
#else
    ops.append_eltwise(1.0F, eltwise(activation), alpha, 0.0F);
#endif
  }
  attr.set_post_ops(ops);
  return attr;
}

bool empty(const dnnl::memory::desc& desc) {
  return desc == dnnl::memory::desc();
}

/// Moves `made` to the first implementation for which `refusal` returns no text, or throws UnsupportedError. The desc
/// from which `made` was created must still exist, because oneDNN 2 keeps pointers to it.
template <class Described>
Described accepted(Described made, const Refusal& refusal) {
  for (std::string why = refusal(made.impl_info_str()); !why.empty(); why = refusal(made.impl_info_str())) {
    require<UnsupportedError>(made.next_impl(), why);
  }
  return made;
}

dnnl::convolution_forward::primitive_desc forward_desc(const Library& lib, const Convolution& c,
                                                       const Refusal& refusal) {
  using Described = dnnl::convolution_forward::primitive_desc;
  const auto kind = prop_kind::forward_training;
  const auto method = algorithm::convolution_direct;
  const dnnl::primitive_attr with = attributes(false);
#if DNNL_VERSION_MAJOR >= 3
  return accepted(empty(c.bias) ? Described(lib.engine, kind, method, c.x, c.weights, c.y, c.strides, c.dilates,
                                            c.pad_before, c.pad_after, with)
                                : Described(lib.engine, kind, method, c.x, c.weights, c.bias, c.y, c.strides, c.dilates,
                                            c.pad_before, c.pad_after, with),
                  refusal);
#else
  using Desc = dnnl::convolution_forward::desc;
  const Desc desc =
      empty(c.bias) ? Desc(kind, method, c.x, c.weights, c.y, c.strides, c.dilates, c.pad_before, c.pad_after)
                    : Desc(kind, method, c.x, c.weights, c.bias, c.y, c.strides, c.dilates, c.pad_before, c.pad_after);
  return accepted(Described(desc, with, lib.engine), refusal);
#endif
}

/// Returns the description of the forward convolution, which oneDNN's backward passes take as a hint.
dnnl::convolution_forward::primitive_desc hint(const Library& lib, const Convolution& c) {
  Convolution without_bias = c;
  without_bias.bias = dnnl::memory::desc();
  return forward_desc(lib, without_bias, [](std::string_view) { return std::string(); });
}

}  // namespace

Library& library(Context& context) {
  return context.library<Library>([] { return std::make_shared<Library>(); });
}

bool has_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16;
}

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

bool multiplies_bf16() {
  constexpr auto kNeeded = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);  // a mask, one bit per extension
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kNeeded) == kNeeded;
}

std::string library_version() {
  const dnnl::version_t& version = *dnnl::version();
  return concat(version.major, '.', version.minor, '.', version.patch);
}

ThreadScope::ThreadScope(int threads) : before_(omp_get_max_threads()), dynamic_(omp_get_dynamic() != 0) {
  if (threads != before_) {
    omp_set_num_threads(threads);
  }
  if (dynamic_) {
    omp_set_dynamic(0);
  }
}

ThreadScope::~ThreadScope() {
  if (omp_get_max_threads() != before_) {
    omp_set_num_threads(before_);
  }
  if (dynamic_) {
    omp_set_dynamic(1);
  }
}

void detail::run_elsewhere(int threads, const std::function<void()>& f) {
  std::exception_ptr failure;
  helper_thread([&] {
    try {
      const ThreadScope scope(threads);
      f();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

Made make_forward(const Library& lib, const Convolution& c, const Refusal& refusal) {
  const auto desc = forward_desc(lib, c, refusal);
  return {dnnl::convolution_forward(desc), desc.src_desc(),     desc.weights_desc(), desc.dst_desc(),
          desc.scratchpad_desc(),          desc.impl_info_str()};
}

/// Describes the backward pass that `Primitive` names; both backward passes take the same arguments.
template <class Primitive>
typename Primitive::primitive_desc backward_desc(const Library& lib, const Convolution& c, const dnnl::memory::desc& x,
                                                 const dnnl::memory::desc& weights, const Refusal& refusal) {
  using Described = typename Primitive::primitive_desc;
  const auto method = algorithm::convolution_direct;
  const auto forward = hint(lib, c);
  const dnnl::primitive_attr with = attributes(false);
#if DNNL_VERSION_MAJOR >= 3
  return accepted(
      Described(lib.engine, method, x, weights, c.y, c.strides, c.dilates, c.pad_before, c.pad_after, forward, with),
      refusal);
#else
  const typename Primitive::desc desc(method, x, weights, c.y, c.strides, c.dilates, c.pad_before, c.pad_after);
  return accepted(Described(desc, with, lib.engine, forward), refusal);
#endif
}

Made make_backward_data(const Library& lib, const Convolution& c, const Refusal& refusal) {
  using Primitive = dnnl::convolution_backward_data;
  const auto desc = backward_desc<Primitive>(lib, c, c.dx, c.weights, refusal);
  return {Primitive(desc),      desc.diff_dst_desc(),   desc.weights_desc(),
          desc.diff_src_desc(), desc.scratchpad_desc(), desc.impl_info_str()};
}

Made make_backward_weights(const Library& lib, const Convolution& c, const Refusal& refusal) {
  using Primitive = dnnl::convolution_backward_weights;
  const auto desc = backward_desc<Primitive>(lib, c, c.x, c.dweights, refusal);
  return {Primitive(desc),          desc.src_desc(),        desc.diff_dst_desc(),
          desc.diff_weights_desc(), desc.scratchpad_desc(), desc.impl_info_str()};
}

Made make_matmul(const Library& lib, const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                 const dnnl::memory::desc& bias, const dnnl::memory::desc& c, bool accumulate, Activation activation) {
  const dnnl::primitive_attr with = attributes(accumulate, activation);
#if DNNL_VERSION_MAJOR >= 3
  const auto desc = empty(bias) ? dnnl::matmul::primitive_desc(lib.engine, a, b, c, with)
                                : dnnl::matmul::primitive_desc(lib.engine, a, b, bias, c, with);
#else
  const dnnl::matmul::primitive_desc desc(empty(bias) ? dnnl::matmul::desc(a, b, c) : dnnl::matmul::desc(a, b, bias, c),
                                          with, lib.engine);
#endif
  return {dnnl::matmul(desc), desc.src_desc(),        desc.weights_desc(),
          desc.dst_desc(),    desc.scratchpad_desc(), desc.impl_info_str()};
}

Made make_reorder(const Library& lib, const dnnl::memory::desc& from, const dnnl::memory::desc& to, bool accumulate) {
  const dnnl::reorder::primitive_desc desc(lib.engine, from, lib.engine, to, attributes(accumulate));
  return {dnnl::reorder(desc), from, dnnl::memory::desc(), to, desc.scratchpad_desc(), desc.impl_info_str()};
}

dnnl::memory make_memory(const Library& lib, const dnnl::memory::desc& desc) {
  return {desc, lib.engine, DNNL_MEMORY_NONE};
}

std::size_t WorkspaceLayout::add(std::size_t bytes) {
  const std::size_t offset = bytes_;
  if (guards_workspaces()) {
    ends_.push_back(offset + bytes);
    bytes += kGuardBandBytes;
  }
  bytes_ += align_up(bytes, kAlignment);
  return offset;
}

void WorkspaceLayout::write_guard_bands(std::byte* workspace) const {
  for (const std::size_t end : ends_) {
    write_guard_band(workspace + end);
  }
}

void WorkspaceLayout::check_guard_bands(const std::byte* workspace, std::string_view by) const {
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const std::string damage = damage_of_guard_band(workspace + ends_[i]);
    require<Error>(damage.empty(), "oneDNN's ", by, ' ', damage, " of range ", i,
                   " of its workspace, expected no write outside of it");
  }
}

Step::Step(dnnl::primitive primitive, std::vector<std::pair<int, dnnl::memory>> arguments)
    : primitive_(std::move(primitive)), arguments_(std::move(arguments)) {
  for (const auto& [index, memory] : arguments_) {
    list_.push_back({index, memory.get()});
  }
}

void Step::execute(const dnnl::stream& stream) const {
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(list_.size()), list_.data()),
      "could not execute a primitive");
}

void Program::build(const Made& made, const std::array<dnnl::memory::desc, 3>& outer, const std::array<int, 3>& names,
                    const dnnl::memory::desc& bias, bool add_copy) {
  implementation_ = made.implementation;
  const std::array<dnnl::memory::desc, 3> inner{made.a, made.b, made.out};
  for (std::size_t i = 0; i < 3; ++i) {
    Operand& operand = operands_[i];
    operand.outer = make_memory(library_, outer[i]);
    operand.inner = operand.outer;
    if (inner[i] != outer[i] || (i == 2 && add_copy)) {
      operand.inner = make_memory(library_, inner[i]);
      operand.offset = layout_.add(inner[i].get_size());
    }
    if (i < 2 && operand.offset) {
      add_reorder(operand.outer, operand.inner, false);
    }
  }
  std::vector<std::pair<int, dnnl::memory>> arguments;
  for (std::size_t i = 0; i < 3; ++i) {
    arguments.emplace_back(names[i], operands_[i].inner);
  }
  if (!empty(bias)) {
    bias_ = make_memory(library_, bias);
    arguments.emplace_back(DNNL_ARG_BIAS, bias_);
  }
  add_step(made, std::move(arguments));
  if (operands_[2].offset) {
    add_reorder(operands_[2].inner, operands_[2].outer, add_copy);
  }
}

void Program::add_reorder(const dnnl::memory& from, const dnnl::memory& to, bool accumulate) {
  add_step(make_reorder(library_, from.get_desc(), to.get_desc(), accumulate),
           {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void Program::add_step(const Made& made, std::vector<std::pair<int, dnnl::memory>> arguments) {
  if (made.scratchpad.get_size() > 0) {
    scratchpads_.emplace_back(make_memory(library_, made.scratchpad), layout_.add(made.scratchpad.get_size()));
    arguments.emplace_back(DNNL_ARG_SCRATCHPAD, scratchpads_.back().first);
  }
  steps_.emplace_back(made.primitive, std::move(arguments));
}

void Program::run(const std::array<void*, 3>& operands, void* bias, void* workspace) const {
  auto* base = static_cast<std::byte*>(workspace);
  for (std::size_t i = 0; i < 3; ++i) {
    operands_[i].outer.set_data_handle(operands[i]);
    if (operands_[i].offset) {
      operands_[i].inner.set_data_handle(base + *operands_[i].offset);
    }
  }
  if (bias_) {
    bias_.set_data_handle(bias);
  }
  for (const auto& [memory, offset] : scratchpads_) {
    memory.set_data_handle(base + offset);
  }
  layout_.write_guard_bands(base);
  for (const Step& step : steps_) {
    step.execute(library_.stream);
  }
  layout_.check_guard_bands(base, implementation_);
}

}  // namespace lockstep::ops::onednn
