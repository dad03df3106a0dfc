#pragma once

#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep::nn {

/// Converts a GPT-2 file of another program to the names and shapes of transformer() (nn/models/transformer.hpp). A
/// file that has no h.N.attn.c_attn.weight of shape (3 C, C) or (C, 3 C) does not change. Otherwise:
/// - "transformer." is removed from the names;
/// - Hugging Face's weights of Conv1D, (in, out), are transposed to (out, in): c_attn, c_proj and c_fc of every layer.
///   The shape of c_attn shows the order, because c_attn is never square: (C, 3 C) in Hugging Face's files, (3 C, C) in
///   transformer();
/// - h.N.attn.bias and h.N.attn.masked_bias (masks) and lm_head.weight are left out.
/// Throws DataError if layers have c_attn of both shapes, if a tensor to be transposed does not have two dimensions, or
/// if lm_head.weight differs from wte.weight, because the model ties these two tensors.
void read_as_gpt2(TensorFile& file);

}  // namespace lockstep::nn
