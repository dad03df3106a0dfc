#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::ops {

/// Returns why JpegDecoder cannot be used on this device: the device is no GPU, the build has no nvJPEG
/// (LOCKSTEP_NVJPEG), or libnvjpeg cannot be loaded or has another major version than the build expects. Returns an
/// empty string if no obstacle is known. Loads libnvjpeg, but does not call a GPU and makes no CUDA context.
[[nodiscard]] std::string jpeg_decoder_problem(Device device);

/// Returns the version of the loaded libnvjpeg, such as "nvJPEG 13.3.2", on which the decoded pixels depend. Returns an
/// empty string if libnvjpeg cannot be loaded.
[[nodiscard]] std::string jpeg_decoder_version();

struct JpegDecoderOptions {
  std::int64_t most = 1;  ///< largest number of files of a call of decode()
  /// Largest number of threads with which nvJPEG decodes entropy code on the host (see JpegDecoder).
  int host_threads = 1;
};

/// Decodes JPEG files on a GPU, by nvJPEG. Files must have 8 bits per channel, and must be grey or YCbCr. This is not
/// checked: if the three channels of a file are RGB, the decoded colours may be wrong. An EXIF orientation is not
/// applied.
///
/// The pixels may differ from those of libjpeg: inverse DCT and upsampling of chroma are not the same. NVIDIA does not
/// say whether another GPU or another version of nvJPEG gives the same pixels.
///
/// In a call with more than 50 files, nvJPEG decodes the entropy code of baseline files on the GPU, too. The host
/// decodes the entropy code of progressive files, and of all files in smaller calls.
///
/// One thread at a time may use a decoder. A decoder must not be used while the context's stream is captured in a CUDA
/// graph.
class JpegDecoder {
 public:
  using Options = JpegDecoderOptions;
  struct File {
    std::span<const std::uint8_t> bytes;  ///< in host memory; must stay unchanged until the work of decode() is done
    std::int64_t width = 0;               ///< extents in pixels, as in the header of the file
    std::int64_t height = 0;
    /// Destination of the RGB pixels, (height, width, 3) contiguous, in memory of the context's device.
    std::uint8_t* pixels = nullptr;
  };

  /// Throws UnsupportedError with the reason if jpeg_decoder_problem() gives one, or if nvJPEG does not start on the
  /// device. Throws UsageError unless both options are at least 1, and `most` is at most 65536. The decoder keeps a
  /// reference to the context, whose memory() gives nvJPEG its device memory; destroy the decoder before the context.
  explicit JpegDecoder(Context& context, const Options& options = {});
  JpegDecoder(JpegDecoder&&) noexcept;
  JpegDecoder& operator=(JpegDecoder&&) noexcept;
  ~JpegDecoder();  ///< waits for the context's stream

  /// Enqueues the decoding of `files` on the context's stream, after the work that is already enqueued. `files` may be
  /// empty. The host reads the headers and may decode entropy code. The host waits until the files of the previous call
  /// are decoded; if nvJPEG needs more memory than before, the host waits for the whole stream.
  ///
  /// Throws UsageError for more files than `most`, an extent below 1, or an address that is null. Throws DataError for
  /// a file that nvJPEG refuses, that has neither 1 nor 3 channels, or whose header has other extents than width and
  /// height. The text of the DataError begins with "file INDEX of COUNT: " and has nvJPEG's status. If the cause is not
  /// a file, throws OutOfMemory or another Error. After an error the decoder can be used again.
  ///
  /// If a header is wrong, nothing is decoded. If the data after the headers are damaged, `pixels` of all files may
  /// hold anything. nvJPEG finds some damage only on the GPU, or not at all: in these cases decode() throws nothing,
  /// and some pixels are wrong.
  void decode(std::span<const File> files);

  [[nodiscard]] std::int64_t most() const;
  /// Returns the index of the file that the last DataError names.
  [[nodiscard]] std::int64_t failed() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::ops
