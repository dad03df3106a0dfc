#include <lockstep/c/entry.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <new>

#include <lockstep/comm/error.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::c {
namespace {

/// Returns true if `error` is an E or derived from E. Therefore kKinds, which is searched in order, must list derived
/// classes before their base class.
template <class E>
bool is(const std::exception& error) noexcept {
  return dynamic_cast<const E*>(&error) != nullptr;
}
struct Kind {
  bool (*holds)(const std::exception&) noexcept;
  lockstep_status status;
};
constexpr std::array kKinds{
    Kind{is<ShapeError>, LOCKSTEP_ERR_SHAPE},
    Kind{is<DTypeError>, LOCKSTEP_ERR_DTYPE},
    Kind{is<DeviceError>, LOCKSTEP_ERR_DEVICE},
    Kind{is<UnsupportedError>, LOCKSTEP_ERR_UNSUPPORTED},
    Kind{is<StateError>, LOCKSTEP_ERR_STATE},
    Kind{is<UsageError>, LOCKSTEP_ERR_INVALID},
    Kind{is<OutOfMemory>, LOCKSTEP_ERR_OUT_OF_MEMORY},
    Kind{is<std::bad_alloc>, LOCKSTEP_ERR_OUT_OF_MEMORY},
    Kind{is<FileError>, LOCKSTEP_ERR_IO},
    Kind{is<DataError>, LOCKSTEP_ERR_FORMAT},
    Kind{is<CudaError>, LOCKSTEP_ERR_CUDA},
    Kind{is<NcclError>, LOCKSTEP_ERR_NCCL},
    Kind{is<MpiError>, LOCKSTEP_ERR_MPI},
    Kind{is<PeerError>, LOCKSTEP_ERR_PEER},
    Kind{is<comm::ReplicaError>, LOCKSTEP_ERR_INVALID},
};

// These variables have trivial destructors, so nothing runs when a thread ends or the library is unloaded.
thread_local std::array<char, 2048> text{};
thread_local int callbacks = 0;
thread_local const char* current = "";

}  // namespace

Failure failure_of(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    const auto* kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& k) { return k.holds(known); });
    return {kind != kKinds.end() ? kind->status : LOCKSTEP_ERR_INTERNAL, known.what()};
  } catch (...) {
    return {LOCKSTEP_ERR_INTERNAL, "something that is no std::exception was thrown"};
  }
}

void set_last_error(std::string_view entry, std::string_view reason) noexcept {
  constexpr std::string_view kMore = "...";
  std::size_t length = 0;
  const auto append = [&](std::string_view part) {
    const std::size_t n = std::min(part.size(), text.size() - 1 - length);
    // An empty part may have a null pointer, which copy_n() allows and memcpy() does not.
    std::copy_n(part.begin(), n, text.begin() + static_cast<std::ptrdiff_t>(length));
    length += n;
    return n == part.size();
  };
  bool whole = append(entry);
  whole = (entry.empty() || append(": ")) && whole;
  whole = append(reason) && whole;
  if (!whole) {
    std::memcpy(text.data() + length - kMore.size(), kMore.data(), kMore.size());
  }
  text[length] = '\0';
}

void clear_last_error() noexcept {
  text[0] = '\0';
}

const char* last_error() noexcept {
  return text.data();
}

const char* current_entry() noexcept {
  return current;
}
void set_current_entry(const char* name) noexcept {
  current = name;
}

InCallback::InCallback() noexcept {
  ++callbacks;
}
InCallback::~InCallback() {
  --callbacks;
}
void require_outside_callback() {
  require<StateError>(callbacks == 0,
                      "called from a callback of the host program, expected a call after that callback has ended");
}

}  // namespace lockstep::c
