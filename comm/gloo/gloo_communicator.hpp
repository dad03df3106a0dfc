#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>

namespace lockstep::comm {

/// Makes a communicator of ranks that exchange tensors through gloo's TCP transport, without MPI. Collective over the
/// ranks of the rendezvous. Each two ranks have a connection, over the network interface that reaches rank 0.
///
/// Tensors must be on the CPU. Takes any stream, also while another thread uses another communicator. Sums run in rank
/// order, so they have the same bits as LocalGroup's on any number of ranks. If send() and recv() have different sizes
/// or types, both ranks throw ShapeError.
///
/// If a rank is lost (Rendezvous), operations under way and all later ones throw PeerError with the name of that rank.
/// This includes communicators of split() that do not contain that rank. An operation that fails ends its communicator:
/// later operations throw PeerError.
///
/// Returns after all ranks have connected to each other. Throws RendezvousError, the same on all ranks, in two cases:
/// some ranks reach rank 0 over IPv4 and others over IPv6, or a rank cannot connect to all. If a rank cannot connect in
/// split(), the parent communicator ends, too. The destructor tells no other rank.
[[nodiscard]] std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous);

}  // namespace lockstep::comm
