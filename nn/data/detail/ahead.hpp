#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::nn::detail {

/// Throws UsageError unless `threads` is from 1 to 1024.
inline void require_threads(int threads) {
  constexpr int kMost = 1024;
  require<UsageError>(threads >= 1 && threads <= kMost, "threads are ", threads, ", expected 1 to ", kMost);
}

/// Calls work(). If `work` throws a DataError, which describes a damaged file, returns the text of the error; otherwise
/// returns an empty text. A FileError, which the system causes, is passed on to the caller.
template <class Work>
std::string damage_in(Work&& work) {
  try {
    work();
  } catch (const FileError&) {
    throw;
  } catch (const DataError& error) {
    return error.what();
  }
  return {};
}

/// Threads make the items [0, count) in advance, and the caller takes the items in order. At most four items per thread
/// are made in advance. No new item is begun while the finished items hold 1 GiB or more in all. If Item has a function
/// held(), it must return the size of the item in bytes.
template <class Item>
class Ahead {
 public:
  Ahead(std::int64_t count, int threads, std::function<Item(std::int64_t)> make)
      : count_(count), ahead_(std::int64_t{4} * threads), make_(std::move(make)) {
    for (int i = 0; i < threads; ++i) {
      try {
        threads_.push_back(helper_thread([this] { work(); }));
      } catch (const std::system_error&) {
        break;  // the system could not start another thread; without any thread, take() makes the items
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

  /// Returns the next item; waits until a thread has made the item. If `make` threw an exception for the item, throws
  /// that exception.
  Item take() {
    if (threads_.empty()) {
      return make_(taken_++);
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_.count(taken_) > 0; });
    Made made = std::move(ready_.extract(taken_++).mapped());
    held_ -= made.held;
    lock.unlock();
    changed_.notify_all();
    if (made.failed != nullptr) {
      std::rethrow_exception(made.failed);
    }
    return *std::move(made.item);
  }

 private:
  struct Made {
    std::optional<Item> item{};
    std::exception_ptr failed{};
    std::size_t held = 0;
  };
  [[nodiscard]] Made attempt(std::int64_t index) const noexcept {
    Made made;
    try {
      made.item.emplace(make_(index));
      if constexpr (requires(const Item& item) { item.held(); }) {
        made.held = made.item->held();
      }
    } catch (...) {
      made.failed = std::current_exception();
    }
    return made;
  }
  void work() {
    constexpr std::size_t kMostHeld = std::size_t{1} << 30;
    std::unique_lock lock(mutex_);
    while (true) {
      // The item that the caller waits for is made even if the finished items hold too many bytes.
      changed_.wait(lock, [this] {
        return next_ == count_ || next_ == taken_ || (next_ < taken_ + ahead_ && held_ < kMostHeld);
      });
      if (next_ == count_) {
        return;
      }
      const std::int64_t i = next_++;
      lock.unlock();
      Made item = attempt(i);
      lock.lock();
      held_ += item.held;
      ready_.emplace(i, std::move(item));
      changed_.notify_all();
    }
  }

  std::int64_t count_;
  std::int64_t ahead_;
  std::function<Item(std::int64_t)> make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t next_ = 0;   ///< number of the first item that no thread has begun
  std::int64_t taken_ = 0;  ///< number of items that the caller has taken or waits for
  std::size_t held_ = 0;    ///< bytes of the items in ready_
  std::map<std::int64_t, Made> ready_;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::nn::detail
