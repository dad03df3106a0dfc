#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <string_view>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/runtime/machine/instruction_sets.hpp>

// NOLINTBEGIN(cppcoreguidelines-macro-usage): the preprocessor makes a text
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
  static const std::array<char, 512> kText = [] {
    std::string_view variant;
    try {
      variant = lockstep::built_for().architecture;
    } catch (...) {  // lockstep_context_create() reports why no variant runs
      variant = "none";
    }
    std::array<char, 512> text{};
    std::snprintf(text.data(), text.size(),
                  "{\"version\": \"%d.%d.%d\", \"compiler\": \"%s\", %s, \"cpu_variant\": \"%.*s\"}",
                  LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR, LOCKSTEP_VERSION_PATCH, LOCKSTEP_COMPILER,
                  LOCKSTEP_BUILD_OPTIONS, static_cast<int>(variant.size()), variant.data());
    return text;
  }();
  return kText.data();
}

const char* lockstep_status_name(lockstep_status status) noexcept {
  struct Named {
    lockstep_status status;
    const char* name;
  };
  static constexpr Named kNames[] = {{LOCKSTEP_OK, "OK"},
                                     {LOCKSTEP_ERR_INVALID, "INVALID"},
                                     {LOCKSTEP_ERR_SHAPE, "SHAPE"},
                                     {LOCKSTEP_ERR_DTYPE, "DTYPE"},
                                     {LOCKSTEP_ERR_DEVICE, "DEVICE"},
                                     {LOCKSTEP_ERR_UNSUPPORTED, "UNSUPPORTED"},
                                     {LOCKSTEP_ERR_STATE, "STATE"},
                                     {LOCKSTEP_ERR_OUT_OF_MEMORY, "OUT_OF_MEMORY"},
                                     {LOCKSTEP_ERR_IO, "IO"},
                                     {LOCKSTEP_ERR_FORMAT, "FORMAT"},
                                     {LOCKSTEP_ERR_CUDA, "CUDA"},
                                     {LOCKSTEP_ERR_NCCL, "NCCL"},
                                     {LOCKSTEP_ERR_MPI, "MPI"},
                                     {LOCKSTEP_ERR_PEER, "PEER"},
                                     {LOCKSTEP_ERR_INTERNAL, "INTERNAL"}};
  const auto* named = std::ranges::find(kNames, status, &Named::status);
  return named != std::end(kNames) ? named->name : "UNKNOWN";
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
