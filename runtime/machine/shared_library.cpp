#include <lockstep/runtime/machine/shared_library.hpp>

#include <string_view>

#include <dlfcn.h>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names, Unload unload) {
  require<UsageError>(!names.empty(), "shared library: no name is given, expected at least one");
  const int flags = RTLD_NOW | RTLD_LOCAL | (unload == Unload::never ? RTLD_NODELETE : 0);
  std::string tried;
  for (const std::string& name : names) {
    // dlopen("") would return the program itself.
    require<UsageError>(!name.empty(), "shared library: a name is empty, expected that of a file");
    handle_.reset(::dlopen(name.c_str(), flags));
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    const char* words = ::dlerror();
    const std::string_view text = words != nullptr ? words : "cannot be opened";
    // If a dependency of the library is missing, the system's text names only the dependency. So the library's name is
    // added.
    tried += concat(tried.empty() ? "" : "; ", text.starts_with(name) ? "" : concat(name, ": "), text);
  }
  throw UnsupportedError(tried);
}

void SharedLibrary::Close::operator()(void* handle) const noexcept {
  ::dlclose(handle);
}

void* SharedLibrary::address(const char* name) const {
  return ::dlsym(handle_.get(), name);
}

void* SharedLibrary::required(const char* name) const {
  void* found = address(name);
  require<UnsupportedError>(found != nullptr, name_, " has no function ", name,
                            ", expected another version of the library");
  return found;
}

}  // namespace lockstep
