#include <lockstep/comm/host_exchange.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {
namespace {

template <class T>
TensorView view_of(std::vector<T>& values) {
  return {std::span<T>(values), Shape{static_cast<std::int64_t>(values.size())}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

std::string broadcast_text(Communicator& communicator, const std::string& text, int root) {
  Stream stream = Stream::host_inline();
  std::vector<std::int64_t> length{static_cast<std::int64_t>(text.size())};
  communicator.broadcast(stream, view_of(length), root);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(length[0]));
  if (communicator.rank() == root) {
    std::copy(text.begin(), text.end(), bytes.begin());
  }
  communicator.broadcast(stream, view_of(bytes), root);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> all_gather_text(Communicator& communicator, const std::string& text) {
  const std::vector<std::int64_t> lengths =
      all_gather_values<std::int64_t>(communicator, {static_cast<std::int64_t>(text.size())});
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::uint8_t> mine(longest);
  std::copy(text.begin(), text.end(), mine.begin());
  const std::vector<std::uint8_t> all = all_gather_values(communicator, std::move(mine));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    const std::uint8_t* first = all.data() + r * longest;
    texts.emplace_back(first, first + lengths[r]);
  }
  return texts;
}

void require_same_on_all_ranks(Communicator& communicator, const std::string& text) {
  const std::vector<std::string> texts = all_gather_text(communicator, text);
  for (std::size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) {
      continue;
    }
    const auto first = lines_of(texts[0]);
    const auto other = lines_of(texts[r]);
    for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string a = i < first.size() ? first[i] : "nothing";
      const std::string b = i < other.size() ? other[i] : "nothing";
      require<CollectiveError<UsageError>>(a == b, "the ranks do not agree: rank 0 has '", a, "', rank ", r, " has '",
                                           b,
                                           "'; start every rank with the same program, options, data and checkpoint");
    }
  }
}

std::string arguments_text(int argc, const char* const* argv) {
  std::string text;
  for (int i = 1; i < argc; ++i) {
    const std::string_view before = i > 1 ? argv[i - 1] : "";
    text += concat("argument ", i, before.starts_with("--") ? concat(", after ", before) : "", ": ", argv[i], '\n');
  }
  return text;
}

std::vector<double> all_gather_value(Communicator& communicator, double value) {
  return all_gather_values<double>(communicator, {value});
}

}  // namespace lockstep::comm
