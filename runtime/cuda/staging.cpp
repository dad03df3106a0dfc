#include <lockstep/runtime/cuda/staging.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/cuda/driver.hpp>

namespace lockstep::cuda {
namespace {

constexpr std::size_t kLeastHalf = 64;
constexpr std::size_t kMostHalf = std::size_t{1} << 32;

CopyLoops turned_round(const CopyLoops& loops) {
  CopyLoops result = loops;
  std::swap(result.src, result.dst);
  return result;
}

/// Returns the part of a view that a box covers; `strides` are the box's strides on the view's side of the copy.
TensorView part_of(const TensorView& view, std::int64_t offset, const CopyLoops& box, const std::int64_t* strides) {
  const auto rank = static_cast<std::size_t>(box.rank);
  return {element(view, offset), view.dtype, view.device, Shape(std::span(box.extent, rank)),
          Strides(std::span(strides, rank))};
}

/// Returns loops that copy a box from packed memory (as src) to its place in dst. Leaves out each axis on which dst has
/// stride 0, because all indices of such an axis mean one element of dst.
CopyLoops packed_to_dst(const CopyLoops& box) {
  std::int64_t strides[Dims::kMaxRank];
  detail::pack_strides(box, strides);
  CopyLoops loops;
  for (int axis = 0; axis < box.rank; ++axis) {
    if (box.dst[axis] != 0) {
      loops.extent[loops.rank] = box.extent[axis];
      loops.src[loops.rank] = strides[axis];
      loops.dst[loops.rank++] = box.dst[axis];
    }
  }
  join_axes(loops);
  return loops;
}

/// Gives device `reader` access to the memory pool of another device's `memory`, if a pool holds that memory. Peer
/// access between devices does not include pools; without access to the pool, copies would go through the host.
void open_pool(Device reader, void* memory) {
  static const auto ask = driver_function<decltype(&cuPointerGetAttribute)>("cuPointerGetAttribute", reader);
  const DeviceGuard guard(reader);
  cudaMemPool_t pool = nullptr;
  check_driver(ask(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, reinterpret_cast<CUdeviceptr>(memory)),
               "cuPointerGetAttribute", reader);
  if (pool == nullptr) {
    return;
  }
  cudaMemAccessDesc access{};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = reader.index;
  LOCKSTEP_CUDA_CHECK(reader, cudaMemPoolGetAccess(&access.flags, pool, &access.location));
  if (access.flags != cudaMemAccessFlagsProtReadWrite) {
    access.flags = cudaMemAccessFlagsProtReadWrite;
    LOCKSTEP_CUDA_CHECK(reader, cudaMemPoolSetAccess(pool, &access, 1));
  }
}

}  // namespace

/// If an exception ends a copy, waits for all work that the copy has enqueued.
class Staging::Rest {
 public:
  Rest(Stream& first, Stream* second) : first_(first), second_(second) {}
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;
  ~Rest() {
    if (std::uncaught_exceptions() > exceptions_) {
      for (Stream* stream : {&first_, second_}) {
        if (stream != nullptr) {
          const DeviceGuard guard(stream->device(), std::nothrow);
          ignore(cudaStreamSynchronize(stream->cuda_handle()));
        }
      }
    }
  }

 private:
  Stream& first_;
  Stream* second_;
  const int exceptions_ = std::uncaught_exceptions();
};

Staging& Staging::of(Context& context) {
  return context.library<Staging>([&] { return std::make_shared<Staging>(context); });
}

void Staging::configure(const StagingOptions& options) {
  require<UsageError>(options.half_bytes >= kLeastHalf && options.half_bytes <= kMostHalf, "staging: half_bytes is ",
                      options.half_bytes, ", expected ", kLeastHalf, " to ", kMostHalf);
  require<UsageError>(options.threads >= 0, "staging: threads is ", options.threads, ", expected at least 0");
  const SyncScope scope(context_.stream(), "configure_staging", SyncReason::allocation, 2 * options.half_bytes);
  context_.synchronize();
  memory_ = {};
  host_.reset();
  options_ = options;
  allocate();
}

void Staging::allocate() {
  if (memory_.data() != nullptr) {
    return;
  }
  for (Half& half : halves_) {
    if (!half.last) {
      half.last.emplace(context_.device());
    }
  }
  host_.emplace(CpuContextOptions{.threads = options_.threads});
  const std::size_t size = align_up(options_.half_bytes, kAlignment);
  memory_ = Buffer(2 * size, resource_, context_.stream());
  halves_[0].data = memory_.data();
  halves_[1].data = memory_.data() + size;
}

Staging::Peer& Staging::peer(Device other) {
  const auto found =
      std::find_if(peers_.begin(), peers_.end(), [&](const Peer& known) { return known.device == other; });
  if (found != peers_.end()) {
    return *found;
  }
  const Device here = context_.device();
  int can = 0;
  LOCKSTEP_CUDA_CHECK(here, cudaDeviceCanAccessPeer(&can, here.index, other.index));
  if (can != 0) {
    const DeviceGuard guard(here);
    const cudaError_t status = cudaDeviceEnablePeerAccess(other.index, 0);
    if (status == cudaErrorTooManyPeers) {
      ignore(status);
      can = 0;
    } else if (status == cudaErrorPeerAccessAlreadyEnabled) {  // the program has enabled peer access before
      ignore(status);
    } else {
      check(status, "cudaDeviceEnablePeerAccess(other.index, 0)", here);
    }
  }
  peers_.push_back({.device = other, .direct = can != 0, .stream = {}, .events = {}});
  return peers_.back();
}

bool Staging::reaches(const TensorView& other) {
  if (!peer(other.device).direct) {
    return false;
  }
  open_pool(context_.device(), other.data);
  return true;
}

TensorView Staging::staged(const CopyLoops& box, DType dtype, int half) const {
  std::int64_t strides[Dims::kMaxRank];
  detail::pack_strides(box, strides);
  const TensorView whole(halves_[half].data, dtype, Device::cpu(), Shape{});
  return part_of(whole, 0, box, strides);
}

void Staging::from_host(const TensorView& host, const TensorView& device) {
  Stream& stream = context_.stream();
  allocate();
  stream.synchronize();  // waits, because earlier work of the stream may still write the source
  const Rest rest(stream, nullptr);
  const std::size_t size = size_of(device.dtype);
  const auto [loops, from, to] = detail::order_loops(host, device);
  int half = 0;
  detail::for_each_box(loops, static_cast<std::int64_t>(options_.half_bytes / size),
                       [&, from = from, to = to](const CopyLoops& box, std::int64_t src, std::int64_t dst) {
                         halves_[half].last->synchronize();
                         copy_on_host(*host_, part_of(host, from + src, box, box.src), staged(box, device.dtype, half));
                         enqueue_blocks(stream, device.device, element(device, to + dst), Device::cpu(),
                                        halves_[half].data, packed_to_dst(box), size);
                         before_next_use(half);
                         half = 1 - half;
                       });
}

void Staging::to_host(const TensorView& device, const TensorView& host) {
  Stream& stream = context_.stream();
  allocate();
  const Rest rest(stream, nullptr);
  const std::size_t size = size_of(device.dtype);
  const auto [loops, to, from] = detail::order_loops(host, device);
  TensorView waiting[2];  // parts of `host` to which the halves will be copied; null data: an empty half
  CopyLoops boxes[2];
  const auto empty = [&](int half) {
    halves_[half].last->synchronize();
    copy_on_host(*host_, staged(boxes[half], device.dtype, half), waiting[half]);
    waiting[half] = {};
  };
  int half = 0;
  detail::for_each_box(loops, static_cast<std::int64_t>(options_.half_bytes / size),
                       [&, from = from, to = to](const CopyLoops& box, std::int64_t dst, std::int64_t src) {
                         if (waiting[half].data != nullptr) {
                           empty(half);
                         }
                         enqueue_blocks(stream, Device::cpu(), halves_[half].data, device.device,
                                        element(device, from + src), turned_round(packed_to_dst(box)), size);
                         before_next_use(half);
                         waiting[half] = part_of(host, to + dst, box, box.src);
                         boxes[half] = box;
                         half = 1 - half;
                       });
  for (int i = 0; i < 2; ++i, half = 1 - half) {
    if (waiting[half].data != nullptr) {
      empty(half);
    }
  }
  stream.synchronize();  // waits until the copy is complete; rethrows a failure of the stream's earlier waits
}

void Staging::across(const TensorView& src, const TensorView& dst) {
  const Device here = context_.device();
  const bool fetches = dst.device == here;
  Peer& other = peer(fetches ? src.device : dst.device);
  allocate();
  if (!begin_) {
    for (Half& half : halves_) {
      half.passed.emplace(here);
    }
    begin_.emplace(here);
  }
  if (!other.stream) {
    for (auto& event : other.events) {
      event.emplace(other.device);
    }
    other.stream.emplace(Stream::cuda(other.device));
  }
  Stream& stream = context_.stream();
  Stream& source = fetches ? *other.stream : stream;
  Stream& target = fetches ? stream : *other.stream;
  const Rest rest(stream, &*other.stream);
  const std::size_t size = size_of(dst.dtype);
  const auto [loops, from, to] = detail::order_loops(src, dst);
  // If this context copies from the other GPU (`fetches`), the source stream waits until src is ready and the halves
  // are free. If this context copies to the other GPU, the target stream waits for each box.
  if (fetches) {
    target.record(*begin_);
    source.wait(*begin_);
  }
  int box_number = 0;
  detail::for_each_box(
      loops, static_cast<std::int64_t>(options_.half_bytes / size),
      [&, from = from, to = to](const CopyLoops& box, std::int64_t src_offset, std::int64_t dst_offset) {
        const int half = box_number % 2;
        Event& filled = fetches ? *other.events[half] : *halves_[half].passed;
        Event& emptied = fetches ? *halves_[half].passed : *other.events[half];
        if (box_number++ >= 2) {
          source.wait(emptied);
        }
        CopyLoops fill = box;
        detail::pack_strides(box, fill.dst);
        join_axes(fill);
        enqueue_blocks(source, Device::cpu(), halves_[half].data, src.device, element(src, from + src_offset), fill,
                       size);
        source.record(filled);
        target.wait(filled);
        enqueue_blocks(target, dst.device, element(dst, to + dst_offset), Device::cpu(), halves_[half].data,
                       packed_to_dst(box), size);
        target.record(emptied);
      });
  if (!fetches) {  // all boxes are on one stream, so the last box completes last
    stream.wait(*other.events[(box_number - 1) % 2]);
  }
  before_next_use(0);
  before_next_use(1);
}

void enqueue_blocks(Stream& stream, Device dst_device, void* dst, Device src_device, const void* src,
                    const CopyLoops& loops, std::size_t size) {
  const Device here = stream.device();
  const DeviceGuard guard(here);
  CUstream_st* queue = stream.cuda_handle();
  const auto [block, outer] = detail::plan_blocks(loops, size);
  const bool peers =
      src_device.kind == DeviceKind::cuda && dst_device.kind == DeviceKind::cuda && src_device != dst_device;
  const cudaMemcpyKind kind = src_device.kind == DeviceKind::cpu   ? cudaMemcpyHostToDevice
                              : dst_device.kind == DeviceKind::cpu ? cudaMemcpyDeviceToHost
                                                                   : cudaMemcpyDeviceToDevice;
  const auto height = static_cast<std::size_t>(block.height);
  detail::for_each_index(outer, [&, &block = block](std::int64_t src_offset, std::int64_t dst_offset) {
    void* const to = static_cast<std::byte*>(dst) + dst_offset;
    const void* const from = static_cast<const std::byte*>(src) + src_offset;
    if (block.height == 1 && block.depth == 1) {
      if (peers) {
        LOCKSTEP_CUDA_CHECK(here,
                            cudaMemcpyPeerAsync(to, dst_device.index, from, src_device.index, block.width, queue));
      } else {
        LOCKSTEP_CUDA_CHECK(here, cudaMemcpyAsync(to, from, block.width, kind, queue));
      }
      return;
    }
    if (block.depth == 1 && !peers) {
      LOCKSTEP_CUDA_CHECK(
          here, cudaMemcpy2DAsync(to, block.dst_pitch, from, block.src_pitch, block.width, height, kind, queue));
      return;
    }
    const cudaPitchedPtr source{const_cast<void*>(from), block.src_pitch, block.width,
                                static_cast<std::size_t>(std::max(block.src_rows, block.height))};
    const cudaPitchedPtr target{to, block.dst_pitch, block.width,
                                static_cast<std::size_t>(std::max(block.dst_rows, block.height))};
    const cudaExtent extent{block.width, height, static_cast<std::size_t>(block.depth)};
    if (peers) {
      cudaMemcpy3DPeerParms parameters{};
      parameters.srcPtr = source;
      parameters.srcDevice = src_device.index;
      parameters.dstPtr = target;
      parameters.dstDevice = dst_device.index;
      parameters.extent = extent;
      LOCKSTEP_CUDA_CHECK(here, cudaMemcpy3DPeerAsync(&parameters, queue));
    } else {
      cudaMemcpy3DParms parameters{};
      parameters.srcPtr = source;
      parameters.dstPtr = target;
      parameters.extent = extent;
      parameters.kind = kind;
      LOCKSTEP_CUDA_CHECK(here, cudaMemcpy3DAsync(&parameters, queue));
    }
  });
}

}  // namespace lockstep::cuda
