// Compares changes of colour, bit by bit, with plain loops that take one pixel and one change at a time.
#include <span>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/random.hpp>

#include "tests/support/plain_colours.hpp"

namespace lockstep::nn::images {
namespace {

using Values = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;
using ops::images::adjust_colours;
using ops::images::byte_of;
using ops::images::Colour;
using ops::images::ColourChange;
using Changes = std::vector<ColourChange>;

Values plain(const Changes& changes, Values values) {
  for (const ColourChange& change : changes) {
    lockstep::testing::plain_change(change, values);
  }
  return values;
}

Values values_of(const Bytes& bytes) {
  Values values;
  for (const std::uint8_t byte : bytes) {
    values.push_back(static_cast<float>(byte) / 255.0F);
  }
  return values;
}

/// Returns whether adjust_colours(), for floats and for bytes, gives the same result as the plain loops of plain().
::testing::AssertionResult as_plain(const Changes& changes, const Bytes& image, Values& memory) {
  const Values expected = plain(changes, values_of(image));
  Values values = values_of(image);
  adjust_colours(changes, std::span(values), memory);
  Bytes bytes = image;
  adjust_colours(changes, std::span(bytes), memory);
  for (std::size_t i = 0; i < image.size(); ++i) {
    if (!(values[i] == expected[i]) || bytes[i] != byte_of(expected[i])) {
      return ::testing::AssertionFailure() << "value " << i << ": " << values[i] << " and " << int{bytes[i]}
                                           << ", expected " << expected[i] << ", from " << int{image[i]};
    }
  }
  return ::testing::AssertionSuccess();
}

Bytes random_image(std::size_t pixels, std::uint64_t seed, std::uint32_t below = 256) {
  Random random(seed, RandomUse::test);
  Bytes image(3 * pixels);
  for (std::uint8_t& byte : image) {
    byte = static_cast<std::uint8_t>(random.below(below));
  }
  return image;
}

// Numbers of pixels around the sizes at which the implementation changes from one loop to another: 1, odd numbers, one
// block of 256 pixels, one pixel less and one more than a block, and several blocks.
constexpr std::array<std::size_t, 10> kPixels{1, 2, 3, 5, 15, 17, 255, 256, 257, 1021};

TEST(Colour, AllOrdersOfChangesAreThoseOfPlainLoops) {
  Values memory;  // scratch memory; keeps the size that an earlier image needed
  for (const std::size_t pixels : kPixels) {
    for (const double strength : {0.9, 1.4}) {
      Changes changes{{Colour::brightness, strength},
                      {Colour::contrast, 2.1 - strength},
                      {Colour::saturation, strength * 0.8},
                      {Colour::hue, strength - 1.1}};
      std::array<std::size_t, 4> order{0, 1, 2, 3};
      do {
        Changes ordered;
        for (const std::size_t i : order) {
          ordered.push_back(changes[i]);
        }
        EXPECT_TRUE(as_plain(ordered, random_image(pixels, pixels), memory))
            << pixels << " pixels, order " << order[0] << order[1] << order[2] << order[3];
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(Colour, AnyListOfChangesIsThatOfPlainLoops) {
  Values memory;
  Random random(3, RandomUse::test);
  for (int i = 0; i < 200; ++i) {
    Changes changes(random.below(6));
    for (ColourChange& change : changes) {
      change.colour = static_cast<Colour>(random.below(4));
      change.factor = change.colour == Colour::hue ? random.uniform() - 0.5 : 3 * random.uniform();
    }
    EXPECT_TRUE(
        as_plain(changes, random_image(kPixels[random.below(kPixels.size())], 4, random.below(256) + 1), memory))
        << "list " << i;
  }
}

TEST(Colour, ExtremeFactorsAreThoseOfPlainLoops) {
  Values memory;
  const Bytes image = random_image(300, 5);
  for (const double factor : {0.0, 1e-30, 1e-3, 1.0, 1.0 + 1e-7, 7.5, 100.0, 1e30}) {
    for (const Colour colour : {Colour::brightness, Colour::contrast, Colour::saturation}) {
      for (const double hue : {-0.5, -0.25, -1e-9, 0.0, 1e-9, 1.0 / 6, 0.5}) {
        EXPECT_TRUE(as_plain({{colour, factor}, {Colour::hue, hue}}, image, memory)) << factor << ' ' << hue;
        EXPECT_TRUE(as_plain({{Colour::hue, hue}, {colour, factor}}, image, memory)) << factor << ' ' << hue;
      }
    }
  }
}

TEST(Colour, HuesOfAGridOfColoursAreThoseOfPlainLoops) {
  Values memory;
  Bytes image;
  for (int r = 0; r < 256; r += 5) {
    for (int g = 0; g < 256; g += 5) {
      for (int b = 0; b < 256; b += 5) {
        for (const int value : {r, g, b}) {
          image.push_back(static_cast<std::uint8_t>(value));
        }
      }
    }
  }
  for (const double turn : {-0.5, -0.37, -1.0 / 6, -0.01, 0.0, 0.01, 1.0 / 3, 0.5}) {
    EXPECT_TRUE(as_plain({{Colour::hue, turn}}, image, memory)) << turn;
  }
}

TEST(Colour, TheLastBitIsSeen) {
  const Bytes image = random_image(17, 6);
  Values values = values_of(image);
  Values memory;
  const ColourChange turn{Colour::hue, 0.1};
  adjust_colours(std::span(&turn, 1), std::span(values), memory);
  EXPECT_EQ(values, plain({turn}, values_of(image)));
  EXPECT_NE(values, plain({{Colour::hue, 0.1 + 1e-7}}, values_of(image)));
}

TEST(Colour, NothingBehindTheImageIsWritten) {
  Values memory;
  for (const std::size_t pixels : kPixels) {
    Bytes image = random_image(pixels + 2, 7);
    const Bytes before = image;
    const ColourChange change{Colour::contrast, 1.7};
    adjust_colours(std::span(&change, 1), std::span(image).subspan(3, 3 * pixels), memory);
    EXPECT_TRUE(std::equal(image.begin(), image.begin() + 3, before.begin())) << pixels;
    EXPECT_TRUE(std::equal(image.end() - 3, image.end(), before.end() - 3)) << pixels;
  }
}

TEST(Colour, AnImageWithoutPixelsStaysOne) {
  Values memory;
  const ColourChange change{Colour::contrast, 1.7};
  adjust_colours(std::span(&change, 1), std::span<std::uint8_t>(), memory);
  adjust_colours(std::span(&change, 1), std::span<float>(), memory);
  EXPECT_TRUE(memory.empty());
}

}  // namespace
}  // namespace lockstep::nn::images
