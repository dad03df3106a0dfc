// Draws images from random numbers. An image shows the figure of its class at a random place, size, tilt and stretch.
// The figure has a random colour on a random gradient, with specks and noise. The figure is brighter than its
// surroundings as often as darker. So the mean image is the same for every class, and a linear classifier cannot learn
// the classes; a small convolutional network learns them from a few thousand images. Mirroring an image left to right
// keeps its class. The pixels are the same on every machine: the code uses only + - * / and sqrt, and is compiled
// without fused multiply-add.

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn::detail {
namespace {

// Kinds of figures. Each figure fills about the square [-1, 1]^2.
enum class Figure : int {
  disk,
  ring,
  square,
  frame,
  triangle_up,
  triangle_down,
  plus,
  saltire,
  horizontal_bars,
  vertical_bars
};
constexpr int kFigures = 10;

// An image of classes 0 to 9 shows one figure. An image of another class shows one row (classes 10 to 19), two rows (20
// to 119) or three rows (120 to 1119) of two small equal figures side by side. Classes with the same number of rows are
// numbered from 0; the digits of this number are the kinds of figures, from top to bottom.
constexpr int kMaxRows = 3;
constexpr int kMaxClasses = kFigures + 10 + 100 + 1000;

float box(float x, float y, float half_width, float half_height) {
  return std::max(std::abs(x) - half_width, std::abs(y) - half_height);
}

float bars(float x, float y) {
  return std::min({box(x, y + 0.66F, 0.9F, 0.21F), box(x, y, 0.9F, 0.21F), box(x, y - 0.66F, 0.9F, 0.21F)});
}

// Returns the signed distance of (x, y) to the figure's edge, below zero inside; y points down. The distance is exact
// near straight edges, so edges can be smoothed with it.
float figure_distance(Figure figure, float x, float y) {
  constexpr float kDiagonal = 0.70710678F;
  constexpr float kSlope = 0.4472136F;  // 1 / sqrt(5), because the triangle's sides have the slope 2
  switch (figure) {
    case Figure::disk:
      return std::sqrt(x * x + y * y) - 0.9F;
    case Figure::ring:
      return std::abs(std::sqrt(x * x + y * y) - 0.73F) - 0.2F;
    case Figure::square:
      return box(x, y, 0.8F, 0.8F);
    case Figure::frame:
      return std::max(box(x, y, 0.86F, 0.86F), -box(x, y, 0.46F, 0.46F));
    case Figure::triangle_up:
      return std::max(y - 0.75F, (2.0F * std::abs(x) - y - 1.05F) * kSlope);
    case Figure::triangle_down:
      return std::max(-y - 0.75F, (2.0F * std::abs(x) + y - 1.05F) * kSlope);
    case Figure::plus:
      return std::min(box(x, y, 0.28F, 0.95F), box(x, y, 0.95F, 0.28F));
    case Figure::saltire: {
      const float u = (x + y) * kDiagonal;
      const float v = (x - y) * kDiagonal;
      return std::min(box(u, v, 0.26F, 1.05F), box(u, v, 1.05F, 0.26F));
    }
    case Figure::horizontal_bars:
      return bars(x, y);
    case Figure::vertical_bars:
      return bars(y, x);
  }
  return 1;
}

// Pixels are drawn in pieces of an image row, in loops over arrays, which a compiler can vectorise.
constexpr std::int64_t kPiece = 256;
using Floats = std::array<float, kPiece>;

template <int kFigure>
void distances_to(const Floats& x, const Floats& y, std::size_t begin, std::size_t end, Floats& out) {
  for (std::size_t i = begin; i < end; ++i) {
    out[i] = figure_distance(static_cast<Figure>(kFigure), x[i], y[i]);
  }
}

using DistancesTo = void (*)(const Floats&, const Floats&, std::size_t, std::size_t, Floats&);
template <int... kAll>
constexpr std::array<DistancesTo, sizeof...(kAll)> for_each_figure(std::integer_sequence<int, kAll...> /*all*/) {
  return {distances_to<kAll>...};
}
constexpr auto kDistancesTo = for_each_figure(std::make_integer_sequence<int, kFigures>());

class Drawing {
 public:
  explicit Drawing(int class_index) {
    int of_rows = kFigures;  // number of classes with rows_ rows
    while (class_index >= of_rows) {
      class_index -= of_rows;
      ++rows_;
      of_rows = rows_ == 1 ? kFigures : of_rows * kFigures;
    }
    for (int row = std::max(rows_, 1) - 1; row >= 0; --row) {
      figures_[static_cast<std::size_t>(row)] = static_cast<std::size_t>(class_index % kFigures);
      class_index /= kFigures;
    }
  }

  // Writes the signed distances of `count` neighbouring points (u, v) to the drawing's edge to `out`. Distances are
  // below zero inside a figure. Overwrites `u` and `v`.
  void distances(Floats& u, Floats& v, std::size_t count, Floats& out) const {
    if (rows_ == 0) {
      kDistancesTo[figures_[0]](u, v, 0, count, out);
      return;
    }
    const auto rows = static_cast<float>(rows_);
    const float scale = std::max(rows, 2.0F);
    const float pitch = 2.2F / scale;  // distance between columns and between rows
    const auto row_of = [&](float at) {
      const float row = at / pitch + 0.5F * rows;
      return static_cast<std::size_t>(rows_ > 1 && row >= 1) + static_cast<std::size_t>(rows_ > 2 && row >= 2);
    };
    for (std::size_t begin = 0; begin < count;) {
      const std::size_t row = row_of(v[begin]);
      std::size_t end = begin + 1;
      while (end < count && row_of(v[end]) == row) {
        ++end;
      }
      const float centre = (static_cast<float>(row) - 0.5F * (rows - 1.0F)) * pitch;
      for (std::size_t i = begin; i < end; ++i) {
        u[i] = (std::abs(u[i]) - 0.5F * pitch) * scale;
        v[i] = (v[i] - centre) * scale;
      }
      kDistancesTo[figures_[row]](u, v, begin, end, out);
      begin = end;
    }
    for (std::size_t i = 0; i < count; ++i) {
      out[i] /= scale;
    }
  }

 private:
  int rows_ = 0;
  std::array<std::size_t, kMaxRows> figures_{};
};

using Colour = std::array<float, 3>;  // three channels, 0 to 255

// Returns `value` clamped to [0, most].
float limited(float value, float most) {
  return std::min(std::max(value, 0.0F), most);
}

float between(Random& random, double low, double high) {
  return static_cast<float>(low + (high - low) * random.uniform());
}

// SplitMix64 (Steele, Lea, Flood 2014): a quick generator, because the noise needs a number for every pixel and
// channel.
std::uint64_t next_word(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

struct Speck {
  float x;
  float y;
  float radius;
  Colour colour;
};
constexpr int kSpecks = 4;

// Content of one image. The constructor draws the content at random; draw() computes the image's pixels.
class Picture {
 public:
  Picture(int class_index, float width, float height, Random& random) : drawing_(class_index), w_(width), h_(height) {
    const float side = std::min(h_, w_);
    // The surroundings have a colour that changes by up to 35 (of 255) over half the image. The figure is brighter or
    // darker than the surroundings by `contrast`, and by a smaller random number that differs between channels.
    const float sign = random.below(2) == 0 ? -1.0F : 1.0F;
    const float contrast = between(random, 40, 110) * sign;
    for (std::size_t c = 0; c < 3; ++c) {
      ground_[c] = 127.5F - 0.5F * contrast + between(random, -60, 60);
      rise_x_[c] = between(random, -35, 35) / (0.5F * w_);
      rise_y_[c] = between(random, -35, 35) / (0.5F * h_);
      shift_[c] = contrast + between(random, -35, 35);
    }
    noise_ = between(random, 4, 24);

    // Draws size, tilt and place. (cos, sin) = ((1 - t^2), 2t) / (1 + t^2) is a rotation by 2 atan(t), up to 17
    // degrees.
    radius_ = between(random, 0.20, 0.36) * side;
    const float stretch = between(random, 0.85, 1.18);
    const float t = between(random, -0.15, 0.15);
    cosine_ = (1.0F - t * t) / (1.0F + t * t);
    sine_ = 2.0F * t / (1.0F + t * t);
    centre_x_ = between(random, radius_, w_ - radius_);
    centre_y_ = between(random, radius_, h_ - radius_);
    scale_x_ = 1.0F / (radius_ * stretch);
    scale_y_ = stretch / radius_;

    for (Speck& speck : specks_) {
      speck = {between(random, 0, w_), between(random, 0, h_), between(random, 0.02, 0.07) * side, {}};
      for (float& c : speck.colour) {
        c = between(random, 0, 255);
      }
    }
    noise_state_ = random.bits();
    noise_state_ = noise_state_ << 32 | random.bits();
  }

  // Draws `count` pixels of a row, at most kPiece, from column `first` on. `y` is the middle of the row.
  void draw(float y, std::int64_t first, std::size_t count, std::uint8_t* pixel) {
    Floats x;
    Floats u;
    Floats v;
    Floats cover;
    for (std::size_t i = 0; i < count; ++i) {
      x[i] = static_cast<float>(static_cast<int>(first) + static_cast<int>(i)) + 0.5F;
      u[i] = ((x[i] - centre_x_) * cosine_ + (y - centre_y_) * sine_) * scale_x_;
      v[i] = ((y - centre_y_) * cosine_ - (x[i] - centre_x_) * sine_) * scale_y_;
    }
    drawing_.distances(u, v, count, cover);
    std::array<std::array<std::uint32_t, kPiece>, 3> bytes;  // two random bytes for each channel and pixel
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t word = next_word(noise_state_);
      bytes[0][i] = static_cast<std::uint32_t>(word) & 0xffffU;
      bytes[1][i] = static_cast<std::uint32_t>(word) >> 16;
      bytes[2][i] = static_cast<std::uint32_t>(word >> 32) & 0xffffU;
    }
    for (std::size_t i = 0; i < count; ++i) {
      cover[i] = limited(0.5F - cover[i] * radius_, 1);  // coverage of the pixel; edges are smooth over one pixel
    }
    std::array<std::array<std::int32_t, kPiece>, 3> values;
    for (std::size_t c = 0; c < 3; ++c) {
      Floats& clean = u;
      for (std::size_t i = 0; i < count; ++i) {
        clean[i] = ground_[c] + rise_x_[c] * (x[i] - 0.5F * w_) + rise_y_[c] * (y - 0.5F * h_) + cover[i] * shift_[c];
      }
      for (const Speck& speck : specks_) {
        const float dy = y - speck.y;
        const float square = speck.radius * speck.radius;
        // Only columns within radius + 2 of the speck's centre can be inside the speck.
        const auto column = [&](float at) {
          return static_cast<std::size_t>(limited(at - static_cast<float>(first), static_cast<float>(count)));
        };
        const std::size_t end = dy * dy < square ? column(speck.x + speck.radius + 2) : 0;
        for (std::size_t i = column(speck.x - speck.radius - 2); i < end; ++i) {
          const float dx = x[i] - speck.x;
          if (dx * dx + dy * dy < square) {
            clean[i] = speck.colour[c];
          }
        }
      }
      for (std::size_t i = 0; i < count; ++i) {
        // n has a triangular distribution with mean 0 and variance 1/6.
        const auto sum = static_cast<std::int32_t>((bytes[c][i] & 255U) + (bytes[c][i] >> 8));
        const float n = (static_cast<float>(sum) - 255.0F) / 256.0F;
        values[c][i] = static_cast<std::int32_t>(limited(clean[i] + 2.45F * noise_ * n + 0.5F, 255));
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t c = 0; c < 3; ++c) {
        pixel[3 * i + c] = static_cast<std::uint8_t>(values[c][i]);
      }
    }
  }

 private:
  Drawing drawing_;
  float w_;
  float h_;
  Colour ground_;
  Colour rise_x_;
  Colour rise_y_;
  Colour shift_;
  float noise_;
  float radius_;
  float cosine_;
  float sine_;
  float centre_x_;
  float centre_y_;
  float scale_x_;
  float scale_y_;
  std::array<Speck, kSpecks> specks_;
  std::uint64_t noise_state_;
};

class Synthetic final : public ImageDataset {
 public:
  Synthetic(DatasetInfo info, std::uint64_t seed, std::uint64_t split)
      : ImageDataset(std::move(info)), seed_(seed), split_(split) {}

  std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(index % classes()); }

  void read(std::int64_t index, std::span<std::uint8_t> image) const override {
    Random random(seed_, RandomUse::synthetic, split_, static_cast<std::uint64_t>(index));
    Picture picture(label(index), static_cast<float>(width()), static_cast<float>(height()), random);
    std::uint8_t* pixel = image.data();
    for (std::int64_t row = 0; row < height(); ++row) {
      for (std::int64_t first = 0; first < width(); first += kPiece) {
        const auto count = static_cast<std::size_t>(std::min(width() - first, kPiece));
        picture.draw(static_cast<float>(row) + 0.5F, first, count, pixel);
        pixel += 3 * count;
      }
    }
  }

  // Hashes the numbers that determine the pixels. Also hashes a few images, so that a version of lockstep that draws
  // other images has another fingerprint.
  std::uint64_t fingerprint() const override {
    Hash hash;
    for (const std::int64_t number : {size(), height(), width(), static_cast<std::int64_t>(classes())}) {
      hash.add(static_cast<std::uint64_t>(number));
    }
    hash.add(seed_);
    hash.add(split_);
    std::vector<std::uint8_t> image(static_cast<std::size_t>(image_bytes()));
    constexpr std::int64_t kShown = 20;
    const std::int64_t shown = std::min<std::int64_t>(classes(), kShown);
    for (std::int64_t i = 0; i < shown && i * classes() / shown < size(); ++i) {
      read(i * classes() / shown, image);
      hash.add(image);
    }
    return hash.value();
  }

 private:
  std::uint64_t seed_;
  std::uint64_t split_;
};

}  // namespace

DataSplit open_synthetic(const SyntheticOptions& options, std::uint64_t seed) {
  require<UsageError>(options.classes >= 2 && options.classes <= kMaxClasses, "synthetic data: ", options.classes,
                      " classes, expected 2 to ", kMaxClasses);
  require<UsageError>(options.height >= 8 && options.width >= 8 && options.height <= 4096 && options.width <= 4096,
                      "synthetic data: images of ", options.height, " x ", options.width,
                      ", expected sides of 8 to 4096");
  const DatasetInfo info{"synthetic train", options.train_size, options.height, options.width, options.classes};
  DatasetInfo test = info;
  test.name = "synthetic test";
  test.size = options.test_size;
  DataSplit split;
  split.train = std::make_unique<Synthetic>(info, seed, 0);
  split.test = std::make_unique<Synthetic>(test, seed, 1);
  return split;
}

}  // namespace lockstep::nn::detail
