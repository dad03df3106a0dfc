#include <lockstep/runtime/base/parallel.hpp>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace lockstep {

int default_threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

namespace detail {

#if defined(_OPENMP)
void run_parallel(int threads, void (*part)(void* object, int t, int n), void* object) {
#pragma omp parallel num_threads(threads) default(none) shared(part, object)
  part(object, omp_get_thread_num(), omp_get_num_threads());
}
#else
void run_parallel(int /*threads*/, void (*part)(void* object, int t, int n), void* object) {
  part(object, 0, 1);
}
#endif

}  // namespace detail
}  // namespace lockstep
