#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Sets result to a 64-bit hash of the bytes of x. The hash tells whether two replicas are equal, but is not safe
/// against an adversary. The bytes are taken as little-endian 64-bit words; the last word is padded with zeros:
///   hash = r(0, count of bytes) + sum over i of r(i, word i), modulo 2^64
/// r(i, seed) is number i of SplitMix64 with that seed (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014, figure 16: a state that grows by a constant, and Stafford's variant 13 of MurmurHash3's
/// finaliser). So the hash depends on the position of a word, and on zeros at the end.
///   x: contiguous, any type and shape, may be empty, may begin anywhere       result: u64 scalar outside of x
/// Integer sums do not depend on the order: the hash is the same on every device, for any number of threads, any grid
/// and any element type of the same bytes. Reads x once. No workspace.
void hash_range(Context& context, const TensorView& x, const TensorView& result);

namespace backend {  // the functions that hash.cpp calls after its checks
LOCKSTEP_BACKENDS(hash_range);
}  // namespace backend

}  // namespace lockstep::ops
