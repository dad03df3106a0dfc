#pragma once

#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {

// Small blocking collectives on host values, for checks, options and metrics. They use an inline stream.

[[nodiscard]] std::string broadcast_text(Communicator& communicator, const std::string& text, int root = 0);
/// Returns the texts of all ranks, in rank order, on every rank.
[[nodiscard]] std::vector<std::string> all_gather_text(Communicator& communicator, const std::string& text);
/// Throws UsageError on every rank (comm/error.hpp) if `text`, which has one item on each line, differs between ranks.
/// The error has the first line that differs and the two ranks whose lines differ. Programs call this function before
/// the first step, for options that must be equal.
void require_same_on_all_ranks(Communicator& communicator, const std::string& text);
/// Formats a command line for require_same_on_all_ranks(): each argument on its own line, without the program's name.
[[nodiscard]] std::string arguments_text(int argc, const char* const* argv);
[[nodiscard]] std::vector<double> all_gather_value(Communicator& communicator, double value);
/// Returns the values of all ranks, in rank order. All ranks must pass equally many values.
template <class T>
[[nodiscard]] std::vector<T> all_gather_values(Communicator& communicator, std::vector<T> own) {
  const auto view = [](std::vector<T>& values) { return TensorView(std::span<T>(values), Shape{std::ssize(values)}); };
  std::vector<T> all(own.size() * static_cast<std::size_t>(communicator.size()));
  Stream stream = Stream::host_inline();
  communicator.all_gather(stream, view(own), view(all));
  return all;
}

}  // namespace lockstep::comm
