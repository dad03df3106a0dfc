#include <lockstep/nn/data/packed/pack_folder.hpp>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <lockstep/nn/data/detail/folder_list.hpp>
#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostResize = 8192;
constexpr int kMostThreads = 1024;

/// A picture as it will be stored.
struct Prepared {
  PackedSample sample{};
  std::vector<std::uint8_t> bytes{};
  bool resized = false;
  std::string damage{};
  std::exception_ptr failed{};
};

/// Resizes to that shorter side with the taps that evaluation has (centre_crop()), and cuts nothing off.
void resize_to(std::int64_t shorter, const images::Picture& picture, const images::Header& header,
               images::ResampleMemory& memory, Prepared& out) {
  const std::int64_t least = std::min(header.width, header.height);
  const auto extent = [&](std::int64_t side) { return shorter * side / least; };
  const auto axis = [&](std::int64_t side, std::int64_t decoded) {
    const double step = static_cast<double>(side) / static_cast<double>(extent(side));
    return detail::shrunk({0, step, 0, side}, picture.shrink, decoded);
  };
  const images::Extent size{extent(header.width), extent(header.height)};
  out.bytes.resize(static_cast<std::size_t>(size.width * size.height * 3));
  images::resample(picture, axis(header.width, picture.width), axis(header.height, picture.height), size, false, memory,
                   out.bytes);
  out.sample.width = size.width;
  out.sample.height = size.height;
  out.resized = true;
}

/// Reads and decodes a file. Damage and failures stand in the result.
Prepared prepare(const PackOptions& options, const std::string& name, std::int32_t label) {
  thread_local images::Picture picture;
  thread_local images::ResampleMemory memory;
  Prepared made;
  const std::string text = detail::shown(options.folder, name);
  try {
    const images::Header header = detail::load_picture(options.folder, name, text, made.bytes);
    made.sample = {label, header.width, header.height, header.orientation, header.format == images::Format::jpeg, name};
    if (options.store == PackedStore::files) {
      images::decode(made.bytes, text, header, 8, picture);  // all of the file, in the least time
    } else if (const std::int64_t shorter = std::min(header.width, header.height);
               options.resize > 0 && shorter > options.resize) {
      const double step = static_cast<double>(shorter) / static_cast<double>(options.resize);
      images::decode(made.bytes, text, header, detail::shrink_for(step, step), picture);
      resize_to(options.resize, picture, header, memory, made);
    } else {
      images::decode(made.bytes, text, header, 1, picture);
      made.bytes.assign(picture.pixels.begin(), picture.pixels.end());
    }
  } catch (const FileError&) {
    made.failed = std::current_exception();
  } catch (const DataError& error) {
    made.damage = error.what();
  } catch (...) {
    made.failed = std::current_exception();
  }
  detail::keep_little(picture.pixels);
  detail::keep_little(memory.rows);
  return made;
}

/// Threads that prepare items [0, count) ahead of the caller, who takes them in order.
class Ahead {
 public:
  Ahead(std::int64_t count, int threads, std::function<Prepared(std::int64_t)> make)
      : count_(count), ahead_(std::int64_t{4} * threads), make_(std::move(make)) {
    for (int i = 0; i < threads; ++i) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {  // the system has no more: those that there are do the work
        if (threads_.empty()) {
          throw;
        }
        break;
      }
    }
  }
  ~Ahead() {
    {
      const std::lock_guard lock(mutex_);
      next_ = count_;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  Prepared take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_.count(taken_) > 0; });
    Prepared item = std::move(ready_.extract(taken_++).mapped());
    held_ -= item.bytes.size();
    lock.unlock();
    changed_.notify_all();
    return item;
  }

 private:
  void work() {
    constexpr std::size_t kMostHeld = std::size_t{1} << 30;
    std::unique_lock lock(mutex_);
    while (true) {
      // The item that the caller waits for is always made.
      changed_.wait(lock, [this] {
        return next_ == count_ || next_ == taken_ || (next_ < taken_ + ahead_ && held_ < kMostHeld);
      });
      if (next_ == count_) {
        return;
      }
      const std::int64_t i = next_++;
      lock.unlock();
      Prepared item = make_(i);
      lock.lock();
      held_ += item.bytes.size();
      ready_.emplace(i, std::move(item));
      changed_.notify_all();
    }
  }

  std::int64_t count_;
  std::int64_t ahead_;
  std::function<Prepared(std::int64_t)> make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t next_ = 0;   ///< not begun
  std::int64_t taken_ = 0;  ///< by the caller
  std::size_t held_ = 0;    ///< bytes in ready_
  std::map<std::int64_t, Prepared> ready_;
  std::vector<std::thread> threads_;
};

void require_output(const PackOptions& options) {
  const fs::path out(options.out);
  std::error_code error;
  require<UsageError>(!options.out.empty() && out.has_filename() && !fs::is_directory(out, error),
                      printable(options.out), ": is a folder, expected a file to write");
  require<UsageError>(options.overwrite || !fs::exists(out, error), printable(options.out),
                      ": exists, expected no such file, or that it may be replaced (--overwrite)");
  const fs::path above = fs::canonical(out.has_parent_path() ? out.parent_path() : fs::path("."), error);
  require<FileError>(!error, printable(options.out), ": cannot be made: ", error.message());
  const fs::path folder = fs::canonical(options.folder, error);
  require<FileError>(!error, printable(options.folder), ": cannot be read: ", error.message());
  require<UsageError>(std::mismatch(folder.begin(), folder.end(), above.begin(), above.end()).first != folder.end(),
                      printable(options.out), ": lies in ", printable(options.folder), ", expected a place outside");
}

}  // namespace

FolderPack::FolderPack(PackOptions options) : options_(std::move(options)) {
  detail::require_decoders("folder:" + options_.folder);
  require<UsageError>(options_.resize == 0 || options_.store == PackedStore::pixels, "resize is ", options_.resize,
                      " beside stored files, expected stored pixels (--store pixels)");
  require<UsageError>(options_.resize >= 0 && options_.resize <= kMostResize, "resize is ", options_.resize,
                      ", expected 0 to ", kMostResize);
  require<UsageError>(options_.threads >= 1 && options_.threads <= kMostThreads, "threads are ", options_.threads,
                      ", expected 1 to ", kMostThreads);
  detail::FolderList list = detail::list_folder(options_.folder, options_.val_fraction, options_.seed);
  require_output(options_);
  class_names_ = std::move(list.names);
  about_ = std::move(list.about);
  train_ = static_cast<std::int64_t>(list.train.size());
  for (std::vector<detail::FolderFile>* part : {&list.train, &list.test}) {
    for (detail::FolderFile& file : *part) {
      files_.emplace_back(std::move(file.name), file.label);
    }
  }
}

PackSummary FolderPack::write(const std::function<void(const PackProgress&)>& report) const {
  PackSummary summary;
  PackedWriter writer(options_.out, options_.store, class_names_, options_.resize);
  const auto all = static_cast<std::int64_t>(files_.size());
  Ahead pictures(all, options_.threads, [this](std::int64_t i) {
    const auto& [name, label] = files_[static_cast<std::size_t>(i)];
    return prepare(options_, name, label);
  });
  detail::FolderList packed{.classes = static_cast<int>(class_names_.size())};
  for (std::int64_t i = 0; i < all; ++i) {
    const Prepared made = pictures.take();
    if (made.failed != nullptr) {
      std::rethrow_exception(made.failed);
    }
    const auto& [name, label] = files_[static_cast<std::size_t>(i)];
    if (made.damage.empty()) {
      writer.add(i >= train_, made.sample, made.bytes);
      (i < train_ ? packed.train : packed.test).push_back({{}, label});
      summary.resized += made.resized ? 1 : 0;
    } else {
      require<DataError>(options_.skip_damaged, made.damage, " (damaged images can be left out: --skip-damaged)");
      summary.damaged.push_back({name, made.damage});
    }
    report({i + 1, all, writer.bytes()});
  }
  std::vector<std::string> names;
  for (const DamagedImage& image : summary.damaged) {
    names.push_back(image.file);
  }
  detail::leave_out(packed, names, options_.folder);  // something remains
  writer.commit();
  summary.train = static_cast<std::int64_t>(packed.train.size());
  summary.test = static_cast<std::int64_t>(packed.test.size());
  summary.bytes = writer.bytes();
  return summary;
}

}  // namespace lockstep::nn
