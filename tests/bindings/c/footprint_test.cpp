// Tests how much memory the C interface takes from the process. Every malloc of the program and its libraries is
// counted. Calls of malloc by oneDNN while it executes are counted separately.
#include <array>
#include <atomic>
#include <cerrno>

#include <execinfo.h>
#include <link.h>
#include <malloc.h>

#include "host.hpp"

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): glibc's own, which these replace
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
void __libc_free(void* memory);
}

namespace {

std::atomic<std::int64_t> taken{0};      ///< number of calls of malloc so far
std::atomic<std::int64_t> held{0};       ///< bytes held now
std::atomic<bool> asks{false};           ///< true: note() checks whether oneDNN is the caller
std::atomic<std::int64_t> of_onednn{0};  ///< number of calls of malloc by oneDNN while `asks` was true

struct Library {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool third = false;  ///< true for oneDNN 3
};
/// Returns the address range of oneDNN in the process, or an empty range if oneDNN is not loaded.
Library find_onednn() {
  Library found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        if (const char* name = std::strstr(info->dlpi_name, "libdnnl"); name != nullptr) {
          auto& library = *static_cast<Library*>(to);
          library.third = std::strstr(name, ".so.3") != nullptr;
          library.begin = info->dlpi_addr;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            if (info->dlpi_phdr[i].p_type == PT_LOAD) {
              library.end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
            }
          }
        }
        return 0;
      },
      &found);
  return found;
}
Library onednn;

bool is_of_onednn() {
  std::array<void*, 48> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(frames[static_cast<std::size_t>(i)]);
    if (address >= onednn.begin && address < onednn.end) {
      return true;
    }
  }
  return false;
}

void* note(void* memory) {
  if (memory != nullptr) {
    ++taken;
    if (asks) {
      of_onednn += is_of_onednn() ? 1 : 0;
    }
    held += static_cast<std::int64_t>(malloc_usable_size(memory));
  }
  return memory;
}
void forget(void* memory) {
  if (memory != nullptr) {
    held -= static_cast<std::int64_t>(malloc_usable_size(memory));
  }
}

}  // namespace

extern "C" {
void* malloc(std::size_t bytes) noexcept {
  return note(__libc_malloc(bytes));
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  return note(__libc_calloc(count, bytes));
}
void* realloc(void* memory, std::size_t bytes) noexcept {
  forget(memory);
  return note(__libc_realloc(memory, bytes));
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  return note(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return note(__libc_memalign(alignment, bytes));
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  *memory = note(__libc_memalign(alignment, bytes));
  return *memory != nullptr ? 0 : ENOMEM;
}
void free(void* memory) noexcept {
  forget(memory);
  __libc_free(memory);
}
}
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)

namespace host {
namespace {

constexpr std::int64_t kMost = 1024;

/// Returns the number of calls of malloc by body(), without those by oneDNN.
template <class Body>
std::int64_t pieces_of(Body&& body) {
  onednn = find_onednn();
  std::array<void*, 4> frames{};
  backtrace(frames.data(), 4);  // the first call of backtrace() loads libraries, which allocate
  const std::int64_t before = taken - of_onednn;
  asks = true;
  body();
  asks = false;
  return taken - of_onednn - before;
}

class Footprint : public ::testing::TestWithParam<lockstep_dtype> {};
INSTANTIATE_TEST_SUITE_P(Types, Footprint, ::testing::Values(LOCKSTEP_F32, LOCKSTEP_F64));

TEST(Counting, SeesEveryPiece) {
  const std::int64_t pieces = taken;
  const std::int64_t bytes = held;
  {
    const std::vector<double> numbers(1000);
    EXPECT_EQ(taken - pieces, 1);
    EXPECT_GE(held - bytes, 8000);
  }
  EXPECT_EQ(held, bytes);
  EXPECT_EQ(pieces_of([] { const std::vector<double> numbers(1000); }), 1);
}

// Inference with a small MLP, with every number of samples from 1 to 1024. Preparation must take less than 4 MB, and no
// later call may allocate. With oneDNN 3 in f32, the limit is 6 MB, because oneDNN's primitives alone take 4.5 MB.
TEST_P(Footprint, OfInferenceWithAnyNumberOfSamples) {
  const std::vector<double> x = drawn(kMost * 4);
  std::vector<double> y(kMost);
  {  // uses the library once, so that one-time allocations are not counted
    const HostContext context;
    const Mlp model(context, {4, 32, 32, 1}, GetParam());
    ASSERT_TRUE(ok(infer(model, View(x.data(), {1, 4}), View(y.data(), {1, 1}))));
  }
  const HostContext context;
  const Mlp model(context, {4, 32, 32, 1}, GetParam());
  const std::int64_t before = held;
  ASSERT_TRUE(ok(lockstep_model_prepare(model, kMost)));
  const std::int64_t bytes = held - before;
  EXPECT_GT(bytes, kMost * 4 * 4) << "a copy of the input at least";
  EXPECT_LT(bytes, std::int64_t{find_onednn().third && GetParam() == LOCKSTEP_F32 ? 6 : 4} << 20);
  RecordProperty("bytes", std::to_string(bytes));

  View in(x.data(), {kMost, 4});
  View out(y.data(), {kMost, 1});
  ASSERT_TRUE(ok(lockstep_infer(model, &in, &out, nullptr)));
  lockstep_view from = *&in;
  lockstep_view to = *&out;
  std::int64_t from_shape[] = {0, 4}, to_shape[] = {0, 1};
  from.shape = from_shape;
  to.shape = to_shape;
  int failed = 0;
  EXPECT_EQ(pieces_of([&] {
              for (std::int64_t n = 1; n <= kMost; ++n) {
                from_shape[0] = to_shape[0] = n;
                failed += lockstep_infer(model, &from, &to, nullptr) == LOCKSTEP_OK ? 0 : 1;
              }
            }),
            0);
  EXPECT_EQ(failed, 0) << lockstep_last_error();
  // Control: a larger number of samples needs a new preparation, which allocates.
  from_shape[0] = to_shape[0] = kMost + 1;
  std::vector<double> more(static_cast<std::size_t>(kMost + 1) * 4), result(static_cast<std::size_t>(kMost) + 1);
  from.data = more.data();
  to.data = result.data();
  lockstep_status status = LOCKSTEP_ERR_INTERNAL;
  EXPECT_GT(pieces_of([&] { status = lockstep_infer(model, &from, &to, nullptr); }), 2);
  EXPECT_TRUE(ok(status));
}

TEST_P(Footprint, OfTrainingAfterItsSecondStep) {
  const HostContext context;
  const SelfComm comm(context);
  const Mlp model(context, {4, 32, 32, 1}, GetParam());
  const NewTrainer trainer(model, comm, trainer_options(64));
  std::vector<double> x = drawn(64 * 4), y(64);
  std::int64_t in_shape[] = {64, 4}, out_shape[] = {64, 1};
  View in_arrays(x.data(), {64, 4});
  View out_arrays(y.data(), {64, 1});
  lockstep_view in = *&in_arrays;
  lockstep_view out = *&out_arrays;
  in.shape = in_shape;
  out.shape = out_shape;
  int failed = 0;
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) {
      for (const std::int64_t n : {64, 7, 0}) {
        in_shape[0] = out_shape[0] = n;
        failed += lockstep_trainer_add(trainer, &in, &out, nullptr, nullptr) == LOCKSTEP_OK ? 0 : 1;
      }
      failed += lockstep_trainer_update(trainer, 1e-3) == LOCKSTEP_OK ? 0 : 1;
    }
  };
  steps(2);
  EXPECT_EQ(pieces_of([&] { steps(18); }), 0);
  EXPECT_EQ(failed, 0) << lockstep_last_error();
}

}  // namespace
}  // namespace host
