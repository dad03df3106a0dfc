#include "tests/support/op_case.hpp"

#include <iterator>
#include <string_view>

#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::testing {
namespace {

GuardedTensor make(const TensorSpec& spec) {
  GuardedTensor tensor(spec.shape, spec.dtype);
  if (spec.start) {
    spec.start(tensor);
  }
  return tensor;
}

TensorView bytes_of(const GuardedTensor& tensor) {
  return {tensor.image().data(), DType::u8, Device::cpu(), Shape{static_cast<std::int64_t>(tensor.image().size())}};
}

std::size_t hash(const GuardedTensor& tensor) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(tensor.image().data()), tensor.image().size()});
}

}  // namespace

double tensor_bytes(const OpCase& item) {
  double total = 0;
  for (const auto* specs : {&item.inputs, &item.outputs}) {
    for (const TensorSpec& spec : *specs) {
      total += static_cast<double>(spec.shape.numel()) * static_cast<double>(size_of(spec.dtype));
    }
  }
  return total;
}

double bytes_of(const OpCase& item) {
  return item.bytes > 0 ? item.bytes : tensor_bytes(item);
}

double rounding_of(DType dtype) {
  // Rounding to nearest is off by at most half a unit in the last place: 2^-9 for bf16, 2^-12 for f16. Twice that is
  // allowed.
  return dtype == DType::bf16 ? 1.0 / 256 : dtype == DType::f16 ? 1.0 / 2048 : 0;
}

OpCase plain_twin(const OpCase& item) {
  OpCase twin = item;
  if (item.plain) {
    twin.name += " in plain loops";
    twin.run = item.plain;
    twin.workspace_bytes = nullptr;
  }
  return twin;
}

DeviceCase device_case(const OpCase& device, const OpCase& host) {
  return {device, plain_twin(host), host.tolerance + rounding_of(device.dtype)};
}

std::vector<DeviceCase> device_cases(const std::function<OpCase(DType)>& make) {
  const OpCase host = make(DType::f32);
  std::vector<DeviceCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    cases.push_back(device_case(make(dtype), host));
  }
  return cases;
}

std::vector<DeviceCase> same_cases(const std::vector<OpCase>& items) {
  std::vector<DeviceCase> cases;
  for (const OpCase& item : items) {
    cases.push_back({item, item, item.tolerance});
  }
  return cases;
}

OpCase off_boundary(const OpCase& item) {
  const auto shift = [](std::vector<TensorSpec> specs) {
    for (TensorSpec& spec : specs) {
      spec.start = [whole = spec](GuardedTensor& tensor) {
        std::vector<double> values = make(whole).values();
        values.insert(values.begin(), 1.0);
        tensor.assign(values);
      };
      spec.shape = {spec.shape.numel() + 1};
    }
    return specs;
  };
  OpCase result = item;
  result.name += " off a 16-byte boundary";
  result.inputs = shift(item.inputs);
  result.outputs = shift(item.outputs);
  result.run = [item](Context& context, Views in, Views out, const TensorView& workspace) {
    const auto views = [](Views wholes, const std::vector<TensorSpec>& specs) {
      std::vector<TensorView> parts;
      for (std::size_t i = 0; i < specs.size(); ++i) {
        parts.push_back(wholes[i].slice(0, 1, wholes[i].numel()).reshape(specs[i].shape));
      }
      return parts;
    };
    item.run(context, views(in, item.inputs), views(out, item.outputs), workspace);
  };
  return result;
}

void append(std::vector<DeviceCase>& cases, std::vector<DeviceCase> more) {
  cases.insert(cases.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

OpInstance::OpInstance(const OpCase& item, Context& context, const std::vector<GuardedTensor>* inputs)
    : item_(item), context_(context) {
  if (item_.prepare) {
    op_ = item_.prepare(context);
  } else {
    op_ = {item_.workspace_bytes ? item_.workspace_bytes(context) : 0, item_.run};
  }
  for (std::size_t i = 0; i < item_.inputs.size(); ++i) {
    inputs_.push_back(make(item_.inputs[i]));
    if (inputs != nullptr) {
      inputs_.back().assign(inputs->at(i).values());
    }
    input_hashes_.push_back(hash(inputs_.back()));
    input_images_.push_back(place(inputs_.back()));
    send(inputs_.back(), input_images_.back());
    input_views_.push_back(input_images_.back().view);
  }
  for (const TensorSpec& spec : item_.outputs) {
    outputs_.push_back(make(spec));
    output_images_.push_back(place(outputs_.back()));
    send(outputs_.back(), output_images_.back());
    output_views_.push_back(output_images_.back().view);
  }
  workspace_.emplace(Shape{static_cast<std::int64_t>(op_.workspace_bytes)}, DType::u8);
  workspace_image_ = place(*workspace_);
  workspace_view_ = workspace_image_.view;
  context_.synchronize();
}

OpInstance::Image OpInstance::place(const GuardedTensor& host) {
  if (context_.device() == Device::cpu()) {
    return {{}, host.view()};
  }
  Image image;
  image.memory = Tensor::empty(context_, Shape{static_cast<std::int64_t>(host.image().size())}, DType::u8);
  image.view = TensorView(static_cast<std::byte*>(image.memory.view().data) + GuardedTensor::kGuardBytes,
                          host.view().dtype, context_.device(), host.view().shape);
  return image;
}

void OpInstance::send(const GuardedTensor& host, const Image& image) {
  if (image.memory.view().given()) {
    copy(context_, bytes_of(host), image.memory);
  }
}

void OpInstance::fetch(const GuardedTensor& host, const Image& image) {
  if (image.memory.view().given()) {
    copy(context_, image.memory, bytes_of(host));
  }
}

void OpInstance::run() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    outputs_[i].poison();
    if (item_.outputs[i].start) {
      item_.outputs[i].start(outputs_[i]);
    }
    send(outputs_[i], output_images_[i]);
  }
  workspace_->poison();
  send(*workspace_, workspace_image_);
  enqueue();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    fetch(outputs_[i], output_images_[i]);
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    fetch(inputs_[i], input_images_[i]);
  }
  fetch(*workspace_, workspace_image_);
  context_.synchronize();
}

std::string OpInstance::check() const {
  const auto text = [&](const std::string& tensor, const std::string& what) {
    return what.empty() ? what : item_.name + ", " + tensor + ": " + what;
  };
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (std::string failure = text(item_.inputs[i].name, inputs_[i].check()); !failure.empty()) {
      return failure;
    }
    if (hash(inputs_[i]) != input_hashes_[i]) {
      return text(item_.inputs[i].name, "the op changed its input");
    }
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (std::string failure = text(item_.outputs[i].name, outputs_[i].check()); !failure.empty()) {
      return failure;
    }
  }
  return text("workspace", workspace_->check());
}

}  // namespace lockstep::testing
