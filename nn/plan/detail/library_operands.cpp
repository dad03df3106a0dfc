#include <lockstep/nn/plan/detail/library_operands.hpp>

namespace lockstep::nn {

namespace {

TensorView view(DType dtype, Device device, const Shape& shape) {
  return {nullptr, dtype, device, shape};
}

LibraryOperands operands_of_call(const ops::ConvCall& call, Device device) {
  const ops::ConvDesc& d = call.desc;
  const DType sums = ops::accumulation_dtype(d.dtype);
  const TensorView x = view(d.dtype, device, d.x_shape());
  const TensorView weights = view(d.dtype, device, d.weights_shape());
  const TensorView y = view(d.dtype, device, d.y_shape());
  switch (call.pass) {
    case ops::ConvPass::forward:
      return {x, weights, d.bias ? view(sums, device, Shape{d.out_channels}) : TensorView(), y};
    case ops::ConvPass::backward_data:
      return {y, weights, {}, x};
    case ops::ConvPass::backward_weights:
      break;
  }
  return {x, y, {}, view(sums, device, d.weights_shape())};
}

LibraryOperands operands_of_call(const ops::MatmulDesc& d, Device device) {
  return {view(d.dtype, device, d.a_shape()), view(d.dtype, device, d.b_shape()),
          d.bias ? view(ops::accumulation_dtype(d.dtype), device, Shape{d.n}) : TensorView(),
          view(d.c_dtype(), device, d.c_shape())};
}

}  // namespace

LibraryCall call_of(const ops::ConvPlan& plan) {
  return ops::ConvCall{plan.desc(), plan.pass()};
}

LibraryCall call_of(const ops::MatmulPlan& plan) {
  return plan.desc();
}

LibraryOperands operands_of(const LibraryCall& call, Device device) {
  return std::visit([&](const auto& one) { return operands_of_call(one, device); }, call);
}

void enqueue(Context& context, const ops::ConvPlan& plan, const LibraryOperands& o, const TensorView& workspace) {
  ops::conv2d(context, plan, o.a, o.b, o.bias, o.out, workspace);
}

void enqueue(Context& context, const ops::MatmulPlan& plan, const LibraryOperands& o, const TensorView& workspace) {
  ops::matmul(context, plan, o.a, o.b, o.bias, o.out, workspace);
}

std::vector<std::string> choices_of(Context& context, const LibraryCall& call, const ops::ConvListing& listing) {
  if (const auto* conv = std::get_if<ops::ConvCall>(&call)) {
    return ops::conv2d_choices(context, conv->desc, conv->pass, listing);
  }
  return ops::matmul_choices(context, std::get<ops::MatmulDesc>(call));
}

const char* own_kernels(Device device) {
  return device.kind == DeviceKind::cuda ? "cuda" : "reference";
}

bool is_own(std::string_view choice, Device device) {
  return choice.substr(0, choice.find(':')) == own_kernels(device);
}

}  // namespace lockstep::nn
