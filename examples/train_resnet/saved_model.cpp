#include "saved_model.hpp"

#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>

namespace train_resnet {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
namespace {

std::vector<std::int64_t> sizes_in(const std::string& text) {
  std::vector<std::int64_t> sizes;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    const auto [stop, error] = std::from_chars(at, end, sizes.emplace_back());
    require<DataError>(error == std::errc() && (stop == end || *stop == ','), "hidden layers are ", printable(text),
                       ", expected sizes with commas between them");
    at = stop == end ? end : stop + 1;
  }
  return sizes;
}

}  // namespace

void keep_hidden(const std::vector<std::int64_t>& hidden, nn::TrainingInputs& inputs) {
  std::string text;
  for (const std::int64_t size : hidden) {
    text += concat(text.empty() ? "" : ",", size);
  }
  if (!hidden.empty()) {
    inputs.options["hidden"] = text;
  }
}

nn::Model model_of(const nn::RunIdentity& saved, const std::string& checkpoint, nn::ModelRequest& request) {
  const std::string folder = find_folder(nn::checkpoint_folder(checkpoint));
  std::optional<nn::Model> model;
  try {
    const auto hidden = saved.options.find("hidden");
    request.name = saved.model;
    request.zero_init_residual = false;  // not needed, because all values come from the checkpoint
    request.hidden = hidden == saved.options.end() ? std::vector<std::int64_t>() : sizes_in(hidden->second);
    model.emplace(nn::make_model(request));
    std::error_code missing;  // set when the file is missing; reading the file reports that later
    const std::uintmax_t bytes = std::filesystem::file_size(folder + "/" + nn::kModelFile, missing);
    require<DataError>(missing || static_cast<std::uintmax_t>(model->parameter_count()) <= bytes, "model ",
                       request.name, " has ", model->parameter_count(), " parameters, expected at most ", bytes,
                       ", the bytes of ", nn::kModelFile, " next to it");
  } catch (const Error& error) {
    throw DataError(folder + "/state.json: identity: " + error.what());
  }
  return *std::move(model);
}

}  // namespace train_resnet
