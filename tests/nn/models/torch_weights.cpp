// Usage: torch_weights load|save MODEL WEIGHTS INPUT OUTPUT. Computes the logits of a model for the images "x" (N, 3,
// S, S) of the safetensors file INPUT, and writes them as "logits" to OUTPUT. `load` reads the weights from WEIGHTS.
// `save` draws weights and running statistics at random and writes them to WEIGHTS. torch_weights_test.py runs this
// program.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

void draw(Context& context, nn::ParameterSet& parameters) {
  constexpr std::uint64_t kSeed = 3;
  parameters.initialise(context, kSeed);
  Random random(kSeed, RandomUse::test);
  for (const nn::BufferSpec& buffer : parameters.buffers()) {
    std::vector<double> values(static_cast<std::size_t>(buffer.shape.numel()));
    for (double& value : values) {
      value = buffer.name.ends_with("running_var") ? 0.5 + random.uniform() : 0.1 * random.normal();
    }
    parameters.write_buffer(context, buffer.name, TensorView(std::span(values), buffer.shape));
  }
}

void run(const std::string& what, const std::string& name, const std::string& weights, const std::string& in,
         const std::string& out) {
  const TensorFile file = open_tensor_file(in);
  const TensorEntry* entry = file.find("x");
  require<DataError>(entry != nullptr && entry->shape.size() == 4 && entry->dtype == "F32", in,
                     ": expected a tensor x");
  std::vector<float> images(entry->bytes / sizeof(float));
  file.read(*entry, std::as_writable_bytes(std::span(images)));
  const std::int64_t count = entry->shape[0];
  const std::int64_t side = entry->shape[2];

  const nn::Model model =
      nn::make_model({.name = name, .classes = 1000, .height = side, .width = side}).reading(nn::InputKind::values);
  CpuContext context({.threads = 2});
  nn::ParameterSet parameters(context, model, DType::f32);
  if (what == "load") {
    nn::load_model(weights, context, parameters);
  } else {
    draw(context, parameters);
    nn::save_model(weights, context, parameters);
  }
  nn::Inference predict(context, model, parameters, {.max_batch = count});
  std::vector<float> logits(static_cast<std::size_t>(count * model.classes()));
  const TensorView nchw(std::span<float>(images), {count, 3, side, side});
  predict.run(nchw.permute({0, 2, 3, 1}), TensorView(std::span(logits), {count, model.classes()}));
  context.synchronize();
  std::filesystem::remove(out);
  write_safetensors(out, std::vector<SafetensorsTensor>{{.name = "logits",
                                                         .dtype = DType::f32,
                                                         .shape = {count, model.classes()},
                                                         .data = std::as_bytes(std::span(logits)),
                                                         .fill = {}}});
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() != 6 || (words[1] != "load" && words[1] != "save")) {
    std::fprintf(stderr, "torch_weights: expected load|save MODEL WEIGHTS INPUT OUTPUT\n");
    return exit_code::kBadInput;
  }
  try {
    run(words[1], words[2], words[3], words[4], words[5]);
  } catch (const Error& error) {
    std::fprintf(stderr, "torch_weights: error: %s\n", error.what());
    return error.code();
  }
  return exit_code::kFinished;
}
