#pragma once

#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep::nn {

/// Converts a file of GPT-2 by another program to the names and shapes of transformer() (nn/models/transformer.hpp). A
/// file without h.N.attn.c_attn.weight of shape (3 C, C) or (C, 3 C) does not change. Else
/// - "transformer." is removed from the names;
/// - Hugging Face's weights of Conv1D, (in, out), are transposed to (out, in): c_attn, c_proj and c_fc of every layer.
///   The shape of c_attn tells them apart: it is (C, 3 C) there and (3 C, C) here, and never square as attn.c_proj is;
/// - h.N.attn.bias and h.N.attn.masked_bias (masks) and lm_head.weight are left out.
/// Throws DataError where layers have c_attn of both shapes, a tensor to be transposed has not two dimensions, or
/// lm_head.weight differs from wte.weight: the model has these tied.
void read_as_gpt2(TensorFile& file);

}  // namespace lockstep::nn
