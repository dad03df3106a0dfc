#pragma once

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

/// Marks an error that the ranks found together: every rank throws it at the same point with the same text, and no
/// collective is under way. It is thrown as CollectiveError<DataError>, for example, which is a DataError.
/// run_program() prints it once and lets every rank exit in order; any other exception is one rank's own and ends the
/// job.
class FoundTogether {
 public:
  virtual ~FoundTogether() = default;
};

/// Parameters that must be equal on all ranks are not.
class ReplicaError : public Error {
  using Error::Error;
};

template <class E>
class CollectiveError final : public E, public FoundTogether {
 public:
  using E::E;
};

}  // namespace lockstep::comm
