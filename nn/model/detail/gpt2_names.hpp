#pragma once

#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep::nn {

/// Lets a file of GPT-2 that others have written be read as one of transformer() (nn/models/transformer.hpp). A file
/// without h.N.attn.c_attn.weight of shape (3 C, C) or (C, 3 C) does not change. Else
/// - names lose "transformer.";
/// - Hugging Face's weights of Conv1D, (in, out), are turned to (out, in): c_attn, c_proj, c_fc of every layer. They
/// are
///   known by c_attn, which is (C, 3 C) there and (3 C, C) here and never square, as attn.c_proj is;
/// - h.N.attn.bias and h.N.attn.masked_bias (masks) and lm_head.weight are left out.
/// DataError where layers differ in their kind, a matrix to be turned is none, or lm_head.weight is not wte.weight,
/// which the model has tied.
void read_as_gpt2(TensorFile& file);

}  // namespace lockstep::nn
