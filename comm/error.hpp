#pragma once

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

/// Marks an error that all ranks found together: every rank throws this error at the same point with the same text, and
/// no collective is under way. For example, CollectiveError<DataError> is such an error, and also a DataError.
/// run_program() prints such an error once, and every rank exits normally. Any other exception belongs to one rank and
/// ends the job.
class FoundTogether {
 public:
  virtual ~FoundTogether() = default;
};

/// Parameters differ between ranks although they must be equal.
class ReplicaError : public Error {
  using Error::Error;
};

template <class E>
class CollectiveError final : public E, public FoundTogether {
 public:
  using E::E;
};

}  // namespace lockstep::comm
