// A counter that a header could define, which join_cpu_variants.cmake refuses, as in data.cpp.
namespace lockstep::testing {
inline int calls = 0;
int next_call() {
  return ++calls;
}
}  // namespace lockstep::testing
