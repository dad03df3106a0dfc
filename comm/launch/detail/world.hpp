#pragma once

#include <memory>
#include <string>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm::detail {

/// The ranks of a Session and their transport: MPI, gloo, or this process alone. Private.
class World : public RankPlace {
 public:
  World() = default;
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::string description;
  std::string sums;     ///< result of Session::sums(), set with the first communicator
  std::string problem;  ///< error in this rank's environment, which the Session tells to all ranks

  /// Makes a communicator over all ranks. Collective.
  [[nodiscard]] virtual std::unique_ptr<Communicator> communicator() = 0;
  /// Returns the worker that makes all MPI calls, or nullptr if none is needed.
  [[nodiscard]] virtual Stream* serial() = 0;
  /// Ends MPI, if this object started it; with gloo, waits for the other ranks. Afterwards, use no communicator of this
  /// world.
  virtual void finalise() = 0;
  [[noreturn]] virtual void abort(int code) noexcept = 0;
};

/// Makes the world of an MPI program's ranks. Defined in comm/launch/mpi/mpi_world.cpp.
[[nodiscard]] std::unique_ptr<World> make_mpi_world(int& argc, char**& argv);
/// Makes the world of ranks that meet over TCP. Throws RendezvousError (comm/gloo/rendezvous.hpp), or AgreedFailure if
/// rank 0 prints the error. Defined in comm/launch/gloo/gloo_world.cpp.
[[nodiscard]] std::unique_ptr<World> make_gloo_world(const Launch& launch, const MeetingPlace& place);
[[nodiscard]] std::unique_ptr<World> make_world_of_one();

}  // namespace lockstep::comm::detail
