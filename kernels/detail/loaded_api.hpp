#pragma once

#include <string>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/shared_library.hpp>

/// An NVIDIA library that is opened when an op first needs it, so that programs start on machines without it.
namespace lockstep::ops::detail {

/// Api: pointers to the functions that are used.
template <class Api>
struct LoadedApi {
  Api api;
  std::string problem;  ///< why it cannot be used; else empty
};

/// Opens the first of `names` that can be opened: by name, as the environment of the program decides, then where the
/// library was at build time. get(library, api) takes the functions and returns what is wrong with the version, if
/// anything. The library is never unloaded: its threads and CUDA modules outlive every possible owner.
template <class Api, class Get>
[[nodiscard]] LoadedApi<Api> load_api(const char* title, const std::vector<std::string>& names, Get get) {
  LoadedApi<Api> loaded;
  try {
    const SharedLibrary library(names, Unload::never);
    loaded.problem = get(library, loaded.api);
  } catch (const UnsupportedError& error) {
    loaded.problem = concat(title, " cannot be loaded: ", error.what());
  }
  return loaded;
}

}  // namespace lockstep::ops::detail
