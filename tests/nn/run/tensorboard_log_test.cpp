// Tests TensorBoard's event file with a reader of the test's own.
#include <lockstep/nn/run/observers/tensorboard_log.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::nn {
namespace {

/// Computes CRC-32C bit by bit, as in RFC 3720.
std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((crc ^ (static_cast<unsigned char>(c) >> bit)) & 1U) != 0;
      crc = (crc >> 1) ^ (odd ? 0x82f63b78U : 0U);
    }
  }
  return ~crc;
}

template <class Number>
Number take(std::string_view& bytes) {
  Number value{};
  EXPECT_GE(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<unsigned char>(bytes);
    value |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) {
      return value;
    }
  }
}

/// Returns a protobuf message as words "field number=value". A value is an integer, a float, a text or a {message}.
std::string text_of(std::string_view bytes, const std::string& messages) {
  std::string text;
  while (!bytes.empty()) {
    const std::uint64_t key = take_varint(bytes);
    const std::string number = std::to_string(key >> 3);
    text += (text.empty() ? "" : " ") + number + "=";
    switch (key & 7) {
      case 0:
        text += std::to_string(static_cast<std::int64_t>(take_varint(bytes)));
        break;
      case 1:
        take<double>(bytes);
        text += "time";
        break;
      case 5:
        text += concat(take<float>(bytes));
        break;
      case 2: {
        const std::size_t size = take_varint(bytes);
        const std::string_view part = bytes.substr(0, size);
        bytes.remove_prefix(size);
        const bool message = !messages.empty() && messages.find(number) != std::string::npos;
        text += message ? "{" + text_of(part, number == "5" ? "1" : "") + "}" : std::string(part);
        break;
      }
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return text;
    }
  }
  return text;
}

std::vector<std::string> events_of(const std::string& file) {
  const std::string data = read_file(file, 1 << 20);
  std::string_view bytes = data;
  const auto masked = [](std::string_view part) { return std::rotr(crc32c(part), 15) + 0xa282ead8U; };
  std::vector<std::string> events;
  while (!bytes.empty()) {
    const std::string_view length = bytes.substr(0, 8);
    const auto size = take<std::uint64_t>(bytes);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked(length));
    const std::string_view event = bytes.substr(0, size);
    bytes.remove_prefix(size);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked(event));
    events.push_back(text_of(event, "5 7"));
  }
  return events;
}

TEST(TensorBoardLog, EventsAreThoseOfTheFormat) {
  ASSERT_EQ(crc32c("123456789"), 0xe3069283U);
  const testing::TemporaryFolder folder;
  std::string file;
  {
    TensorBoardLog log(folder / "a/b", 300, "images");
    file = log.path();
    log.on_report({.step = 304,
                   .loss = 0.5,
                   .accuracy = 0.25,
                   .learning_rate = 2,
                   .samples_per_second = 1000,
                   .comm_exposed_s = 0.125,
                   .metrics = {{"bits", 3}}});
    const double nan = std::numeric_limits<double>::quiet_NaN();
    log.on_report({.step = 5'000'000'000, .loss = nan, .accuracy = nan, .comm_exposed_s = -1, .metrics = {}});
    EpochEvent epoch{
        .epoch = 2, .step = 306, .train_loss = 1.5, .train_accuracy = 0.75, .test = {}, .samples_per_second = 7};
    epoch.test.loss = 4;
    epoch.test.accuracy = 0.375;
    epoch.test.top_k = 5;
    epoch.test.top_k_accuracy = 0.875;
    epoch.test.metrics = {{"bits", 6}};
    log.on_epoch_end(epoch);
  }
  EXPECT_NE(std::filesystem::path(file).filename().string().find("tfevents"), std::string::npos);
  const std::vector<std::string> events = events_of(file);
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0], "1=time 2=0 3=brain.Event:2");
  EXPECT_EQ(events[1], "1=time 2=301 7={1=1}");
  EXPECT_EQ(events[2],
            "1=time 2=304 5={1={1=train/loss 2=0.5} 1={1=train/learning_rate 2=2} "
            "1={1=train/images_per_second 2=1000} 1={1=train/accuracy 2=0.25} 1={1=train/comm_exposed_s 2=0.125} "
            "1={1=train/bits 2=3}}");
  EXPECT_EQ(events[3],
            "1=time 2=5000000000 5={1={1=train/loss 2=nan} 1={1=train/learning_rate 2=0} "
            "1={1=train/images_per_second 2=0}}");
  EXPECT_EQ(events[4],
            "1=time 2=306 5={1={1=epoch/loss 2=1.5} 1={1=epoch/images_per_second 2=7} 1={1=test/loss 2=4} "
            "1={1=epoch/accuracy 2=0.75} 1={1=test/accuracy 2=0.375} 1={1=test/top_k_accuracy 2=0.875} "
            "1={1=test/bits 2=6}}");
}

TEST(TensorBoardLog, AFileThatCannotBeWrittenIsNamed) {
  const testing::TemporaryFolder folder;
  write_file(folder / "file", "");
  testing::expect_holds(testing::error_of<DataError>([&] { TensorBoardLog(folder / "file", 0); }),
                        folder / "file/events.out.tfevents.");
}

}  // namespace
}  // namespace lockstep::nn
