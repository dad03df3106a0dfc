// Tests the guarantees of bindings/c/README.md for every function: status and text, handles, structs of other versions,
// and memory. left_alone_test.cpp tests that the library does not change other parts of the process.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "../../support/sanitized.hpp"
#include "host.hpp"

namespace host {
namespace {

TEST(Library, SaysWhatItIs) {
  EXPECT_EQ(lockstep_version(), static_cast<std::uint32_t>(LOCKSTEP_VERSION));
  const std::string info = lockstep_build_info();
  EXPECT_EQ(info.front(), '{');
  EXPECT_EQ(info.back(), '}');
  const std::string version = std::to_string(LOCKSTEP_VERSION_MAJOR) + "." + std::to_string(LOCKSTEP_VERSION_MINOR) +
                              "." + std::to_string(LOCKSTEP_VERSION_PATCH);
  EXPECT_NE(info.find("\"version\": \"" + version + "\""), std::string::npos) << info;
  EXPECT_NE(info.find("\"cuda\": "), std::string::npos) << info;
  EXPECT_NE(info.find("\"cpu_variant\": \""), std::string::npos) << info;
  EXPECT_STREQ(lockstep_status_name(LOCKSTEP_OK), "OK");
  EXPECT_STREQ(lockstep_status_name(LOCKSTEP_ERR_OUT_OF_MEMORY), "OUT_OF_MEMORY");
  EXPECT_STREQ(lockstep_status_name(7777), "UNKNOWN");
}

TEST(LastError, BelongsToTheThreadAndEndsWithItsNextCall) {
  EXPECT_EQ(lockstep_context_synchronize(nullptr), LOCKSTEP_ERR_INVALID);
  EXPECT_STREQ(lockstep_last_error(),
               "lockstep_context_synchronize: the context is NULL, expected a handle of lockstep");
  std::thread([] {
    EXPECT_STREQ(lockstep_last_error(), "");
    EXPECT_EQ(lockstep_comm_rank(nullptr, nullptr, nullptr), LOCKSTEP_ERR_INVALID);
    EXPECT_STREQ(lockstep_last_error(), "lockstep_comm_rank: the communicator is NULL, expected a handle of lockstep");
  }).join();
  EXPECT_STREQ(lockstep_last_error(),
               "lockstep_context_synchronize: the context is NULL, expected a handle of lockstep");
  EXPECT_EQ(lockstep_context_destroy(nullptr), LOCKSTEP_OK);
  EXPECT_STREQ(lockstep_last_error(), "");
  EXPECT_EQ(lockstep_error_set(LOCKSTEP_ERR_FORMAT, "of a layer above", 7), LOCKSTEP_ERR_FORMAT);
  EXPECT_STREQ(lockstep_last_error(), "of a la");
}

TEST(LastError, LongTextsAreCut) {
  const HostContext context;
  const Mlp model(context, {1, 1});
  const std::string name(100000, 'x');
  double value = 0;
  View view(&value, {1});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_parameter_read(model, name.data(), name.size(), &view), {"xxx..."}));
  EXPECT_LT(std::strlen(lockstep_last_error()), 2048U);
  // SIZE_MAX, which a caller gets from a length of -1, is refused.
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_save(model, "x", SIZE_MAX), {"path", "18446744073709551615"}));
}

TEST(Handles, OfAnotherKindOrDestroyedAreFoundOut) {
  lockstep_context context = nullptr;
  ASSERT_TRUE(ok(lockstep_context_create(nullptr, &context)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_model_prepare(reinterpret_cast<lockstep_model>(context), 1),
                    {"the handle is a context, expected a model"}));
  ASSERT_TRUE(ok(lockstep_context_destroy(context)));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_synchronize(context), {"destroyed"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_destroy(context), {"destroyed"}));
  lockstep_context next = nullptr;  // reuses the entry of the destroyed context in the table of handles
  ASSERT_TRUE(ok(lockstep_context_create(nullptr, &next)));
  EXPECT_NE(next, context);
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_synchronize(context), {"destroyed"}));
  ASSERT_TRUE(ok(lockstep_context_destroy(next)));
  int other = 0;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_synchronize(reinterpret_cast<lockstep_context>(&other)),
                    {"no handle of lockstep"}));
}

// Destroys four handles in each of the 24 orders. The remaining handles must still work.
TEST(Handles, AreDestroyedInAnyOrder) {
  int order[] = {0, 1, 2, 3};
  do {
    lockstep_context context = nullptr;
    lockstep_comm comm = nullptr;
    lockstep_model model = nullptr;
    lockstep_trainer trainer = nullptr;
    const std::int64_t widths[] = {2, 1};
    ASSERT_TRUE(ok(lockstep_context_create(nullptr, &context)));
    ASSERT_TRUE(ok(lockstep_comm_self(context, &comm)));
    ASSERT_TRUE(ok(lockstep_model_mlp(context, LOCKSTEP_F64, widths, 2, 0, &model)));
    ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
    const lockstep_trainer_options options = trainer_options(1);
    ASSERT_TRUE(ok(lockstep_trainer_create(model, comm, &options, &trainer)));
    for (const int which : order) {
      if (trainer != nullptr) {
        double x[] = {1, 2}, y[] = {3};
        EXPECT_TRUE(ok(add(trainer, View(x, {1, 2}), View(y, {1, 1}))));
        EXPECT_TRUE(ok(lockstep_trainer_update(trainer, 1e-3)));
      }
      switch (which) {
        case 0:
          EXPECT_TRUE(ok(lockstep_context_destroy(context)));
          break;
        case 1:
          EXPECT_TRUE(ok(lockstep_comm_destroy(comm)));
          break;
        case 2:
          EXPECT_TRUE(ok(lockstep_model_destroy(model)));
          break;
        default:
          EXPECT_TRUE(ok(lockstep_trainer_destroy(std::exchange(trainer, nullptr))));
      }
    }
  } while (std::next_permutation(std::begin(order), std::end(order)));
}

TEST(Structs, OlderAndNewerOnesAreTaken) {
  struct Newer {
    lockstep_context_options known;
    std::int64_t unknown[4];
  } newer;
  std::memset(&newer, 0xFF, sizeof newer);
  ASSERT_TRUE(ok(lockstep_context_options_init(&newer.known, sizeof newer)));
  EXPECT_EQ(newer.known.struct_size, sizeof newer);
  for (const std::int64_t value : newer.unknown) {
    EXPECT_EQ(value, 0);
  }
  Context context;
  EXPECT_TRUE(ok(lockstep_context_create(&newer.known, &context)));
  newer.unknown[2] = 1;
  Context none;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_UNSUPPORTED, lockstep_context_create(&newer.known, &none), {"struct_size", "newer"}) ||
              fails(LOCKSTEP_ERR_UNSUPPORTED, lockstep_context_create(&newer.known, &none), {"is set", "newer"}));
  EXPECT_EQ(static_cast<lockstep_context>(none), nullptr);
  lockstep_context_options small{};
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_create(&small, &none), {"struct_size is 0"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_options_init(&small, 8), {"size is 8"}));
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_options_init(nullptr, 8), {"options is NULL"}));
}

TEST(Structs, HaveTheLayoutOfThisSoname) {
  // Layout of the structs since version 0.1. A change of these numbers changes the binary interface, and needs a new
  // soname.
  EXPECT_EQ(sizeof(lockstep_view), 48U);
  EXPECT_EQ(offsetof(lockstep_view, shape), 24U);
  EXPECT_EQ(offsetof(lockstep_view, axes), 40U);
  EXPECT_EQ(sizeof(lockstep_allocator), 32U);
  EXPECT_EQ(sizeof(lockstep_context_options), 48U);
  EXPECT_EQ(offsetof(lockstep_context_options, memory_limit), 40U);
  EXPECT_EQ(sizeof(lockstep_comm_ops), 72U);
  EXPECT_EQ(offsetof(lockstep_comm_ops, destroy), 64U);
  EXPECT_EQ(sizeof(lockstep_layer_options), 112U);  // 96 before output_pad was added
  EXPECT_EQ(offsetof(lockstep_layer_options, epsilon), 72U);
  EXPECT_EQ(offsetof(lockstep_layer_options, output_pad), 96U);
  EXPECT_EQ(offsetof(lockstep_layer_options, share), 108U);
  EXPECT_EQ(sizeof(lockstep_trainer_options), 112U);  // 104 before clip_value was added
  EXPECT_EQ(offsetof(lockstep_trainer_options, sync_batch_norm), 28U);
  EXPECT_EQ(offsetof(lockstep_trainer_options, max_batch), 88U);
  EXPECT_EQ(offsetof(lockstep_trainer_options, clip_value), 104U);
  EXPECT_EQ(sizeof(lockstep_tape_options), 48U);  // 32 before pass was added
  EXPECT_EQ(offsetof(lockstep_tape_options, slots), 24U);
  EXPECT_EQ(offsetof(lockstep_tape_options, pass), 32U);
  EXPECT_EQ(sizeof(lockstep_schedule), 48U);
  EXPECT_EQ(sizeof(lockstep_report), 48U);
  EXPECT_EQ(sizeof(lockstep_parameter), 80U);
}

TEST(Context, BadInput) {
  Context none;
  const auto fails_with = [&](const char* text, lockstep_status status,
                              const std::function<void(lockstep_context_options&)>& change) {
    lockstep_context_options options = context_options();
    change(options);
    EXPECT_TRUE(fails(status, lockstep_context_create(&options, &none), {"lockstep_context_create", text}));
    EXPECT_EQ(static_cast<lockstep_context>(none), nullptr);
  };
  fails_with("device_type is 13", LOCKSTEP_ERR_DEVICE, [](auto& o) { o.device_type = 13; });
  fails_with("4711", LOCKSTEP_ERR_DEVICE, [](auto& o) { o.device_type = LOCKSTEP_CUDA, o.device_id = 4711; });
  fails_with("threads is -1", LOCKSTEP_ERR_INVALID, [](auto& o) { o.threads = -1; });
  fails_with("stream_kind is 5", LOCKSTEP_ERR_INVALID, [](auto& o) { o.stream_kind = 5; });
  fails_with("memory_limit is -1", LOCKSTEP_ERR_INVALID, [](auto& o) { o.memory_limit = -1; });
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_create(nullptr, nullptr), {"context is NULL"}));
}

TEST(Context, MemoryLimitIsOutOfMemory) {
  lockstep_context_options options = context_options();
  options.memory_limit = 1 << 20;
  Context context;
  ASSERT_TRUE(ok(lockstep_context_create(&options, &context)));
  const BareMlp model(context, {1000, 1000});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_OUT_OF_MEMORY, lockstep_model_initialise(model, 1), {"limit 1048576"}) ||
              fails(LOCKSTEP_ERR_OUT_OF_MEMORY, lockstep_model_initialise(model, 1), {"limit"}));
  std::int64_t in_use = -1;
  std::int64_t peak = -1;
  ASSERT_TRUE(ok(lockstep_context_memory(context, &in_use, &peak)));
  EXPECT_EQ(in_use, 0);  // the failed call has freed its memory
}

/// Memory functions of the host program. The allocator fails in the way that `mood` selects.
struct Pool {
  enum class Mood { good, empty, throwing, foreign, crooked, calling } mood = Mood::good;
  std::int64_t given = 0;
  std::int64_t back = 0;
  lockstep_context context = nullptr;
  lockstep_status inside = LOCKSTEP_OK;

  static void* allocate(void* user, std::size_t bytes, std::size_t alignment, lockstep_stream) {
    auto& pool = *static_cast<Pool*>(user);
    switch (pool.mood) {
      case Mood::empty:
        return nullptr;
      case Mood::throwing:
        throw std::runtime_error("a C++ host");
      case Mood::foreign:
        throw 42;  // NOLINT(hicpp-exception-baseclass): of another library
      case Mood::calling:
        pool.inside = lockstep_context_synchronize(pool.context);
        break;
      default:
        break;
    }
    ++pool.given;
    auto* memory = static_cast<char*>(std::aligned_alloc(alignment, (bytes / alignment + 2) * alignment));
    return pool.mood == Mood::crooked ? memory + 8 : memory;
  }
  static void deallocate(void* user, void* memory, std::size_t, lockstep_stream) {
    auto& pool = *static_cast<Pool*>(user);
    ++pool.back;
    std::free(pool.mood == Mood::crooked ? static_cast<char*>(memory) - 8 : memory);
  }
  lockstep_allocator functions() {
    return {.struct_size = sizeof(lockstep_allocator),
            .flags = 0,
            .user = this,
            .allocate = allocate,
            .deallocate = deallocate};
  }
};

TEST(HostMemory, AllOfItComesFromTheHostAndGoesBack) {
  Pool pool;
  {
    const lockstep_allocator functions = pool.functions();
    const HostContext context(&functions);
    const Mlp model(context, {4, 4, 1});
    ASSERT_TRUE(ok(lockstep_model_prepare(model, 8)));
    std::int64_t in_use = 0;
    std::int64_t peak = 0;
    ASSERT_TRUE(ok(lockstep_context_memory(context, &in_use, &peak)));
    EXPECT_GT(pool.given, pool.back);
    EXPECT_GT(in_use, 0);
    EXPECT_GE(peak, in_use);
  }
  EXPECT_EQ(pool.given, pool.back);
}

TEST(HostMemory, FailuresOfTheHostHaveNames) {
  for (const auto& [mood, status, text] :
       {std::tuple{Pool::Mood::empty, LOCKSTEP_ERR_OUT_OF_MEMORY, "allocate gave NULL"},
        std::tuple{Pool::Mood::throwing, LOCKSTEP_ERR_INVALID, "threw an exception"},
        std::tuple{Pool::Mood::foreign, LOCKSTEP_ERR_INVALID, "threw an exception"},
        std::tuple{Pool::Mood::crooked, LOCKSTEP_ERR_SHAPE, "align"}}) {
    Pool pool;
    const lockstep_allocator functions = pool.functions();
    const HostContext context(&functions);
    const BareMlp model(context, {4, 1});
    pool.mood = mood;
    EXPECT_TRUE(fails(status, lockstep_model_initialise(model, 1), {text}));
    EXPECT_EQ(pool.given, pool.back);
    pool.mood = Pool::Mood::good;
    EXPECT_TRUE(ok(lockstep_model_initialise(model, 1)));  // the model is unchanged by the failed call
  }
  lockstep_allocator half = Pool{}.functions();
  half.deallocate = nullptr;
  lockstep_context_options options = context_options();
  options.memory = &half;
  Context none;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_context_create(&options, &none), {"deallocate is NULL"}));
}

TEST(Ranks, FunctionsMayNotCallBackNorThrow) {
  struct Host {
    lockstep_context context = nullptr;
    bool throws = false;
    lockstep_status inside[2] = {LOCKSTEP_OK, LOCKSTEP_OK};
  } host;
  {
    const HostContext context;
    host.context = context;
    lockstep_comm_ops ops{};
    ops.struct_size = sizeof ops;
    ops.user = &host;
    ops.size = 1;
    ops.all_reduce_sum = [](void*, void*, std::int64_t, lockstep_dtype) { return 0; };
    ops.broadcast = [](void*, void*, std::int64_t, std::int32_t) { return 0; };
    ops.all_gather = [](void* user, const void* in, void* out, std::int64_t bytes) {
      auto& me = *static_cast<Host*>(user);
      if (me.throws) {
        throw 42;  // NOLINT(hicpp-exception-baseclass): of another library
      }
      me.inside[0] = lockstep_context_synchronize(me.context);
      std::memcpy(out, in, static_cast<std::size_t>(bytes));
      return 0;
    };
    ops.barrier = [](void*) { return 0; };
    ops.destroy = [](void* user) {
      auto& me = *static_cast<Host*>(user);
      me.inside[1] = lockstep_context_synchronize(me.context);
    };
    Comm comm;
    // lockstep_comm_from_ops() succeeds, although a call inside a callback failed.
    ASSERT_TRUE(ok(lockstep_comm_from_ops(context, &ops, &comm)));
    EXPECT_EQ(host.inside[0], LOCKSTEP_ERR_STATE);
    host.throws = true;
    std::int32_t largest = 0;
    EXPECT_TRUE(fails(LOCKSTEP_ERR_PEER, lockstep_comm_agree(comm, 1, &largest), {"all_gather threw an exception"}));
  }
  EXPECT_EQ(host.inside[1], LOCKSTEP_ERR_STATE);
}

TEST(HostMemory, CallbacksMayNotCallBack) {
  Pool pool;
  const lockstep_allocator functions = pool.functions();
  const HostContext context(&functions);
  pool.context = context;
  pool.mood = Pool::Mood::calling;
  const Mlp model(context, {4, 1});
  EXPECT_EQ(pool.inside, LOCKSTEP_ERR_STATE);
}

TEST(Leaks, AThousandLivesLeaveNothing) {
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  const auto resident = [] {
    long pages = 0;
    long ignored = 0;
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    EXPECT_EQ(std::fscanf(file, "%ld %ld", &ignored, &pages), 2);
    std::fclose(file);
    return pages;
  };
  const auto one = [] {
    const HostContext context;
    const SelfComm comm(context);
    const Mlp model(context, {3, 16, 1});
    ASSERT_TRUE(ok(lockstep_model_prepare(model, 32)));
    const NewTrainer trainer(model, comm, trainer_options(4));
  };
  for (int i = 0; i < 100; ++i) {
    one();
  }
  const long before = resident();
  const auto files = entries("/proc/self/fd");
  const auto threads = entries("/proc/self/task");
  for (int i = 0; i < 1000; ++i) {
    one();
  }
  EXPECT_EQ(entries("/proc/self/fd"), files);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  if (!lockstep::testing::kSanitized) {
    // 256 pages are 1 MB; a leak of a few hundred kB per use would exceed this by far.
    EXPECT_LE(resident() - before, 256) << "pages";
  }
}

}  // namespace
}  // namespace host
