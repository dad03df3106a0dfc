// Tests option --devices on a made-up list of GPUs: all kinds of accepted and refused values.
#include <lockstep/runtime/machine/device_selection.hpp>

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

using Devices = std::vector<Device>;

constexpr const char* kUuids[] = {
    "GPU-5f3e2a10-0000-0000-0000-000000000000", "GPU-5f3eaa11-1111-1111-1111-111111111111",
    "GPU-b0b0b0b0-2222-2222-2222-222222222222", "GPU-c1c1c1c1-3333-3333-3333-333333333333"};

std::vector<GpuInfo> node(int gpus) {
  std::vector<GpuInfo> list;
  for (int i = 0; i < gpus; ++i) {
    list.push_back({.index = i,
                    .uuid = kUuids[i],
                    .pci = concat("0000:0", i, ":00.0"),
                    .name = "Made-up 80GB",
                    .memory_bytes = std::size_t{80} << 30,
                    .major = 9,
                    .minor = 0});
  }
  return list;
}

Devices gpus(const std::vector<int>& indices) {
  Devices devices;
  for (const int index : indices) {
    devices.push_back(Device::cuda(index));
  }
  return devices;
}

DeviceSelection select(std::string_view text, int there = 4) {
  return select_devices(DeviceRequest::parse(text), node(there));
}

/// Returns the message of the UsageError that `call` must throw. Expects that the message contains the request `text`.
template <class Call>
std::string refusal(const std::string& text, Call call) {
  const std::string message = error_of<UsageError>(call);
  expect_holds(message, "'" + text + "'");
  return message;
}

void expect_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    expect_holds(message, part);
  }
}

TEST(DeviceSelection, Forms) {
  struct Case {
    const char* text;
    Devices devices;
  };
  const std::vector<Case> cases{
      {"auto", gpus({0, 1, 2, 3})},
      {"gpu", gpus({0, 1, 2, 3})},
      {"cuda", gpus({0, 1, 2, 3})},
      {"-1", gpus({0, 1, 2, 3})},
      {"3", gpus({0, 1, 2})},
      {"1", gpus({0})},  // one GPU: a number alone is a count
      {"4", gpus({0, 1, 2, 3})},
      {"1,3", gpus({1, 3})},
      {"1, 3", gpus({1, 3})},
      {"[1,3]", gpus({1, 3})},
      {" [ 1 , 3 ] ", gpus({1, 3})},
      {"3,1", gpus({3, 1})},  // local rank 0 gets the first GPU named
      {"1,3,", gpus({1, 3})},
      {"1,", gpus({1})},
      {"[1]", gpus({1})},
      {"0,", gpus({0})},
      {kUuids[2], gpus({2})},
      {"GPU-B0B0B0B0-2222-2222-2222-222222222222", gpus({2})},
      {"gpu-b0b0", gpus({2})},
      {"GPU-c1,GPU-5f3e2", gpus({3, 0})},
      {"[GPU-c1, 1]", gpus({3, 1})},
      {"cuda:1", gpus({1})},
      {"gpu : 2", gpus({2})},
      {"cpu", {Device::cpu()}},
      {" cpu:4", {Device::cpu()}},
      {"cpu : 4", {Device::cpu()}},
  };
  for (const Case& item : cases) {
    const DeviceSelection selection = select(item.text);
    EXPECT_EQ(selection.devices, item.devices) << "'" << item.text << "'";
    EXPECT_EQ(selection.on_host(), item.devices.front() == Device::cpu()) << item.text;
  }
  EXPECT_EQ(select("cpu").host_ranks, 0);
  EXPECT_EQ(select("cpu:4").host_ranks, 4);
  EXPECT_EQ(select("auto").host_ranks, 0);
  EXPECT_EQ(DeviceRequest::parse(" 3 ").text(), " 3 ");
}

TEST(DeviceSelection, WithoutAGpu) {
  EXPECT_EQ(select("auto", 0).devices, Devices{Device::cpu()});
  EXPECT_EQ(select_devices({}, {}).devices, Devices{Device::cpu()}) << "auto is the default";
  EXPECT_EQ(select("cpu", 0).devices, Devices{Device::cpu()});
  EXPECT_EQ(select("cpu:2", 0).host_ranks, 2);
  for (const char* text : {"gpu", "cuda", "-1", "1", "0,", "GPU-5f3e2a10"}) {
    expect_says(refusal(text, [&] { (void)select(text, 0); }), {"no GPU", "cpu"});
  }
}

TEST(DeviceSelection, NumbersAndLists) {
  const auto of_count = [](int count) {
    return select_devices(DeviceRequest::parse(std::to_string(count)), node(4)).devices;
  };
  EXPECT_EQ(of_count(3), gpus({0, 1, 2}));
  EXPECT_EQ(of_count(1), gpus({0}));
  EXPECT_EQ(of_count(-1), gpus({0, 1, 2, 3}));
  expect_says(refusal("0", [] { (void)DeviceRequest::parse("0"); }), {"0, (with a comma)", "cpu"});
  expect_says(refusal("-2", [] { (void)DeviceRequest::parse("-2"); }), {"-1 for all GPUs", "cpu"});
  expect_says(refusal("5", [&] { (void)of_count(5); }), {"expected at most 4", kUuids[3]});

  const auto of_list = [](const std::string& list) {
    return select_devices(DeviceRequest::parse(list), node(4)).devices;
  };
  EXPECT_EQ(of_list("[1, 3]"), gpus({1, 3}));
  EXPECT_EQ(of_list("[1]"), gpus({1}));
  EXPECT_EQ(of_list("[2, 0]"), gpus({2, 0}));
  expect_says(refusal("[]", [&] { (void)of_list("[]"); }), {"empty", "cpu"});
  expect_says(refusal("[-1]", [&] { (void)of_list("[-1]"); }), {"index -1 is negative", "gpu means all"});
  expect_says(refusal("[1, 1]", [&] { (void)of_list("[1, 1]"); }), {"GPU 1 is named twice"});
  expect_says(refusal("[4]", [&] { (void)of_list("[4]"); }), {"there is no GPU 4", kUuids[0], "0000:03:00.0"});
}

TEST(DeviceSelection, RefusalsSayWhatToWriteInstead) {
  struct Case {
    const char* text;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases{
      {"", {"auto", "cpu", "1,3"}},
      {"  ", {"auto", "cpu"}},
      {"0", {"0, (with a comma) for GPU 0", "cpu for none"}},
      {"-2", {"-1 for all GPUs"}},
      {"[]", {"the list is empty", "cpu for none"}},
      {"[ ]", {"the list is empty"}},
      {",", {"an item is missing"}},
      {"1,,3", {"an item is missing"}},
      {",1", {"an item is missing"}},
      {"1,3,,", {"an item is missing"}},
      {"-1,", {"index -1 is negative", "gpu means all GPUs"}},
      {"[-1]", {"index -1 is negative"}},
      {"1,1", {"GPU 1 is named twice"}},
      {"GPU-c1,gpu-C1", {"GPU-c1 is named twice"}},
      {"true", {"a number of GPUs"}},
      {"1.0", {"a number of GPUs"}},
      {"1.0,", {"'1.0' is no index"}},
      {"[true]", {"'true' is no index"}},
      {"+1", {"a number of GPUs"}},
      {"1 3", {"a number of GPUs"}},
      {"[1,3", {"a bracket is missing"}},
      {"1,3]", {"a bracket is missing"}},
      {"[[1]]", {"'[1]' is no index"}},
      {"cpu:", {"no number of ranks"}},
      {"cpu:0", {"'0' is no number of ranks"}},
      {"cpu:-1", {"'-1' is no number of ranks"}},
      {"cpu,0", {"'cpu' is no index"}},
      {"cuda:", {"an item is missing"}},
      {"gpu:-1", {"index -1 is negative"}},
      {"tpu:1", {"auto", "GPU-UUID"}},
      {"MIG-8932f937-d72c-4106-b12f-20bd9faed9f6", {"slices of a GPU (MIG)", "CUDA_VISIBLE_DEVICES"}},
      {"GPU-", {"a number of GPUs"}},
      {"tpu", {"auto", "GPU-UUID", "usable:N"}},
      {"usable:0", {"'0' is no number of GPUs", "usable:2", "usable for all"}},
      {"usable:-2", {"'-2' is no number of GPUs"}},
      {"usable:", {"'' is no number of GPUs"}},
      {"usable:two", {"'two' is no number of GPUs"}},
      {"usable:1.0", {"'1.0' is no number of GPUs"}},
      {"usable,1", {"'usable' is no index"}},
      {"99999999999", {"a number of GPUs"}},
  };
  for (const Case& item : cases) {
    expect_says(refusal(item.text, [&] { (void)DeviceRequest::parse(item.text); }), item.says);
  }
  // On a program's command line the error is the same, followed by the list of GPUs, or by the text that there is none.
  for (const Case& item : cases) {
    const auto with = [&](int there) {
      return refusal(item.text, [&] { (void)parse_devices(item.text, [&] { return node(there); }); });
    };
    expect_says(with(2), item.says);
    expect_says(with(2), {"; GPUs here: 0: Made-up 80GB", kUuids[0], kUuids[1], "0000:01:00.0"});
    EXPECT_EQ(with(2).find(kUuids[2]), std::string::npos) << with(2);
    expect_says(with(0), item.says);
    EXPECT_TRUE(with(0).ends_with("; GPUs here: none")) << with(0);
  }
  // Errors that need the machine's list of GPUs also show that list.
  expect_says(refusal("5", [] { (void)select("5"); }), {"expected at most 4", "0: Made-up 80GB", kUuids[3]});
  expect_says(refusal("1,4", [] { (void)select("1,4"); }), {"no GPU 4", "3: Made-up 80GB", "0000:03:00.0"});
  expect_says(refusal("GPU-dead", [] { (void)select("GPU-dead"); }), {"no GPU-dead", kUuids[0]});
  expect_says(refusal("GPU-5f3e", [] { (void)select("GPU-5f3e"); }), {"several UUIDs", kUuids[0], kUuids[1]});
  expect_says(refusal("2,GPU-b0", [] { (void)select("2,GPU-b0"); }),
              {"index and UUID of one GPU, 2", kUuids[2], kUuids[3]});
}

TEST(DeviceSelection, GpusAreListedOnlyForARefusal) {
  const auto broken = []() -> std::vector<GpuInfo> { throw CudaError("the driver answers 999"); };
  for (const char* text : {"auto", "cpu:4", "3", "1,3", "usable:2"}) {
    EXPECT_EQ(parse_devices(text, broken).text(), text);
  }
  expect_says(refusal("0", [&] { (void)parse_devices("0", broken); }),
              {"0, (with a comma) for GPU 0", "GPUs here: not known (", "the driver answers 999"});
}

TEST(DeviceSelection, UsableGpusAreFoundFirst) {
  struct Case {
    const char* text;
    int count;
  };
  for (const Case& item : {Case{"usable:2", 2}, Case{"usable", -1}, Case{"usable:-1", -1}, Case{" usable : 1 ", 1}}) {
    const DeviceRequest request = DeviceRequest::parse(item.text);
    ASSERT_TRUE(std::holds_alternative<DeviceRequest::Usable>(request.form())) << item.text;
    EXPECT_EQ(std::get<DeviceRequest::Usable>(request.form()).count, item.count) << item.text;
    EXPECT_THROW((void)select_devices(request, node(4)), StateError) << item.text;
    const DeviceRequest found = request.with_gpus({kUuids[3], kUuids[1]});
    EXPECT_EQ(select_devices(found, node(4)).devices, gpus({3, 1}));
    EXPECT_EQ(found.text(), item.text);
    expect_says(refusal(item.text, [&] { (void)select_devices(request, {}); }), {"no GPU", "cpu"});
    expect_says(refusal(item.text, [&] { (void)request.with_gpus({kUuids[1], kUuids[1]}); }), {"named twice"});
  }
}

TEST(DeviceSelection, OneVisibleGpuIsDevice0) {
  // Under CUDA_VISIBLE_DEVICES=2 the process sees GPU 2 as index 0. The UUID must still name this GPU.
  std::vector<GpuInfo> list = node(4);
  list = {list[2]};
  list[0].index = 0;
  EXPECT_EQ(select_devices(DeviceRequest::parse("auto"), list).devices, gpus({0}));
  EXPECT_EQ(select_devices(DeviceRequest::parse(kUuids[2]), list).devices, gpus({0}));
  expect_says(refusal("2,", [&] { (void)select_devices(DeviceRequest::parse("2,"), list); }), {"no GPU 2", kUuids[2]});
}

TEST(DeviceSelection, TheMachineAtHand) {
  const std::vector<GpuInfo> list = list_gpus();
  ASSERT_EQ(static_cast<int>(list.size()), num_gpus());
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i].index, static_cast<int>(i));
    EXPECT_EQ(list[i].uuid.size(), 40U) << list[i].uuid;
    EXPECT_EQ(select_devices(DeviceRequest::parse(list[i].uuid), list).devices, gpus({static_cast<int>(i)}));
    EXPECT_FALSE(list[i].name.empty());
    EXPECT_GT(list[i].memory_bytes, 0U);
  }
  EXPECT_EQ(try_gpu(), list.empty() ? Device::cpu() : Device::cuda(0));
  EXPECT_EQ(try_gpu(num_gpus()), Device::cpu());
  EXPECT_EQ(try_gpu(-1), Device::cpu());
  EXPECT_EQ(try_all_gpus().size(), std::max<std::size_t>(list.size(), 1));
  EXPECT_EQ(try_all_gpus().front(), try_gpu(0));
}

}  // namespace
}  // namespace lockstep::testing
