#include <lockstep/runtime/base/version.hpp>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {
namespace {

constexpr const char* on_off(bool on) {
  return on ? "on" : "off";
}

}  // namespace

std::string version() {
  return LOCKSTEP_VERSION;
}

std::string build_description() {
#if defined(__clang__)
  const std::string compiler = concat("clang++ ", __clang_major__, '.', __clang_minor__, '.', __clang_patchlevel__);
#else
  const std::string compiler = concat("g++ ", __GNUC__, '.', __GNUC_MINOR__, '.', __GNUC_PATCHLEVEL__);
#endif
  return concat("lockstep ", version(), " (", compiler, "; cuda ", on_off(LOCKSTEP_HAS_CUDA), ", nccl ",
                on_off(LOCKSTEP_HAS_NCCL), ", cudnn ", on_off(LOCKSTEP_HAS_CUDNN), ", mpi ", on_off(LOCKSTEP_HAS_MPI),
                ", gloo ", on_off(LOCKSTEP_HAS_GLOO), ", onednn ", on_off(LOCKSTEP_HAS_ONEDNN), ")");
}

}  // namespace lockstep
