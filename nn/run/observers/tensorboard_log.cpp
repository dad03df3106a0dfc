#include <lockstep/nn/run/observers/tensorboard_log.hpp>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

namespace {

/// Returns the CRC-32C (Castagnoli; RFC 3720, appendix B.4) in the masked form that TensorFlow records use: rotated,
/// plus a constant.
std::uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1) ^ ((value & 1U) != 0 ? 0x82f63b78U : 0U);
      }
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xffU];
  }
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

template <class Number>
std::string little_endian(Number value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof value, 0);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// The functions below encode fields of a Protocol Buffers message. Each wire type has its own function.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes + static_cast<char>(value);
}
std::string integer_field(unsigned number, std::int64_t value) {
  return varint(number << 3U) + varint(static_cast<std::uint64_t>(value));
}
std::string double_field(unsigned number, double value) {
  return varint(number << 3U | 1U) + little_endian(value);
}
std::string float_field(unsigned number, float value) {
  return varint(number << 3U | 5U) + little_endian(value);
}
std::string bytes_field(unsigned number, std::string_view value) {
  return varint(number << 3U | 2U) + varint(value.size()).append(value);
}

/// Encodes an Event message: wall_time (field 1), step (field 2), and the encoded field `what`.
std::string event_of(std::int64_t step, const std::string& what) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return double_field(1, now) + integer_field(2, step) + what;
}

/// Returns the path of a new file, "events.out.tfevents.SECONDS.HOST-PID-rRANDOM". TensorBoard finds files by the word
/// "tfevents" in their names.
std::string new_file(const std::string& folder) {
  std::error_code ignored;  // opening the file reports the error
  std::filesystem::create_directories(folder, ignored);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return concat(folder, "/events.out.tfevents.", std::chrono::duration_cast<std::chrono::seconds>(now).count(), '.',
                unique_suffix());
}

}  // namespace

TensorBoardLog::TensorBoardLog(const std::string& folder, std::int64_t step, const std::string& samples)
    : path_(new_file(folder)), samples_per_second_(samples + "_per_second"), out_(path_, false) {
  write_record(event_of(0, bytes_field(3, "brain.Event:2")));  // field file_version
  if (step > 0) {
    constexpr int kStart = 1;
    write_record(event_of(step + 1, bytes_field(7, integer_field(1, kStart))));  // field session_log
  }
}

void TensorBoardLog::write_record(const std::string& event) {
  const std::string length = little_endian(std::uint64_t{event.size()});
  out_.write(length + little_endian(masked_crc32c(length)) + event + little_endian(masked_crc32c(event)));
}

void TensorBoardLog::write(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));  // tag and value
  }
  write_record(event_of(step, bytes_field(5, summary)));
}

void TensorBoardLog::on_report(const ReportEvent& event) {
  Scalars scalars{{"train/loss", event.loss},
                  {"train/learning_rate", event.learning_rate},
                  {"train/" + samples_per_second_, event.samples_per_second}};
  if (!std::isnan(event.accuracy)) {
    scalars.emplace_back("train/accuracy", event.accuracy);
  }
  if (event.comm_exposed_s >= 0) {
    scalars.emplace_back("train/comm_exposed_s", event.comm_exposed_s);
  }
  for (const auto& [name, value] : event.metrics) {
    scalars.emplace_back("train/" + name, value);
  }
  write(event.step, scalars);
}

void TensorBoardLog::on_epoch_end(const EpochEvent& event) {
  Scalars scalars{{"epoch/loss", event.train_loss},
                  {"epoch/" + samples_per_second_, event.samples_per_second},
                  {"test/loss", event.test.loss}};
  if (!std::isnan(event.train_accuracy)) {
    scalars.emplace_back("epoch/accuracy", event.train_accuracy);
    scalars.emplace_back("test/accuracy", event.test.accuracy);
  }
  if (event.test.top_k > 0) {
    scalars.emplace_back("test/top_k_accuracy", event.test.top_k_accuracy);
  }
  for (const auto& [name, value] : event.test.metrics) {
    scalars.emplace_back("test/" + name, value);
  }
  write(event.step, scalars);
}

}  // namespace lockstep::nn
