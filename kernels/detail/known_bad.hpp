#pragma once

#include <string_view>

#include <lockstep/kernels/conv2d.hpp>

/// Implementations inside libraries that are known to compute wrong results. Private to the kernels library.
namespace lockstep::ops {

/// A convolution that a library would compute, and the implementation that the library would use.
struct LibraryCall {
  std::string_view library;         ///< name of the provider: "onednn", "cudnn"
  std::string_view version;         ///< version of the library at run time: "3.1.1"
  std::string_view implementation;  ///< the library's own name for the implementation
  const ConvDesc& desc;
  ConvPass pass;
};

struct KnownBad {
  std::string_view library;
  std::string_view first;                ///< the first version that has the fault
  std::string_view mended;               ///< the first version without the fault; empty if there is none yet
  bool (*concerns)(const LibraryCall&);  ///< returns true if the fault occurs in this call
  std::string_view what;                 ///< effect of the fault, and where the fault is reported
};

/// Returns the known fault that concerns `call`, or nullptr if there is none. A provider calls known_bad() before it
/// uses an implementation. If the implementation has a fault, the provider uses another implementation. Only oneDNN's
/// convolutions call known_bad(), because only faults of oneDNN are listed.
[[nodiscard]] const KnownBad* known_bad(const LibraryCall& call);

}  // namespace lockstep::ops
