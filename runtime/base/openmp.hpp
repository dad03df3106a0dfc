#pragma once

#include <vector>

/// Wraps all uses of OpenMP in lockstep. A build without OpenMP (LOCKSTEP_OPENMP=OFF) has one thread.
namespace lockstep {

/// Returns the number of threads that a parallel region of the calling thread gets if the region requests `asked`
/// threads: at most OMP_THREAD_LIMIT. Returns 1 inside a parallel region of a host program. Ignores OMP_DYNAMIC,
/// because ops are planned for a fixed number of threads.
[[nodiscard]] int given_threads(int asked);

/// Returns the number of threads that an op uses when the caller gives none: OpenMP's setting for the calling thread
/// (OMP_NUM_THREADS, omp_set_num_threads()), limited as in given_threads(). Returns 1 in a build without OpenMP.
[[nodiscard]] int default_threads();

/// Returns for each of OpenMP's places (OMP_PLACES, OMP_PROC_BIND) the numbers of its processors, as the operating
/// system counts them. Returns an empty vector if OpenMP has no places. Binds no thread.
[[nodiscard]] std::vector<std::vector<int>> openmp_places();
/// Returns true if OpenMP keeps all threads on the first thread's place (OMP_PROC_BIND=primary).
[[nodiscard]] bool openmp_keeps_one_place();

namespace detail {
/// Calls part(object, t, n) once for each t of [0, n), each on its own thread, and returns after all calls have
/// returned. OpenMP chooses n, which is at most `threads`; in a build without OpenMP n is 1. Only openmp.cpp opens
/// parallel regions in this library.
void run_parallel(int threads, void (*part)(void* object, int t, int n), void* object);
}  // namespace detail

}  // namespace lockstep
