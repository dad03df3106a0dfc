#include <lockstep/runtime/base/openmp.hpp>

#include <algorithm>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace lockstep {

#if defined(_OPENMP)
int given_threads(int asked) {
  const bool alone = omp_in_parallel() != 0 || omp_get_max_active_levels() <= omp_get_active_level();
  return asked <= 1 || alone ? 1 : std::clamp(omp_get_thread_limit(), 1, asked);
}

int default_threads() {
  return given_threads(omp_get_max_threads());
}

std::vector<std::vector<int>> openmp_places() {
  std::vector<std::vector<int>> places(static_cast<std::size_t>(std::max(0, omp_get_num_places())));
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i].resize(static_cast<std::size_t>(omp_get_place_num_procs(static_cast<int>(i))));
    omp_get_place_proc_ids(static_cast<int>(i), places[i].data());
  }
  return places;
}

bool openmp_keeps_one_place() {
  return omp_get_proc_bind() == omp_proc_bind_master;
}
#else
int given_threads(int /*asked*/) {
  return 1;
}

int default_threads() {
  return 1;
}

std::vector<std::vector<int>> openmp_places() {
  return {};
}

bool openmp_keeps_one_place() {
  return false;
}
#endif

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
