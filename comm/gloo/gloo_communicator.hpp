#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gloo/rendezvous.hpp>

namespace lockstep::comm {

/// Makes a communicator of ranks that exchange tensors through gloo's TCP transport, without MPI. Collective over the
/// ranks of `rendezvous`. Every two ranks get a connection, over the network interface that reaches rank 0.
///
/// Tensors must be on the CPU. The communicator takes any host stream. One thread may use it while another thread uses
/// another communicator. Sums run in rank order, so their bits do not depend on timing or on the network. If a send()
/// and its recv() differ in size or type, both ranks throw ShapeError.
///
/// If a rank is lost (see Rendezvous), operations under way and all later operations throw PeerError with the name of
/// that rank, even on communicators of split() that do not contain that rank. An operation that fails ends its
/// communicator: later operations throw PeerError.
///
/// Returns after all ranks have connected to each other. Throws RendezvousError, the same on all ranks, if some ranks
/// reach rank 0 over IPv4 and others over IPv6, or if a rank cannot connect to every other rank. If a rank cannot
/// connect in split(), the communicator that was split ends, too. The communicator's destructor is not collective.
[[nodiscard]] std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous);

}  // namespace lockstep::comm
