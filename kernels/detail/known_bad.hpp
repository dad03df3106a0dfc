#pragma once

#include <string_view>

#include <lockstep/kernels/conv2d.hpp>

/// Implementations inside libraries that are known to compute wrong results. Private to the kernels library.
namespace lockstep::ops {

/// A convolution that a library would compute, and the implementation that the library would use.
struct LibraryCall {
  std::string_view library;         ///< name of the provider: "onednn", "cudnn"
  std::string_view version;         ///< version at run time: "3.1.1"
  std::string_view implementation;  ///< the library's own name for the implementation
  const ConvDesc& desc;
  ConvPass pass;
};

struct KnownBad {
  std::string_view library;
  std::string_view first;                ///< the first version that has the fault
  std::string_view mended;               ///< the first version without the fault; empty: none yet
  bool (*concerns)(const LibraryCall&);  ///< true if implementation, pass and shape have the fault
  std::string_view what;                 ///< the effect of the fault, and the place of a report
};

/// Returns the entry that concerns this call, or nullptr if none does. A provider asks before it uses an
/// implementation, and uses another implementation if there is an entry. Only oneDNN's convolutions ask; no other
/// library has an entry yet.
[[nodiscard]] const KnownBad* known_bad(const LibraryCall& call);

}  // namespace lockstep::ops
