#pragma once

#include <string>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/shared_library.hpp>

/// Loads an NVIDIA library when an op first needs it, so that programs start on machines without the library.
namespace lockstep::ops::detail {

/// Returns the function `name` of a library, or null if `from` is null.
template <class Function>
[[nodiscard]] Function function_of(const SharedLibrary* from, const char* name) {
  Function function = nullptr;
  if (from != nullptr) {
    from->get(function, name);
  }
  return function;
}
/// Declares a member of a struct Api: a pointer to a function of a library that is loaded at run time. The struct must
/// begin with `const SharedLibrary* from = nullptr;`.
// NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared
#define LOCKSTEP_FUNCTION(member, function) \
  decltype(&::function) member = ::lockstep::ops::detail::function_of<decltype(&::function)>(from, #function)
// NOLINTEND(bugprone-macro-parentheses)

/// The result of loading a library. Api is a struct of pointers to the library's functions.
template <class Api>
struct LoadedApi {
  Api api;
  std::string problem;  ///< reason why the library cannot be used; empty if it can
};

/// Opens the first of `names` that can be opened, and takes the functions of this library. `names` should hold first a
/// file name, which the dynamic linker searches for (LD_LIBRARY_PATH), and then the library's path at build time.
/// problem_of(api) must return why this version cannot be used, or an empty string. The library is never unloaded,
/// because its threads and CUDA modules outlive every possible owner.
template <class Api, class ProblemOf>
[[nodiscard]] LoadedApi<Api> load_api(const char* title, const std::vector<std::string>& names, ProblemOf problem_of) {
  LoadedApi<Api> loaded;
  try {
    const SharedLibrary library(names, Unload::never);
    loaded.api = Api{.from = &library};
    loaded.api.from = nullptr;
    loaded.problem = problem_of(loaded.api);
  } catch (const UnsupportedError& error) {
    loaded.problem = concat(title, " cannot be loaded: ", error.what());
  }
  return loaded;
}

}  // namespace lockstep::ops::detail
