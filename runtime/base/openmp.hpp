#pragma once

#include <vector>

/// All that the library asks of OpenMP; a build without it has one thread (LOCKSTEP_OPENMP=OFF).
namespace lockstep {

/// How many of `asked` threads OpenMP gives the calling thread: at most OMP_THREAD_LIMIT, and one inside a parallel
/// region of a host program. OMP_DYNAMIC has no part in it: ops are planned for a number.
[[nodiscard]] int given_threads(int asked);

/// The number of threads of an op when no number is given: those that OpenMP gives by its setting for the calling
/// thread (OMP_NUM_THREADS, omp_set_num_threads()), 1 in a build without OpenMP.
[[nodiscard]] int default_threads();

/// The processors of each of OpenMP's places (OMP_PLACES, OMP_PROC_BIND); none without them. Binds nobody.
[[nodiscard]] std::vector<std::vector<int>> openmp_places();
/// True when all of OpenMP's threads run on the place of the first one (OMP_PROC_BIND=primary).
[[nodiscard]] bool openmp_keeps_one_place();

namespace detail {
/// Calls part(object, t, n) once for each t of [0, n), each on its own thread, and returns when all have returned.
/// OpenMP chooses n, at most `threads`; in a build without OpenMP n is 1. openmp.cpp is the only place of the library
/// that opens a parallel region.
void run_parallel(int threads, void (*part)(void* object, int t, int n), void* object);
}  // namespace detail

}  // namespace lockstep
