#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep {

/// Whether a library goes with its owner. Those that start threads, or register what the driver calls at the end of the
/// process, stay.
enum class Unload : bool { with_owner, never };

/// A library that is opened while the program runs (dlopen), so that programs start on machines without it. Its symbols
/// stay its own (RTLD_LOCAL), and what it needs is looked for at once (RTLD_NOW). Movable; const calls from any thread.
class SharedLibrary {
 public:
  /// The first of `names` that can be opened: a path, or a name without a slash, which the environment of the program
  /// decides (LD_LIBRARY_PATH, run paths, the system's cache). UnsupportedError with what the system says of each name
  /// when none can; UsageError for no name or an empty one.
  explicit SharedLibrary(const std::vector<std::string>& names, Unload unload = Unload::with_owner);

  [[nodiscard]] const std::string& name() const { return name_; }  ///< of `names`, the one that was opened

  /// The function of that name, whose type the caller knows. UnsupportedError naming library and function when there is
  /// none.
  template <class Function>
  void get(Function*& function, const char* name) const {
    static_assert(std::is_function_v<Function>);
    function = reinterpret_cast<Function*>(required(name));
  }
  /// The same, but null when there is none.
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
