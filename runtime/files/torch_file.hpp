#pragma once

#include <string>

#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep {

/// True for what torch.save writes: a zip archive (since torch 1.6), or the form before that, which TorchFile refuses.
/// FileError when the file cannot be read.
[[nodiscard]] bool is_torch_file(const std::string& path);

/// A file of torch.save (.pth, .pt, .bin) that holds a dict of plain tensors: what state_dict() gives, alone or as the
/// "state_dict", "model_state_dict" or "model" of a checkpoint, which may hold numbers, texts, lists and further
/// tensors beside it. Names lose "module." (DistributedDataParallel) and "_orig_mod." (torch.compile) when all of them
/// begin so. Tensors may share a storage and have strides.
///
/// Nothing in the file is executed: its pickle is read by a machine of ours that knows the names of plain tensors and
/// no others (detail/torch_pickle.hpp). The constructor trusts nothing and reads the file once: records are stored, not
/// compressed, and have the checksums of the archive's directory, both the pickle (at most 16 MiB) and every storage
/// of a tensor; storages have the bytes of their type and number of elements, and tensors lie inside them; names are as
/// in SafetensorsFile, and limits too. Any violation is a DataError that names path and what was found: TorchScript,
/// code, the form before torch 1.6, and a dict of something else are refused with what to do in Python. Entries are in
/// the order of the dict.
class TorchFile : public TensorFile {
 public:
  explicit TorchFile(const std::string& path);
};

}  // namespace lockstep
