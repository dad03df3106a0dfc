#pragma once

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

/// Marks an error that the ranks found together: every rank throws it at the same point with the same text, and no
/// collective is under way. Thrown as CollectiveError<DataError>, which is a DataError; run_program() prints it once
/// and lets every rank leave in good order, where any other exception ends the job as this rank's own.
class FoundTogether {
 public:
  virtual ~FoundTogether() = default;
};

template <class E>
class CollectiveError final : public E, public FoundTogether {
 public:
  using E::E;
};

}  // namespace lockstep::comm
