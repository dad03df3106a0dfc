// Compares lockstep_dlpack.h with DLPack's own header (LOCKSTEP_USE_SYSTEM_DLPACK). Layout and constants must be equal,
// and tensors of the type in DLPack's header can be imported and exported. The two headers may be included in any
// order.
#include <lockstep/lockstep_dlpack.h>

#include <dlpack/dlpack.h>

#include "host.hpp"

static_assert(DLPACK_MAJOR_VERSION == 1);
static_assert(sizeof(lockstep_dlpack) == sizeof(DLManagedTensorVersioned));
static_assert(alignof(lockstep_dlpack) == alignof(DLManagedTensorVersioned));
#define LOCKSTEP_SAME(ours, theirs) \
  static_assert(offsetof(lockstep_dlpack, ours) == offsetof(DLManagedTensorVersioned, theirs))
LOCKSTEP_SAME(version_major, version.major);
LOCKSTEP_SAME(version_minor, version.minor);
LOCKSTEP_SAME(owner, manager_ctx);
LOCKSTEP_SAME(deleter, deleter);
LOCKSTEP_SAME(flags, flags);
LOCKSTEP_SAME(data, dl_tensor.data);
LOCKSTEP_SAME(device_type, dl_tensor.device.device_type);
LOCKSTEP_SAME(device_id, dl_tensor.device.device_id);
LOCKSTEP_SAME(ndim, dl_tensor.ndim);
LOCKSTEP_SAME(type_code, dl_tensor.dtype.code);
LOCKSTEP_SAME(type_bits, dl_tensor.dtype.bits);
LOCKSTEP_SAME(type_lanes, dl_tensor.dtype.lanes);
LOCKSTEP_SAME(shape, dl_tensor.shape);
LOCKSTEP_SAME(strides, dl_tensor.strides);
LOCKSTEP_SAME(byte_offset, dl_tensor.byte_offset);
static_assert(LOCKSTEP_DLPACK_READ_ONLY == DLPACK_FLAG_BITMASK_READ_ONLY);
static_assert(LOCKSTEP_CPU == kDLCPU && LOCKSTEP_CUDA == kDLCUDA);

namespace host {
namespace {

TEST(DlpackSystem, AnArrayInAndAParameterOut) {
  double memory[] = {0, 1, 2, 3, 4, 5, 6};
  std::int64_t shape[] = {2, 3};
  DLManagedTensorVersioned tensor{};
  tensor.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  tensor.dl_tensor.data = memory;
  tensor.dl_tensor.device = {kDLCUDAHost, 0};
  tensor.dl_tensor.ndim = 2;
  tensor.dl_tensor.dtype = {kDLFloat, 64, 1};
  tensor.dl_tensor.shape = shape;
  tensor.dl_tensor.byte_offset = sizeof(double);
  lockstep_view view{};
  ASSERT_TRUE(ok(lockstep_view_from_dlpack(&tensor, "nc", 0, &view)));
  EXPECT_EQ(view.data, memory + 1);
  EXPECT_EQ(view.dtype, LOCKSTEP_F64);
  EXPECT_EQ(view.device_type, LOCKSTEP_CPU);
  EXPECT_EQ(view.shape, shape);
  tensor.dl_tensor.dtype.code = kDLComplex;
  EXPECT_TRUE(is(LOCKSTEP_ERR_DTYPE, lockstep_view_from_dlpack(&tensor, "nc", 0, &view)));

  const HostContext context;
  const Mlp model(context, {2, 1}, LOCKSTEP_F32);
  DLManagedTensorVersioned* weight = nullptr;
  ASSERT_TRUE(ok(lockstep_parameter_to_dlpack(model, "1.weight", 0, &weight)));
  EXPECT_EQ(weight->dl_tensor.device.device_type, kDLCPU);
  EXPECT_EQ(weight->dl_tensor.dtype.code, kDLFloat);
  EXPECT_EQ(weight->dl_tensor.dtype.bits, 32);
  ASSERT_EQ(weight->dl_tensor.ndim, 2);
  EXPECT_EQ(weight->dl_tensor.shape[1], 2);
  const std::vector<double> expected = parameter(model, "1.weight", {1, 2});
  const auto* data = static_cast<const float*>(weight->dl_tensor.data);
  EXPECT_EQ(static_cast<double>(data[0]), expected[0]);
  EXPECT_EQ(static_cast<double>(data[weight->dl_tensor.strides[1]]), expected[1]);
  weight->deleter(weight);
}

}  // namespace
}  // namespace host
