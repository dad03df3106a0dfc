// Tests the import and export of DLPack tensors in the C interface. This host program is both producer and consumer of
// tensors.
#include <array>
#include <cstdlib>
#include <memory>
#include <thread>

#include <lockstep/lockstep_dlpack.h>

#include "host.hpp"

namespace host {
namespace {

struct TypeCode {
  std::uint8_t code;
  std::uint8_t bits;
};
constexpr TypeCode kF32{2, 32};
constexpr TypeCode kF64{2, 64};

/// A tensor of a producer. Its deleter counts its calls. The struct is on the heap, so that AddressSanitizer detects an
/// access after the deleter has freed it.
class Produced {
 public:
  Produced(void* data, TypeCode type, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides = {})
      : shape_(std::move(shape)), strides_(std::move(strides)), struct_(new lockstep_dlpack{}) {
    struct_->version_major = 1;
    struct_->version_minor = 1;
    struct_->owner = this;
    struct_->deleter = [](DLManagedTensorVersioned* self) {
      auto* tensor = reinterpret_cast<lockstep_dlpack*>(self);
      ++static_cast<Produced*>(tensor->owner)->deleted;
      delete tensor;
    };
    struct_->data = data;
    struct_->device_type = 1;
    struct_->ndim = static_cast<std::int32_t>(shape_.size());
    struct_->type_code = type.code;
    struct_->type_bits = type.bits;
    struct_->type_lanes = 1;
    struct_->shape = shape_.data();
    struct_->strides = strides_.empty() ? nullptr : strides_.data();
  }
  Produced(const Produced&) = delete;
  Produced& operator=(const Produced&) = delete;
  /// Calls the deleter unless lockstep has called it. Expects exactly one call.
  ~Produced() {
    if (deleted == 0) {
      struct_->deleter(get());
    }
    EXPECT_EQ(deleted, 1);
  }
  lockstep_dlpack* operator->() { return struct_; }
  DLManagedTensorVersioned* get() { return reinterpret_cast<DLManagedTensorVersioned*>(struct_); }

  int deleted = 0;

 private:
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  lockstep_dlpack* struct_;
};

/// Deleter of Consumed, which owns an exported tensor. It calls the tensor's own deleter, as every consumer must.
struct Deleter {
  void operator()(DLManagedTensorVersioned* tensor) const {
    reinterpret_cast<lockstep_dlpack*>(tensor)->deleter(tensor);
  }
};
using Consumed = std::unique_ptr<DLManagedTensorVersioned, Deleter>;

const lockstep_dlpack& fields(const Consumed& tensor) {
  return *reinterpret_cast<const lockstep_dlpack*>(tensor.get());
}

Consumed exported(lockstep_model model, const char* name) {
  DLManagedTensorVersioned* tensor = nullptr;
  EXPECT_TRUE(ok(lockstep_parameter_to_dlpack(model, name, 0, &tensor)));
  return Consumed(tensor);
}

/// Returns all elements in the order of the shape. By DLPack's rule, an element is at data + byte_offset + index *
/// strides (strides in elements).
std::vector<double> values_of(const Consumed& consumed) {
  const lockstep_dlpack& t = fields(consumed);
  EXPECT_EQ(t.type_code, 2);
  EXPECT_TRUE(t.type_bits == 32 || t.type_bits == 64);
  std::int64_t count = 1;
  for (int axis = 0; axis < t.ndim; ++axis) {
    count *= t.shape[axis];
  }
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, at = 0;
    for (int axis = t.ndim; axis-- > 0;) {
      at += rest % t.shape[axis] * t.strides[axis];
      rest /= t.shape[axis];
    }
    const char* data = static_cast<const char*>(t.data) + t.byte_offset;
    values.push_back(t.type_bits == 64 ? reinterpret_cast<const double*>(data)[at]
                                       : static_cast<double>(reinterpret_cast<const float*>(data)[at]));
  }
  return values;
}

/// The struct must have the layout of DLPack's specification, because other programs use that layout.
TEST(Dlpack, HasTheLayoutOfTheSpecification) {
  EXPECT_EQ(sizeof(lockstep_dlpack), 80U);
  EXPECT_EQ(offsetof(lockstep_dlpack, version_major), 0U);
  EXPECT_EQ(offsetof(lockstep_dlpack, version_minor), 4U);
  EXPECT_EQ(offsetof(lockstep_dlpack, owner), 8U);
  EXPECT_EQ(offsetof(lockstep_dlpack, deleter), 16U);
  EXPECT_EQ(offsetof(lockstep_dlpack, flags), 24U);
  EXPECT_EQ(offsetof(lockstep_dlpack, data), 32U);
  EXPECT_EQ(offsetof(lockstep_dlpack, device_type), 40U);
  EXPECT_EQ(offsetof(lockstep_dlpack, device_id), 44U);
  EXPECT_EQ(offsetof(lockstep_dlpack, ndim), 48U);
  EXPECT_EQ(offsetof(lockstep_dlpack, type_code), 52U);
  EXPECT_EQ(offsetof(lockstep_dlpack, type_bits), 53U);
  EXPECT_EQ(offsetof(lockstep_dlpack, type_lanes), 54U);
  EXPECT_EQ(offsetof(lockstep_dlpack, shape), 56U);
  EXPECT_EQ(offsetof(lockstep_dlpack, strides), 64U);
  EXPECT_EQ(offsetof(lockstep_dlpack, byte_offset), 72U);
}

TEST(DlpackIn, TypesAndDevices) {
  struct Case {
    TypeCode type;
    lockstep_dtype dtype;
  };
  alignas(8) std::array<char, 64> memory{};
  for (const Case& c :
       {Case{{2, 16}, LOCKSTEP_F16}, Case{kF32, LOCKSTEP_F32}, Case{kF64, LOCKSTEP_F64}, Case{{4, 16}, LOCKSTEP_BF16},
        Case{{0, 32}, LOCKSTEP_I32}, Case{{0, 64}, LOCKSTEP_I64}, Case{{1, 8}, LOCKSTEP_U8}}) {
    Produced tensor(memory.data(), c.type, {2, 3});
    lockstep_view view{};
    EXPECT_TRUE(ok(lockstep_view_from_dlpack(tensor.get(), "nc", 1, &view)));
    EXPECT_EQ(view.dtype, c.dtype);
    EXPECT_EQ(view.data, memory.data());
    EXPECT_EQ(view.ndim, 2);
    EXPECT_EQ(view.shape, tensor->shape);
    EXPECT_EQ(view.strides, nullptr);
    EXPECT_STREQ(view.axes, "nc");
  }
  struct Place {
    std::int32_t kind, id, type, view_id;
  };
  for (const Place& p : {Place{1, 0, LOCKSTEP_CPU, 0}, Place{3, 0, LOCKSTEP_CPU, 0}, Place{3, 7, LOCKSTEP_CPU, 0},
                         Place{2, 5, LOCKSTEP_CUDA, 5}, Place{13, 1, LOCKSTEP_CUDA, 1}}) {
    Produced tensor(memory.data(), kF32, {2, 3});
    tensor->device_type = p.kind;
    tensor->device_id = p.id;
    lockstep_view view{};
    EXPECT_TRUE(ok(lockstep_view_from_dlpack(tensor.get(), nullptr, 0, &view)));
    EXPECT_EQ(view.device_type, p.type);
    EXPECT_EQ(view.device_id, p.view_id);
    EXPECT_EQ(view.axes, nullptr);
  }
}

/// A linear layer reads and writes a producer's arrays in place. The input has an offset, a reversed axis and gaps, and
/// the output has permuted axes. lockstep must not call the deleters.
TEST(DlpackIn, IsReadAndWrittenInPlaceAndItsDeleterIsLeftAlone) {
  const HostContext context;
  const Mlp model(context, {3, 2});
  const std::vector<double> w = parameter(model, "1.weight", {2, 3});
  const std::vector<double> b = parameter(model, "1.bias", {2});
  constexpr double kCanary = -777;
  std::vector<double> in(64, std::numeric_limits<double>::quiet_NaN());
  std::vector<double> out(64, kCanary);
  const auto x = [](std::int64_t sample, std::int64_t c) { return draw(static_cast<std::uint64_t>(sample * 3 + c)); };
  // Channel c of sample s is element 40 - 10 s + 2 c. The offset in bytes is a multiple of 8, but of no larger power of
  // two.
  for (int s = 0; s < 4; ++s) {
    for (int c = 0; c < 3; ++c) {
      in[static_cast<std::size_t>(40 - 10 * s + 2 * c)] = x(s, c);
    }
  }
  Produced from(in.data() + 3, kF64, {4, 3}, {-10, 2});
  from->byte_offset = 37 * sizeof(double);
  // Sets an unknown flag, which a later minor version of DLPack may define. The import must still succeed.
  from->flags = LOCKSTEP_DLPACK_READ_ONLY | (std::uint64_t{1} << 40U);
  from->version_minor = 99;
  Produced to(out.data(), kF64, {4, 2}, {1, 7});
  to->byte_offset = sizeof(double);
  {
    lockstep_view source{}, target{};
    ASSERT_TRUE(ok(lockstep_view_from_dlpack(from.get(), "nc", 0, &source)));
    ASSERT_TRUE(ok(lockstep_view_from_dlpack(to.get(), "nc", 1, &target)));
    ASSERT_TRUE(ok(lockstep_infer(model, &source, &target, nullptr)));
  }
  for (std::int64_t s = 0; s < 4; ++s) {
    for (std::int64_t o = 0; o < 2; ++o) {
      double expected = b[static_cast<std::size_t>(o)];
      for (std::int64_t c = 0; c < 3; ++c) {
        expected += w[static_cast<std::size_t>(o * 3 + c)] * x(s, c);
      }
      double& found = out[static_cast<std::size_t>(1 + s + 7 * o)];
      EXPECT_TRUE(std::abs(found - expected) <= 1e-14) << found << ", expected " << expected;
      found = kCanary;
    }
  }
  for (const double value : out) {
    EXPECT_EQ(value, kCanary);
  }
  EXPECT_EQ(from.deleted, 0);
  EXPECT_EQ(to.deleted, 0);
}

TEST(DlpackIn, ZeroAxesAndNoElements) {
  double value = 3;
  lockstep_view view{};
  Produced scalar(&value, kF64, {});
  scalar->shape = nullptr;
  EXPECT_TRUE(ok(lockstep_view_from_dlpack(scalar.get(), nullptr, 1, &view)));
  EXPECT_EQ(view.ndim, 0);
  EXPECT_EQ(view.data, &value);
  Produced empty(nullptr, kF64, {0, 3}, {3, 1});
  empty->byte_offset = 8;
  EXPECT_TRUE(ok(lockstep_view_from_dlpack(empty.get(), nullptr, 1, &view)));
  EXPECT_EQ(view.data, nullptr);
}

/// Invalid tensors must be refused. lockstep must not follow their pointers, change the tensors or call their deleters.
/// The caller's lockstep_view, which receives the result, must stay unchanged.
TEST(DlpackIn, HostileTensors) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  alignas(8) std::array<double, 6> memory{};
  std::vector<std::int64_t> extents(65, 1);
  std::array<std::int64_t, 2> shape{}, strides{};
  const auto refused = [&](lockstep_status status, const std::function<void(lockstep_dlpack&)>& damage,
                           const std::vector<std::string>& parts, std::int32_t written = 0) {
    Produced tensor(memory.data(), kF64, {2, 3}, {3, 1});
    damage(*tensor.operator->());
    lockstep_dlpack before{};
    std::memcpy(&before, tensor.operator->(), sizeof before);
    lockstep_view view{}, untouched{};
    std::memset(&view, 0x5A, sizeof view);
    std::memcpy(&untouched, &view, sizeof view);
    EXPECT_TRUE(fails(status, lockstep_view_from_dlpack(tensor.get(), "nc", written, &view), parts));
    EXPECT_EQ(std::memcmp(&view, &untouched, sizeof view), 0);
    EXPECT_EQ(std::memcmp(&before, tensor.operator->(), sizeof before), 0);
    EXPECT_EQ(tensor.deleted, 0);
  };
  const auto with_shape = [&](std::int64_t a, std::int64_t b) {
    return [&, a, b](lockstep_dlpack& t) {
      shape = {a, b};
      t.shape = shape.data();
      t.strides = nullptr;
    };
  };
  const auto with_strides = [&](std::int64_t a, std::int64_t b) {
    return [&, a, b](lockstep_dlpack& t) {
      strides = {a, b};
      t.strides = strides.data();
    };
  };
  // If the major version is unknown, no other field may be read.
  for (const std::uint32_t major : {0U, 2U, 0xFFFFFFFFU}) {
    refused(LOCKSTEP_ERR_FORMAT,
            [major](auto& t) {
              t.version_major = major;
              t.shape = reinterpret_cast<std::int64_t*>(1);
              t.data = nullptr;
              t.ndim = -3;
            },
            {"major version is " + std::to_string(major), "expected 1"});
  }
  const auto with_ndim = [&](std::int32_t ndim, std::int64_t* of_strides) {
    return
        [&, ndim, of_strides](lockstep_dlpack& t) { t.ndim = ndim, t.shape = extents.data(), t.strides = of_strides; };
  };
  refused(LOCKSTEP_ERR_SHAPE, with_ndim(65, nullptr), {"ndim is 65", "0 to 8"});
  refused(LOCKSTEP_ERR_SHAPE, with_ndim(9, extents.data()), {"ndim is 9"});
  for (const std::int32_t ndim :
       {-1, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}) {
    refused(LOCKSTEP_ERR_SHAPE, [ndim](auto& t) { t.ndim = ndim; }, {"ndim is " + std::to_string(ndim)});
  }
  refused(LOCKSTEP_ERR_SHAPE, [](auto& t) { t.shape = nullptr; }, {"shape is NULL"});
  refused(LOCKSTEP_ERR_SHAPE, with_shape(-1, 3), {"(-1, 3)"});
  refused(LOCKSTEP_ERR_SHAPE, with_shape(2, kLeast), {"(2, -9223372036854775808)"});
  refused(LOCKSTEP_ERR_SHAPE, with_shape(-1, 0), {"(-1, 0)"});
  refused(LOCKSTEP_ERR_SHAPE, with_shape(kMost, 2), {"9223372036854775807"});
  refused(LOCKSTEP_ERR_SHAPE, with_shape(std::int64_t{1} << 32U, std::int64_t{1} << 32U), {"4294967296"});
  refused(LOCKSTEP_ERR_SHAPE, with_shape(kMost, 1), {"(9223372036854775807, 1)"});
  refused(LOCKSTEP_ERR_SHAPE, with_strides(kMost, kMost), {"does not fit an address"});
  refused(LOCKSTEP_ERR_SHAPE, with_strides(kLeast, 1), {"does not fit an address"});
  refused(LOCKSTEP_ERR_SHAPE, with_strides(std::int64_t{1} << 62U, 1), {"does not fit an address"});
  refused(LOCKSTEP_ERR_SHAPE, with_strides(2, 1), {"an element twice"}, 1);
  refused(LOCKSTEP_ERR_SHAPE, with_strides(0, 0), {"an element twice"}, 1);
  refused(LOCKSTEP_ERR_SHAPE, [](auto& t) { t.data = nullptr; }, {"data is NULL", "6 elements"});
  refused(LOCKSTEP_ERR_SHAPE, [](auto& t) { t.data = nullptr, t.byte_offset = 64; }, {"data is NULL", "6 elements"});
  refused(LOCKSTEP_ERR_SHAPE, [](auto& t) { t.byte_offset = std::numeric_limits<std::uint64_t>::max(); },
          {"byte_offset"});
  refused(LOCKSTEP_ERR_SHAPE, [](auto& t) { t.byte_offset = 4; }, {"multiple of 8", "f64"});
  // Element types that lockstep does not support. The error text must name the type.
  struct Element {
    std::uint8_t code, bits;
    const char* name;
  };
  for (const Element& e :
       {Element{6, 8, "bool (6) of 8 bits"}, Element{5, 64, "complex (5) of 64"}, Element{5, 128, "complex (5) of 128"},
        Element{3, 64, "opaque handle (3)"}, Element{7, 8, "float8_e3m4 (7)"}, Element{10, 8, "float8_e4m3fn (10)"},
        Element{12, 8, "float8_e5m2 (12)"}, Element{14, 8, "float8_e8m0fnu (14)"}, Element{15, 6, "float6_e2m3fn (15)"},
        Element{17, 4, "float4_e2m1fn (17)"}, Element{0, 8, "int (0) of 8"}, Element{0, 16, "int (0) of 16"},
        Element{1, 16, "unsigned int (1) of 16"}, Element{1, 64, "unsigned int (1) of 64"},
        Element{2, 8, "float (2) of 8"}, Element{2, 128, "float (2) of 128"}, Element{4, 32, "bfloat (4) of 32"},
        Element{18, 8, "unknown (18)"}, Element{255, 255, "unknown (255) of 255"}}) {
    refused(LOCKSTEP_ERR_DTYPE, [&](auto& t) { t.type_code = e.code, t.type_bits = e.bits; },
            {e.name, "expected float of 16"});
  }
  for (const std::uint16_t lanes : std::initializer_list<std::uint16_t>{0, 2, 4, 65535}) {
    refused(LOCKSTEP_ERR_DTYPE, [lanes](auto& t) { t.type_lanes = lanes; }, {std::to_string(lanes) + " lanes"});
  }
  struct Device {
    std::int32_t kind;
    const char* name;
  };
  for (const Device& d :
       {Device{0, "unknown (0)"}, Device{4, "OpenCL (4)"}, Device{7, "Vulkan (7)"}, Device{8, "Metal (8)"},
        Device{10, "ROCm (10)"}, Device{11, "ROCm host (11)"}, Device{12, "extension (12)"}, Device{14, "oneAPI (14)"},
        Device{18, "Trainium (18)"}, Device{19, "unknown (19)"}, Device{-1, "unknown (-1)"}}) {
    refused(LOCKSTEP_ERR_DEVICE, [&](auto& t) { t.device_type = d.kind; }, {d.name, "expected CPU (1)"});
  }
  refused(LOCKSTEP_ERR_DEVICE, [](auto& t) { t.device_type = 2, t.device_id = -1; }, {"device_id is -1"});
  refused(
      LOCKSTEP_ERR_INVALID, [](auto& t) { t.flags = LOCKSTEP_DLPACK_READ_ONLY; }, {"read-only"}, 1);
  refused(
      LOCKSTEP_ERR_INVALID, [](auto&) {}, {"written is 2", "0 or 1"}, 2);
  lockstep_view view{};
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_view_from_dlpack(nullptr, "nc", 0, &view), {"tensor is NULL"}));
  Produced fine(memory.data(), kF64, {2, 3});
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_view_from_dlpack(fine.get(), "nc", 0, nullptr), {"view is NULL"}));
}

TEST(DlpackIn, AProducerWithoutADeleterIsFine) {
  double value = 1;
  Produced tensor(&value, kF64, {1});
  auto* const deleter = std::exchange(tensor->deleter, nullptr);
  lockstep_view view{};
  EXPECT_TRUE(ok(lockstep_view_from_dlpack(tensor.get(), nullptr, 0, &view)));
  tensor->deleter = deleter;
}

TEST(DlpackOut, ParametersInTheirLogicalShape) {
  const HostContext context;
  for (const lockstep_dtype dtype : {LOCKSTEP_F32, LOCKSTEP_F64, LOCKSTEP_BF16}) {
    const NewModel model(context, dtype, {5, 6, 3});  // lockstep stores these channels padded and permuted
    lockstep_layer_options options = layer_options();
    options.kernel[0] = 3;
    options.bias = LOCKSTEP_BIAS_WITH;
    std::int32_t node = 0;
    add_layer(model, "conv2d", "stem", node, 7, &options);
    ASSERT_TRUE(ok(lockstep_model_initialise(model, 3)));
    const Consumed weight = exported(model, "stem.weight");
    const lockstep_dlpack& t = fields(weight);
    EXPECT_EQ(t.version_major, 1U);
    EXPECT_EQ(t.flags, std::uint64_t{LOCKSTEP_DLPACK_READ_ONLY});
    EXPECT_EQ(t.device_type, 1);
    EXPECT_EQ(t.device_id, 0);
    EXPECT_EQ(t.type_bits, dtype == LOCKSTEP_F64 ? 64 : 32);
    EXPECT_EQ(t.type_lanes, 1);
    ASSERT_NE(t.strides, nullptr);
    ASSERT_EQ(t.ndim, 4);
    EXPECT_EQ(std::vector<std::int64_t>(t.shape, t.shape + 4), (std::vector<std::int64_t>{7, 3, 3, 3}));
    EXPECT_EQ(values_of(weight), parameter(model, "stem.weight", {7, 3, 3, 3}));
    const Consumed bias = exported(model, "stem.bias");
    ASSERT_EQ(fields(bias).ndim, 1);
    ASSERT_NE(fields(bias).strides, nullptr);
    EXPECT_EQ(values_of(bias), parameter(model, "stem.bias", {7}));
  }
}

/// An exported tensor uses the parameter's own memory, so later writes and training steps change the tensor's elements.
TEST(DlpackOut, ShowsTraining) {
  const HostContext context;
  const SelfComm comm(context);
  const Mlp model(context, {2, 1});
  const Consumed weight = exported(model, "1.weight");
  double chosen[] = {0.25, -4};
  ASSERT_TRUE(ok(write(model, "1.weight", View(chosen, {1, 2}))));
  EXPECT_EQ(values_of(weight), (std::vector<double>{0.25, -4}));
  const NewTrainer trainer(model, comm, trainer_options(1));
  double x[] = {1, 2}, y[] = {3};
  ASSERT_TRUE(ok(add(trainer, View(x, {1, 2}), View(y, {1, 1}))));
  ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.125)));
  const std::vector<double> trained = values_of(weight);
  EXPECT_NE(trained, (std::vector<double>{0.25, -4}));
  EXPECT_EQ(trained, parameter(model, "1.weight", {1, 2}));
}

/// Parameters exported from one model are written to another model, which then computes the same bits. The exported
/// tensors are read-only, so a view for writing is refused.
TEST(DlpackRoundTrip, FromModelToModel) {
  const HostContext context;
  const Mlp first(context, {3, 8, 2}, LOCKSTEP_F32, 1), second(context, {3, 8, 2}, LOCKSTEP_F32, 2);
  const std::vector<float> x = drawn<float>(12);
  std::array<float, 8> y1{}, y2{};
  const View in(x.data(), {4, 3}), out1(y1.data(), {4, 2}), out2(y2.data(), {4, 2});
  ASSERT_TRUE(ok(infer(first, in, out1)));
  ASSERT_TRUE(ok(infer(second, in, out2)));
  EXPECT_NE(y1, y2);
  for (const char* name : {"1.weight", "1.bias", "2.weight", "2.bias"}) {
    const Consumed tensor = exported(first, name);
    lockstep_view view{};
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_view_from_dlpack(tensor.get(), nullptr, 1, &view), {"read-only"}));
    ASSERT_TRUE(ok(lockstep_view_from_dlpack(tensor.get(), nullptr, 0, &view)));
    ASSERT_TRUE(ok(lockstep_parameter_write(second, name, 0, &view)));
  }
  ASSERT_TRUE(ok(infer(second, in, out2)));
  EXPECT_EQ(y1, y2);
}

/// Memory functions of the program, which count blocks. deallocate() really frees, so that AddressSanitizer detects a
/// use after free.
struct Counted {
  static void* allocate(void* user, std::size_t bytes, std::size_t alignment, lockstep_stream) {
    ++static_cast<Counted*>(user)->blocks;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  static void deallocate(void* user, void* memory, std::size_t, lockstep_stream) {
    --static_cast<Counted*>(user)->blocks;
    std::free(memory);
  }
  int blocks = 0;
};

TEST(DlpackOut, OutlivesModelAndContext) {
  Counted memory;
  lockstep_allocator allocator{};
  allocator.struct_size = sizeof allocator;
  allocator.user = &memory;
  allocator.allocate = Counted::allocate;
  allocator.deallocate = Counted::deallocate;
  Consumed weight, again;
  std::vector<double> expected;
  {
    const HostContext context(&allocator);
    const Mlp model(context, {5, 4});
    expected = parameter(model, "1.weight", {4, 5});
    weight = exported(model, "1.weight");
    again = exported(model, "1.weight");
    EXPECT_NE(weight.get(), again.get());
    EXPECT_EQ(fields(weight).data, fields(again).data);
  }
  EXPECT_GT(memory.blocks, 0);
  again.reset();
  EXPECT_GT(memory.blocks, 0);
  EXPECT_EQ(values_of(weight), expected);
  std::thread([&] { weight.reset(); }).join();  // frees the last tensor, on a thread that did not create the context
  EXPECT_EQ(memory.blocks, 0);
}

TEST(DlpackOut, BadInput) {
  const HostContext context;
  const BareMlp model(context, {2, 1});
  lockstep_model other = nullptr;
  auto* const something = reinterpret_cast<DLManagedTensorVersioned*>(&other);
  DLManagedTensorVersioned* tensor = something;
  const auto refused = [&](lockstep_status status, lockstep_status found, const char* text) {
    EXPECT_TRUE(fails(status, found, {"lockstep_parameter_to_dlpack", text}));
    EXPECT_EQ(tensor, nullptr);
    tensor = something;
  };
  refused(LOCKSTEP_ERR_INVALID, lockstep_parameter_to_dlpack(nullptr, "1.weight", 0, &tensor), "model is NULL");
  refused(LOCKSTEP_ERR_STATE, lockstep_parameter_to_dlpack(model, "1.weight", 0, &tensor), "no parameters");
  ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
  refused(LOCKSTEP_ERR_INVALID, lockstep_parameter_to_dlpack(model, "1.wait", 0, &tensor), "1.wait");
  refused(LOCKSTEP_ERR_INVALID, lockstep_parameter_to_dlpack(model, nullptr, 0, &tensor), "name is NULL");
  EXPECT_TRUE(
      fails(LOCKSTEP_ERR_INVALID, lockstep_parameter_to_dlpack(model, "1.weight", 0, nullptr), {"tensor is NULL"}));
}

}  // namespace
}  // namespace host
