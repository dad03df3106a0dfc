#include "measure/copy_paths.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <lockstep/kernels/grouped_copy.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/context/parallel.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::measure {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kGrainBytes = std::int64_t{1} << 20;  // least bytes per thread, as in copy() of runtime

const char* name_of(Memory memory) {
  constexpr const char* kNames[] = {"pageable", "pinned", "device"};
  return kNames[static_cast<std::size_t>(memory)];
}

const char* name_of(Mover mover) {
  constexpr const char* kNames[] = {"memcpy", "streaming", "copy", "copy_worker", "copy_engine", "kernel"};
  return kNames[static_cast<std::size_t>(mover)];
}

bool on_host(Mover mover) {
  return mover != Mover::copy_engine && mover != Mover::kernel;
}

/// Returns the second part of a path's name: the nodes, the kind of host memory, or the GPUs.
std::string place(const CopyPath& path) {
  if (path.from.node) {
    return concat(path.from.node->number, "_to_", path.to.node->number);
  }
  if (path.from.memory != Memory::device || path.to.memory != Memory::device) {
    const CopyEnd& host = path.from.memory != Memory::device ? path.from : path.to;
    const CopyEnd& other = path.from.memory != Memory::device ? path.to : path.from;
    return other.memory == Memory::device ? concat(other.device.index, "/", name_of(host.memory))
                                          : name_of(host.memory);
  }
  return path.over_link() ? concat(path.from.device.index, "_to_", path.to.device.index)
                          : concat(path.from.device.index, "/device");
}

std::string kind(const CopyPath& path) {
  if (path.from.node) {
    return "numa";
  }
  const bool from_host = path.from.memory != Memory::device;
  const bool to_host = path.to.memory != Memory::device;
  if (from_host || to_host) {
    return concat(from_host ? "host" : "device", "_to_", to_host ? "host" : "device");
  }
  return path.over_link() ? "peer" : "device_to_device";
}

CopyPath named(CopyPath path) {
  path.name =
      concat(kind(path), "/", place(path), "/", path.both_ways ? "both_ways" : "one_way", "/", name_of(path.mover));
  return path;
}

/// Copies with non-temporal stores, which neither read the line that they overwrite nor leave it in a cache. Both
/// addresses are 16-byte aligned; the last bytes % 16 bytes are copied by memcpy.
void stream_range(const std::byte* src, std::byte* dst, std::int64_t bytes) {
#if defined(__SSE2__)
  const std::int64_t whole = bytes / 16 * 16;
  for (std::int64_t i = 0; i < whole; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i), _mm_load_si128(reinterpret_cast<const __m128i*>(src + i)));
  }
  std::memcpy(dst + whole, src + whole, static_cast<std::size_t>(bytes - whole));
  _mm_sfence();
#else
  std::copy_n(src, bytes, dst);
#endif
}

void stream_copy(const CpuContext& context, const TensorView& src, const TensorView& dst) {
  constexpr std::int64_t kLine = 64;
  constexpr std::int64_t kLeast = 4 * kLine;  // smaller copies use memcpy: non-temporal stores would take longer
  const auto bytes = static_cast<std::int64_t>(src.bytes());
  const auto* from = static_cast<const std::byte*>(src.data);
  auto* to = static_cast<std::byte*>(dst.data);
  // Copies whose addresses are not 16-byte aligned use memcpy: non-temporal stores require alignment.
  if (bytes < kLeast || reinterpret_cast<std::uintptr_t>(from) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(to) % 16 != 0) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  parallel_ranges(context, (bytes + kLine - 1) / kLine, kGrainBytes / kLine,
                  [&](std::int64_t first, std::int64_t last) {
                    const std::int64_t begin = first * kLine;
                    stream_range(from + begin, to + begin, std::min(bytes, last * kLine) - begin);
                  });
}

/// Binds the stream's thread to these processors.
void bind(Stream& worker, const ProcessorSet& processors) {
  worker.enqueue([processors] { bind_this_thread(processors); });
  worker.synchronize();
}

/// The memory of one end of a path. The constructor touches host memory: a page is placed on the NUMA node of the
/// thread that touches it first.
class Pool {
 public:
  Pool(const CopyEnd& end, Device gpu, std::int64_t bytes, Context& context, int threads) : device_(end.device) {
    if (end.memory == Memory::pinned) {
      memory_ = std::make_unique<PinnedMemoryResource>(gpu);
    } else if (end.memory == Memory::device) {
      memory_ = std::make_unique<CudaMemoryResource>(end.device);
    } else {
      memory_ = std::make_unique<HostMemoryResource>();
    }
    buffer_ = Buffer(static_cast<std::size_t>(bytes), *memory_, context.stream());
    if (end.node) {
      Stream toucher = Stream::host_worker("touch");
      bind(toucher, end.node->processors);
      toucher.enqueue([this, bytes] { std::memset(buffer_.data(), 0, static_cast<std::size_t>(bytes)); });
      toucher.synchronize();
    } else if (end.memory != Memory::device) {
      const CpuContext toucher({.threads = threads});
      parallel_ranges(toucher, bytes, kGrainBytes, [&](std::int64_t begin, std::int64_t last) {
        std::memset(buffer_.data() + begin, 0, static_cast<std::size_t>(last - begin));
      });
    }
  }
  [[nodiscard]] TensorView view(std::int64_t offset, std::int64_t bytes) const {
    return {buffer_.data() + offset, DType::u8, device_, Shape{bytes}};
  }

 private:
  Device device_;
  std::unique_ptr<MemoryResource> memory_;
  Buffer buffer_;
};

/// One direction of a path, with a context of its own and a pool at each end.
class Lane {
 public:
  Lane(const CopyPath& path, const CopyEnd& from, const CopyEnd& to, std::int64_t bytes, std::int64_t pool_bytes,
       int threads)
      : mover_(path.mover), pool_bytes_(pool_bytes) {
    const Device gpu = from.memory == Memory::device ? from.device : to.device;
    if (on_host(mover_)) {
      if (path.both_ways || mover_ == Mover::copy_worker || to.node) {
        worker_ = std::make_unique<Stream>(Stream::host_worker("copy"));
      }
      if (to.node) {
        const int most = to.node->processors.count();
        threads = threads > 0 ? std::min(threads, most) : most;
        bind(*worker_, to.node->processors);  // the threads that the worker starts later inherit the binding
      }
      context_ = std::make_unique<CpuContext>(CpuContext::Options{.threads = threads, .stream = worker_.get()});
    } else {
      context_ = std::make_unique<CudaContext>(gpu);
    }
    src_ = std::make_unique<Pool>(from, gpu, bytes, *context_, threads);
    dst_ = std::make_unique<Pool>(to, gpu, bytes, *context_, threads);
  }

  /// Makes the lists of pairs for grouped copies before the clock starts, as a program would. No copy may be in
  /// progress. On the host, a list must not change until the copy that reads the list is done. So each position in the
  /// pool has its own list.
  void prepare(const CopySize& size) {
    // prepare() stops when all its lists together have this number of pairs (source, destination). It makes at least
    // one list.
    constexpr std::int64_t kMostPairs = 1 << 15;
    groups_.clear();
    place_ = 0;
    const std::int64_t step = align_up(size.bytes, kAlignment);
    const std::int64_t lists = !size.grouped ? 0 : std::max(kMostPairs / size.pieces, std::int64_t{1});
    for (std::int64_t at = 0; std::ssize(groups_) < lists && (at == 0 || at + size.bytes <= pool_bytes_); at += step) {
      std::vector<ops::CopyPair>& group = groups_.emplace_back();
      for_pieces(size, at, [&](const TensorView& src, const TensorView& dst) { group.push_back({src, dst}); });
    }
  }

  void start(const CopySize& size) {
    if (size.grouped) {
      ops::grouped_copy(*context_, groups_[place_]);
      place_ = (place_ + 1) % groups_.size();
      return;
    }
    if (next_ + size.bytes > pool_bytes_) {
      next_ = 0;
    }
    for_pieces(size, next_, [&](const TensorView& src, const TensorView& dst) {
      move(src, dst);
      if (size.wait_each) {
        wait();
      }
    });
    next_ += align_up(size.bytes, kAlignment);
  }
  void wait() { context_->synchronize(); }

  void check(const CopySize& size) {
    std::vector<std::uint8_t> pattern(static_cast<std::size_t>(size.bytes));
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      pattern[i] = static_cast<std::uint8_t>(i * 37 + i / 251 + 1);
    }
    std::vector<std::uint8_t> result(pattern.size());
    next_ = 0;
    prepare(size);
    transfer({std::span(pattern), Shape{size.bytes}}, src_->view(0, size.bytes));
    start(size);
    wait();
    transfer(dst_->view(0, size.bytes), {std::span(result), Shape{size.bytes}});
    const auto wrong = std::mismatch(pattern.begin(), pattern.end(), result.begin());
    require<StateError>(wrong.first == pattern.end(), "byte ", wrong.first - pattern.begin(), " of ", size.bytes,
                        " is ", wrong.first == pattern.end() ? 0 : int{*wrong.second}, ", expected ",
                        wrong.first == pattern.end() ? 0 : int{*wrong.first});
    next_ = 0;
  }

 private:
  /// Calls f(src, dst) for each piece of a copy that begins at offset `at` of the pools.
  template <class F>
  void for_pieces(const CopySize& size, std::int64_t at, F&& f) {
    for (std::int64_t i = 0; i < size.pieces; ++i) {
      const std::int64_t begin = size.bytes * i / size.pieces;
      const std::int64_t bytes = size.bytes * (i + 1) / size.pieces - begin;
      f(src_->view(at + begin, bytes), dst_->view(at + begin, bytes));
    }
  }

  void move(const TensorView& src, const TensorView& dst) {
    switch (mover_) {
      case Mover::memcpy:
        context_->stream().enqueue([src, dst] { std::memcpy(dst.data, src.data, src.bytes()); });
        return;
      case Mover::streaming:
        context_->stream().enqueue(
            [&cpu = static_cast<const CpuContext&>(*context_), src, dst] { stream_copy(cpu, src, dst); });
        return;
      case Mover::copy:
      case Mover::copy_worker:
      case Mover::copy_engine:
        copy(*context_, src, dst);
        return;
      case Mover::kernel:
        break;
    }
    // Pinned host memory has the same address on all devices: a kernel uses it like memory of its own device.
    TensorView near_src = src;
    TensorView near_dst = dst;
    near_src.device = near_dst.device = context_->device();
    ops::strided_copy(*context_, near_src, near_dst);
  }

  /// Copies from ordinary host memory to a pool, or back. The pool is on a GPU or on the host.
  static void transfer(const TensorView& src, const TensorView& dst) {
    const std::unique_ptr<Context> context = make_context(src.device == Device::cpu() ? dst.device : src.device);
    copy(*context, src, dst);
    context->synchronize();
  }

  Mover mover_;
  std::int64_t pool_bytes_;
  std::int64_t next_ = 0;
  std::unique_ptr<Stream> worker_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Pool> src_;
  std::unique_ptr<Pool> dst_;
  std::vector<std::vector<ops::CopyPair>> groups_;  ///< pairs for the prepared size, one list per position in the pool
  std::size_t place_ = 0;
};

}  // namespace

bool CopyPath::can_group() const {
  if (both_ways || from.node) {
    return false;
  }
  return from.device == to.device && (mover == Mover::copy_worker || mover == Mover::kernel);
}

bool CopyPath::enqueues() const {
  const bool pageable = from.memory == Memory::pageable || to.memory == Memory::pageable;
  return mover == Mover::copy_worker || both_ways || (!on_host(mover) && !pageable);
}

std::vector<CopyPath> copy_paths(std::span<const Device> gpus) {
  std::vector<CopyPath> paths;
  const auto add = [&](const CopyEnd& from, const CopyEnd& to, bool both_ways, std::initializer_list<Mover> movers) {
    for (const Mover mover : movers) {
      paths.push_back(named({{}, from, to, both_ways, mover}));
    }
  };
  const CopyEnd host{Memory::pageable, Device::cpu()};
  const CopyEnd pinned{Memory::pinned, Device::cpu()};
  add(host, host, false, {Mover::memcpy, Mover::streaming, Mover::copy, Mover::copy_worker});
  add(host, host, true, {Mover::memcpy, Mover::streaming, Mover::copy});
  for (const Device gpu : gpus) {
    const CopyEnd device{Memory::device, gpu};
    add(host, device, false, {Mover::copy_engine});
    add(pinned, device, false, {Mover::copy_engine, Mover::kernel});
    add(device, host, false, {Mover::copy_engine});
    add(device, pinned, false, {Mover::copy_engine, Mover::kernel});
    add(pinned, device, true, {Mover::copy_engine, Mover::kernel});
    add(device, device, false, {Mover::copy_engine, Mover::kernel});
  }
  for (const Device from : gpus) {
    for (const Device to : gpus) {
      if (!(from == to)) {
        add({Memory::device, from}, {Memory::device, to}, false, {Mover::copy_engine});
        if (from.index < to.index) {
          add({Memory::device, from}, {Memory::device, to}, true, {Mover::copy_engine});
        }
      }
    }
  }
  return paths;
}

std::vector<NumaNode> usable_nodes(std::span<const NumaNode> nodes, const ProcessorSet& allowed) {
  std::vector<NumaNode> usable;
  for (const NumaNode& node : nodes) {
    const ProcessorSet processors = node.processors.intersection(allowed);
    if (!processors.empty()) {
      usable.push_back({node.number, processors});
    }
  }
  return usable;
}

std::vector<CopyPath> numa_paths(std::span<const NumaNode> nodes) {
  std::vector<CopyPath> paths;
  for (const NumaNode& from : nodes) {
    for (const NumaNode& to : nodes) {
      for (const Mover mover : {Mover::memcpy, Mover::copy}) {
        if (nodes.size() > 1) {
          paths.push_back(named({{},
                                 {Memory::pageable, Device::cpu(), from},
                                 {Memory::pageable, Device::cpu(), to},
                                 /*both_ways=*/false,
                                 mover}));
        }
      }
    }
  }
  return paths;
}

struct CopyBench::Impl {
  CopyPath path;
  std::int64_t max_bytes;
  std::vector<std::unique_ptr<Lane>> lanes;

  void require_size(const CopySize& size) const {
    require<UsageError>(size.pieces >= 1 && size.pieces <= size.bytes && size.bytes <= max_bytes, path.name, ": ",
                        size.bytes, " bytes in ", size.pieces, " pieces, expected up to ", max_bytes,
                        " bytes and at least one a piece");
    require<UsageError>(!size.grouped || path.can_group(), path.name, ": pieces cannot be grouped there");
  }
};

CopyBench::CopyBench(const CopyPath& path, std::int64_t max_bytes, int threads, std::int64_t pool_bytes)
    : impl_(std::make_unique<Impl>(Impl{path, max_bytes, {}})) {
  require<UsageError>(max_bytes >= 1, path.name, ": the largest copy is ", max_bytes, " bytes, expected at least 1");
  // Between NUMA nodes, the pools are larger than malloc(3)'s M_MMAP_THRESHOLD (at most 32 MiB). So their memory comes
  // directly from the system: no thread has touched the pages yet, and their NUMA node is not chosen yet.
  const std::int64_t bytes = std::max({max_bytes, pool_bytes, path.from.node ? kPoolBytes : 0});
  if (!path.both_ways) {
    impl_->lanes.push_back(std::make_unique<Lane>(path, path.from, path.to, bytes, pool_bytes, threads));
    return;
  }
  // The two directions share the threads of the host.
  const int each = std::max((threads > 0 ? threads : CpuContext().threads()) / 2, 1);
  impl_->lanes.push_back(std::make_unique<Lane>(path, path.from, path.to, bytes, pool_bytes, each));
  impl_->lanes.push_back(std::make_unique<Lane>(path, path.to, path.from, bytes, pool_bytes, each));
}

CopyBench::~CopyBench() = default;

Work CopyBench::work(const CopySize& size) {
  impl_->require_size(size);
  for (const auto& lane : impl_->lanes) {
    lane->prepare(size);
  }
  const auto start = [state = impl_.get(), size] {
    for (const auto& lane : state->lanes) {
      lane->start(size);
    }
  };
  const auto wait = [state = impl_.get()] {
    for (const auto& lane : state->lanes) {
      lane->wait();
    }
  };
  return {.start = start, .wait = wait, .prepare = {}};
}

std::string copy_name(const CopyPath& path, const CopySize& size) {
  return size.pieces == 1 ? concat(path.name, "/", size.bytes)
                          : concat(path.name, "/", size.bytes, "/pieces:", size.pieces,
                                   size.grouped     ? "/grouped"
                                   : size.wait_each ? "/wait:each"
                                                    : "/wait:once");
}

Measurement CopyBench::measure(comm::Communicator& ranks, const CopySize& size, const MeasureOptions& options) {
  Measurement result;
  result.bytes = size.bytes;
  result.name = copy_name(impl_->path, size);
  result.payload_bytes = impl_->path.payload_bytes(size.bytes);
  result.traffic_bytes = impl_->path.traffic_bytes(size.bytes);
  result.samples = measure::measure(ranks, options, work(size));
  return result;
}

void CopyBench::check(const CopySize& size) {
  impl_->require_size(size);
  for (const auto& lane : impl_->lanes) {
    try {
      lane->check(size);
    } catch (Error& error) {
      error.annotate(impl_->path.name);
      throw;
    }
  }
}

}  // namespace lockstep::measure
