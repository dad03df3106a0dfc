#include <lockstep/runtime/memory/memory_resource.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::testing {
namespace {

class Memory : public ::testing::Test {
 protected:
  HostMemoryResource host_;
  Stream stream_ = Stream::host_inline();
};

TEST_F(Memory, HostAlignsAndGivesWritableMemory) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{255}, std::size_t{4097}, (std::size_t{2} << 20) - 1,
                                  std::size_t{2} << 20, (std::size_t{4} << 20) + 3}) {
    for (const std::size_t alignment : {std::size_t{1}, std::size_t{64}, kAlignment, std::size_t{4} << 20}) {
      void* pointer = host_.allocate(bytes, alignment, stream_);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % alignment, 0U);
      if (bytes >= std::size_t{2} << 20) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % (std::size_t{2} << 20), 0U);
      }
      std::memset(pointer, 1, bytes);
      host_.deallocate(pointer, bytes, alignment, stream_);
    }
  }
}

TEST_F(Memory, HostEdges) {
  EXPECT_EQ(host_.allocate(0, kAlignment, stream_), nullptr);
  host_.deallocate(nullptr, 0, kAlignment, stream_);
  EXPECT_EQ(host_.device(), Device::cpu());
  EXPECT_THROW(static_cast<void>(host_.allocate(1, 3, stream_)), ShapeError);
  EXPECT_THROW(static_cast<void>(host_.allocate(1, 0, stream_)), ShapeError);
  try {
    static_cast<void>(host_.allocate(std::size_t{1} << 63, kAlignment, stream_));
    FAIL() << "no exception";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("9223372036854775808 bytes on cpu"), std::string::npos) << error.what();
  }
}

TEST_F(Memory, TrackingCountsAndRemembersThePeak) {
  TrackingMemoryResource tracking(host_);
  {
    const Buffer a(1000, tracking, stream_);
    {
      const Buffer b(500, tracking, stream_);
      EXPECT_EQ(tracking.counts().bytes_in_use, 1500U);
    }
    const Buffer none(0, tracking, stream_);
    EXPECT_EQ(none.data(), nullptr);
    const auto counts = tracking.counts();
    EXPECT_EQ(counts.allocations, 2);
    EXPECT_EQ(counts.deallocations, 1);
    EXPECT_EQ(counts.bytes_in_use, 1000U);
    EXPECT_EQ(counts.peak_bytes, 1500U);
  }
  EXPECT_EQ(tracking.counts().bytes_in_use, 0U);
  EXPECT_EQ(tracking.counts().deallocations, 2);
}

TEST_F(Memory, LimitRefusesAndSaysWhy) {
  TrackingMemoryResource tracking(host_, 1000);
  const Buffer a(600, tracking, stream_);
  try {
    const Buffer b(401, tracking, stream_);
    FAIL() << "no exception";
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(),
                 "requested 401 bytes, in use 600, limit 1000, on cpu, expected at most the limit in all");
  }
  EXPECT_EQ(tracking.counts().allocations, 1);
  EXPECT_EQ(tracking.counts().bytes_in_use, 600U);
  EXPECT_NO_THROW(Buffer(400, tracking, stream_));
  EXPECT_THROW(Buffer(std::numeric_limits<std::size_t>::max(), tracking, stream_), OutOfMemory);
}

TEST_F(Memory, AFailureUpstreamIsNotCounted) {
  TrackingMemoryResource small(host_, 100);
  MemoryResource& upstream = small;
  TrackingMemoryResource outer(upstream);
  EXPECT_THROW(Buffer(101, outer, stream_), OutOfMemory);
  EXPECT_EQ(outer.counts().allocations, 0);
  EXPECT_EQ(outer.counts().bytes_in_use, 0U);
  EXPECT_EQ(outer.counts().peak_bytes, 0U);
}

TEST_F(Memory, TrackingIsThreadSafe) {
  constexpr std::size_t kLimit = 3000;
  TrackingMemoryResource tracking(host_, kLimit);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Stream own = Stream::host_inline();
      for (int i = 0; i < 500; ++i) {
        try {
          const Buffer buffer(1000, tracking, own);
        } catch (const OutOfMemory&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const auto counts = tracking.counts();
  EXPECT_EQ(counts.bytes_in_use, 0U);
  EXPECT_EQ(counts.allocations, counts.deallocations);
  EXPECT_LE(counts.peak_bytes, kLimit);
  EXPECT_GE(counts.peak_bytes, 1000U);
}

/// A host program's resource that returns null or misaligned memory, or throws.
class Foreign final : public MemoryResource {
 public:
  enum class Answer : unsigned char { null, misaligned, exception };
  explicit Foreign(Answer answer) : answer_(answer) {}
  void* allocate(std::size_t, std::size_t, Stream&) override {
    if (answer_ == Answer::exception) {
      throw std::runtime_error("of the host's own");
    }
    ++taken;
    return answer_ == Answer::null ? nullptr : block_ + (answer_ == Answer::misaligned ? 64 : 0);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream&) noexcept override {
    ++given_back;
    as_taken = pointer == block_ + 64 && bytes == 100 && alignment == kAlignment;
  }
  Device device() const override { return Device::cpu(); }
  int taken = 0;
  int given_back = 0;
  bool as_taken = false;

 private:
  Answer answer_;
  alignas(kAlignment) std::byte block_[1024];
};

TEST_F(Memory, BufferChecksWhatAForeignResourceReturned) {
  const auto refused = [&](auto error, MemoryResource& memory, std::size_t bytes) -> std::string {
    try {
      const Buffer buffer(bytes, memory, stream_);
    } catch (const decltype(error)& e) {
      return e.what();
    }
    return "nothing was thrown";
  };
  Foreign null(Foreign::Answer::null);
  EXPECT_EQ(refused(OutOfMemory(""), null, 100),
            "requested 100 bytes on cpu: memory resource lockstep::testing::(anonymous namespace)::Foreign returned "
            "null, expected an address");
  EXPECT_EQ(null.given_back, 0);
  Foreign misaligned(Foreign::Answer::misaligned);
  const std::string text = refused(ShapeError(""), misaligned, 100);
  EXPECT_EQ(text.substr(0, text.find(" 0x")),
            "requested 100 bytes on cpu: memory resource "
            "lockstep::testing::(anonymous namespace)::Foreign returned address");
  EXPECT_EQ(text.substr(text.find(',')), ", expected one aligned to 256 bytes");
  EXPECT_EQ(misaligned.taken, 1);
  EXPECT_EQ(misaligned.given_back, 1) << "the host keeps what nobody uses";
  EXPECT_TRUE(misaligned.as_taken);
  Foreign exception(Foreign::Answer::exception);
  EXPECT_EQ(refused(std::runtime_error(""), exception, 100), "of the host's own");
  TrackingMemoryResource tracking(exception);
  EXPECT_EQ(refused(std::runtime_error(""), tracking, 100), "of the host's own");
  EXPECT_EQ(tracking.counts().bytes_in_use, 0U);
}

TEST_F(Memory, ZeroBytesOfAForeignResourceAreAnything) {
  Foreign null(Foreign::Answer::null);
  EXPECT_EQ(Buffer(0, null, stream_).data(), nullptr);
  EXPECT_EQ(null.given_back, 0);
  Foreign misaligned(Foreign::Answer::misaligned);
  EXPECT_NE(Buffer(0, misaligned, stream_).data(), nullptr);
  EXPECT_EQ(misaligned.given_back, 1);
}

TEST_F(Memory, NullThroughTheTrackingResourceIsNotCounted) {
  Foreign null(Foreign::Answer::null);
  TrackingMemoryResource tracking(null);
  EXPECT_THROW(Buffer(100, tracking, stream_), OutOfMemory);
  EXPECT_EQ(tracking.counts().allocations, 0);
  EXPECT_EQ(tracking.counts().bytes_in_use, 0U);
  EXPECT_EQ(tracking.counts().peak_bytes, 0U);
}

TEST_F(Memory, ALentBufferIsTheHosts) {
  const Buffer owner(1000, host_, stream_);
  const TensorView memory(owner.data(), DType::f32, Device::cpu(), Shape{25, 10});
  {
    Buffer lent = Buffer::lent("scratch", memory, 900, Device::cpu());
    EXPECT_EQ(lent.data(), owner.data());
    EXPECT_EQ(lent.bytes(), 900U);
    const Buffer moved = std::move(lent);
    EXPECT_EQ(moved.data(), owner.data());
    EXPECT_EQ(moved.device(), Device::cpu());
  }
  EXPECT_EQ(host_.usage()->in_use, 1000U);
  const auto refused = [](auto error, const TensorView& view, std::size_t bytes, Device device) -> std::string {
    try {
      const Buffer buffer = Buffer::lent("scratch", view, bytes, device);
    } catch (const decltype(error)& e) {
      return e.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(refused(ShapeError(""), memory, 1001, Device::cpu()), "scratch has 1000 bytes, expected at least 1001");
  EXPECT_EQ(refused(DeviceError(""), memory, 10, Device::cuda(1)), "scratch is on cpu, expected cuda:1");
  EXPECT_EQ(refused(ShapeError(""), memory.slice(1, 0, 5), 10, Device::cpu()),
            "scratch f32 (25, 5) on cpu with strides (10, 1) has gaps, expected memory without");
  const std::string text = refused(ShapeError(""), memory.slice(0, 1, 25), 10, Device::cpu());
  EXPECT_EQ(text.substr(0, text.find(" 0x")), "scratch begins at address") << text;
  EXPECT_EQ(text.substr(text.find(',')), ", expected one aligned to 256 bytes");
  EXPECT_EQ(refused(ShapeError(""), TensorView(), 10, Device::cpu()), "scratch has 0 bytes, expected at least 10");
  EXPECT_EQ(Buffer::lent("scratch", TensorView(), 0, Device::cpu()).data(), nullptr);
}

TEST_F(Memory, BufferMoves) {
  TrackingMemoryResource tracking(host_);
  {
    Buffer a(100, tracking, stream_);
    std::byte* data = a.data();
    Buffer b = std::move(a);
    EXPECT_EQ(b.data(), data);
    EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): a moved-from buffer is empty
    b = Buffer(200, tracking, stream_);
    EXPECT_EQ(tracking.counts().bytes_in_use, 200U);
    EXPECT_EQ(b.bytes(), 200U);
    EXPECT_EQ(b.device(), Device::cpu());
    EXPECT_EQ(Buffer().data(), nullptr);
  }
  EXPECT_EQ(tracking.counts().bytes_in_use, 0U);
}

TEST_F(Memory, ContextTakesOptions) {
  CpuContext own;
  EXPECT_EQ(own.threads(), default_threads());
  EXPECT_TRUE(own.stream().is_inline());
  EXPECT_EQ(own.device(), Device::cpu());

  Stream worker = Stream::host_worker("w");
  TrackingMemoryResource tracking(host_);
  CpuContext borrowed({.threads = 3, .stream = &worker, .memory = &tracking});
  EXPECT_EQ(borrowed.threads(), 3);
  EXPECT_EQ(&borrowed.stream(), &worker);
  EXPECT_EQ(&borrowed.memory(), &tracking);
  const Buffer buffer(10, borrowed);
  EXPECT_EQ(tracking.counts().allocations, 1);
  worker.enqueue([] { throw DataError("x"); });
  EXPECT_THROW(borrowed.synchronize(), DataError);
  EXPECT_THROW(CpuContext({.threads = -1}), UsageError);
  EXPECT_EQ(make_context(Device::cpu())->device(), Device::cpu());
}

/// Host memory that claims to be on another device.
class Elsewhere final : public MemoryResource {
 public:
  void* allocate(std::size_t, std::size_t, Stream&) override { return nullptr; }
  void deallocate(void*, std::size_t, std::size_t, Stream&) noexcept override {}
  Device device() const override { return Device::cuda(0); }
};

TEST_F(Memory, ContextRefusesMemoryOfAnotherDevice) {
  Elsewhere elsewhere;
  EXPECT_THROW(CpuContext({.memory = &elsewhere}), DeviceError);
}

TEST_F(Memory, LibraryStateIsMadeOnce) {
  CpuContext context;
  int made = 0;
  const auto make = [&] {
    ++made;
    return std::make_shared<int>(5);
  };
  int& first = context.library<int>(make);
  int& second = context.library<int>(make);
  EXPECT_EQ(&first, &second);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(context.library<double>([] { return std::make_shared<double>(2.5); }), 2.5);
}

TEST_F(Memory, CudaWithoutADeviceIsRefused) {
  const Device missing = Device::cuda(num_gpus());
  EXPECT_THROW(CudaContext{missing}, DeviceError);
  EXPECT_THROW(static_cast<void>(make_context(missing)), DeviceError);
  EXPECT_THROW(CudaMemoryResource{missing}, DeviceError);
  EXPECT_THROW(PinnedMemoryResource{missing}, DeviceError);
}

}  // namespace
}  // namespace lockstep::testing
