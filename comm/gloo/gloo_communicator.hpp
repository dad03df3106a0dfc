#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>

namespace lockstep::comm {

/// Collective over the ranks of the rendezvous: ranks on hosts that exchange tensors through gloo's TCP transport,
/// without MPI. Between each two ranks there is a connection, over the interface that reaches rank 0.
///
/// Tensors are on the CPU. Any stream is taken, also while another thread uses another communicator. Sums run in rank
/// order, so they have the bits of LocalGroup's on any number of ranks. send() and recv() of different sizes or types
/// throw ShapeError on both ranks.
///
/// When a rank is lost (Rendezvous), operations under way and all later ones throw PeerError, which says which rank,
/// also on communicators of split() to which that rank does not belong. An operation that fails ends its communicator:
/// those after it throw PeerError.
///
/// Returns when all ranks have connected to each other. RendezvousError, the same on all ranks, when ranks reach rank 0
/// over IPv4 and others over IPv6, and when one cannot connect to all. A split() in which a rank cannot connect ends
/// its parent. Destroying it tells no other rank.
[[nodiscard]] std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous);

}  // namespace lockstep::comm
