#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm::detail {

/// A rank and its node in the job, from the rank's Session.
struct HeartbeatPlace {
  int rank = 0;
  int node = 0;
  int nodes = 1;
  bool listens = false;  ///< true for the rank of each node that receives the previous node's heartbeats
  std::string host{};    ///< name of the node
};

/// Heartbeats between nodes, with the activity of each node's ranks. If no rank of a node can report any more, because
/// the processes are stopped or the host is gone, the next node can report that node. The nodes are a ring, in the
/// order of their numbers. About once a second, a node sends one datagram (UDP, at most kMostBytes) to each address of
/// the next node, and the listening rank there keeps the last datagram. If several neighbouring nodes are silent, only
/// the last silent node is reported, because only its next node still runs.
///
/// The ranks exchange their nodes' addresses once, over MPI or gloo: address_text(), an all-gather, set_addresses().
/// Heartbeats themselves need no MPI, gloo, connection or answer, so they continue while MPI hangs.
///
/// A datagram holds a key that rank 0 has drawn for the job; datagrams without the key are dropped. Nothing is
/// encrypted, and whoever reads the network can forge heartbeats. The network must be trusted, as with MPI and gloo. A
/// forged heartbeat can hide a silent node or show another text, but it ends no job.
///
/// No call waits, and none throws because of the network. Without sockets or addresses, or if a firewall drops the
/// datagrams, there are no heartbeats, and no silent node is reported. The class has no thread; only one thread at a
/// time may call it.
class NodeHeartbeat {
 public:
  /// Largest size of a datagram: every network passes a datagram of this many bytes in one piece.
  static constexpr std::size_t kMostBytes = 1200;

  explicit NodeHeartbeat(HeartbeatPlace place);
  ~NodeHeartbeat();  ///< closes the socket and sends nothing
  NodeHeartbeat(const NodeHeartbeat&) = delete;
  NodeHeartbeat& operator=(const NodeHeartbeat&) = delete;

  /// Returns a text with this rank's node and, if the rank listens, its addresses, for set_addresses() on all ranks.
  /// The format is private.
  [[nodiscard]] std::string address_text() const;
  /// Takes the address_text() of every rank, in rank order. A rank whose text is empty takes no part in heartbeats.
  void set_addresses(const std::vector<std::string>& address_texts);

  /// Sends a heartbeat to the next node. `lines` has a line for each rank of this node. If not all lines fit, the last
  /// line of the text says how many ranks are left out.
  void send_heartbeat(const std::vector<std::string>& lines);
  /// Tells the next node that this node's ranks end normally, so that the next node expects no more heartbeats.
  void send_shutdown();

  /// Reads the datagrams that have arrived until `now_ns`, a time of Progress::now_ns(). A listening rank must call
  /// listen() at least once a second. As in Watchdog, time without a heartbeat counts only while this process runs: if
  /// more than kLongestLook passes between two calls, the process was suspended, and only kLongestLook counts.
  void listen(std::int64_t now_ns);
  static constexpr double kLongestLook = 2;  ///< most seconds that count between two calls of listen()
  /// Returns a text if the previous node has sent no heartbeat for at least `seconds`: "no word from host b (ranks 4 to
  /// 7) for 61 s: the host, its network or all its ranks hang; its last word: rank 4: computing step 17, for 0 s; rank
  /// 5: ..". Otherwise the text is empty. The text is also empty if that node has shut down, or if no heartbeat has
  /// ever arrived, because the network may drop all heartbeats.
  [[nodiscard]] std::string silent(double seconds) const;

 private:
  struct Target;
  void send(std::string_view text, bool shuts_down);
  [[nodiscard]] bool take(std::string_view datagram);
  const HeartbeatPlace place_;
  int socket_ = -1;
  int port_ = 0;  ///< port at which this rank listens; 0 if this rank does not listen
  std::uint64_t key_ = 0;
  std::vector<Target> next_;    ///< addresses of the next node
  std::string previous_;        ///< description of the previous node: "host b (ranks 4 to 7)"
  bool one_previous_ = false;   ///< true if the previous node has exactly one rank
  bool heard_ = false;          ///< true after a heartbeat of the previous node has arrived
  bool shut_down_ = false;      ///< true if the previous node's last datagram was a shutdown
  std::int64_t sent_ns_ = 0;    ///< time when the last heartbeat was sent, by its sender's clock
  std::string last_text_;       ///< text of the last heartbeat
  std::int64_t looked_ns_ = 0;  ///< time of the last call of listen(); 0 before the first call
  double silent_s_ = 0;
};

}  // namespace lockstep::comm::detail
