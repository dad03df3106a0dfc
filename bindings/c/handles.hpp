#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/lockstep.h>

namespace lockstep::c {

struct ContextObject;
struct CommObject;
struct ModelObject;
struct TrainerObject;

/// The kinds of objects that a handle may name.
enum class HandleKind : std::uint8_t { context = 1, comm, model, trainer };

namespace detail {
/// Makes a handle of an object. A handle consists of the number of a slot, the slot's generation and the kind, so a
/// handle that was destroyed, is of another kind or was never made is an error. Looking up a handle takes no lock.
[[nodiscard]] void* add_handle(HandleKind kind, std::shared_ptr<void> object);
/// Returns the object of a handle. A UsageError names the kind if the handle is invalid.
[[nodiscard]] const std::shared_ptr<void>& find_handle(HandleKind kind, const void* handle);
/// Ends a handle and returns the slot's share in the object. Errors as for find_handle().
[[nodiscard]] std::shared_ptr<void> take_handle(HandleKind kind, const void* handle);
}  // namespace detail

template <class Handle>
struct HandleType;
template <>
struct HandleType<lockstep_context> {
  using Object = ContextObject;
  static constexpr HandleKind kind = HandleKind::context;
};
template <>
struct HandleType<lockstep_comm> {
  using Object = CommObject;
  static constexpr HandleKind kind = HandleKind::comm;
};
template <>
struct HandleType<lockstep_model> {
  using Object = ModelObject;
  static constexpr HandleKind kind = HandleKind::model;
};
template <>
struct HandleType<lockstep_trainer> {
  using Object = TrainerObject;
  static constexpr HandleKind kind = HandleKind::trainer;
};

/// Makes a handle that owns a share in the object.
template <class Handle>
[[nodiscard]] Handle make_handle(std::shared_ptr<typename HandleType<Handle>::Object> object) {
  return static_cast<Handle>(detail::add_handle(HandleType<Handle>::kind, std::move(object)));
}
/// Returns the object of a handle. Throws UsageError for an invalid handle.
template <class Handle>
[[nodiscard]] typename HandleType<Handle>::Object& object_of(Handle handle) {
  return *static_cast<typename HandleType<Handle>::Object*>(
      detail::find_handle(HandleType<Handle>::kind, handle).get());
}
/// Returns a share in the object of a handle. Throws UsageError for an invalid handle.
template <class Handle>
[[nodiscard]] std::shared_ptr<typename HandleType<Handle>::Object> share_of(Handle handle) {
  return std::static_pointer_cast<typename HandleType<Handle>::Object>(
      detail::find_handle(HandleType<Handle>::kind, handle));
}
/// Ends the handle; does nothing for NULL. If the handle had the last share, the object is destroyed outside of every
/// lock.
template <class Handle>
void destroy(Handle handle) {
  if (handle != nullptr) {
    static_cast<void>(detail::take_handle(HandleType<Handle>::kind, handle));
  }
}

}  // namespace lockstep::c
