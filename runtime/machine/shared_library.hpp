#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep {

/// Whether a library is unloaded with its owner. A library that starts threads, or registers callbacks for the end of
/// the process, must not be unloaded.
enum class Unload : bool { with_owner, never };

/// A library opened at run time (dlopen), so that programs start on machines without it. Its symbols stay private
/// (RTLD_LOCAL), and all its dependencies are resolved at once (RTLD_NOW). Movable; any thread may make const calls.
class SharedLibrary {
 public:
  /// Opens the first of `names` that can be opened: a path, or a name without a slash, which the system searches
  /// (LD_LIBRARY_PATH, run paths, the linker's cache). UnsupportedError, with the system's message for each name, when
  /// none can be opened; UsageError for no name or an empty one.
  explicit SharedLibrary(const std::vector<std::string>& names, Unload unload = Unload::with_owner);

  [[nodiscard]] const std::string& name() const { return name_; }  ///< the opened one of `names`

  /// Sets `function` to the function of that name; the caller knows its type. UnsupportedError, with library and
  /// function, when there is none.
  template <class Function>
  void get(Function*& function, const char* name) const {
    static_assert(std::is_function_v<Function>);
    function = reinterpret_cast<Function*>(required(name));
  }
  /// As get(), but sets null when there is no such function.
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
