// Tests the search for usable GPUs: claims between real processes, on GPUs that do not exist.
#include <lockstep/runtime/machine/usable_gpus.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/child.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kGiB = std::size_t{1} << 30;

std::vector<GpuInfo> node(int gpus) {
  std::vector<GpuInfo> list;
  for (int i = 0; i < gpus; ++i) {
    list.push_back({.index = i,
                    .uuid = concat("GPU-", i, i, i),
                    .pci = concat("0000:0", i, ":00.0"),
                    .name = "Made-up",
                    .memory_bytes = 80 * kGiB});
  }
  return list;
}

std::string usable(const GpuInfo& /*gpu*/, std::size_t /*bytes*/) {
  return {};
}

class UsableGpusTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string folder() const { return root_ / "claims"; }
  [[nodiscard]] GpuSearch search(int gpus) const {
    return {.gpus = node(gpus), .probe = usable, .claim_folder = folder(), .patience = 20s};
  }
  [[nodiscard]] const std::string& root() const { return root_.path(); }

 private:
  TemporaryFolder root_;
};

std::vector<int> indices(const UsableGpus& found) {
  std::vector<int> result;
  for (const GpuInfo& gpu : found.gpus) {
    result.push_back(gpu.index);
  }
  EXPECT_EQ(found.claims.size(), result.size());
  return result;
}

TEST_F(UsableGpusTest, TakesTheFirstOnesThatAreUsable) {
  GpuSearch machine = search(4);
  std::vector<int> probed;
  machine.probe = [&](const GpuInfo& gpu, std::size_t bytes) {
    probed.push_back(gpu.index);
    EXPECT_EQ(bytes, 72 * kGiB) << "nine tenths of the card";
    return gpu.index == 1 ? std::string("1 of 80 bytes are free") : std::string();
  };
  EXPECT_EQ(indices(find_usable_gpus(2, std::nullopt, machine)), (std::vector<int>{0, 2}));
  EXPECT_EQ(probed, (std::vector<int>{0, 1, 2})) << "no GPU is tried that is not needed";
  EXPECT_EQ(indices(find_usable_gpus(-1, std::nullopt, machine)), (std::vector<int>{0, 2, 3}));
  machine.probe = [&](const GpuInfo&, std::size_t bytes) {
    EXPECT_EQ(bytes, 5U);
    return std::string();
  };
  EXPECT_EQ(indices(find_usable_gpus(-1, 5, machine)), (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(UsableGpusTest, AClaimLivesAsLongAsItsOwner) {
  static_assert(!std::is_copy_constructible_v<GpuClaim> && std::is_nothrow_move_constructible_v<GpuClaim>);
  const GpuSearch machine = search(3);
  UsableGpus first = find_usable_gpus(1, std::nullopt, machine);
  EXPECT_EQ(indices(first), std::vector<int>{0});
  UsableGpus second = find_usable_gpus(1, std::nullopt, machine);
  EXPECT_EQ(indices(second), std::vector<int>{1});
  UsableGpus moved = std::move(first);
  EXPECT_EQ(indices(find_usable_gpus(-1, std::nullopt, machine)), std::vector<int>{2}) << "moved, not given up";
  moved = std::move(second);  // gives up GPU 0
  EXPECT_EQ(indices(find_usable_gpus(-1, std::nullopt, machine)), (std::vector<int>{0, 2}));
  moved = {};
  EXPECT_EQ(indices(find_usable_gpus(-1, std::nullopt, machine)), (std::vector<int>{0, 1, 2}));
}

TEST_F(UsableGpusTest, TooFewNamesTheBusyOnesAndKeepsNothing) {
  GpuSearch machine = search(3);
  const UsableGpus held = find_usable_gpus(1, std::nullopt, machine);
  machine.probe = [](const GpuInfo& gpu, std::size_t) {
    return gpu.index == 1 ? std::string("no context can be made") : std::string();
  };
  const std::string claimed = concat("GPU 0 (Made-up, GPU-000, 0000:00:00.0): claimed by pid ", ::getpid(), " on ");
  expect_error<DeviceError>([&] { (void)find_usable_gpus(2, std::nullopt, machine); },
                            {"1 found, expected 2", claimed, concat(", user ", ::getuid()),
                             "GPU 1 (Made-up, GPU-111, 0000:01:00.0): no context can be made"});
  EXPECT_EQ(indices(find_usable_gpus(1, std::nullopt, machine)), std::vector<int>{2}) << "GPU 2 was given back";
  machine.probe = [](const GpuInfo&, std::size_t) { return std::string("busy"); };
  expect_error<DeviceError>([&] { (void)find_usable_gpus(-1, std::nullopt, machine); }, {"0 found, expected 1"});
  machine.probe = [](const GpuInfo&, std::size_t) -> std::string { throw CudaError("broken"); };
  expect_error<DeviceError>([&] { (void)find_usable_gpus(-1, std::nullopt, machine); }, {"0 found", "broken"});
  machine.probe = usable;
  EXPECT_EQ(indices(find_usable_gpus(-1, std::nullopt, machine)), (std::vector<int>{1, 2}));
}

TEST_F(UsableGpusTest, CountsThatMeanNothing) {
  for (const int count : {0, -2}) {
    expect_error<UsageError>([&] { (void)find_usable_gpus(count, std::nullopt, search(2)); },
                             {concat("count is ", count), "-1 for all"});
  }
  expect_error<DeviceError>([&] { (void)find_usable_gpus(3, std::nullopt, search(2)); },
                            {"3 wanted", "at most the 2 that this process sees", "GPU-111"});
  expect_error<DeviceError>([&] { (void)find_usable_gpus(-1, std::nullopt, search(0)); }, {"no GPU"});
  if (num_gpus() == 0) {
    expect_error<DeviceError>([] { (void)find_usable_gpus(1); }, {"no GPU"});
  }
}

TEST_F(UsableGpusTest, ASearchThatDoesNotEndIsAnError) {
  GpuSearch machine = search(1);
  machine.patience = 20ms;
  const GpuClaim::Attempt other = GpuClaim::attempt(folder(), "search");
  ASSERT_TRUE(other.claim);
  expect_error<DeviceError>([&] { (void)find_usable_gpus(1, std::nullopt, machine); },
                            {concat("search of pid ", ::getpid()), "20 ms", folder()});
}

// ---- Two and more processes.

/// A child process that searches for GPUs when the gate opens, reports the GPUs that it got, and keeps them until its
/// input ends.
class Job {
 public:
  Job(int count, const GpuSearch& machine, const std::array<int, 2>& gate) {
    EXPECT_EQ(::pipe(result_.data()), 0);
    EXPECT_EQ(::pipe(input_.data()), 0);
    child_ = ::fork();
    if (child_ != 0) {
      ::close(result_[1]);
      ::close(input_[0]);
      return;
    }
    char byte = 0;
    ::close(gate[1]);
    ::close(input_[1]);
    [[maybe_unused]] ssize_t n = ::read(gate[0], &byte, 1);  // returns when the parent closes the gate
    std::string text = "busy";
    UsableGpus found;
    try {
      found = find_usable_gpus(count, std::nullopt, machine);
      text.clear();
      for (const GpuInfo& gpu : found.gpus) {
        text += gpu.uuid + " ";
      }
    } catch (const DeviceError&) {
    } catch (...) {
      text = "failed";
    }
    n = ::write(result_[1], text.data(), text.size());
    ::close(result_[1]);
    n = ::read(input_[0], &byte, 1);
    ::_exit(0);  // no destructor runs, so the kernel must end the claims
  }
  Job(Job&& other) = delete;
  ~Job() {
    ::close(input_[1]);
    ::close(result_[0]);
    ::waitpid(child_, nullptr, 0);
  }
  std::string result() {
    std::string text;
    std::array<char, 256> part{};
    for (ssize_t n = 0; (n = ::read(result_[0], part.data(), part.size())) > 0;) {
      text.append(part.data(), static_cast<std::size_t>(n));
    }
    return text;
  }

 private:
  std::array<int, 2> result_{};
  std::array<int, 2> input_{};
  pid_t child_ = -1;
};

/// Starts `jobs` processes at once. Returns, sorted, the GPUs that each of them got.
std::vector<std::string> race(int jobs, int count, const std::function<GpuSearch(int job)>& machine) {
  std::array<int, 2> gate{};
  EXPECT_EQ(::pipe(gate.data()), 0);
  std::vector<std::unique_ptr<Job>> running;
  for (int job = 0; job < jobs; ++job) {
    running.push_back(std::make_unique<Job>(count, machine(job), gate));
  }
  ::close(gate[0]);
  ::close(gate[1]);
  std::vector<std::string> results;
  for (const auto& job : running) {
    results.push_back(job->result());
  }
  while (!running.empty()) {  // ends the last job first: a later job has inherited the pipe to an earlier one
    running.pop_back();
  }
  std::sort(results.begin(), results.end());
  return results;
}

TEST_F(UsableGpusTest, ProcessesThatStartAtOnceGetDifferentGpus) {
  const auto shared = [&](int) {
    GpuSearch machine = search(4);
    machine.probe = [](const GpuInfo&, std::size_t) {
      ::usleep(500);  // simulates the time to make a context
      return std::string();
    };
    return machine;
  };
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(race(2, 1, shared), (std::vector<std::string>{"GPU-000 ", "GPU-111 "}));
    EXPECT_EQ(race(3, 2, shared), (std::vector<std::string>{"GPU-000 GPU-111 ", "GPU-222 GPU-333 ", "busy"}));
    EXPECT_EQ(race(2, 3, shared), (std::vector<std::string>{"GPU-000 GPU-111 GPU-222 ", "busy"}))
        << "one of them must get what it wants";
  }
  // A control: processes that do not know of each other's claims get the same GPU.
  const auto apart = [&](int job) {
    GpuSearch machine = shared(job);
    machine.claim_folder += std::to_string(job);
    return machine;
  };
  EXPECT_EQ(race(2, 1, apart), (std::vector<std::string>{"GPU-000 ", "GPU-000 "}));
  // All jobs have ended without giving their GPUs back. All GPUs must be free again.
  EXPECT_EQ(indices(find_usable_gpus(-1, std::nullopt, search(4))), (std::vector<int>{0, 1, 2, 3}));
}

/// Returns how many files in `folder` a process has open.
int files_open(pid_t process, const std::string& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", process, "/fd"))) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone).string().starts_with(folder) ? 1 : 0;
  }
  return count;
}

TEST_F(UsableGpusTest, AProgramThatIsStartedDoesNotInheritAClaim) {
  const GpuClaim::Attempt held = GpuClaim::attempt(folder(), "GPU-000");
  EXPECT_EQ(files_open(::getpid(), folder()), 1);
  std::array<int, 2> started{};
  ASSERT_EQ(::pipe2(started.data(), O_CLOEXEC), 0);
  const pid_t child = start_child([] { return ::execlp("sleep", "sleep", "60", nullptr); });
  ::close(started[1]);
  char byte = 0;
  EXPECT_EQ(::read(started[0], &byte, 1), 0);  // returns when exec() has closed the pipe's end for writing
  ::close(started[0]);
  EXPECT_EQ(files_open(child, folder()), 0);
  ::kill(child, SIGKILL);
  EXPECT_EQ(end_of(child), -SIGKILL);
}

TEST_F(UsableGpusTest, AForkedChildDoesNotEndItsParentsClaim) {
  GpuClaim::Attempt held = GpuClaim::attempt(folder(), "GPU-000");
  EXPECT_EQ(end_of(start_child([&] {
              held.claim.reset();
              return 0;
            })),
            0);
  const GpuClaim::Attempt again = GpuClaim::attempt(folder(), "GPU-000");
  EXPECT_FALSE(again.claim);
  EXPECT_EQ(again.holder.rfind(concat("pid ", ::getpid()), 0), 0U) << again.holder;
}

// ---- The folder and its files.

TEST_F(UsableGpusTest, TheFolderIsOpenToAllUsers) {
  const mode_t before = ::umask(0077);
  const GpuClaim::Attempt held = GpuClaim::attempt(folder(), "GPU-000");
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 01777U);
  ASSERT_EQ(::stat((folder() + "/GPU-000").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0666U);
}

TEST_F(UsableGpusTest, UsersShareTheFolder) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to be two users";
  }
  std::filesystem::permissions(root(), std::filesystem::perms(0755));
  GpuClaim::Attempt held = GpuClaim::attempt(folder(), "GPU-000");
  GpuClaim::Attempt free = GpuClaim::attempt(folder(), "GPU-111");
  free.claim.reset();
  std::ofstream(folder() + "/GPU-222") << "";  // left by a process that ended before it gave all users access
  std::filesystem::permissions(folder() + "/GPU-222", std::filesystem::perms(0644));
  const pid_t other = start_child([&] {
    const uid_t nobody = 65534;
    int failures = ::setgid(nobody) != 0 || ::setuid(nobody) != 0 ? 1 : 0;
    try {
      failures += GpuClaim::attempt(folder(), "GPU-000").claim ? 2 : 0;
      for (const char* name : {"GPU-111", "GPU-222", "GPU-333"}) {
        failures += GpuClaim::attempt(folder(), name).claim ? 0 : 4;
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      failures += 64;
    }
    return failures;
  });
  EXPECT_EQ(end_of(other), 0);
  EXPECT_TRUE(GpuClaim::attempt(folder(), "GPU-333").claim) << "a file of the other user";
}

TEST_F(UsableGpusTest, FilesOfOthersAreNotTrusted) {
  std::filesystem::create_directory(folder());
  std::filesystem::create_symlink(root() + "/elsewhere", folder() + "/GPU-000");
  expect_error<DeviceError>([&] { (void)GpuClaim::attempt(folder(), "GPU-000"); }, {folder(), "GPU-000"});
  EXPECT_FALSE(std::filesystem::exists(root() + "/elsewhere"));
  ASSERT_EQ(::mkfifo((folder() + "/GPU-111").c_str(), 0666), 0);
  expect_error<DeviceError>([&] { (void)GpuClaim::attempt(folder(), "GPU-111"); }, {"not a regular file"});
  std::filesystem::create_directory(folder() + "/GPU-222");
  expect_error<DeviceError>([&] { (void)GpuClaim::attempt(folder(), "GPU-222"); }, {"GPU-222"});
  const GpuClaim::Attempt held = GpuClaim::attempt(folder(), "GPU-333");
  std::ofstream(folder() + "/GPU-333") << "line\n\x1b[31m" << std::string(1000, 'x');
  const GpuClaim::Attempt again = GpuClaim::attempt(folder(), "GPU-333");
  EXPECT_FALSE(again.claim);
  EXPECT_EQ(again.holder.rfind("line[31mxxx", 0), 0U) << again.holder;
  EXPECT_LT(again.holder.size(), 201U);
  std::ofstream(folder() + "/GPU-333") << "";
  EXPECT_EQ(GpuClaim::attempt(folder(), "GPU-333").holder, "a process that is not known");
}

TEST_F(UsableGpusTest, FoldersThatCannotBeUsed) {
  expect_error<DeviceError>([&] { (void)GpuClaim::attempt(root() + "/no/such", "GPU-000"); },
                            {root() + "/no/such", "cannot be made", "LOCKSTEP_CLAIM_FOLDER"});
  std::ofstream(root() + "/file") << "";
  expect_error<DeviceError>([&] { (void)GpuClaim::attempt(root() + "/file", "GPU-000"); }, {"cannot be opened"});
  std::filesystem::create_directory_symlink(root(), root() + "/link");
  expect_error<DeviceError>([&] { (void)GpuClaim::attempt(root() + "/link", "GPU-000"); }, {"cannot be opened"});
  for (const char* name : {"", "../GPU-000", "a/b", "."}) {
    expect_error<UsageError>([&] { (void)GpuClaim::attempt(folder(), name); }, {concat("'", name, "'"), "a UUID"});
  }
}

TEST_F(UsableGpusTest, ADeletedFileIsMadeAgain) {
  GpuClaim::Attempt held = GpuClaim::attempt(folder(), "GPU-000");
  held.claim.reset();
  std::filesystem::remove(folder() + "/GPU-000");
  held = GpuClaim::attempt(folder(), "GPU-000");
  EXPECT_TRUE(held.claim);
  EXPECT_FALSE(GpuClaim::attempt(folder(), "GPU-000").claim);
}

TEST_F(UsableGpusTest, TheFolderComesFromTheEnvironment) {
  ::unsetenv("LOCKSTEP_CLAIM_FOLDER");
  EXPECT_EQ(default_claim_folder(), "/tmp/lockstep-claims");
  ::setenv("LOCKSTEP_CLAIM_FOLDER", folder().c_str(), 1);
  EXPECT_EQ(default_claim_folder(), folder());
  EXPECT_EQ(GpuSearch{}.claim_folder, folder());
  ::setenv("LOCKSTEP_CLAIM_FOLDER", "claims", 1);
  expect_error<UsageError>([] { (void)default_claim_folder(); }, {"'claims'", "an absolute path"});
  ::unsetenv("LOCKSTEP_CLAIM_FOLDER");
}

}  // namespace
}  // namespace lockstep::testing
