#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "host.hpp"

namespace host {

/// Ranks that are threads and exchange data through memory. They stand for a communicator of the host program.
class Team {
 public:
  explicit Team(int size) : size_(size), given_(static_cast<std::size_t>(size)) {}

  /// State of one rank, which is the argument `user` of its functions.
  struct Member {
    Team* team = nullptr;
    int rank = 0;
    int fail_at = -1;  ///< number of the exchange, from 0, that returns `failure`; -1: none
    std::int32_t failure = 99;
    int calls = 0;
    int destroyed = 0;

    /// Waits for all ranks, then calls read() with every rank's pointer, in rank order. All ranks wait until each has
    /// read.
    template <class Read>
    std::int32_t exchange(const void* mine, Read&& read) {
      if (calls++ == fail_at) {
        return failure;
      }
      team->given_[static_cast<std::size_t>(rank)] = mine;
      team->meet();
      read(team->given_);
      team->meet();
      return 0;
    }
    template <class T>
    std::int32_t sum(void* data, std::int64_t count) {
      std::vector<T> total(static_cast<std::size_t>(count));
      const std::int32_t result = exchange(data, [&](const std::vector<const void*>& all) {
        for (const void* each : all) {
          for (std::size_t i = 0; i < total.size(); ++i) {
            total[i] += static_cast<const T*>(each)[i];
          }
        }
      });
      if (result == 0) {
        std::memcpy(data, total.data(), total.size() * sizeof(T));
      }
      return result;
    }
  };

  /// Runs body(member) on one thread for each rank.
  void run(const std::function<void(Member&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([this, rank, &body] {
        Member member{.team = this, .rank = rank};
        body(member);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  static lockstep_comm_ops functions(Member& member) {
    lockstep_comm_ops ops{};
    ops.struct_size = sizeof ops;
    ops.user = &member;
    ops.rank = member.rank;
    ops.size = member.team->size_;
    ops.all_reduce_sum = [](void* user, void* data, std::int64_t count, lockstep_dtype dtype) {
      auto& me = *static_cast<Member*>(user);
      return dtype == LOCKSTEP_F64   ? me.sum<double>(data, count)
             : dtype == LOCKSTEP_F32 ? me.sum<float>(data, count)
                                     : me.sum<std::int64_t>(data, count);
    };
    ops.broadcast = [](void* user, void* data, std::int64_t bytes, std::int32_t root) {
      auto& me = *static_cast<Member*>(user);
      return me.exchange(data, [&](const std::vector<const void*>& all) {
        if (me.rank != root) {
          std::memcpy(data, all[static_cast<std::size_t>(root)], static_cast<std::size_t>(bytes));
        }
      });
    };
    ops.all_gather = [](void* user, const void* in, void* out, std::int64_t bytes) {
      return static_cast<Member*>(user)->exchange(in, [&](const std::vector<const void*>& all) {
        for (std::size_t r = 0; r < all.size(); ++r) {
          std::memcpy(static_cast<char*>(out) + r * static_cast<std::size_t>(bytes), all[r],
                      static_cast<std::size_t>(bytes));
        }
      });
    };
    ops.barrier = [](void* user) {
      return static_cast<Member*>(user)->exchange(nullptr, [](const std::vector<const void*>&) {});
    };
    ops.error_text = [](void*) { return "a cable was pulled"; };
    ops.destroy = [](void* user) { ++static_cast<Member*>(user)->destroyed; };
    return ops;
  }

 private:
  void meet() {
    std::unique_lock lock(mutex_);
    const int mine = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != mine; });
  }

  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int round_ = 0;
  std::vector<const void*> given_;
};

/// A context and a communicator for one rank of a team.
struct Rank {
  HostContext context;
  Comm comm;
  explicit Rank(Team::Member& me) {
    const lockstep_comm_ops ops = Team::functions(me);
    EXPECT_TRUE(ok(lockstep_comm_from_ops(context, &ops, &comm)));
  }
};

/// Runs body(member, rank) on `size` ranks.
inline void as_ranks(int size, const std::function<void(Team::Member&, const Rank&)>& body) {
  Team(size).run([&](Team::Member& me) {
    const Rank rank(me);
    body(me, rank);
  });
}

}  // namespace host
