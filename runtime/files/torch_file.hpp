#pragma once

#include <string>

#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep {

/// True for a file of torch.save: a zip archive (since torch 1.6), or the older form, which TorchFile refuses.
/// FileError when the file cannot be read.
[[nodiscard]] bool is_torch_file(const std::string& path);

/// A file of torch.save (.pth, .pt, .bin) that holds a dict of plain tensors: the result of state_dict(), alone or as
/// the "state_dict", "model_state_dict" or "model" of a checkpoint, which may also hold numbers, texts, lists and
/// further tensors. Names lose "module." (DistributedDataParallel) and "_orig_mod." (torch.compile) when all of them
/// begin with it. Tensors may share a storage and have strides.
///
/// Nothing in the file is executed: lockstep's own machine reads its pickle and knows only the names of plain tensors
/// (detail/torch_pickle.hpp). The constructor trusts nothing and reads the file once. Records are stored, not
/// compressed, and have the checksums of the archive's directory, both the pickle (at most 16 MiB) and every storage of
/// a tensor. Storages have the bytes of their type and number of elements, and tensors lie inside them. Names and
/// limits are as in SafetensorsFile. Any violation is a DataError with path and what was found. TorchScript, code, the
/// form before torch 1.6, and a dict of something else are refused with advice what to do in Python. Entries are in the
/// order of the dict.
class TorchFile : public TensorFile {
 public:
  explicit TorchFile(const std::string& path);
};

}  // namespace lockstep
