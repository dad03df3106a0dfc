#include <lockstep/lockstep_dlpack.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/c/handles.hpp>
#include <lockstep/c/model.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::c {
namespace {

constexpr std::uint32_t kMajor = 1;
constexpr std::uint32_t kMinor = 1;

// Numbers that DLPack 1.1 defines.
constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kCuda = 2;
constexpr std::int32_t kCudaHost = 3;
constexpr std::int32_t kCudaManaged = 13;
static_assert(kCpu == LOCKSTEP_CPU && kCuda == LOCKSTEP_CUDA);
constexpr std::array kDeviceNames{"",       "CPU",    "CUDA",    "CUDA host", "OpenCL",    "",          "",
                                  "Vulkan", "Metal",  "VPI",     "ROCm",      "ROCm host", "extension", "CUDA managed",
                                  "oneAPI", "WebGPU", "Hexagon", "MAIA",      "Trainium"};
constexpr std::array kTypeNames{
    "int",         "unsigned int",    "float",          "opaque handle",      "bfloat",        "complex",
    "bool",        "float8_e3m4",     "float8_e4m3",    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn",      "float6_e3m2fn", "float4_e2m1fn"};

struct Type {
  std::uint8_t code;
  std::uint8_t bits;
  lockstep_dtype dtype;
};
constexpr std::array kTypes{Type{2, 16, LOCKSTEP_F16},  Type{2, 32, LOCKSTEP_F32}, Type{2, 64, LOCKSTEP_F64},
                            Type{4, 16, LOCKSTEP_BF16}, Type{0, 32, LOCKSTEP_I32}, Type{0, 64, LOCKSTEP_I64},
                            Type{1, 8, LOCKSTEP_U8}};

/// Returns the name that `names` has for `number`, followed by the number, like "Metal (8)". If `names` has no name for
/// the number, the result is like "unknown (99)".
template <std::size_t N>
std::string name_in(const std::array<const char*, N>& names, std::int64_t number) {
  const bool known = number >= 0 && number < static_cast<std::int64_t>(N);
  const char* const name = known ? names[static_cast<std::size_t>(number)] : "";
  return concat(*name != '\0' ? name : "unknown", " (", number, ")");
}

lockstep_dtype dtype_of(const lockstep_dlpack& tensor) {
  require<DTypeError>(tensor.type_lanes == 1, "tensor: an element has ", tensor.type_lanes, " lanes, expected 1");
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& known) {
    return known.code == tensor.type_code && known.bits == tensor.type_bits;
  });
  require<DTypeError>(type != kTypes.end(), "tensor: dtype is ", name_in(kTypeNames, tensor.type_code), " of ",
                      static_cast<int>(tensor.type_bits),
                      " bits, expected float of 16, 32 or 64, bfloat of 16, int of 32 or 64, or unsigned int of 8");
  return type->dtype;
}

/// Returns the device_type that a lockstep_view has for `kind`, a device type of DLPack. Throws DeviceError unless
/// `kind` is CPU or a type of CUDA.
std::int32_t device_type_of(std::int32_t kind) {
  require<DeviceError>(kind == kCpu || kind == kCuda || kind == kCudaHost || kind == kCudaManaged,
                       "tensor: the device is ", name_in(kDeviceNames, kind),
                       ", expected CPU (1), CUDA (2), CUDA host (3) or CUDA managed (13)");
  return kind == kCpu || kind == kCudaHost ? LOCKSTEP_CPU : LOCKSTEP_CUDA;
}

void* first_element(const lockstep_dlpack& tensor) {
  if (tensor.data == nullptr) {
    return nullptr;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  require<ShapeError>(tensor.byte_offset <= std::numeric_limits<std::uintptr_t>::max() - address,
                      "tensor: byte_offset is ", tensor.byte_offset,
                      ", expected one that gives an address when added to data, ", tensor.data);
  return static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

lockstep_view borrow(const lockstep_dlpack& tensor, const char* axes, bool written) {
  // Checks the version before other fields, because another major version may have another layout.
  require<DataError>(tensor.version_major == kMajor, "tensor: DLPack's major version is ", tensor.version_major,
                     ", expected ", kMajor);
  require<UsageError>(!written || (tensor.flags & LOCKSTEP_DLPACK_READ_ONLY) == 0,
                      "tensor: flags say read-only, expected one that may be written");
  const std::int32_t device_type = device_type_of(tensor.device_type);
  const lockstep_view view{.data = first_element(tensor),
                           .dtype = dtype_of(tensor),
                           .device_type = device_type,
                           .device_id = device_type == LOCKSTEP_CPU ? 0 : tensor.device_id,
                           .ndim = tensor.ndim,
                           .shape = tensor.shape,
                           .strides = tensor.strides,
                           .axes = axes};
  const Device device = device_type == LOCKSTEP_CPU ? Device::cpu() : Device::cuda(tensor.device_id);
  static_cast<void>(written ? output_of(&view, device, "tensor") : view_of(&view, device, "tensor"));
  return view;
}

/// A DLPack tensor of a parameter, for the host program. Each object shares the ownership of the parameter's memory.
struct Exported {
  lockstep_dlpack tensor{};
  std::shared_ptr<Learned> learned{};
  Shape shape{};
  Strides strides{};
};

void delete_exported(DLManagedTensorVersioned* self) {
  if (self != nullptr) {
    delete static_cast<Exported*>(reinterpret_cast<lockstep_dlpack*>(self)->owner);
  }
}

std::unique_ptr<Exported> export_parameter(std::shared_ptr<Learned> learned, const std::string& name) {
  const nn::ParameterSet& parameters = learned->parameters;
  const TensorView value = parameters.logical(parameters.find(name), parameters.values());
  const lockstep_dtype dtype = to_c(value.dtype);
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& t) { return t.dtype == dtype; });
  auto exported = std::make_unique<Exported>();
  exported->learned = std::move(learned);
  exported->shape = value.shape;
  exported->strides = value.strides;
  exported->tensor = {.version_major = kMajor,
                      .version_minor = kMinor,
                      .owner = exported.get(),
                      .deleter = delete_exported,
                      .flags = LOCKSTEP_DLPACK_READ_ONLY,
                      .data = value.numel() > 0 ? value.data : nullptr,
                      .device_type = value.device.kind == DeviceKind::cpu ? kCpu : kCuda,
                      .device_id = value.device.kind == DeviceKind::cpu ? 0 : value.device.index,
                      .ndim = value.shape.rank(),
                      .type_code = type->code,
                      .type_bits = type->bits,
                      .type_lanes = 1,
                      .shape = &exported->shape[0],
                      .strides = &exported->strides[0],
                      .byte_offset = 0};
  return exported;
}

}  // namespace
}  // namespace lockstep::c

using namespace lockstep;
using namespace lockstep::c;

lockstep_status lockstep_view_from_dlpack(const DLManagedTensorVersioned* tensor, const char* axes, int32_t written,
                                          lockstep_view* view) noexcept {
  return entry("lockstep_view_from_dlpack", [&] {
    static_cast<void>(given(view, "view"));
    *view =
        borrow(given(reinterpret_cast<const lockstep_dlpack*>(tensor), "tensor"), axes, flag_of(written, "written"));
  });
}

lockstep_status lockstep_parameter_to_dlpack(lockstep_model model, const char* name, size_t name_n,
                                             DLManagedTensorVersioned** tensor) noexcept {
  return entry("lockstep_parameter_to_dlpack", [&] {
    given(tensor, "tensor") = nullptr;
    const ModelObject& m = object_of(model);
    static_cast<void>(m.finished());
    Exported* const exported = export_parameter(m.learned, text_of(name, name_n, "name")).release();
    *tensor = reinterpret_cast<DLManagedTensorVersioned*>(&exported->tensor);
  });
}
