#pragma once

#include <cstdint>

#include <lockstep/kernels/cuda/element.hpp>

/// Access to images of three bytes per pixel by 16-byte accesses, wherever in memory the images begin.
namespace lockstep::gpu {

inline constexpr int kPiecePixels = 16;  // a piece is 48 bytes, three 16-byte accesses
inline constexpr int kPieceWords = 12;
using Piece = Pack<std::uint32_t, kPieceWords>;

/// The parts of an image: single pixels up to a 16-byte boundary, whole pieces, and the single pixels after these
/// pieces.
struct PixelParts {
  /// `begin` is the address of the image's first byte. As 3 and 16 have no common divisor, one of the image's first 16
  /// pixels begins at a 16-byte boundary. If the image begins `a` bytes after a boundary, this pixel is number 5 * a
  /// (modulo 16), because a + 3 * 5 * a = 16 * a.
  __device__ PixelParts(const std::uint8_t* begin, std::int64_t pixels) {
    const auto to_boundary = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin) % 16 * 5 % 16);
    head = to_boundary < pixels ? to_boundary : pixels;
    pieces = (pixels - head) / kPiecePixels;
    singles = pixels - pieces * kPiecePixels;
  }
  /// Returns the index of the first pixel of piece `number`.
  __device__ std::int64_t piece(std::int64_t number) const { return head + number * kPiecePixels; }
  /// Returns the index in the image of single pixel `number`, which lies in [0, singles).
  __device__ std::int64_t single(std::int64_t number) const {
    return number < head ? number : number + pieces * kPiecePixels;
  }

  std::int64_t head;  ///< number of single pixels before the first piece
  std::int64_t pieces;
  std::int64_t singles;  ///< number of single pixels before and after all pieces, at most 30
};

/// Loads the piece whose first pixel is at `from`; store_piece() stores a piece at `to`.
__device__ inline Piece load_piece(const std::uint8_t* from) {
  return load<kPieceWords>(reinterpret_cast<const std::uint32_t*>(from));
}
__device__ inline void store_piece(std::uint8_t* to, const Piece& piece) {
  store(reinterpret_cast<std::uint32_t*>(to), piece);
}

/// Returns byte `number`, in [0, 12), of the first quad of `piece`. A quad is four pixels: three words of a piece.
/// `number` must be known at compile time.
__device__ inline std::uint32_t quad_byte(const Piece& piece, int number) {
  return piece.at[number / 4] >> 8 * (number % 4) & 255U;
}

/// Removes the first quad of `piece` and appends `bytes` as its last quad: four calls replace all quads. A loop that
/// calls next_quad() needs the code of one quad only, and no register index depends on the loop counter.
__device__ inline void next_quad(Piece& piece, const std::uint32_t (&bytes)[12]) {
#pragma unroll
  for (int i = 0; i + 3 < kPieceWords; ++i) {
    piece.at[i] = piece.at[i + 3];
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    piece.at[kPieceWords - 3 + i] =
        bytes[4 * i] | bytes[4 * i + 1] << 8 | bytes[4 * i + 2] << 16 | bytes[4 * i + 3] << 24;
  }
}

}  // namespace lockstep::gpu
