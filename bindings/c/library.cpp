#include <array>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/entry.hpp>

// NOLINTBEGIN(cppcoreguidelines-macro-usage): text that the compiler puts together
#define LOCKSTEP_TEXT_OF(x) #x
#define LOCKSTEP_TEXT(x) LOCKSTEP_TEXT_OF(x)
#if defined(__clang__)
#define LOCKSTEP_COMPILER "clang++ " LOCKSTEP_TEXT(__clang_major__) "." LOCKSTEP_TEXT(__clang_minor__)
#else
#define LOCKSTEP_COMPILER "g++ " LOCKSTEP_TEXT(__GNUC__) "." LOCKSTEP_TEXT(__GNUC_MINOR__)
#endif
// NOLINTEND(cppcoreguidelines-macro-usage)

static_assert(LOCKSTEP_VERSION_MAJOR == LOCKSTEP_PROJECT_MAJOR && LOCKSTEP_VERSION_MINOR == LOCKSTEP_PROJECT_MINOR &&
                  LOCKSTEP_VERSION_PATCH == LOCKSTEP_PROJECT_PATCH,
              "the version in lockstep.h is not the project's");

using namespace lockstep::c;

uint32_t lockstep_version() noexcept {
  return LOCKSTEP_VERSION;
}

const char* lockstep_build_info() noexcept {
  return "{\"version\": \"" LOCKSTEP_TEXT(LOCKSTEP_VERSION_MAJOR) "." LOCKSTEP_TEXT(
      LOCKSTEP_VERSION_MINOR) "." LOCKSTEP_TEXT(LOCKSTEP_VERSION_PATCH) "\", \"compiler\": \"" LOCKSTEP_COMPILER
                                                                        "\", " LOCKSTEP_BUILD_OPTIONS "}";
}

const char* lockstep_status_name(lockstep_status status) noexcept {
  switch (status) {
    case LOCKSTEP_OK:
      return "OK";
    case LOCKSTEP_ERR_INVALID:
      return "INVALID";
    case LOCKSTEP_ERR_SHAPE:
      return "SHAPE";
    case LOCKSTEP_ERR_DTYPE:
      return "DTYPE";
    case LOCKSTEP_ERR_DEVICE:
      return "DEVICE";
    case LOCKSTEP_ERR_UNSUPPORTED:
      return "UNSUPPORTED";
    case LOCKSTEP_ERR_STATE:
      return "STATE";
    case LOCKSTEP_ERR_OUT_OF_MEMORY:
      return "OUT_OF_MEMORY";
    case LOCKSTEP_ERR_IO:
      return "IO";
    case LOCKSTEP_ERR_FORMAT:
      return "FORMAT";
    case LOCKSTEP_ERR_CUDA:
      return "CUDA";
    case LOCKSTEP_ERR_NCCL:
      return "NCCL";
    case LOCKSTEP_ERR_MPI:
      return "MPI";
    case LOCKSTEP_ERR_PEER:
      return "PEER";
    case LOCKSTEP_ERR_INTERNAL:
      return "INTERNAL";
    default:
      return "UNKNOWN";
  }
}

const char* lockstep_last_error() noexcept {
  return last_error();
}

lockstep_status lockstep_error_set(lockstep_status status, const char* text, size_t text_n) noexcept {
  if (text == nullptr) {
    clear_last_error();
  } else {
    set_last_error({}, text_n == 0 ? std::string_view(text) : std::string_view(text, text_n));
  }
  return status;
}
