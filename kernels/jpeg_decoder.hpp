#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::ops {

/// Returns why JpegDecoder cannot be used on this device: it is no GPU, the build has no nvJPEG (LOCKSTEP_NVJPEG), the
/// library cannot be loaded or has another major version. Empty when no obstacle is known. Loads the library, but makes
/// no call to a GPU and no CUDA context.
[[nodiscard]] std::string jpeg_decoder_problem(Device device);

/// Returns the version of the loaded library, such as "nvJPEG 13.3.2"; the pixels depend on it. Empty where no library
/// can be loaded.
[[nodiscard]] std::string jpeg_decoder_version();

struct JpegDecoderOptions {
  std::int64_t most = 1;  ///< most files of a call of decode()
  /// Most threads with which nvJPEG decodes entropy code on the host (see JpegDecoder).
  int host_threads = 1;
};

/// Decodes JPEG files on a GPU, by nvJPEG: 8 bits a colour, grey or YCbCr. The caller must pass only such files: the
/// colours of a file whose three channels are RGB may be wrong. An EXIF orientation is not applied.
///
/// The pixels are not those of libjpeg to the bit: inverse DCT and upsampling of chroma differ. NVIDIA does not say
/// whether another GPU or another version of nvJPEG gives the same pixels.
///
/// With more than 50 files a call, nvJPEG decodes the entropy code of baseline files on the GPU, too. The host decodes
/// the entropy code of fewer files, and of progressive ones.
///
/// One thread at a time uses a decoder. Not to be used while its stream is captured.
class JpegDecoder {
 public:
  using Options = JpegDecoderOptions;
  struct File {
    std::span<const std::uint8_t> bytes;  ///< in host memory; unchanged until the work that decode() enqueued is done
    std::int64_t width = 0;               ///< extents in pixels, as in the file's header
    std::int64_t height = 0;
    /// Destination of the RGB pixels, (height, width, 3) contiguous, in memory of the context's device.
    std::uint8_t* pixels = nullptr;
  };

  /// Throws UnsupportedError with the reason: that of jpeg_decoder_problem(), or that nvJPEG does not start on the
  /// device. Throws UsageError unless both options are 1 or more, and `most` at most 65536. The decoder keeps the
  /// context, whose memory() gives nvJPEG its device memory, and must be destroyed before it.
  explicit JpegDecoder(Context& context, const Options& options = {});
  JpegDecoder(JpegDecoder&&) noexcept;
  JpegDecoder& operator=(JpegDecoder&&) noexcept;
  ~JpegDecoder();  ///< waits for the context's stream

  /// Enqueues the decoding of these files on the context's stream, after the work that is there. The host reads the
  /// headers and may decode entropy code; it waits until the files of the last call are decoded, and for all of the
  /// stream where nvJPEG needs more memory than before. `files` may be empty.
  ///
  /// UsageError for more files than `most`, an extent below 1 and an address that is null. DataError, which begins with
  /// "file INDEX of COUNT: " and has nvJPEG's status, for a file that nvJPEG refuses, that has another number of
  /// channels than 1 and 3, or whose header has other extents than given. When a header is wrong, nothing is decoded;
  /// when the data after the headers are damaged, `pixels` of all files may hold anything. Damage that nvJPEG sees on
  /// the GPU only, or not at all, is no error: some pixels are wrong then. OutOfMemory, else Error for failures that no
  /// file causes. After an error the decoder can be used again.
  void decode(std::span<const File> files);

  [[nodiscard]] std::int64_t most() const;
  /// Returns INDEX of the last DataError.
  [[nodiscard]] std::int64_t failed() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::ops
