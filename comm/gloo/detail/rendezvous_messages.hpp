#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::comm::detail::rendezvous {

// Messages that the ranks of a rendezvous send to each other.

inline constexpr std::string_view kMagic = "lockstep";
/// `magic` of rank 0's answers. Differs from kMagic, so that no rank takes an echo of its own Hello for an answer.
inline constexpr std::string_view kAnswers = "LOCKSTEP";
inline constexpr std::uint32_t kVersion = 1;  ///< version of all messages in this file
inline constexpr int kNoRank = -1;
inline constexpr int kPrinted = 1;  ///< code of a refusal whose text rank 0 prints, too
inline constexpr std::size_t kMostText = 4096;

/// Replaces characters of a received text that are not printable ASCII, because error texts go to a terminal.
inline std::string shown(std::string_view text) {
  std::string result(text);
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

/// First message of a rank, in its machine's byte order. If rank 0 has another byte order, rank 0 reads another value
/// of `job` and refuses the rank.
struct Hello {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint64_t job = 0;
  std::array<char, 64> host{};  ///< host's name, which ends with a zero byte
};
static_assert(sizeof(Hello) == 96);

/// Rank 0's first message to a new connection.
struct Answer {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t left_s = 0;  ///< seconds until rank 0's deadline, rounded up
};
static_assert(sizeof(Answer) == 16);

enum class Kind : std::uint32_t {
  met = 1,   ///< from rank 0: all ranks have connected
  refused,   ///< from rank 0: the ranks cannot meet; the text is the reason
  gather,    ///< to rank 0: the sender's text for a gather
  gathered,  ///< from rank 0: for each rank, the length and the bytes of its text
  shutdown,  ///< to rank 0: the sender called finish()
  end,       ///< from rank 0: all ranks have called finish()
  lost,      ///< from rank 0: a rank is lost; the text names the rank
  abort,     ///< to rank 0, and from rank 0 to all: a rank called abort(); the header has its rank and code
};

struct Header {
  Kind kind = Kind::met;
  std::int32_t rank = kNoRank;
  std::int32_t code = 0;
  std::uint32_t none = 0;
  std::uint64_t bytes = 0;  ///< size of the text that follows the header
};
static_assert(sizeof(Header) == 24);

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// Returns the T that the first bytes of `in` form, or nullopt if `in` is shorter than a T.
template <class T>
std::optional<T> front_of(std::string_view in) {
  if (in.size() < sizeof(T)) {
    return std::nullopt;
  }
  T value;
  std::memcpy(&value, in.data(), sizeof value);
  return value;
}

/// Removes the T that the first bytes of `in` form, and returns it. Returns nullopt if `in` is shorter than a T.
template <class T>
std::optional<T> take(std::string& in) {
  const std::optional<T> value = front_of<T>(in);
  in.erase(0, value ? sizeof(T) : 0);
  return value;
}

struct Message {
  Header header{};
  std::string text{};
};

inline std::string message(Kind kind, std::string_view text = {}, int rank = kNoRank, int code = 0) {
  const Header header{.kind = kind, .rank = rank, .code = code, .bytes = text.size()};
  return std::string(bytes_of(header)).append(text);
}

/// Bytes that have arrived on a connection. next() takes the messages out of these bytes.
class Inbox {
 public:
  explicit Inbox(std::size_t most) : most_(most) {}
  std::string bytes;

  /// Removes and returns the first message, or returns nullopt if no message is complete. Sets `broken` if the first
  /// message is too large.
  [[nodiscard]] std::optional<Message> next(bool& broken) {
    const std::optional<Header> header = front_of<Header>(bytes);
    broken = header && header->bytes > most_;
    if (!header || broken || bytes.size() < sizeof(Header) + header->bytes) {
      return std::nullopt;
    }
    Message found{.header = *header, .text = bytes.substr(sizeof(Header), header->bytes)};
    bytes.erase(0, sizeof(Header) + found.header.bytes);
    return found;
  }

 private:
  std::size_t most_;
};

inline std::string packed(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    all.append(bytes_of(std::uint64_t{text.size()})).append(text);
  }
  return all;
}

/// Splits the result of packed() into texts. Returns nullopt unless `all` holds exactly `size` texts.
inline std::optional<std::vector<std::string>> unpacked(std::string_view all, int size) {
  std::vector<std::string> texts;
  for (int r = 0; r < size; ++r) {
    const std::optional<std::uint64_t> length = front_of<std::uint64_t>(all);
    if (!length || *length > all.size() - sizeof *length) {
      return std::nullopt;
    }
    texts.emplace_back(all.substr(sizeof *length, *length));
    all.remove_prefix(sizeof *length + *length);
  }
  return all.empty() ? std::optional(std::move(texts)) : std::nullopt;
}

}  // namespace lockstep::comm::detail::rendezvous
