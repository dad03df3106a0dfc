// Visible data of a host kernel, which join_cpu_variants.cmake refuses: each variant would count alone.
namespace lockstep::testing {
int calls = 0;
}
