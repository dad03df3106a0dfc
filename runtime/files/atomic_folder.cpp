#include <lockstep/runtime/files/atomic_folder.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Removes trailing separators of a path, because the names of temporary folders are made by appending to the path.
std::string clean(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  require<DataError>(!path.empty() && path != "/" && path != "." && path != "..", "folder '", path,
                     "': expected the path of a folder that can be replaced");
  return path;
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Returns, in the order of names, the entries with the name PATH + infix + unique_suffix() in the folder of `path`.
std::vector<std::string> siblings(const std::string& path, std::string_view infix) {
  const std::string parent = parent_of(path);
  const std::string begin = fs::path(path).filename().string() + std::string(infix);
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(begin) && is_unique_suffix(std::string_view(name).substr(begin.size()))) {
      found.push_back(concat(parent, '/', name));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Deletes a leftover of a killed writer. A leftover that cannot be deleted, for example because it is read-only, stays.
void remove_leftover(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// Throws FileError unless the call succeeded. Reads errno first, because require()'s arguments are evaluated in no
// fixed order.
void check_call(int result, const std::string& path, const char* what) {
  const int error = errno;
  require<FileError>(result == 0, path, ": cannot be ", what, ": ", std::strerror(error),
                     "; expected a folder that this user may write");
}

void rename_folder(const std::string& from, const std::string& to) {
  check_call(::rename(from.c_str(), to.c_str()), to, "put in place");
}

// Swaps the two names. Returns false if this file system cannot swap.
bool swap_names(const std::string& a, const std::string& b) {
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  require<FileError>(errno == EINVAL || errno == ENOSYS || errno == ENOTSUP, b,
                     ": cannot be put in place: ", std::strerror(errno),
                     "; expected a folder that this user may write");
#else
  (void)a;
  (void)b;
#endif
  return false;
}

}  // namespace

AtomicFolder::AtomicFolder(std::string path, Replace replace) : path_(clean(std::move(path))), replace_(replace) {
  std::error_code error;
  fs::create_directories(parent_of(path_), error);
  require<FileError>(!error, parent_of(path_), ": cannot be made: ", error.message(),
                     "; expected a folder above it that this user may write");
  recover_folder(path_);
  require<DataError>(!file_exists(path_) || fs::is_directory(path_, error), path_,
                     ": is not a folder, expected one or nothing");
  temporary_ = temporary_beside(path_);
  check_call(::mkdir(temporary_.c_str(), 0777), temporary_, "made");
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

std::string AtomicFolder::file(const std::string& name) const {
  require<DataError>(!name.empty() && name.find('/') == std::string::npos && name != "." && name != "..", "file name '",
                     name, "' in ", path_, ": expected a plain name");
  return temporary_ + "/" + name;
}

void AtomicFolder::commit(int keep) {
  require<StateError>(!committed_, path_, ": commit() called twice, expected one call");
  sync_folder(temporary_);
  // Moves the new folder to PATH, the former PATH to PATH.1, and so on. Each old folder stays complete until a newer
  // folder has taken its name.
  std::string moving = temporary_;
  for (int number = 0; !moving.empty() && number <= std::max(keep, 0); ++number) {
    moving = put_in_place(moving, number == 0 ? path_ : concat(path_, '.', number));
    committed_ = true;
    if (number == 0) {
      sync_folder(parent_of(path_));
    }
  }
  if (!moving.empty()) {
    remove_leftover(moving);
  }
}

std::string AtomicFolder::put_in_place(const std::string& from, const std::string& to) const {
  if (!file_exists(to)) {
    rename_folder(from, to);
    return "";
  }
  if (replace_ == Replace::swap && swap_names(from, to)) {
    return from;
  }
  std::string replaced = path_ + ".old-" + unique_suffix();
  rename_folder(to, replaced);
  rename_folder(from, to);
  return replaced;
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  require<FileError>(!error, path, ": cannot be deleted: ", error.message(),
                     "; expected a folder that this user may write");
}

std::string find_folder(const std::string& path) {
  std::string name = clean(path);
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) {
    return name;
  }
  // An empty folder is ignored, because it never was a complete PATH.
  for (const std::string& old : siblings(name, ".old-")) {
    if (!fs::is_empty(old, ignored)) {
      return old;
    }
  }
  return "";
}

void recover_folder(const std::string& path) {
  const std::string name = clean(path);
  const std::string found = find_folder(name);
  if (!found.empty() && found != name) {
    rename_folder(found, name);
    sync_folder(parent_of(name));
  }
  for (const char* infix : {".old-", ".tmp-"}) {
    for (const std::string& leftover : siblings(name, infix)) {
      remove_leftover(leftover);
    }
  }
}

void remove_folder(const std::string& path) {
  const std::string name = clean(path);
  recover_folder(name);
  if (!file_exists(name)) {
    return;
  }
  const std::string leftover = temporary_beside(name);
  rename_folder(name, leftover);
  sync_folder(parent_of(name));
  remove_tree(leftover);
}

}  // namespace lockstep
