#pragma once

#include <string>

#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep {

/// Returns true for a file of torch.save: a zip archive (since torch 1.6), or the older form, which TorchFile refuses.
/// Throws FileError if the file cannot be read.
[[nodiscard]] bool is_torch_file(const std::string& path);

/// A file of torch.save (.pth, .pt, .bin) that holds a dict of plain tensors: the result of state_dict(). The dict may
/// be the whole file, or the member "state_dict", "model_state_dict" or "model" of a checkpoint. The checkpoint may
/// also hold numbers, texts, lists and other tensors. If all names begin with "module." (DistributedDataParallel) or
/// "_orig_mod." (torch.compile), this prefix is removed. Tensors may share a storage and have strides. Entries are in
/// the order of the dict.
///
/// Nothing in the file is executed: TorchPickle (detail/torch_pickle.hpp) reads the pickle and accepts only the names
/// that plain tensors need. The constructor reads the whole file once and checks it. The pickle (at most 16 MiB) and
/// all storages of tensors must be stored without compression and have the checksums of the archive's directory.
/// Storages must have the size of their type and number of elements, and tensors must lie inside them. The rules for
/// names and limits are those of SafetensorsFile.
///
/// Any violation is a DataError with the path and the violation. TorchScript, code, files written before torch 1.6, and
/// dicts of other values are refused; for these files the error says how to convert the file in Python.
class TorchFile : public TensorFile {
 public:
  explicit TorchFile(const std::string& path);
};

}  // namespace lockstep
