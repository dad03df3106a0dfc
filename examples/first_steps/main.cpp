// first_steps shows devices, tensors on devices, copies, and a network with its parameters on a chosen device. The
// program follows the chapter on GPUs of "Dive into Deep Learning" (d2l.ai, section 6.7), in C++. Run it by
// ./first_steps with two GPUs, one or none; without GPUs both contexts are on the CPU.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/comm/launch/run_alone.hpp>
#include <lockstep/kernels/add.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/tensor/print.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace {

using namespace lockstep;

void title(const char* text) {
  std::printf("\n-- %s\n", text);
}
void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
}

void show_devices() {
  title("Devices are values: nothing happens when one is made");
  say(concat("Device::cpu(), Device::gpu(0), Device::parse(\"gpu:1\"): ", Device::cpu(), ", ", Device::gpu(0), ", ",
             Device::parse("gpu:1")));
  say(concat("num_gpus(): ", num_gpus()));
  say(concat("try_gpu(): ", try_gpu(), "; try_gpu(10): ", try_gpu(10)));
  std::string all;
  for (const Device device : try_all_gpus()) {
    all += concat(all.empty() ? "" : ", ", device);
  }
  say("try_all_gpus(): " + all);
}

/// Returns a + b in a new tensor on the context's device.
Tensor sum(Context& context, const TensorView& a, const TensorView& b) {
  Tensor result = Tensor::empty_like(context, a);
  ops::add(context, a, b, result);
  return result;
}

void show_tensors(Context& first, Context& second) {
  title("A context is a device with a queue of work and memory; a tensor is made with one");
  CpuContext host;
  const Tensor x = Tensor::arange(host, 1, 4, 1, DType::f32);
  say("x = " + to_string(host, x));
  const Tensor X = Tensor::ones(first, Shape{2, 3}, DType::f32);
  say("X =\n" + to_string(first, X));
  const Tensor Y = Tensor::rand(second, Shape{2, 3}, DType::f32, 1);
  say("Y =\n" + to_string(second, Y));

  title("Tensors of two devices are refused: nothing is copied behind your back");
  TensorView other = X;
  if (X.device() == Y.device()) {
    // `other` only claims to be on another device. add() checks the devices first, so it never reads the memory of
    // `other`.
    other.device = Device::gpu(num_gpus());
    say(concat("(there is one device: X only says that it is on ", other.device, ")"));
  }
  try {
    static_cast<void>(sum(second, Y, other));
    throw StateError("tensors of two devices were added, expected an error");
  } catch (const DeviceError& error) {
    say(concat("Y + X: ", error.what()));
  }

  title("Copies are asked for");
  const Tensor Z = X.to(second);
  say("Z = X.to(second) =\n" + to_string(second, Z));
  say("Y + Z =\n" + to_string(second, sum(second, Y, Z)));
  const bool shared = Z.to(second).view().data == Z.view().data;
  require<StateError>(shared, "to() has copied a tensor that was on the device already, expected the same memory");
  say("Z.to(second) has the storage of Z: yes");
  say(concat("X.to(second) has the storage of X: ", Z.view().data == X.view().data ? "yes" : "no", ", X is on ",
             X.device(), " and second on ", second.device()));
}

void show_network(Context& context) {
  title("A network of one layer, which infers its inputs");
  nn::ModelBuilder builder("net", Shape{3});
  builder.linear("0", builder.input(), 1);
  const nn::Model model = builder.build();
  nn::ParameterSet parameters(context, model, DType::f32);
  parameters.initialise(context, 1);
  nn::Inference net(context, model, parameters, {.max_batch = 2});
  const Tensor X = Tensor::ones(context, Shape{2, 3}, DType::f32);
  const Tensor y = Tensor::empty(context, Shape{2, 1}, DType::f32);
  net.run(X, y);
  say("net(X) =\n" + to_string(context, y));

  title("Where its parameters live");
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const TensorView value = parameters.value(static_cast<int>(i));
    require<DeviceError>(value.device == context.device(), "a parameter is on ", value.device, ", expected ",
                         context.device());
    say(concat(parameters.parameters()[i].spec.name, ": ", value));
  }

  title("Reading and writing a parameter by name");
  CpuContext cpu;
  const Tensor weight = Tensor::empty(cpu, Shape{1, 3}, DType::f32);
  parameters.read(context, "0.weight", weight);
  say("0.weight = " + to_string(cpu, weight));
  parameters.write(context, "0.weight", Tensor::arange(cpu, 1, 4, 1, DType::f32).view().reshape(Shape{1, 3}));
  parameters.write(context, "0.bias", Tensor::full(cpu, Shape{1}, 0.5, DType::f32));
  parameters.read(context, "0.weight", weight);
  say("0.weight = " + to_string(cpu, weight) + " after writing 1, 2, 3, and 0.bias = 0.5");
  net.run(X, y);
  say("net(X) =\n" + to_string(context, y));
}

}  // namespace

int main() {
  return comm::run_alone([] {
    show_devices();
    const std::vector<Device> devices = try_all_gpus();
    const std::unique_ptr<Context> first = make_context(devices.front());
    const std::unique_ptr<Context> second = make_context(devices.size() > 1 ? devices[1] : devices.front());
    show_tensors(*first, *second);
    show_network(*first);
    return exit_code::kFinished;
  });
}
