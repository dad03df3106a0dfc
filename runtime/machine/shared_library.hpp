#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep {

/// Says whether a library is unloaded with its owner. A library must not be unloaded if it starts threads, or registers
/// callbacks for the end of the process.
enum class Unload : bool { with_owner, never };

/// A library opened at run time (dlopen), so that programs start on machines without this library. Its symbols stay
/// private (RTLD_LOCAL). The constructor fails if a symbol that the library needs is missing (RTLD_NOW). Movable. Any
/// thread may call const members.
class SharedLibrary {
 public:
  /// Opens the first of `names` that can be opened. A name with a slash is a path. A name without a slash is searched
  /// by the system (LD_LIBRARY_PATH, run paths, the linker's cache). If none can be opened, throws UnsupportedError
  /// with the system's message for each name. Throws UsageError for an empty list or an empty name.
  explicit SharedLibrary(const std::vector<std::string>& names, Unload unload = Unload::with_owner);

  [[nodiscard]] const std::string& name() const { return name_; }  ///< name with which the library was opened

  /// Sets `function` to the library's function `name`; the caller must know its type. Throws UnsupportedError, with
  /// library and function, if there is no such function.
  template <class Function>
  void get(Function*& function, const char* name) const {
    static_assert(std::is_function_v<Function>);
    function = reinterpret_cast<Function*>(required(name));
  }
  /// Sets `function` like get(), but to null if there is no such function.
  template <class Function>
  void find(Function*& function, const char* name) const {
    static_assert(std::is_function_v<Function>);
    function = reinterpret_cast<Function*>(address(name));
  }

 private:
  struct Close {
    void operator()(void* handle) const noexcept;
  };
  [[nodiscard]] void* address(const char* name) const;
  [[nodiscard]] void* required(const char* name) const;

  std::string name_;
  std::unique_ptr<void, Close> handle_;
};

}  // namespace lockstep
