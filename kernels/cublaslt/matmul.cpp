#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <lockstep/kernels/cublaslt/cublaslt.hpp>
#include <lockstep/kernels/cublaslt/description.hpp>
#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>

namespace lockstep::ops::cublaslt {
namespace {

constexpr std::uint64_t kMostWorkspace = std::uint64_t{32} << 20;  // limit in bytes: NVIDIA's recommendation for Hopper
constexpr std::uint32_t kAlignment = 16;                           // alignment in bytes of a, b, c and an f32 bias
constexpr std::size_t kWorkspaceAlignment = 256;  // bytes: cuBLASLt needs 16, and expects the 256 of cudaMalloc
constexpr std::size_t kContractAlignment = 64;    // alignment in bytes that the callers guarantee for every workspace
constexpr int kMostChoices = 8;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      throw UnsupportedError(concat("matmul: dtype is ", dtype, ", expected f32, bf16 or f16 with cublaslt"));
  }
}

cublasLtEpilogue_t epilogue(const Epilogue& e) {
  if (e.function == Epilogue::Function::relu) {
    return e.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  }
  if (e.function == Epilogue::Function::gelu) {
    return e.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  }
  return e.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// A matrix product as cuBLASLt sees it: its operation and its layouts.
class Problem {
 public:
  Problem(const Library& lib, const MatmulDesc& d)
      : api_(lib.api()),
        compute_(d.dtype == DType::f32 && d.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F),
        in_(data_type(d.dtype)),
        out_(data_type(d.c_dtype())),
        operation_(make<cublasLtMatmulDesc_t>(api_.desc_create, api_.desc_destroy, compute_, CUDA_R_32F)),
        first_(nullptr, api_.layout_destroy),
        second_(nullptr, api_.layout_destroy),
        c_(nullptr, api_.layout_destroy) {
    const Description description = describe(d);
    set(CUBLASLT_MATMUL_DESC_TRANSA, description.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, description.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(epilogue_of(d)));
    if (d.bias) {
      // This address is set only for its alignment. When cuBLASLt chooses algorithms, it takes the bias's alignment
      // from this address, because there is no attribute for the alignment. It does not read memory there. run() sets
      // the real address.
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(std::uintptr_t{kAlignment}));
    }
    first_ = layout(in_, description.first, description.products);
    second_ = layout(in_, description.second, description.products);
    c_ = layout(out_, description.out, description.products);
  }

  /// Sets an attribute of the operation, in host memory. The operation is the only part of a problem that changes after
  /// construction.
  template <class T>
  void set(cublasLtMatmulDescAttributes_t name, const T& value) const {
    check(api_, api_.desc_set(operation_.get(), name, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }

  /// Returns algorithms that prepare() accepts, best guess first. Leaves out algorithms whose order of sums depends on
  /// timing, and algorithms that keep intermediate sums in 16 bits.
  [[nodiscard]] std::vector<Algorithm> algorithms(const Library& lib) const {
    const auto preference = make<cublasLtMatmulPreference_t>(api_.preference_create, api_.preference_destroy);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      check(api_, api_.preference_set(preference.get(), name, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(name, kAlignment);
    }
    std::array<cublasLtMatmulHeuristicResult_t, kMostChoices> results{};
    int count = 0;
    const cublasStatus_t status =
        api_.algo_get_heuristic(lib.handle(), operation_.get(), first_.get(), second_.get(), c_.get(), c_.get(),
                                preference.get(), kMostChoices, results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
      return {};
    }
    check(api_, status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<Algorithm> all;
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results.at(static_cast<std::size_t>(i));
      if (result.state == CUBLAS_STATUS_SUCCESS) {
        try {
          const Algorithm algorithm = describe_algorithm(lib, result.algo);
          (void)prepare(lib, algorithm);
          all.push_back(algorithm);
        } catch (const OutOfMemory&) {
          throw;
        } catch (const Error&) {  // cuBLASLt refuses this algorithm, so it is left out
        }
      }
    }
    return all;
  }

  /// Returns the algorithm ready to run, and the bytes of its workspace. Throws UnsupportedError when the algorithm
  /// does not support this product.
  [[nodiscard]] std::pair<cublasLtMatmulAlgo_t, std::size_t> prepare(const Library& lib,
                                                                     const Algorithm& wanted) const {
    cublasLtMatmulAlgo_t algo = made_of(lib, wanted);
    cublasLtMatmulHeuristicResult_t result{};
    check(api_,
          api_.algo_check(lib.handle(), operation_.get(), first_.get(), second_.get(), c_.get(), c_.get(), &algo,
                          &result),
          "cublasLtMatmulAlgoCheck");
    check(api_, result.state, "cublasLtMatmulAlgoCheck");
    require<UnsupportedError>(result.workspaceSize <= kMostWorkspace, "matmul: ", choice_text(wanted), " needs ",
                              result.workspaceSize, " bytes of workspace, expected at most ", kMostWorkspace);
    return {algo, result.workspaceSize};
  }

  void run(const Library& lib, Context& context, const cublasLtMatmulAlgo_t& algo, bool accumulate, const TensorView& a,
           const TensorView& b, const TensorView& c, void* workspace, std::size_t workspace_bytes) const {
    const float alpha = 1.0F;
    const float beta = accumulate ? 1.0F : 0.0F;
    check(
        api_,
        api_.matmul(lib.handle(), operation_.get(), &alpha, b.data, first_.get(), a.data, second_.get(), &beta, c.data,
                    c_.get(), c.data, c_.get(), &algo, workspace, workspace_bytes, context.stream().cuda_handle()),
        "cublasLtMatmul");
  }

 private:
  template <class T, class Create, class Destroy, class... Arguments>
  [[nodiscard]] Owned<T> make(Create create, Destroy destroy, Arguments... arguments) const {
    T raw = nullptr;
    check(api_, create(&raw, arguments...), "cublasLt..Create");
    return {raw, destroy};
  }

  [[nodiscard]] Owned<cublasLtMatrixLayout_t> layout(cudaDataType_t type, const ColumnMajor& matrix,
                                                     std::int64_t products) const {
    auto made = make<cublasLtMatrixLayout_t>(api_.layout_create, api_.layout_destroy, type,
                                             static_cast<std::uint64_t>(matrix.rows),
                                             static_cast<std::uint64_t>(matrix.columns), matrix.leading);
    const auto set_layout = [&](cublasLtMatrixLayoutAttribute_t name, const auto& value) {
      check(api_, api_.layout_set(made.get(), name, &value, sizeof value), "cublasLtMatrixLayoutSetAttribute");
    };
    require<UnsupportedError>(products <= INT32_MAX, "matmul: batch is ", products, " products, expected at most ",
                              INT32_MAX, " with cublaslt");
    set_layout(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(products));
    set_layout(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.stride);
    return made;
  }

  /// Calls f(attribute, field) for all settings except the id, which algo_init takes.
  template <class F>
  static void for_each_setting(Algorithm& algorithm, F f) {
    f(CUBLASLT_ALGO_CONFIG_TILE_ID, algorithm.tile);
    f(CUBLASLT_ALGO_CONFIG_STAGES_ID, algorithm.stages);
    f(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, algorithm.split_k);
    f(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, algorithm.reduction);
    f(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, algorithm.swizzle);
    f(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, algorithm.custom);
    f(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, algorithm.inner_shape);
    f(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, algorithm.cluster_shape);
  }

  /// Makes an algorithm from its own bytes if it has bytes, otherwise from its settings.
  [[nodiscard]] cublasLtMatmulAlgo_t made_of(const Library& lib, Algorithm wanted) const {
    cublasLtMatmulAlgo_t algo{};
    static_assert(sizeof algo.data == sizeof(Algorithm::Bytes));
    if (wanted.bytes) {
      std::memcpy(algo.data, wanted.bytes->data(), sizeof algo.data);
      return algo;
    }
    check(api_, api_.algo_init(lib.handle(), compute_, CUDA_R_32F, in_, in_, out_, out_, wanted.id, &algo),
          "cublasLtMatmulAlgoInit");
    for_each_setting(wanted, [&](cublasLtMatmulAlgoConfigAttributes_t name, auto& value) {
      check(api_, api_.algo_set(&algo, name, &value, sizeof value), "cublasLtMatmulAlgoConfigSetAttribute");
    });
    return algo;
  }

  [[nodiscard]] Algorithm describe_algorithm(const Library& lib, const cublasLtMatmulAlgo_t& algo) const {
    Algorithm found;
    const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t name, auto& value) {
      std::size_t written = 0;
      check(api_, api_.algo_get(&algo, name, &value, sizeof value, &written), "cublasLtMatmulAlgoConfigGetAttribute");
    };
    get(CUBLASLT_ALGO_CONFIG_ID, found.id);
    for_each_setting(found, get);
    if (std::memcmp(made_of(lib, found).data, algo.data, sizeof algo.data) != 0) {
      std::memcpy(found.bytes.emplace().data(), algo.data, sizeof algo.data);
    }
    return found;
  }

  const Api& api_;
  cublasComputeType_t compute_;
  cudaDataType_t in_, out_;
  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatrixLayout_t> first_, second_, c_;
};

class Plan final : public MatmulPlan {
 public:
  Plan(Context& context, const MatmulDesc& d, const Algorithm& algorithm)
      : MatmulPlan(context.device(), d), library_(library(context)), problem_(library_, d), algorithm_(algorithm) {
    std::tie(prepared_, used_bytes_) = problem_.prepare(library_, algorithm);
    if (epilogue_of(d).rounds_bias) {
      bias_bytes_ = align_up(static_cast<std::size_t>(d.n) * size_of(d.c_dtype()), kWorkspaceAlignment);
    }
  }

  std::size_t workspace_bytes() const override {
    const std::size_t bytes = bias_bytes_ + used_bytes_;
    return bytes == 0 ? 0 : bytes + kWorkspaceAlignment - kContractAlignment;
  }
  /// True when partial sums are stored and then added in order. Algorithms that join partial sums in other ways are not
  /// requested.
  bool deterministic() const override {
    return algorithm_.split_k == 1 || algorithm_.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  }
  std::string choice() const override { return choice_text(algorithm_); }

  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& c,
           const TensorView& workspace) const override {
    void* base = nullptr;
    if (workspace_bytes() > 0) {
      base = reinterpret_cast<void*>(align_up(reinterpret_cast<std::uintptr_t>(workspace.data), kWorkspaceAlignment));
    }
    TensorView added = bias;
    if (bias_bytes_ > 0) {
      added = TensorView(base, desc().c_dtype(), device(), bias.shape);
    }
    const std::pair<const TensorView*, const char*> operands[] = {{&a, "a"}, {&b, "b"}, {&added, "bias"}, {&c, "c"}};
    for (const auto& [view, name] : operands) {
      require<ShapeError>(reinterpret_cast<std::uintptr_t>(view->data) % kAlignment == 0, "matmul: ", name,
                          " is at address ", view->data, ", expected a multiple of ", kAlignment,
                          ": cublaslt takes no other; the choice 'cuda' does");
    }
    if (bias_bytes_ > 0) {
      strided_copy(context, bias, added);
    }
    const cuda::DeviceGuard guard(device());
    if (desc().bias) {
      problem_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(added.data));
    }
    void* const scratch = used_bytes_ == 0 ? nullptr : static_cast<std::byte*>(base) + bias_bytes_;
    problem_.run(library_, context, prepared_, desc().grad_mode == GradMode::accumulate, a, b, c, scratch, used_bytes_);
  }

 private:
  Library& library_;  // the context owns the library
  Problem problem_;
  Algorithm algorithm_;
  cublasLtMatmulAlgo_t prepared_{};
  std::size_t used_bytes_ = 0;  // bytes of the algorithm's workspace
  std::size_t bias_bytes_ = 0;  // bytes of the rounded bias, which precedes the algorithm's workspace
};

/// Returns Problem::algorithms() of `desc`. The heuristics of cuBLASLt are queried only once for each desc.
const std::vector<Algorithm>& recommended(Library& lib, const MatmulDesc& desc) {
  auto found = lib.recommended().find(desc);
  if (found == lib.recommended().end()) {
    found = lib.recommended().emplace(desc, Problem(lib, desc).algorithms(lib)).first;
  }
  return found->second;
}

std::vector<std::string> choices(Context& context, const MatmulDesc& desc) {
  std::vector<std::string> all;
  Library& lib = library(context);
  if (desc.dtype == DType::f64 || !lib.unusable().empty()) {
    return all;
  }
  const cuda::DeviceGuard guard(context.device());
  try {
    for (const Algorithm& algorithm : recommended(lib, desc)) {
      all.push_back(choice_text(algorithm));
    }
  } catch (const UnsupportedError&) {  // cuBLASLt has no algorithm for this type or this GPU
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error&) {  // lists the provider's name: plan() of this choice then reports the error
    all.emplace_back(kMatmul.name);
  }
  return all;
}

std::unique_ptr<MatmulPlan> plan(Context& context, const MatmulDesc& desc, const std::string& choice) {
  const bool any = choice == kMatmul.name;
  Algorithm algorithm = any ? Algorithm() : parse_choice(choice);
  (void)data_type(desc.dtype);
  (void)epilogue_of(desc);
  Library& lib = library(context);
  lib.require_usable();
  const cuda::DeviceGuard guard(context.device());
  try {
    if (any) {
      const std::vector<Algorithm>& all = recommended(lib, desc);
      require<UnsupportedError>(!all.empty(), "matmul: cublaslt has no algorithm for ", desc.m, " x ", desc.n, " x ",
                                desc.k, " in ", desc.dtype, ", expected another library for it");
      algorithm = all.front();
    }
    return std::make_unique<Plan>(context, desc, algorithm);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) {  // becomes UnsupportedError, so that the caller tries another choice
    throw UnsupportedError(error.what());
  }
}

}  // namespace

constinit const MatmulProvider kMatmul{"cublaslt",
                                       DeviceKind::cuda,
                                       choices,
                                       plan,
                                       library_version,
                                       /*relu_keeps_nan=*/false};

}  // namespace lockstep::ops::cublaslt
