// What only the stand-in shows of packed copies: the calls that they make, what becomes of a failing or a missing one,
// and of a plan that goes while its copy is under way.
#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/stream/synchronisation.hpp>

#include <lockstep/emulation/launch.hpp>

#include "control.hpp"
#include "tests/kernels/packed_copy_support.hpp"

namespace lockstep {
namespace {

using ops::CopyPair;
using ops::PackedCopy;
using testing::Bytes;
using testing::noise;
using testing::PackedCase;
using Texts = std::vector<std::string>;

void new_machine(std::uint64_t seed) {
  standin::reset({.devices = 1, .bytes_per_device = std::size_t{1} << 30, .seed = seed});
  emulation::set_schedule(emulation::Schedule::random(seed));
}

/// How often each call was made since this was made.
class Calls {
 public:
  [[nodiscard]] std::int64_t of(const std::string& name) const {
    const Texts log = standin::call_log();
    return std::count(log.begin() + static_cast<std::ptrdiff_t>(before_), log.end(), name);
  }
  /// Of those whose name has this part.
  [[nodiscard]] std::int64_t like(const std::string& part) const {
    const Texts log = standin::call_log();
    return std::count_if(log.begin() + static_cast<std::ptrdiff_t>(before_), log.end(),
                         [&](const std::string& name) { return name.find(part) != std::string::npos; });
  }

 private:
  std::size_t before_ = standin::call_log().size();
};

TEST(PackedCopyCalls, OneCopyAndALaunchForEighty) {
  for (const std::int64_t count : {1, 80, 81, 200}) {
    CudaContext context(Device::cuda(0));
    PackedCase item(context, testing::small_tensors(count), 0, 0);
    PackedCopy packed(context, item.to_gpu());
    context.synchronize();
    for (const bool to_gpu : {true, false}) {
      const std::vector<CopyPair> pairs = to_gpu ? item.to_gpu() : item.to_host();
      const Calls calls;
      packed.run(pairs);
      EXPECT_EQ(calls.of("cudaMemcpyAsync"), 1);
      EXPECT_EQ(calls.of("cudaLaunchKernel"), (count + 79) / 80);
      for (const char* part : {"Malloc", "Free", "Create"}) {
        EXPECT_EQ(calls.like(part), 0) << part;
      }
      EXPECT_EQ(calls.of("cudaStreamSynchronize"), to_gpu ? 0 : 1);
    }
    context.synchronize();
    const Calls calls;  // the control
    for (const auto& [src, dst] : item.to_gpu()) {
      copy(context, src, dst);
    }
    EXPECT_EQ(calls.of("cudaMemcpyAsync"), count);
  }
}

TEST(PackedCopyCalls, LargeOnesGoByThemselves) {
  CudaContext context(Device::cuda(0));
  std::vector<CopyPair> like = testing::small_tensors(10);
  like.push_back(testing::without_memory(Shape{4097}, DType::u8));
  like.insert(like.begin(), testing::without_memory(Shape{2049}, DType::bf16));
  like.push_back(testing::without_memory(Shape{1024}, DType::f32));
  PackedCase item(context, like, 0, 0);
  PackedCopy packed(context, item.to_gpu(), {.largest_packed = 4096});
  EXPECT_EQ(packed.packed_bytes(), 4096U + 10 * 16 + 2 * 16);  // two of ten have 20 bytes
  const Calls calls;
  packed.run(item.to_gpu());
  EXPECT_EQ(calls.of("cudaMemcpyAsync"), 3);
  EXPECT_EQ(calls.of("cudaLaunchKernel"), 1);
}

TEST(PackedCopyCalls, WaitsAreReported) {
  CudaContext context(Device::cuda(0));
  PackedCase item(context, testing::small_tensors(10), 0, 0);
  PackedCopy packed(context, item.to_gpu());
  context.synchronize();
  Texts waits;
  context.on_synchronisation(
      [&](const Synchronisation& wait) { waits.push_back(concat(wait.call, ": ", name_of(wait.reason))); });
  packed.run(item.to_gpu());
  EXPECT_EQ(waits, Texts{}) << "the block is free";
  packed.run(item.to_gpu());
  EXPECT_LE(waits.size(), 1U) << "it depends on how far the engine is";
  waits.clear();
  packed.run(item.to_host());
  EXPECT_EQ(waits, Texts{"PackedCopy::run: host copy"});
  context.on_synchronisation({});
}

/// Runs without a wait between them, each with other bytes; what arrives is the last one's. Empty when it has.
std::string back_to_back(std::int64_t forgotten_wait) {
  CudaContext context(Device::cuda(0));
  std::vector<std::unique_ptr<PackedCase>> items;
  for (int i = 0; i < 4; ++i) {
    items.push_back(std::make_unique<PackedCase>(context, testing::small_tensors(30), 0, 1));
  }
  PackedCopy packed(context, items[0]->to_gpu());
  const Tensor busy = Tensor::zeros(context, Shape{10}, DType::f32);
  context.synchronize();
  standin::forget_wait(forgotten_wait);
  std::vector<Bytes> sent;
  for (const auto& item : items) {
    for (int i = 0; i < 5; ++i) {  // a look at the event lets one piece of work run
      ops::fill(context, i, busy);
    }
    item->host() = sent.emplace_back(noise(item->host().size(), sent.size()));
    packed.run(item->to_gpu());
  }
  standin::forget_wait(0);
  std::string wrong;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Bytes arrived = items[i]->gpu();
    if (arrived != items[i]->expected_on_gpu(sent[i], Bytes(arrived.size()))) {
      wrong += std::to_string(i);
    }
  }
  return wrong;
}

TEST(PackedCopyCalls, TheBlockIsNotOverwrittenBeforeItWasRead) {
  std::set<standin::Style> styles;
  bool seen = false;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    styles.insert(standin::style_of(seed));
    new_machine(seed);
    EXPECT_EQ(back_to_back(0), "") << "seed " << seed;
    EXPECT_EQ(standin::violations(), Texts{});
    EXPECT_EQ(standin::leaks(), Texts{});
    new_machine(seed);
    seen = seen || !back_to_back(1).empty();
  }
  EXPECT_EQ(styles.size(), 4U);
  EXPECT_TRUE(seen) << "the control: a wait that is left out";
  new_machine(0);
}

TEST(PackedCopyCalls, APlanMayGoWhileItsCopyIsUnderWay) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    new_machine(seed);
    {
      CudaContext context(Device::cuda(0));
      PackedCase item(context, testing::small_tensors(30), 0, 0);
      const Bytes sent = item.host() = noise(item.host().size(), 1);
      {
        PackedCopy packed(context, item.to_gpu());
        packed.run(item.to_gpu());
      }
      EXPECT_EQ(item.gpu(), item.expected_on_gpu(sent, Bytes(item.gpu().size())));
    }
    EXPECT_EQ(standin::violations(), Texts{});
    EXPECT_EQ(standin::leaks(), Texts{});
  }
  new_machine(0);
}

TEST(PackedCopyCalls, AGraphIsRefusedAndNotSpoilt) {
  CudaContext context(Device::cuda(0));
  PackedCase item(context, testing::small_tensors(3), 0, 0);
  PackedCopy packed(context, item.to_gpu());
  const Graph graph = Graph::capture(context.stream(), [&] {
    EXPECT_THROW(packed.run(item.to_gpu()), StateError);
    EXPECT_THROW(packed.run(item.to_host()), StateError);
    EXPECT_THROW(PackedCopy(context, item.to_gpu()), StateError);
  });
  EXPECT_EQ(graph.nodes(), 0U);
  EXPECT_NO_THROW(packed.run(item.to_gpu()));
}

/// Two plans, of small tensors and with a large one, and runs of them without a wait between. failed: the call that
/// did. Then, whatever became of those, both again.
void scenario(std::int64_t failing, std::string& failed) {
  constexpr ops::PackedCopyOptions kOptions{.largest_packed = 1000, .threads = 1};
  CudaContext context(Device::cuda(0));
  std::vector<CopyPair> like = testing::small_tensors(6);
  PackedCase small(context, like, 0, 1);
  like.push_back(testing::without_memory(Shape{300}, DType::f32));  // by itself
  PackedCase mixed(context, like, 1, 0);
  context.synchronize();
  std::optional<PackedCopy> plans[2];
  const auto make = [&] {
    for (std::optional<PackedCopy>& plan : plans) {
      plan.emplace(context, (&plan == plans ? small : mixed).to_gpu(), kOptions);
    }
  };
  std::exception_ptr first;
  standin::fail_call(failing, cudaErrorUnknown);
  try {
    make();
    plans[0]->run(small.to_gpu());
    plans[0]->run(small.to_gpu());
    plans[1]->run(mixed.to_gpu());
    plans[1]->run(mixed.to_host());
  } catch (const Error&) {
    first = std::current_exception();
  }
  failed = standin::failed_call();
  standin::fail_call(0, cudaSuccess);
  if (!plans[1]) {
    make();
  } else if (first && failed != "cudaStreamIsCapturing" && failed != "cuCtxGetDevice") {  // with which a run begins
    EXPECT_EQ(standin::queued_work(), 0U) << failed;
  }
  PackedCase* const cases[] = {&small, &mixed};
  for (int i = 0; i < 2; ++i) {
    PackedCase& item = *cases[i];
    const Bytes sent = item.host() = noise(item.host().size(), 5);
    plans[i]->run(item.to_gpu());
    item.host() = Bytes(sent.size());
    plans[i]->run(item.to_host());
    EXPECT_EQ(item.gpu(), item.expected_on_gpu(sent, Bytes(item.gpu().size()))) << failed;
    EXPECT_EQ(item.host(), item.expected_on_host(item.gpu(), Bytes(sent.size()))) << failed;
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

TEST(PackedCopyCalls, EveryCallFailingInTurnIsThrownAndLeavesThePlanUsable) {
  std::set<std::string> hit;
  for (const std::uint64_t seed : {0, 2}) {
    bool passed = false;
    for (std::int64_t n = 1; !passed; ++n) {
      new_machine(seed);
      std::string text;
      std::string failed;
      try {
        scenario(n, failed);
      } catch (const Error& error) {
        text = error.what();
      }
      passed = failed.empty();
      const std::string when = concat("call ", n, ", ", failed, ", seed ", seed);
      hit.insert(failed);
      if (!text.empty()) {
        EXPECT_TRUE(text.find("cudaErrorUnknown") != std::string::npos ||
                    text.find("CUDA_ERROR_UNKNOWN") != std::string::npos)
            << when << ": " << text;
      }
      EXPECT_FALSE(passed && !text.empty()) << when;
      EXPECT_EQ(standin::violations(), Texts{}) << when;
      EXPECT_EQ(standin::leaks(), Texts{}) << when;
      if (HasFailure()) {
        break;
      }
    }
  }
  for (const char* name : {"cudaMallocHost", "cudaMallocFromPoolAsync", "cudaMemcpyAsync", "cudaLaunchKernel",
                           "cudaEventRecord", "cudaEventSynchronize", "cudaEventQuery", "cudaStreamSynchronize",
                           "cudaStreamIsCapturing", "cudaPointerGetAttributes"}) {
    EXPECT_TRUE(hit.contains(name)) << name << " was never made to fail";
  }
  new_machine(0);
}

}  // namespace
}  // namespace lockstep
