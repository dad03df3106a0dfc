// Tests the paths of copy() between host and devices (docs/copies.md): sub-blocks, conversions, staging, peers. Every
// result is compared with the result of the host's own copy of the same views in ordinary memory.
#include <cstring>
#include <numeric>

#include "tests/runtime/cuda/support.hpp"

namespace lockstep::testing {
namespace {

using CudaCopyPathsTest = CudaTest;
using CudaCopyPathsPairTest = CudaPairTest;

constexpr std::uint64_t kFewSeeds = 8;

using Bytes = std::vector<std::uint8_t>;

/// Returns numbers that every type holds exactly. Different values of `start` give different numbers.
Bytes numbers(DType dtype, const Shape& shape, int start) {
  const auto count = static_cast<std::size_t>(shape.numel());
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<double>((static_cast<std::size_t>(start) + 7 * i) % 127);
  }
  CpuContext context;
  Bytes bytes(count * size_of(dtype));
  copy(context, TensorView(std::span(values), shape), TensorView(bytes.data(), dtype, Device::cpu(), shape));
  return bytes;
}

/// A part of a host tensor and a part of a device tensor, which are copied to each other.
struct Parts {
  const char* name;
  Shape host, device;  ///< shapes of the whole tensors
  std::function<TensorView(const TensorView&)> of_host, of_device;
};
TensorView whole(const TensorView& view) {
  return view;
}

/// Returns a function that makes a view from start, extents and strides in elements.
std::function<TensorView(const TensorView&)> strided(std::int64_t start, const Shape& shape, const Strides& strides) {
  return [=](const TensorView& view) {
    auto* first = static_cast<std::byte*>(view.data) + start * static_cast<std::int64_t>(size_of(view.dtype));
    return TensorView(first, view.dtype, view.device, shape, strides);
  };
}

/// Returns pairs of sub-blocks. One CUDA call can copy some pairs (cudaMemcpy, 2-D or 3-D); other pairs need several
/// calls.
std::vector<Parts> all_parts() {
  const auto columns = [](const TensorView& v) { return v.slice(1, 2, 5); };
  const auto stack = [](const TensorView& v) { return v.slice(1, 1, 4).slice(2, 2, 5); };
  return {
      {"whole", {5, 7}, {5, 7}, whole, whole},
      {"rows", {9, 7}, {5, 7}, [](const TensorView& v) { return v.slice(0, 3, 8); }, whole},
      {"plane", {6, 11}, {6, 8}, columns, columns},
      {"plane to whole", {6, 11}, {6, 3}, columns, whole},
      {"stack", {3, 6, 11}, {3, 5, 8}, stack, stack},
      {"four axes",
       {2, 5, 6, 7},
       {2, 4, 5, 6},
       [](const TensorView& v) { return v.slice(1, 1, 4).slice(2, 1, 4).slice(3, 1, 4); },
       [](const TensorView& v) { return v.slice(1, 0, 3).slice(2, 1, 4).slice(3, 2, 5); }},
      {"host turned",
       {7, 5},
       {5, 7},
       [](const TensorView& v) {
         return v.permute({1, 0});
       },
       whole},
      {"device turned",
       {5, 7},
       {7, 5},
       whole,
       [](const TensorView& v) {
         return v.permute({1, 0});
       }},
      {"both turned",
       {4, 3, 5},
       {5, 4, 3},
       [](const TensorView& v) {
         return v.permute({2, 0, 1});
       },
       whole},
      {"a column each",
       {9, 4},
       {9, 3},
       [](const TensorView& v) { return v.slice(1, 1, 2); },
       [](const TensorView& v) { return v.slice(1, 2, 3); }},
      {"host reversed", {35}, {35}, strided(34, {35}, {-1}), whole},
      {"device reversed", {35}, {7, 5}, strided(0, {7, 5}, {5, 1}), strided(34, {7, 5}, {-5, -1})},
      {"rows reversed", {7, 5}, {7, 5}, strided(30, {7, 5}, {-5, 1}), whole},
      {"one element",
       {3},
       {5},
       [](const TensorView& v) { return v.slice(0, 1, 2); },
       [](const TensorView& v) { return v.slice(0, 4, 5); }},
  };
}

/// Copies one pair of parts in both directions. pinned: the host's memory is page-locked.
void there_and_back(CudaContext& context, const Parts& parts, DType host_type, DType device_type, bool pinned,
                    bool host_broadcasts = false, bool device_broadcasts = false) {
  CpuContext host_context;
  PinnedMemoryResource resource(context.device());
  HostMemoryResource pageable;
  MemoryResource& memory = pinned ? static_cast<MemoryResource&>(resource) : pageable;
  const Bytes host_numbers = numbers(host_type, parts.host, 1);
  const Bytes device_numbers = numbers(device_type, parts.device, 50);
  const Buffer buffer(host_numbers.size(), memory, context.stream());
  const TensorView host(buffer.data(), host_type, Device::cpu(), parts.host);
  const Tensor device = Tensor::empty(context, parts.device, device_type);
  const auto load = [&](const Bytes& from, const TensorView& to) {
    copy_now(context, TensorView(const_cast<std::uint8_t*>(from.data()), to.dtype, Device::cpu(), to.shape), to);
  };
  const auto describe = [&] {
    return std::string(parts.name) + (pinned ? ", pinned" : ", pageable") + ", elements of " +
           std::to_string(size_of(host_type)) + " and " + std::to_string(size_of(device_type)) + " bytes";
  };
  if (!device_broadcasts) {
    std::memcpy(host.data, host_numbers.data(), host_numbers.size());
    load(device_numbers, device);
    copy(context, parts.of_host(host), parts.of_device(device));
    if (!pinned) {
      std::memset(host.data, 0x55, host_numbers.size());  // copy() has read the source when it returns
    }
    Bytes result(device_numbers.size());
    copy_now(context, device, TensorView(result.data(), device_type, Device::cpu(), parts.device));
    Bytes source = host_numbers;
    Bytes expected = device_numbers;
    copy(host_context, parts.of_host({source.data(), host_type, Device::cpu(), parts.host}),
         parts.of_device({expected.data(), device_type, Device::cpu(), parts.device}));
    ASSERT_EQ(result, expected) << "to the device: " << describe();
  }
  if (!host_broadcasts) {
    std::memcpy(host.data, host_numbers.data(), host_numbers.size());
    load(device_numbers, device);
    copy(context, parts.of_device(device), parts.of_host(host));
    if (pinned) {
      context.synchronize();
    }
    Bytes source = device_numbers;
    Bytes expected = host_numbers;
    copy(host_context, parts.of_device({source.data(), device_type, Device::cpu(), parts.device}),
         parts.of_host({expected.data(), host_type, Device::cpu(), parts.host}));
    ASSERT_EQ(std::memcmp(host.data, expected.data(), expected.size()), 0) << "to the host: " << describe();
  }
}

TEST_F(CudaCopyPathsTest, SubBlocksThereAndBack) {
  for_seeds(
      [](std::uint64_t seed) {
        CudaContext context(Device::cuda(0));
        if (seed % 2 == 0) {  // half of the seeds copy in many boxes, the others in one box
          configure_staging(context, {.half_bytes = 64, .driver_bytes = 0, .threads = 1});
        }
        for (const Parts& parts : all_parts()) {
          for (const bool pinned : {false, true}) {
            there_and_back(context, parts, DType::f32, DType::f32, pinned);
          }
        }
        there_and_back(context, all_parts()[4], DType::u8, DType::u8, true);
        there_and_back(context, all_parts()[4], DType::f64, DType::f64, false);
        const Parts from_one{"host broadcasts", {6}, {4, 6}, strided(0, {4, 6}, {0, 1}), whole};
        const Parts to_many{"device broadcasts", {4, 6}, {6}, whole, strided(0, {4, 6}, {0, 1})};
        const Parts to_all{"one element of the device", {4, 6}, {2}, whole, strided(1, {4, 6}, {0, 0})};
        for (const bool pinned : {false, true}) {
          there_and_back(context, from_one, DType::f32, DType::f32, pinned, true);
          there_and_back(context, to_many, DType::f32, DType::f32, pinned, false, true);
          there_and_back(context, to_all, DType::f32, DType::f16, pinned, false, true);
        }
      },
      1, kFewSeeds);
}

TEST_F(CudaCopyPathsTest, ConvertsOnTheWay) {
  for_seeds(
      [](std::uint64_t seed) {
        CudaContext context(Device::cuda(0));
        configure_staging(context, {.half_bytes = 64, .threads = 1});
        const std::vector<Parts> parts = all_parts();
        for (const auto& [on_host, on_device] : {std::pair{DType::f64, DType::f32},
                                                 {DType::f32, DType::bf16},
                                                 {DType::u8, DType::f16},
                                                 {DType::i64, DType::i32},
                                                 {DType::f32, DType::u64}}) {
          there_and_back(context, parts[seed % parts.size()], on_host, on_device, seed % 2 == 0);
        }
      },
      1, 2 * kFewSeeds);
  CudaContext context(Device::cuda(0));
  const std::vector<double> src{2.75, -2.75, 1e10, 300};
  const Tensor device = Tensor::empty(context, Shape{4}, DType::u8);
  copy(context, TensorView(std::span(src), Shape{4}), device);
  std::vector<float> out(4);
  copy(context, device, TensorView(std::span(out), Shape{4}));
  EXPECT_EQ(out, (std::vector<float>{2, 0, 255, 255}));
  EXPECT_EQ(context.copied().host_to_device, 4U);  // the copies moved elements of u8, one byte each
  EXPECT_EQ(context.copied().device_to_host, 4U);
}

TEST_F(CudaCopyPathsTest, PageableSizesAroundTheHalves) {
  for_seeds(
      [](std::uint64_t) {
        CudaContext context(Device::cuda(0));
        configure_staging(context, {.half_bytes = 64, .driver_bytes = 0, .threads = 1});
        for (const std::int64_t count : {1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 199}) {
          const Parts parts{"line", {count}, {count}, whole, whole};
          there_and_back(context, parts, DType::f32, DType::f32, false);
        }
      },
      1, kFewSeeds);
}

TEST_F(CudaCopyPathsTest, WithTheSizesThatAreTheDefault) {
  CudaContext context(Device::cuda(0));
  const auto half = static_cast<std::int64_t>(StagingOptions{}.half_bytes);
  for (const std::int64_t count : {2 * half + 1, std::int64_t{64} << 10, (std::int64_t{64} << 10) + 1}) {
    const Parts parts{"line", {count}, {count}, whole, whole};
    there_and_back(context, parts, DType::u8, DType::u8, false);
  }
}

TEST_F(CudaCopyPathsTest, SubBlocksOnOneDevice) {
  CudaContext context(Device::cuda(0));
  for (const Parts& parts : all_parts()) {
    const Bytes from = numbers(DType::f32, parts.host, 1);
    Bytes to = numbers(DType::f32, parts.device, 50);
    const auto view = [](const Bytes& bytes, const Shape& shape) {
      return TensorView(const_cast<std::uint8_t*>(bytes.data()), DType::f32, Device::cpu(), shape);
    };
    const Tensor src = Tensor::empty(context, parts.host, DType::f32);
    const Tensor dst = Tensor::empty(context, parts.device, DType::f32);
    copy_now(context, view(from, parts.host), src);
    copy_now(context, view(to, parts.device), dst);
    bool done = true;
    try {
      copy(context, parts.of_host(src), parts.of_device(dst));
    } catch (const UnsupportedError&) {
      done = false;
    }
    const std::string name = parts.name;
    const bool refused = name == "host turned" || name == "device turned" || name == "both turned" ||
                         name == "a column each" || name == "host reversed" || name == "device reversed";
    EXPECT_EQ(done, !refused) << name;
    CpuContext host;
    if (done) {
      copy(host, parts.of_host(view(from, parts.host)), parts.of_device(view(to, parts.device)));
    }
    Bytes result(to.size());
    copy_now(context, dst, view(result, parts.device));
    EXPECT_EQ(result, to) << name;
  }
}

/// The driver reads pageable memory itself, during the call of copy(). So copy() must first check whether a host worker
/// has failed. Otherwise the driver would copy memory that the worker did not fill.
TEST_F(CudaCopyPathsTest, SmallPageableCopiesTellOfAFailureBeforeThem) {
  CudaContext context(Device::cuda(0));
  const Tensor device = Tensor::zeros(context, Shape{4}, DType::f32);
  context.synchronize();
  std::vector<float> host(4, 1);
  Stream worker = Stream::host_worker("source");
  Event made(Device::cpu());
  worker.enqueue([] { throw DataError("no numbers"); });
  worker.record(made);
  context.stream().wait(made);
  EXPECT_THROW(copy(context, device, TensorView{std::span(host), Shape{4}}), DataError);
}

/// A host worker writes numbers, and the CUDA stream waits for it. A copy from host memory after this wait must read
/// the new numbers, in page-locked and in pageable memory.
TEST_F(CudaCopyPathsTest, ReadsTheHostInStreamOrder) {
  for_seeds(
      [](std::uint64_t seed) {
        CudaContext context(Device::cuda(0));
        const std::size_t to_driver = seed % 2 == 0 ? 0 : 1024;
        configure_staging(context, {.half_bytes = 64, .driver_bytes = to_driver, .threads = 1});
        const Tensor device = Tensor::zeros(context, Shape{100}, DType::f32);
        const Tensor wide = Tensor::zeros(context, Shape{100}, DType::f64);
        std::vector<float> source(100, 0);
        const TensorView view{std::span(source), Shape{100}};
        Stream worker = Stream::host_worker("source");
        Event made(Device::cpu());
        worker.enqueue([&] { std::fill(source.begin(), source.end(), 3.5F); });
        worker.record(made);
        context.stream().wait(made);
        copy(context, view, device);
        std::fill(source.begin(), source.end(), -1.0F);
        // Copies to page-locked memory, and from there back with another type. The host does not wait in between.
        const Pinned pinned(context, 100, 7.0F);
        copy(context, device, pinned);
        copy(context, pinned, wide);
        std::vector<double> result(100);
        copy(context, wide, TensorView{std::span(result), Shape{100}});
        EXPECT_EQ(result, std::vector<double>(100, 3.5));
        worker.synchronize();
      },
      1, 3 * kFewSeeds);
}

TEST_F(CudaCopyPathsTest, NowIsDoneWhenItReturns) {
  for_seeds(
      [](std::uint64_t) {
        CudaContext context(Device::cuda(0));
        const Pinned in(context, 50, 2.5F);
        const Pinned out(context, 50, 0.0F);
        const Tensor device = Tensor::zeros(context, Shape{50}, DType::f32);
        copy_now(context, in, device);
        for (float& element : in.span()) {
          element = -1;  // the source may be changed now
        }
        copy_now(context, device, out);
        EXPECT_TRUE(out.holds(2.5F));
      },
      1, 3 * kFewSeeds);
  CpuContext host;
  std::vector<float> a(3, 1.0F);
  std::vector<float> b(3, 0.0F);
  copy_now(host, TensorView(std::span(a), Shape{3}), TensorView(std::span(b), Shape{3}));
  EXPECT_EQ(a, b);
}

TEST_F(CudaCopyPathsTest, StagingIsConfigured) {
  CudaContext context(Device::cuda(0));
  EXPECT_THROW(configure_staging(context, {.half_bytes = 63}), UsageError);
  EXPECT_THROW(configure_staging(context, {.half_bytes = std::size_t{1} << 33}), UsageError);
  EXPECT_THROW(configure_staging(context, {.threads = -1}), UsageError);
  configure_staging(context, {.half_bytes = 100});
  const Parts parts{"line", {100}, {100}, whole, whole};
  there_and_back(context, parts, DType::f32, DType::f64, false);
  configure_staging(context, {.half_bytes = 1 << 16});
  there_and_back(context, parts, DType::f32, DType::f64, false);
}

/// Copies between two GPUs, on the target's context (`fetch`) or on the source's. Memory comes from CUDA's memory
/// pools, whose peer access lockstep must enable, or from cudaMalloc.
void between(bool fetch, const Parts& parts, bool small_halves, bool pools = true) {
  CudaMemoryResource first_memory(Device::cuda(0));
  CudaMemoryResource second_memory(Device::cuda(1));
  CudaContext first(Device::cuda(0), {.memory = pools ? nullptr : &first_memory});
  CudaContext second(Device::cuda(1), {.memory = pools ? nullptr : &second_memory});
  CudaContext& context = fetch ? second : first;
  if (small_halves) {
    configure_staging(context, {.half_bytes = 64, .threads = 1});
  }
  const Pinned in(first, parts.host.numel());
  const Pinned before(second, parts.device.numel());
  const Pinned out(second, parts.device.numel());
  std::iota(in.span().begin(), in.span().end(), 1.0F);
  std::iota(before.span().begin(), before.span().end(), 1000.0F);
  const Tensor src = Tensor::zeros(first, parts.host, DType::f32);
  const Tensor dst = Tensor::zeros(second, parts.device, DType::f32);
  copy(first, in.view().reshape(parts.host), src);
  copy(second, before.view().reshape(parts.device), dst);
  Event ready(fetch ? first.device() : second.device());
  (fetch ? first : second).stream().record(ready);
  context.stream().wait(ready);
  copy(context, parts.of_host(src), parts.of_device(dst));
  // Work after the copy may overwrite the source and read the target.
  Event done(context.device());
  context.stream().record(done);
  (fetch ? first : second).stream().wait(done);
  const Tensor again = Tensor::zeros(first, parts.host, DType::f32);
  copy(first, again, src);
  copy(second, dst, out.view().reshape(parts.device));
  second.synchronize();
  first.synchronize();
  CpuContext host;
  copy(host, parts.of_host(in.view().reshape(parts.host)), parts.of_device(before.view().reshape(parts.device)));
  EXPECT_EQ(std::vector<float>(out.span().begin(), out.span().end()),
            std::vector<float>(before.span().begin(), before.span().end()))
      << parts.name << (fetch ? ", fetched" : ", pushed") << (pools ? ", of pools" : ", of cudaMalloc");
  EXPECT_EQ(context.copied().device_to_device,
            static_cast<std::uint64_t>(parts.of_host(src).numel()) * sizeof(float) + (fetch ? 0 : src.view().bytes()));
}

std::vector<Parts> peer_parts() {
  std::vector<Parts> parts;
  for (const std::int64_t count : {1, 15, 16, 17, 33, 100}) {
    parts.push_back({"line", {count}, {count}, whole, whole});
  }
  for (const int i : {1, 2, 3, 4, 5, 12}) {
    parts.push_back(all_parts()[static_cast<std::size_t>(i)]);
  }
  return parts;
}

TEST_F(CudaCopyPathsPairTest, WithPeerAccess) {
  for_seeds(
      [](std::uint64_t seed) {
        for (const Parts& parts : peer_parts()) {
          between(seed % 2 == 0, parts, false, seed / 2 % 2 == 0);
        }
      },
      2, 4);
}

TEST_F(CudaCopyPathsPairTest, WithoutPeerAccess) {
  for_seeds(
      [](std::uint64_t seed) {
        for (const Parts& parts : peer_parts()) {
          between(seed / 4 % 2 == 0, parts, true);
        }
      },
      2, 3 * kFewSeeds, false);
}

TEST_F(CudaCopyPathsPairTest, BetweenDevicesOneTypeAndRows) {
  CudaContext first(Device::cuda(0));
  CudaContext second(Device::cuda(1));
  const Tensor a = Tensor::zeros(first, Shape{3, 4}, DType::f32);
  const Tensor b = Tensor::zeros(second, Shape{4, 3}, DType::f32);
  const Tensor c = Tensor::zeros(second, Shape{3, 4}, DType::f64);
  EXPECT_THROW(copy(first, a.view().permute({1, 0}), b), UnsupportedError);
  EXPECT_THROW(copy(first, a, c), UnsupportedError);
  first.synchronize();
  second.synchronize();
}

}  // namespace
}  // namespace lockstep::testing
