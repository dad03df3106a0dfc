#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm::detail {

/// A rank among the nodes of its job, as a Session knows it.
struct WordsPlace {
  int rank = 0;
  int node = 0;
  int nodes = 1;
  bool listens = false;  ///< true on one rank of each node
  std::string host{};    ///< name of the node
};

/// What the ranks of a node are doing, for the next node: it can name this one when none of its ranks can speak any
/// more, as their processes are stopped or the host is gone. The nodes are a ring, in the order of their numbers. About
/// once a second a node sends one datagram (UDP, at most kMostBytes) to each address of the next node, and the rank
/// there that listens keeps the last one. Of several silent nodes in a row only the last one has a node that names it.
///
/// Which addresses there are the ranks tell each other once, over MPI or gloo: introduction(), an all-gather, meet().
/// Words themselves need neither, no connection and no answer, so they go on while MPI hangs.
///
/// A datagram holds a key that rank 0 has drawn for the job, and is dropped without it. Nothing is encrypted, and who
/// reads the network can forge words: it must be trusted, as with MPI and gloo. Forged words can make a silent node go
/// unnamed or show another text; they end no job.
///
/// No call waits, and none throws because of the network: without sockets, addresses or a way through a firewall there
/// are no words, and nobody is named. It has no thread of its own; one thread at a time calls.
class NodeHeartbeat {
 public:
  static constexpr std::size_t kMostBytes = 1200;  ///< passes every network in one piece

  explicit NodeHeartbeat(WordsPlace place);
  ~NodeHeartbeat();  ///< closes the sockets and says nothing
  NodeHeartbeat(const NodeHeartbeat&) = delete;
  NodeHeartbeat& operator=(const NodeHeartbeat&) = delete;

  /// Where this rank listens, if it does, for meet() of all ranks. A text without a meaning for others.
  [[nodiscard]] std::string introduction() const;
  /// Takes all ranks' introduction(), in rank order. An empty one is a rank without words.
  void meet(const std::vector<std::string>& introductions);

  /// Sends a line for each rank to the next node. Lines that do not fit are left out, and counted.
  void say(const std::vector<std::string>& lines);
  /// The ranks here end as they should: the next node does not wait for words after this one.
  void say_goodbye();

  /// Reads what has come, at `now_ns` (Progress::now_ns()). Where this rank listens, it is called at least once a
  /// second. As in Watchdog, time counts for silence only while this process looks: two calls that lie further apart
  /// count as kLongestLook, as the process was suspended then, perhaps together with the others.
  void listen(std::int64_t now_ns);
  static constexpr double kLongestLook = 2;  ///< seconds
  /// "no word from host b (ranks 4 to 7) for 61 s: the host, its network or all its ranks hang; its last word: rank 4:
  /// computing step 17, for 0 s; rank 5: ..". Empty when the node before this one has spoken within `seconds`, has said
  /// goodbye, or has never been heard: then words do not come through, and silence means nothing.
  [[nodiscard]] std::string silent(double seconds) const;

 private:
  struct Target;
  void send(std::string_view text, bool goodbye);
  [[nodiscard]] bool take(std::string_view datagram);
  const WordsPlace place_;
  int socket_ = -1;
  int port_ = 0;  ///< 0: this rank does not listen
  std::uint64_t key_ = 0;
  std::vector<Target> next_;    ///< addresses of the next node
  std::string previous_;        ///< "host b (ranks 4 to 7)"
  bool one_previous_ = false;   ///< the node before this one has one rank
  bool heard_ = false;          ///< ever
  bool gone_ = false;           ///< it has said goodbye
  std::int64_t sent_ns_ = 0;    ///< of the last word, by its sender's clock
  std::string word_;            ///< the last one
  std::int64_t looked_ns_ = 0;  ///< 0: never
  double silent_s_ = 0;
};

}  // namespace lockstep::comm::detail
