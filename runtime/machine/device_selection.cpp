#include <lockstep/runtime/machine/device_selection.hpp>

#include <algorithm>
#include <cctype>
#include <optional>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep {

namespace {

constexpr std::string_view kForms =
    "auto, cpu, cpu:RANKS, gpu (all GPUs), a number of GPUs, GPUs by index (\"1,3\", \"1,\" for GPU 1 alone), "
    "GPU-UUID or usable:N (GPUs that are not occupied)";

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && space(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && space(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); });
  return result;
}

bool names_uuid(std::string_view text) {
  return text.size() > 4 && lower(text.substr(0, 4)) == "gpu-";
}

/// Returns a UUID in GpuInfo's form: "GPU-" in capitals, all other letters in lower case.
std::string normal_uuid(std::string_view text) {
  return "GPU-" + lower(text.substr(4));
}

std::string gpus_here(const std::vector<GpuInfo>& gpus) {
  return "; GPUs here: " + to_string(gpus);
}

template <class... Args>
[[noreturn]] void refuse(std::string_view text, const Args&... why) {
  throw UsageError(concat("devices '", text, "': ", why...));
}

std::variant<int, std::string> list_item(std::string_view text, std::string_view item) {
  if (names_uuid(item)) {
    return normal_uuid(item);
  }
  if (lower(item.substr(0, 4)) == "mig-") {
    refuse(text, "slices of a GPU (MIG) cannot be named, expected auto, with CUDA_VISIBLE_DEVICES set to the slice");
  }
  const std::optional<int> index = number_in<int>(item);
  if (item.empty()) {
    refuse(text, "an item is missing, expected indices of GPUs, e.g. 1,3");
  }
  if (!index) {
    refuse(text, "'", item, "' is no index of a GPU, expected e.g. 1,3");
  }
  if (*index < 0) {
    refuse(text, "index ", *index, " is negative, expected indices from 0; gpu means all GPUs");
  }
  return *index;
}

std::vector<std::variant<int, std::string>> list_items(std::string_view text, std::string_view list) {
  std::vector<std::variant<int, std::string>> items;
  for (std::string_view rest = list;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = trimmed(rest.substr(0, comma));
    if (comma == std::string_view::npos && item.empty() && !items.empty()) {
      return items;  // "1," is a list with one item
    }
    items.push_back(list_item(text, item));
    if (comma == std::string_view::npos) {
      return items;
    }
    rest.remove_prefix(comma + 1);
  }
}

std::string name_of(const std::variant<int, std::string>& item) {
  return std::holds_alternative<int>(item) ? concat("GPU ", std::get<int>(item)) : std::get<std::string>(item);
}

const GpuInfo& find(const DeviceRequest& request, const std::variant<int, std::string>& item,
                    const std::vector<GpuInfo>& gpus) {
  const auto is_named = [&](const GpuInfo& gpu) {
    return std::holds_alternative<int>(item) ? gpu.index == std::get<int>(item)
                                             : gpu.uuid.starts_with(std::get<std::string>(item));
  };
  const auto found = std::find_if(gpus.begin(), gpus.end(), is_named);
  if (found == gpus.end()) {
    refuse(request.text(), "there is no ", name_of(item), gpus_here(gpus));
  }
  if (std::find_if(found + 1, gpus.end(), is_named) != gpus.end()) {
    refuse(request.text(), name_of(item), " is the beginning of several UUIDs", gpus_here(gpus));
  }
  return *found;
}

std::vector<Device> devices_of(const std::vector<GpuInfo>& gpus) {
  std::vector<Device> devices;
  devices.reserve(gpus.size());
  for (const GpuInfo& gpu : gpus) {
    devices.push_back(Device::cuda(gpu.index));
  }
  return devices;
}

}  // namespace

std::string to_string(const GpuInfo& gpu) {
  return concat(Device::cuda(gpu.index), "  ", gpu.name, "  ", gpu.uuid, "  ", gpu.pci);
}

std::string to_string(const std::vector<GpuInfo>& gpus) {
  std::string text;
  for (const GpuInfo& gpu : gpus) {
    text += concat(text.empty() ? "" : "; ", gpu.index, ": ", gpu.name, ", ", gpu.uuid, ", ", gpu.pci);
  }
  return text.empty() ? "none" : text;
}

DeviceRequest DeviceRequest::of_count(std::string text, int count) {
  if (count == -1) {
    return {std::move(text), AllGpus{}};
  }
  if (count == 0) {
    refuse(text, "that is no GPU at all, expected 0, (with a comma) for GPU 0 or cpu for none");
  }
  if (count < 0) {
    refuse(text, "expected a number of GPUs, -1 for all GPUs or cpu for none");
  }
  return {std::move(text), FirstGpus{count}};
}

DeviceRequest DeviceRequest::of_list(std::string text, std::vector<std::variant<int, std::string>> named) {
  for (auto item = named.begin(); item != named.end(); ++item) {
    if (std::find(named.begin(), item, *item) != item) {
      refuse(text, name_of(*item), " is named twice, expected each GPU once");
    }
  }
  return {std::move(text), Gpus{std::move(named)}};
}

DeviceRequest DeviceRequest::parse(std::string_view given) {
  const std::string text(given);
  const std::string_view what = trimmed(given);
  if (what.empty()) {
    refuse(text, "expected ", kForms);
  }
  if (what == "auto") {
    return {text, Automatic{}};
  }
  if (what == "gpu" || what == "cuda") {
    return {text, AllGpus{}};
  }
  if (what == "cpu") {
    return {text, Host{}};
  }
  if (what == "usable") {
    return {text, Usable{-1}};
  }
  if (const std::size_t colon = what.find(':'); colon != std::string_view::npos) {
    const std::string_view kind = trimmed(what.substr(0, colon));
    const std::string_view number = trimmed(what.substr(colon + 1));
    if (kind == "cpu") {
      const std::optional<int> ranks = number_in<int>(number);
      if (!ranks || *ranks < 1) {
        refuse(text, "'", number, "' is no number of ranks, expected e.g. cpu:4");
      }
      return {text, Host{*ranks}};
    }
    if (kind == "usable") {
      const std::optional<int> count = number_in<int>(number);
      if (!count || *count == 0 || *count < -1) {
        refuse(text, "'", number, "' is no number of GPUs, expected e.g. usable:2, or usable for all that are");
      }
      return {text, Usable{*count}};
    }
    if (kind == "cuda" || kind == "gpu") {
      return of_list(text, {list_item(text, number)});
    }
  }
  if (what.front() == '[' || what.back() == ']') {
    if (what.front() != '[' || what.back() != ']') {
      refuse(text, "a bracket is missing, expected e.g. [1,3]");
    }
    const std::string_view list = trimmed(what.substr(1, what.size() - 2));
    if (list.empty()) {
      refuse(text, "the list is empty, expected indices of GPUs, e.g. [1,3], or cpu for none");
    }
    return of_list(text, list_items(text, list));
  }
  if (what.find(',') != std::string_view::npos || names_uuid(what) || lower(what.substr(0, 4)) == "mig-") {
    return of_list(text, list_items(text, what));
  }
  if (const std::optional<int> count = number_in<int>(what)) {
    return of_count(text, *count);
  }
  refuse(text, "expected ", kForms);
}

DeviceRequest parse_devices(std::string_view text, const std::function<std::vector<GpuInfo>()>& list) {
  try {
    return DeviceRequest::parse(text);
  } catch (const UsageError& refused) {
    std::string here;
    try {
      here = gpus_here(list());
    } catch (const Error& error) {
      here = concat("; GPUs here: not known (", error.what(), ")");
    }
    throw UsageError(refused.what() + here);
  }
}

DeviceRequest DeviceRequest::with_gpus(const std::vector<std::string>& uuids) const {
  std::vector<std::variant<int, std::string>> named;
  named.reserve(uuids.size());
  for (const std::string& uuid : uuids) {
    named.push_back(list_item(text_, uuid));
  }
  return of_list(text_, std::move(named));
}

DeviceSelection select_devices(const DeviceRequest& request, const std::vector<GpuInfo>& gpus) {
  const DeviceRequest::Form& form = request.form();
  if (const auto* host = std::get_if<DeviceRequest::Host>(&form)) {
    return {.devices = {Device::cpu()}, .host_ranks = host->ranks};
  }
  if (std::holds_alternative<DeviceRequest::Automatic>(form) && gpus.empty()) {
    return {.devices = {Device::cpu()}};
  }
  if (gpus.empty()) {
    refuse(request.text(), "this process can use no GPU, expected auto or cpu");
  }
  require<StateError>(!std::holds_alternative<DeviceRequest::Usable>(form), "devices '", request.text(),
                      "': which GPUs are usable was not found out yet, expected the request with_gpus()");
  if (const auto* first = std::get_if<DeviceRequest::FirstGpus>(&form)) {
    if (first->count > static_cast<int>(gpus.size())) {
      refuse(request.text(), "expected at most ", gpus.size(), gpus_here(gpus));
    }
    std::vector<Device> devices = devices_of(gpus);
    devices.resize(static_cast<std::size_t>(first->count));
    return {.devices = std::move(devices)};
  }
  if (const auto* list = std::get_if<DeviceRequest::Gpus>(&form)) {
    DeviceSelection selection;
    for (const auto& item : list->named) {
      const GpuInfo& gpu = find(request, item, gpus);
      const Device device = Device::cuda(gpu.index);
      if (std::find(selection.devices.begin(), selection.devices.end(), device) != selection.devices.end()) {
        refuse(request.text(), "index and UUID of one GPU, ", device.index, ": ", gpu.uuid, ", expected each GPU once",
               gpus_here(gpus));
      }
      selection.devices.push_back(device);
    }
    return selection;
  }
  return {.devices = devices_of(gpus)};
}

Device try_gpu(int index) {
  return index >= 0 && index < num_gpus() ? Device::cuda(index) : Device::cpu();
}

std::vector<Device> try_all_gpus() {
  std::vector<Device> devices(static_cast<std::size_t>(num_gpus()));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    devices[i] = Device::cuda(static_cast<int>(i));
  }
  return devices.empty() ? std::vector<Device>{Device::cpu()} : devices;
}

}  // namespace lockstep
