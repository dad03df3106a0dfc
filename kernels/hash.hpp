#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Sets result to a 64-bit hash of the bytes of x. The hash shows whether two replicas are equal, but gives no
/// protection against an adversary.
///   x: contiguous, any type and shape, may be empty, may begin anywhere       result: u64 scalar outside of x
/// The bytes are taken as little-endian 64-bit words; the last word is padded with zeros:
///   hash = r(0, count of bytes) + sum over i of r(i, word i), modulo 2^64
/// r(i, seed) is number i of SplitMix64 with that seed (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014, figure 16, with Stafford's variant 13 of MurmurHash3's finaliser). The hash depends on the
/// positions of the words, and on zeros at the end. The order of the additions does not matter; so the hash is the same
/// on every device and for any number of threads, and does not depend on the element type. Reads x once. No workspace.
void hash_range(Context& context, const TensorView& x, const TensorView& result);

namespace backend {  // the functions that hash.cpp calls after its checks
LOCKSTEP_BACKENDS(hash_range);
}  // namespace backend

}  // namespace lockstep::ops
