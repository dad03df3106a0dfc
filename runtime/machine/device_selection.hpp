#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <lockstep/runtime/machine/device.hpp>

/// The devices of a node that a program uses: the user's request, and the devices that it selects on this machine
/// (docs/devices.md). Parsing a request needs no GPU; select_devices() works on any list of GPUs, real or made up.
namespace lockstep {

/// A GPU as this process sees it.
struct GpuInfo {
  int index = 0;                 ///< index under CUDA_VISIBLE_DEVICES, as in Device::cuda(index)
  std::string uuid{};            ///< "GPU-5f3e2a10-...", lower case; independent of visibility
  std::string pci{};             ///< "0000:3b:00.0"
  std::string name{};            ///< "NVIDIA H200"
  std::size_t memory_bytes = 0;  ///< memory of the card
  int major = 0, minor = 0;      ///< compute capability
};

/// Returns all GPUs that this process can use, by index. Makes no context on any. Empty without a driver or a device,
/// and in a build without CUDA; CudaError when the driver returns another error.
[[nodiscard]] std::vector<GpuInfo> list_gpus();
/// "cuda:1  NVIDIA H200  GPU-5f3e2a10-...  0000:3b:00.0", for headers.
[[nodiscard]] std::string to_string(const GpuInfo& gpu);
/// "0: NVIDIA H200, GPU-5f3e2a10-..., 0000:3b:00.0; 1: ...", or "none".
[[nodiscard]] std::string to_string(const std::vector<GpuInfo>& gpus);

/// A user's request for devices.
class DeviceRequest {
 public:
  struct Automatic {};  ///< all GPUs, one rank each; the CPU when there is none
  struct AllGpus {};
  struct Host {
    int ranks = 0;  ///< per node; 0: as many as the launcher starts
  };
  struct FirstGpus {
    int count = 1;
  };
  struct Gpus {
    std::vector<std::variant<int, std::string>> named;  ///< indices and UUIDs, in the order of the ranks
  };
  struct Usable {
    int count = 1;  ///< number of GPUs that are not in use; -1: all of those
  };
  using Form = std::variant<Automatic, AllGpus, Host, FirstGpus, Gpus, Usable>;

  DeviceRequest() = default;  ///< auto
  /// Parses "auto"; "gpu", "cuda" or "-1": all GPUs; "cpu", "cpu:4": the host; "3": the first three GPUs; "1,", "1,3",
  /// "[1,3]", "cuda:1", "gpu:1": GPUs by index; "GPU-<uuid>", or its beginning, also in a list; "usable:2": two GPUs
  /// that are not occupied, "usable" or "usable:-1": all GPUs that are not. Spaces around the parts do not matter. Any
  /// other text is a UsageError that says what to write instead: an empty text, "0", "[]", negative indices, names
  /// given twice, MIG slices.
  [[nodiscard]] static DeviceRequest parse(std::string_view text);

  /// Returns the same request, with the same text for messages, for these GPUs by UUID: used for usable:N, once its
  /// GPUs are found. UsageError as for a list.
  [[nodiscard]] DeviceRequest with_gpus(const std::vector<std::string>& uuids) const;

  [[nodiscard]] const Form& form() const { return form_; }
  [[nodiscard]] const std::string& text() const { return text_; }  ///< text of the user, for messages

 private:
  DeviceRequest(std::string text, Form form) : text_(std::move(text)), form_(std::move(form)) {}
  static DeviceRequest of_count(std::string text, int count);
  static DeviceRequest of_list(std::string text, std::vector<std::variant<int, std::string>> named);
  std::string text_ = "auto";
  Form form_ = Automatic{};
};

/// As parse(), for a program's command line: the error also lists the GPUs of the machine. `list` is called only on an
/// error. When `list` fails, the UsageError says why there is no list.
[[nodiscard]] DeviceRequest parse_devices(std::string_view text,
                                          const std::function<std::vector<GpuInfo>()>& list = list_gpus);

/// The devices of a node.
struct DeviceSelection {
  std::vector<Device> devices;  ///< GPUs, one rank each in this order; or the CPU alone, shared by all ranks
  int host_ranks = 0;           ///< on the CPU: ranks per node; 0: as many as the launcher starts
  [[nodiscard]] bool on_host() const { return devices.front().kind == DeviceKind::cpu; }
};

/// Applies the request to `gpus` (list_gpus() of one node). UsageError, with the request and the GPUs, when the GPUs
/// cannot meet it. StateError for usable:N: find_usable_gpus() (usable_gpus.hpp) finds its GPUs by trying them; pass
/// with_gpus() of the result.
[[nodiscard]] DeviceSelection select_devices(const DeviceRequest& request, const std::vector<GpuInfo>& gpus);

// Both throw CudaError when the driver returns an error other than "no driver" or "no device".

/// GPU `index`; the CPU when there is no such GPU.
[[nodiscard]] Device try_gpu(int index = 0);
/// All GPUs; the CPU when there is none.
[[nodiscard]] std::vector<Device> try_all_gpus();

}  // namespace lockstep
