#pragma once

#include <memory>
#include <string>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm::detail {

/// All ranks of a Session, which communicate through MPI or gloo, or a single rank. For use by Session only.
class World : public RankPlace {
 public:
  World() = default;
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::string description;
  std::string sums;     ///< text for Session::sums(); set when the first communicator is made
  std::string problem;  ///< error in this rank's environment; the Session reports it to all ranks

  /// Makes a communicator of all ranks. Collective.
  [[nodiscard]] virtual std::unique_ptr<Communicator> communicator() = 0;
  /// Returns the stream whose thread must make all MPI calls; nullptr if the world needs no such stream.
  [[nodiscard]] virtual Stream* serial() = 0;
  /// Ends MPI if this object has started MPI. With gloo, waits for the other ranks. Afterwards, this world's
  /// communicators must not be used.
  virtual void finalise() = 0;
  [[noreturn]] virtual void abort(int code) noexcept = 0;
};

/// Makes the world of the ranks of an MPI program. Defined in comm/launch/mpi/mpi_world.cpp.
[[nodiscard]] std::unique_ptr<World> make_mpi_world(int& argc, char**& argv);
/// Makes the world of ranks that meet over TCP, without MPI. Throws RendezvousError (comm/gloo/rendezvous.hpp) if the
/// ranks cannot meet. If rank 0 prints this error for all ranks, throws AgreedFailure instead. Defined in
/// comm/launch/gloo/gloo_world.cpp.
[[nodiscard]] std::unique_ptr<World> make_gloo_world(const Launch& launch, const MeetingPlace& place);
[[nodiscard]] std::unique_ptr<World> make_world_of_one();

}  // namespace lockstep::comm::detail
