#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/lockstep.h>

namespace lockstep::c {

struct ContextObject;
struct CommObject;
struct ModelObject;
struct TrainerObject;

/// What a handle may name.
enum class HandleKind : std::uint8_t { context = 1, comm, model, trainer };

namespace detail {
/// A handle is the number of a slot, the slot's generation and the kind, so that one that was destroyed, is of another
/// kind or was never one is found out instead of being followed. Looking one up takes no lock.
[[nodiscard]] void* add_handle(HandleKind kind, std::shared_ptr<void> object);
/// UsageError that names kind and handle.
[[nodiscard]] const std::shared_ptr<void>& find_handle(HandleKind kind, const void* handle);
/// The same, and the handle is gone; the slot's share in the object is returned.
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

/// A handle that owns a share in the object.
template <class Handle>
[[nodiscard]] Handle make_handle(std::shared_ptr<typename HandleType<Handle>::Object> object) {
  return static_cast<Handle>(detail::add_handle(HandleType<Handle>::kind, std::move(object)));
}
/// The object; UsageError for a handle that is none.
template <class Handle>
[[nodiscard]] typename HandleType<Handle>::Object& object_of(Handle handle) {
  return *static_cast<typename HandleType<Handle>::Object*>(
      detail::find_handle(HandleType<Handle>::kind, handle).get());
}
/// A share in it.
template <class Handle>
[[nodiscard]] std::shared_ptr<typename HandleType<Handle>::Object> share_of(Handle handle) {
  return std::static_pointer_cast<typename HandleType<Handle>::Object>(
      detail::find_handle(HandleType<Handle>::kind, handle));
}
/// Gives the handle up; nothing for NULL. What goes with it goes outside of every lock.
template <class Handle>
void destroy(Handle handle) {
  if (handle != nullptr) {
    static_cast<void>(detail::take_handle(HandleType<Handle>::kind, handle));
  }
}

}  // namespace lockstep::c
