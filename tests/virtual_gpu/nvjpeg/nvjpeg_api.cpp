// Defines the nvJPEG functions that kernels/nvjpeg loads.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>

#include <cuda_runtime_api.h>

#include "control.hpp"
#include "nvjpeg_control.hpp"
#include "plain_jpeg.hpp"

namespace {

using lockstep::standin::DeviceMemory;
using lockstep::standin::violate;

struct Order {
  nvjpegStatus_t status;
  int before;  // number of calls that succeed before the failing call
  int times;
};

struct World {
  std::map<std::string, Order> orders;
  std::vector<std::string> calls;
  std::vector<cudaStream_t> streams;
  std::vector<nvjpegBackend_t> backends;
  std::vector<int> threads;
  std::vector<nvjpegOutputFormat_t> formats;
  int handles = 0;
  int states = 0;
  int blocks = 0;
  int allocations = 0;
};

World& world() {
  static World instance;
  return instance;
}

/// Records the call, and returns the status that the test has set with fail().
nvjpegStatus_t enter(const std::string& function, const std::string& details = {}) {
  world().calls.push_back(function + details);
  const auto found = world().orders.find(function);
  if (found == world().orders.end() || found->second.before-- > 0) {
    return NVJPEG_STATUS_SUCCESS;
  }
  const nvjpegStatus_t status = found->second.status;
  if (--found->second.times <= 0) {
    world().orders.erase(found);
  }
  return status;
}

/// Memory that the caller's allocator functions returned.
struct Block {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace

struct nvjpegHandle {
  nvjpegDevAllocatorV2_t device;
  nvjpegPinnedAllocatorV2_t pinned;
  Block tables;

  /// Enqueues work that uses `tables` on the legacy default stream. The caller of nvJPEG does not know of this work.
  void use_tables() const {
    if (cudaMemsetAsync(tables.data, 0, tables.bytes, cudaStreamLegacy) != cudaSuccess) {
      violate("nvJPEG cannot use the memory that it was given without a stream");
    }
  }
  bool resize(Block& block, std::size_t bytes, bool on_device, cudaStream_t stream) const {
    if (block.data != nullptr) {
      const int status = on_device ? device.dev_free(device.dev_ctx, block.data, block.bytes, stream)
                                   : pinned.pinned_free(pinned.pinned_ctx, block.data, block.bytes, stream);
      if (status != 0) {
        violate("nvJPEG's memory is not taken back");
      }
      --world().blocks;
      block = {};
    }
    if (bytes == 0) {
      return true;
    }
    void* data = nullptr;
    const int status = on_device ? device.dev_malloc(device.dev_ctx, &data, bytes, stream)
                                 : pinned.pinned_malloc(pinned.pinned_ctx, &data, bytes, stream);
    if (status != 0) {
      return false;
    }
    if (lockstep::standin::is_device_memory(data) != on_device) {
      violate("nvJPEG is given memory of the wrong kind");
    }
    block = {data, bytes};
    ++world().blocks;
    ++world().allocations;
    return true;
  }
};

struct nvjpegJpegState {
  nvjpegHandle_t handle = nullptr;
  int prepared = 0;
  Block scratch, staged;
  /// True until the last batch has completed.
  std::shared_ptr<std::atomic<bool>> busy = std::make_shared<std::atomic<bool>>(false);

  void need_rest(const std::string& call) const {
    if (*busy) {
      violate(call + ": the state's last batch is not done");
    }
  }
};

namespace lockstep::nvjpeg_standin {

void reset() {
  world() = {};
}

void fail(const std::string& function, nvjpegStatus_t status, int n, int times) {
  world().orders[function] = {status, n - 1, times};
}

std::vector<std::string> calls() {
  return world().calls;
}
std::vector<cudaStream_t> streams() {
  return world().streams;
}
std::vector<nvjpegBackend_t> backends() {
  return world().backends;
}
std::vector<int> threads() {
  return world().threads;
}
std::vector<nvjpegOutputFormat_t> formats() {
  return world().formats;
}

std::vector<std::string> leaks() {
  std::vector<std::string> all;
  const auto add = [&](int count, const char* what) {
    if (count != 0) {
      all.push_back(std::to_string(count) + what);
    }
  };
  add(world().handles, " handles");
  add(world().states, " states");
  add(world().blocks, " blocks of memory");
  return all;
}

int allocations() {
  return world().allocations;
}

}  // namespace lockstep::nvjpeg_standin

extern "C" {

nvjpegStatus_t nvjpegGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? NVJPEG_VER_MAJOR : 0;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegCreateExV2(nvjpegBackend_t backend, nvjpegDevAllocatorV2_t* device,
                                nvjpegPinnedAllocatorV2_t* pinned, unsigned int /*flags*/, nvjpegHandle_t* handle) {
  if (const nvjpegStatus_t status = enter("nvjpegCreateExV2"); status != NVJPEG_STATUS_SUCCESS) {
    return status;
  }
  auto made = std::make_unique<nvjpegHandle>(nvjpegHandle{*device, *pinned, {}});
  if (!made->resize(made->tables, 4096, true, nullptr)) {
    return NVJPEG_STATUS_ALLOCATOR_FAILURE;
  }
  made->use_tables();
  world().backends.push_back(backend);
  ++world().handles;
  *handle = made.release();
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDestroy(nvjpegHandle_t handle) {
  handle->use_tables();
  handle->resize(handle->tables, 0, true, nullptr);
  delete handle;
  --world().handles;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegJpegStateCreate(nvjpegHandle_t handle, nvjpegJpegState_t* state) {
  if (const nvjpegStatus_t status = enter("nvjpegJpegStateCreate"); status != NVJPEG_STATUS_SUCCESS) {
    return status;
  }
  *state = new nvjpegJpegState{handle};
  ++world().states;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegJpegStateDestroy(nvjpegJpegState_t state) {
  state->need_rest("nvjpegJpegStateDestroy");
  state->handle->resize(state->scratch, 0, true, nullptr);
  state->handle->resize(state->staged, 0, false, nullptr);
  delete state;
  --world().states;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegGetImageInfo(nvjpegHandle_t /*handle*/, const unsigned char* data, size_t length, int* components,
                                  nvjpegChromaSubsampling_t* subsampling, int* widths, int* heights) {
  if (const nvjpegStatus_t status = enter("nvjpegGetImageInfo"); status != NVJPEG_STATUS_SUCCESS) {
    return status;
  }
  const auto header = lockstep::testing::read_header({data, length});
  if (!header) {
    return NVJPEG_STATUS_BAD_JPEG;
  }
  *components = header->channels;
  *subsampling = NVJPEG_CSS_UNKNOWN;
  for (int c = 0; c < NVJPEG_MAX_COMPONENT; ++c) {
    widths[c] = c < header->channels ? header->width : 0;
    heights[c] = c < header->channels ? header->height : 0;
  }
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDecodeBatchedInitialize(nvjpegHandle_t handle, nvjpegJpegState_t state, int batch, int threads,
                                             nvjpegOutputFormat_t format) {
  state->need_rest("nvjpegDecodeBatchedInitialize");
  state->prepared = 0;
  if (const nvjpegStatus_t status = enter("nvjpegDecodeBatchedInitialize", ' ' + std::to_string(batch));
      status != NVJPEG_STATUS_SUCCESS) {
    return status;
  }
  world().threads.push_back(threads);
  world().formats.push_back(format);
  if (!handle->resize(state->staged, static_cast<std::size_t>(batch) * 64, false, nullptr)) {
    return NVJPEG_STATUS_ALLOCATOR_FAILURE;
  }
  state->prepared = batch;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDecodeBatched(nvjpegHandle_t handle, nvjpegJpegState_t state, const unsigned char* const* data,
                                   const size_t* lengths, nvjpegImage_t* images, cudaStream_t stream) {
  state->need_rest("nvjpegDecodeBatched");
  const int count = state->prepared;
  if (count == 0) {
    violate("nvjpegDecodeBatched: the state is not prepared, or its last batch has failed");
  }
  state->prepared = 0;  // 0 unless the call succeeds
  world().streams.push_back(stream);
  if (const nvjpegStatus_t status = enter("nvjpegDecodeBatched", ' ' + std::to_string(count));
      status != NVJPEG_STATUS_SUCCESS) {
    return status;
  }
  struct Picture {
    std::vector<std::uint8_t> pixels;
    std::size_t row, pitch;
    unsigned char* to;
  };
  std::vector<Picture> pictures;
  std::size_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    const std::span<const std::uint8_t> file{data[i], lengths[i]};
    const auto header = lockstep::testing::read_header(file);
    auto pixels = lockstep::testing::decode(file);
    if (!pixels) {
      return NVJPEG_STATUS_BAD_JPEG;
    }
    bytes += pixels->size();
    pictures.push_back(
        {std::move(*pixels), static_cast<std::size_t>(header->width) * 3, images[i].pitch[0], images[i].channel[0]});
  }
  if (bytes > state->scratch.bytes && !handle->resize(state->scratch, bytes, true, stream)) {
    return NVJPEG_STATUS_ALLOCATOR_FAILURE;
  }
  auto busy = state->busy;
  *busy = true;
  const cudaError_t launched = lockstep::standin::launch(
      stream, [busy, pictures, scratch = static_cast<unsigned char*>(state->scratch.data)](auto memory) {
        const auto holds = [&](const unsigned char* from, std::size_t size) {
          return std::any_of(memory.begin(), memory.end(), [&](const DeviceMemory& block) {
            const auto* begin = reinterpret_cast<const unsigned char*>(block.data);
            return from >= begin && from + size <= begin + block.bytes;
          });
        };
        unsigned char* at = scratch;
        for (const Picture& picture : pictures) {
          const std::size_t size = picture.pixels.size();
          const std::size_t rows = size / picture.row;
          if (!holds(at, size) || !holds(picture.to, (rows - 1) * picture.pitch + picture.row)) {
            throw std::runtime_error("nvjpegDecodeBatched: writes outside of the device's memory");
          }
          std::memcpy(at, picture.pixels.data(), size);
          for (std::size_t y = 0; y < rows; ++y) {
            std::memcpy(picture.to + y * picture.pitch, at + y * picture.row, picture.row);
          }
          at += size;
        }
        *busy = false;
      });
  if (launched != cudaSuccess) {
    *busy = false;
    return NVJPEG_STATUS_EXECUTION_FAILED;
  }
  state->prepared = count;
  return NVJPEG_STATUS_SUCCESS;
}

}  // extern "C"
