#pragma once

#include <string_view>

#include <lockstep/kernels/conv2d.hpp>

/// Implementations inside libraries that public reports call wrong. Private to the kernels library.
namespace lockstep::ops {

/// A convolution that a library would compute, with the implementation it would use.
struct LibraryCall {
  std::string_view library;         ///< the provider's name: "onednn", "cudnn"
  std::string_view version;         ///< the version at run time: "3.1.1"
  std::string_view implementation;  ///< the library's own name of the implementation
  const ConvDesc& desc;
  ConvPass pass;
};

struct KnownBad {
  std::string_view library;
  std::string_view first;                ///< the first version that has the fault
  std::string_view mended;               ///< the first version without the fault; empty: none yet
  bool (*concerns)(const LibraryCall&);  ///< true when implementation, pass and shape have the fault
  std::string_view what;                 ///< the effect of the fault, and where a report of it is
};

/// Returns the entry that concerns this call, nullptr if none does. A provider asks before it takes an implementation,
/// and takes another one if there is an entry. oneDNN's convolutions ask; no entry of another library exists yet.
[[nodiscard]] const KnownBad* known_bad(const LibraryCall& call);

}  // namespace lockstep::ops
