#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/lockstep.h>

namespace lockstep::c {

struct ContextObject;
struct CommObject;
struct ModelObject;
struct TrainerObject;
struct TapeObject;

/// The kinds of objects that a handle may name.
enum class HandleKind : std::uint8_t { context = 1, comm, model, trainer, tape };

namespace detail {
/// Returns a new handle of `object`. A handle holds an index in the table of handles, the generation of the table's
/// entry, and the kind of the object. So a lookup detects a destroyed handle, a handle of another kind, and a pointer
/// that is no handle. Lookups take no lock.
[[nodiscard]] void* add_handle(HandleKind kind, std::shared_ptr<void> object);
/// Returns the object of `handle`. Throws a UsageError that names `kind` if `handle` is no valid handle of this kind.
[[nodiscard]] const std::shared_ptr<void>& find_handle(HandleKind kind, const void* handle);
/// Makes `handle` invalid, and returns the shared pointer that the table of handles held. Throws the errors of
/// find_handle().
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
template <>
struct HandleType<lockstep_tape> {
  using Object = TapeObject;
  static constexpr HandleKind kind = HandleKind::tape;
};

/// Returns a new handle, which shares the ownership of `object`.
template <class Handle>
[[nodiscard]] Handle make_handle(std::shared_ptr<typename HandleType<Handle>::Object> object) {
  return static_cast<Handle>(detail::add_handle(HandleType<Handle>::kind, std::move(object)));
}
/// Returns the object of `handle`. Throws UsageError if `handle` is invalid.
template <class Handle>
[[nodiscard]] typename HandleType<Handle>::Object& object_of(Handle handle) {
  return *static_cast<typename HandleType<Handle>::Object*>(
      detail::find_handle(HandleType<Handle>::kind, handle).get());
}
/// Returns a shared pointer to the object of `handle`. Throws UsageError if `handle` is invalid.
template <class Handle>
[[nodiscard]] std::shared_ptr<typename HandleType<Handle>::Object> share_of(Handle handle) {
  return std::static_pointer_cast<typename HandleType<Handle>::Object>(
      detail::find_handle(HandleType<Handle>::kind, handle));
}
/// Makes `handle` invalid, or does nothing if `handle` is NULL. If no other owner of the object is left, destroys the
/// object, while no lock is held.
template <class Handle>
void destroy(Handle handle) {
  if (handle != nullptr) {
    static_cast<void>(detail::take_handle(HandleType<Handle>::kind, handle));
  }
}

}  // namespace lockstep::c
