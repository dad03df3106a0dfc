#pragma once

#include <lockstep/kernels/images/resample.hpp>
#include <lockstep/nn/data/images/decode.hpp>

namespace lockstep::nn::images {

using ops::images::Axis;
using ops::images::Extent;
using ops::images::mirrored;
using ops::images::PixelRange;
using ops::images::pixels_of;
using ops::images::PixelView;
using ops::images::resample;
using ops::images::ResampleMemory;

[[nodiscard]] inline PixelView view_of(const Picture& picture) {
  return {picture.width, picture.height, picture.pixels.data()};
}

}  // namespace lockstep::nn::images
