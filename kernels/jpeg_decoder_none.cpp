// JpegDecoder in builds without nvJPEG: the constructor throws UnsupportedError, and all other members do nothing.
#include <lockstep/kernels/jpeg_decoder.hpp>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::ops {

class JpegDecoder::State {};

std::string jpeg_decoder_problem(Device device) {
  if (device.kind != DeviceKind::cuda) {
    return concat("nvJPEG decodes on GPUs, not on ", device);
  }
  return "this build has no nvJPEG (LOCKSTEP_NVJPEG)";
}

std::string jpeg_decoder_version() {
  return {};
}

JpegDecoder::JpegDecoder(Context& context, const Options& /*options*/) {
  throw UnsupportedError(concat("JPEG decoder: ", jpeg_decoder_problem(context.device())));
}

JpegDecoder::JpegDecoder(JpegDecoder&&) noexcept = default;
JpegDecoder& JpegDecoder::operator=(JpegDecoder&&) noexcept = default;
JpegDecoder::~JpegDecoder() = default;

void JpegDecoder::decode(std::span<const File> /*files*/) {}

std::int64_t JpegDecoder::most() const {
  return 0;
}

std::int64_t JpegDecoder::failed() const {
  return 0;
}

}  // namespace lockstep::ops
