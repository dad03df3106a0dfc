#pragma once

#include <vector>

/// All uses of OpenMP by the library; a build without OpenMP has one thread (LOCKSTEP_OPENMP=OFF).
namespace lockstep {

/// Returns how many of `asked` threads OpenMP gives the calling thread: at most OMP_THREAD_LIMIT, and one inside a
/// parallel region of a host program. Ignores OMP_DYNAMIC, because ops are planned for a fixed number.
[[nodiscard]] int given_threads(int asked);

/// Returns the number of threads of an op when no number is given: OpenMP's setting for the calling thread
/// (OMP_NUM_THREADS, omp_set_num_threads()), 1 in a build without OpenMP.
[[nodiscard]] int default_threads();

/// Returns the processors of each of OpenMP's places (OMP_PLACES, OMP_PROC_BIND); empty without places. Binds no
/// thread.
[[nodiscard]] std::vector<std::vector<int>> openmp_places();
/// True when all of OpenMP's threads run on the first thread's place (OMP_PROC_BIND=primary).
[[nodiscard]] bool openmp_keeps_one_place();

namespace detail {
/// Calls part(object, t, n) once for each t of [0, n), each on its own thread, and returns when all have returned.
/// OpenMP chooses n, at most `threads`; in a build without OpenMP n is 1. openmp.cpp is the only place of the library
/// that opens a parallel region.
void run_parallel(int threads, void (*part)(void* object, int t, int n), void* object);
}  // namespace detail

}  // namespace lockstep
