#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::ops {

/// Why JpegDecoder cannot be used on this device: it is no GPU, the build has no nvJPEG (LOCKSTEP_NVJPEG), the library
/// cannot be loaded or has another major version. Empty when nothing is known to be in the way. Loads the library, asks
/// no GPU and makes no CUDA context.
[[nodiscard]] std::string jpeg_decoder_problem(Device device);

/// "nvJPEG 13.3.2", of the library that is loaded; the pixels depend on it. Empty where none can be.
[[nodiscard]] std::string jpeg_decoder_version();

struct JpegDecoderOptions {
  std::int64_t most = 1;  ///< how many files a call of decode() may have
  /// The most threads with which nvJPEG decodes entropy code on the host (below).
  int host_threads = 1;
};

/// Decodes JPEG files on a GPU, by nvJPEG: 8 bits a colour, grey or YCbCr. The caller chooses which files are such: the
/// colours of a file whose three channels are RGB may be wrong. An EXIF orientation is not applied.
///
/// The pixels are not those of libjpeg to the bit: inverse DCT and upsampling of chroma differ. NVIDIA does not say
/// whether another GPU or another version of nvJPEG gives the same ones.
///
/// With more than 50 files a call, nvJPEG decodes the entropy code of baseline files on the GPU, too. With fewer files,
/// and of progressive ones, the host does it.
///
/// One thread at a time uses a decoder. Not to be used while its stream is captured.
class JpegDecoder {
 public:
  using Options = JpegDecoderOptions;
  struct File {
    std::span<const std::uint8_t> bytes;  ///< in host memory; unchanged until the work that decode() enqueued is done
    std::int64_t width = 0;               ///< as the file's header says
    std::int64_t height = 0;
    /// Where its RGB pixels go, (height, width, 3) contiguous: memory of the context's device.
    std::uint8_t* pixels = nullptr;
  };

  /// UnsupportedError with the reason: that of jpeg_decoder_problem(), or nvJPEG does not start on the device.
  /// UsageError unless both options are 1 or more, and `most` at most 65536. The decoder keeps the context, whose
  /// memory() gives nvJPEG its device memory, and must be gone before it.
  explicit JpegDecoder(Context& context, const Options& options = {});
  JpegDecoder(JpegDecoder&&) noexcept;
  JpegDecoder& operator=(JpegDecoder&&) noexcept;
  ~JpegDecoder();  ///< waits for the context's stream

  /// Enqueues the decoding of these files on the context's stream, behind the work that is there. The host reads the
  /// headers and may decode entropy code; it waits until the files of the last call are decoded, and for all of the
  /// stream where nvJPEG needs more memory than before. No file at all is good, too.
  ///
  /// UsageError for more files than `most`, an extent below 1 and an address that is null. DataError, which begins with
  /// "file INDEX of COUNT: " and has nvJPEG's status, for a file that nvJPEG refuses, that has another number of
  /// channels than 1 and 3, or whose header has other extents than given. When a header is wrong, nothing is decoded;
  /// when the data behind it are damaged, `pixels` of all files may hold anything. Damage that nvJPEG sees on the GPU
  /// only, or not at all, is no error: some pixels are wrong then. OutOfMemory, else Error for what is no file's fault.
  /// After an error the decoder can be used again.
  void decode(std::span<const File> files);

  [[nodiscard]] std::int64_t most() const;
  /// INDEX of the last DataError.
  [[nodiscard]] std::int64_t failed() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::ops
