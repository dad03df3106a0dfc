#pragma once

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

/// Marks an error that all ranks found together: every rank throws the error at the same point with the same text, and
/// no collective is under way. For example, CollectiveError<DataError> is such an error and is a DataError.
/// run_program() prints such an error once and lets every rank exit normally; any other exception belongs to one rank
/// and ends the job.
class FoundTogether {
 public:
  virtual ~FoundTogether() = default;
};

/// Parameters that must be equal on all ranks differ.
class ReplicaError : public Error {
  using Error::Error;
};

template <class E>
class CollectiveError final : public E, public FoundTogether {
 public:
  using E::E;
};

}  // namespace lockstep::comm
