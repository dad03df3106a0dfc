#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>

namespace lockstep::comm {

/// Makes a communicator of ranks on hosts that exchange tensors through gloo's TCP transport, without MPI. Collective
/// over the ranks of the rendezvous. Each two ranks have a connection, over the interface that reaches rank 0.
///
/// Tensors are on the CPU. Any stream is taken, also while another thread uses another communicator. Sums run in rank
/// order, so they have the same bits as LocalGroup's on any number of ranks. send() and recv() of different sizes or
/// types throw ShapeError on both ranks.
///
/// When a rank is lost (Rendezvous), operations under way and all later ones throw PeerError with the name of that
/// rank. This includes communicators of split() to which that rank does not belong. An operation that fails ends its
/// communicator: later operations throw PeerError.
///
/// Returns when all ranks have connected to each other. RendezvousError, the same on all ranks, when some ranks reach
/// rank 0 over IPv4 and others over IPv6, or when a rank cannot connect to all. When a rank cannot connect in split(),
/// the parent ends too. The destructor tells no other rank.
[[nodiscard]] std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous);

}  // namespace lockstep::comm
