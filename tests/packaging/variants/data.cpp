// A source of host kernels with a global variable. join_cpu_variants.cmake must refuse it, because each variant would
// have a copy of the variable and count only its own calls.
namespace lockstep::testing {
int calls = 0;
}  // namespace lockstep::testing
