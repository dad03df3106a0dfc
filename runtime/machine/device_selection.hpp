#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <lockstep/runtime/machine/device.hpp>

/// Selects the devices of a node that a program uses: a user's request is parsed, then applied to the node's GPUs
/// (docs/devices.md). Parsing a request needs no GPU; select_devices() takes any list of GPUs, real or made up.
namespace lockstep {

/// A GPU as this process sees it.
struct GpuInfo {
  int index = 0;                 ///< index within CUDA_VISIBLE_DEVICES, as in Device::cuda(index)
  std::string uuid{};            ///< "GPU-5f3e2a10-...", lower case; does not depend on CUDA_VISIBLE_DEVICES
  std::string pci{};             ///< PCI address: "0000:3b:00.0"
  std::string name{};            ///< model: "NVIDIA H200"
  std::size_t memory_bytes = 0;  ///< total memory of the card in bytes
  int major = 0, minor = 0;      ///< compute capability
};

/// Returns all GPUs that this process can use, in the order of their indices. Makes no context. The list is empty
/// without a driver or a device, and in a build without CUDA. Throws CudaError if the driver returns another error.
[[nodiscard]] std::vector<GpuInfo> list_gpus();
/// Formats a GPU for headers: "cuda:1  NVIDIA H200  GPU-5f3e2a10-...  0000:3b:00.0".
[[nodiscard]] std::string to_string(const GpuInfo& gpu);
/// Formats a list: "0: NVIDIA H200, GPU-5f3e2a10-..., 0000:3b:00.0; 1: ...", or "none".
[[nodiscard]] std::string to_string(const std::vector<GpuInfo>& gpus);

/// A user's request for devices.
class DeviceRequest {
 public:
  struct Automatic {};  ///< all GPUs with one rank each; the CPU if there are no GPUs
  struct AllGpus {};
  struct Host {
    int ranks = 0;  ///< number of ranks on each node; 0 means as many as the launcher starts
  };
  struct FirstGpus {
    int count = 1;
  };
  struct Gpus {
    std::vector<std::variant<int, std::string>> named;  ///< indices and UUIDs of GPUs, in the order of the ranks
  };
  struct Usable {
    int count = 1;  ///< number of unoccupied GPUs; -1 means all unoccupied GPUs
  };
  using Form = std::variant<Automatic, AllGpus, Host, FirstGpus, Gpus, Usable>;

  DeviceRequest() = default;  ///< the request "auto"
  /// Parses a request. The forms are "auto"; "gpu", "cuda" or "-1" for all GPUs; "cpu" or "cpu:4" for the host; "3" for
  /// the first three GPUs; "1,", "1,3", "[1,3]", "cuda:1" or "gpu:1" for GPUs by index; "GPU-<uuid>" or its beginning,
  /// also in a list; "usable:2" for two unoccupied GPUs, "usable" or "usable:-1" for all unoccupied GPUs. Spaces around
  /// the parts do not matter. Any other text (also an empty text, "0", "[]", negative indices, a name given twice, a
  /// MIG slice) is a UsageError that says what to write instead.
  [[nodiscard]] static DeviceRequest parse(std::string_view text);

  /// Returns a request for the GPUs with these UUIDs, with this request's text for messages. Call with_gpus() after
  /// find_usable_gpus() has found the GPUs of a request usable:N. Throws UsageError for a list that parse() would
  /// refuse.
  [[nodiscard]] DeviceRequest with_gpus(const std::vector<std::string>& uuids) const;

  [[nodiscard]] const Form& form() const { return form_; }
  [[nodiscard]] const std::string& text() const { return text_; }  ///< text that the user gave, for messages

 private:
  DeviceRequest(std::string text, Form form) : text_(std::move(text)), form_(std::move(form)) {}
  static DeviceRequest of_count(std::string text, int count);
  static DeviceRequest of_list(std::string text, std::vector<std::variant<int, std::string>> named);
  std::string text_ = "auto";
  Form form_ = Automatic{};
};

/// Parses the value of a program's option for devices with DeviceRequest::parse(). If parse() refuses the value, calls
/// `list` and throws a UsageError that also lists the GPUs of the machine. If `list` fails, the UsageError says why the
/// GPUs are not known.
[[nodiscard]] DeviceRequest parse_devices(std::string_view text,
                                          const std::function<std::vector<GpuInfo>()>& list = list_gpus);

/// Devices that a program uses on a node.
struct DeviceSelection {
  /// GPUs in the order of their ranks, one rank each; or the CPU alone, which all ranks share.
  std::vector<Device> devices;
  int host_ranks = 0;  ///< number of ranks on the CPU; 0 means as many as the launcher starts
  [[nodiscard]] bool on_host() const { return devices.front().kind == DeviceKind::cpu; }
};

/// Applies the request to `gpus` (list_gpus() of one node). If the GPUs cannot meet the request, throws UsageError with
/// the request and the GPUs. Throws StateError for a request usable:N, because it does not name the GPUs yet. The
/// caller must first find GPUs by find_usable_gpus() (usable_gpus.hpp), and make a request for these by with_gpus().
[[nodiscard]] DeviceSelection select_devices(const DeviceRequest& request, const std::vector<GpuInfo>& gpus);

// try_gpu() and try_all_gpus() throw CudaError if the driver returns an error other than "no driver" or "no device".

/// Returns the GPU `index`, or the CPU if there is no such GPU.
[[nodiscard]] Device try_gpu(int index = 0);
/// Returns all GPUs, or the CPU if there is none.
[[nodiscard]] std::vector<Device> try_all_gpus();

}  // namespace lockstep
