// A static initialiser, which join_cpu_variants.cmake refuses: it would run for all variants, also for those that the
// processor lacks.
#include <vector>

namespace lockstep::testing {
static const std::vector<int> kSizes{1, 2, 3};
int size(int i) {
  return kSizes.at(static_cast<unsigned>(i));
}
}  // namespace lockstep::testing
