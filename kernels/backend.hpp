#pragma once

#include <lockstep/runtime/context/context.hpp>

namespace lockstep::ops {

namespace detail {
template <class Concrete, class Function>
struct OnContext;
template <class Concrete, class Result, class... Arguments>
struct OnContext<Concrete, Result(Context&, Arguments...)> {
  using Type = Result(Concrete&, Arguments...);
};
template <class Concrete, class Result, class... Arguments>
struct OnContext<Concrete, Result(const Context&, Arguments...)> {
  using Type = Result(const Concrete&, Arguments...);
};
}  // namespace detail

/// The type of an op with a concrete context in place of Context. In a contract, `OnContext<CpuContext,
/// decltype(ops::batch_norm_stats)> batch_norm_stats;` declares the function of the host's backend without repeating
/// its arguments.
template <class Concrete, class Function>
using OnContext = typename detail::OnContext<Concrete, Function>::Type;

}  // namespace lockstep::ops
