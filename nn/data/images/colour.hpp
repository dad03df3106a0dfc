#pragma once

#include <lockstep/kernels/images/colour.hpp>

namespace lockstep::nn::images {

using ops::images::adjust_colours;
using ops::images::byte_of;
using ops::images::Colour;
using ops::images::ColourChange;

}  // namespace lockstep::nn::images
