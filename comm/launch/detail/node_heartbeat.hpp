#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm::detail {

/// A rank's place among the nodes of its job, from its Session.
struct HeartbeatPlace {
  int rank = 0;
  int node = 0;
  int nodes = 1;
  bool listens = false;  ///< true on one rank of each node, which receives the node's heartbeats
  std::string host{};    ///< name of the node
};

/// Heartbeats between nodes, with the activity of a node's ranks. If no rank of a node can report any more, because
/// their processes are stopped or the host is gone, the next node can name that node. The nodes are a ring, in the
/// order of their numbers. About once a second, a node sends one datagram (UDP, at most kMostBytes) to each address of
/// the next node, and the listening rank there keeps the last one. If several neighbouring nodes are silent, only the
/// last of them is named, because only its next node still runs.
///
/// The ranks exchange their nodes' addresses once, over MPI or gloo: address_text(), an all-gather, set_addresses().
/// Heartbeats themselves need no MPI, gloo, connection or answer, so they continue while MPI hangs.
///
/// A datagram holds a key that rank 0 has drawn for the job; datagrams without the key are dropped. Nothing is
/// encrypted, and whoever reads the network can forge heartbeats. The network must be trusted, as with MPI and gloo. A
/// forged heartbeat can hide a silent node or show another text, but it ends no job.
///
/// No call waits, and none throws because of the network. Without sockets, addresses or a way through a firewall there
/// are no heartbeats, and no node is named. The class has no thread; only one thread at a time may call it.
class NodeHeartbeat {
 public:
  static constexpr std::size_t kMostBytes = 1200;  ///< most bytes of a datagram that every network passes in one piece

  explicit NodeHeartbeat(HeartbeatPlace place);
  ~NodeHeartbeat();  ///< closes the sockets and sends nothing
  NodeHeartbeat(const NodeHeartbeat&) = delete;
  NodeHeartbeat& operator=(const NodeHeartbeat&) = delete;

  /// Returns this rank's addresses for set_addresses() of all ranks; empty unless it listens. The format is private.
  [[nodiscard]] std::string address_text() const;
  /// Takes every rank's address_text(), in rank order. An empty text means a rank without heartbeats.
  void set_addresses(const std::vector<std::string>& address_texts);

  /// Sends a heartbeat with a line for each rank to the next node. If not all lines fit, the text has the number of
  /// lines that are left out.
  void send_heartbeat(const std::vector<std::string>& lines);
  /// Tells the next node that this node's ranks end normally, so that it does not wait for more heartbeats.
  void send_shutdown();

  /// Reads the datagrams that have arrived, at `now_ns` (Progress::now_ns()). A listening rank must call it at least
  /// once a second. As in Watchdog, time without a heartbeat counts only while this process runs. A longer time between
  /// two calls counts as kLongestLook, because the process was then suspended, perhaps together with the others.
  void listen(std::int64_t now_ns);
  static constexpr double kLongestLook = 2;  ///< longest counted time between two calls of listen(), in seconds
  /// Returns "no word from host b (ranks 4 to 7) for 61 s: the host, its network or all its ranks hang; its last word:
  /// rank 4: computing step 17, for 0 s; rank 5: ..". Empty in three cases: the previous node has sent a heartbeat
  /// within `seconds`; it has shut down; it was never heard. In the last case heartbeats may not come through, so
  /// silence means nothing.
  [[nodiscard]] std::string silent(double seconds) const;

 private:
  struct Target;
  void send(std::string_view text, bool shuts_down);
  [[nodiscard]] bool take(std::string_view datagram);
  const HeartbeatPlace place_;
  int socket_ = -1;
  int port_ = 0;  ///< port at which this rank listens; 0 if it does not listen
  std::uint64_t key_ = 0;
  std::vector<Target> next_;    ///< addresses of the next node
  std::string previous_;        ///< description of the previous node: "host b (ranks 4 to 7)"
  bool one_previous_ = false;   ///< true if the previous node has one rank
  bool heard_ = false;          ///< true after the first heartbeat was received
  bool shut_down_ = false;      ///< true after the previous node has sent its shutdown
  std::int64_t sent_ns_ = 0;    ///< time of the last heartbeat by its sender's clock
  std::string last_text_;       ///< text of the last heartbeat
  std::int64_t looked_ns_ = 0;  ///< time of the last listen(); 0 before the first
  double silent_s_ = 0;
};

}  // namespace lockstep::comm::detail
