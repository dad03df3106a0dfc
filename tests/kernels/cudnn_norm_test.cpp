// Tests convolutions that also compute sums for a batch norm. The real cuDNN plans them for a GPU that is only
// described. cuDNN must offer engines for them, and the engines must compile. No kernel runs.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/cudnn/conv_graph.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/kernels/conv2d_networks.hpp"
#include "tests/kernels/cudnn_h100.hpp"

namespace lockstep::ops::cudnn {
namespace {

using testing::ConvCase;

class CudnnNorm : public ::testing::Test {
 protected:
  void SetUp() override {
    // cuDNN opens the driver library by its name. The toolkit's stub has the same name, so loading the stub first makes
    // cuDNN use it.
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr &&
        (*LOCKSTEP_DRIVER_STUB == 0 || dlopen(LOCKSTEP_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL) == nullptr)) {
      GTEST_SKIP() << "needs a CUDA driver, or the toolkit's stub of one";
    }
    if (!unusable().empty()) {
      GTEST_SKIP() << unusable();
    }
    properties_ = std::make_unique<Descriptor>(describe_device(testing::kH100));
  }

  /// Returns the algorithms that also compute a norm's sums. Expects that algorithms() lists them after all other
  /// algorithms.
  std::vector<Algorithm> serving(const ConvDesc& desc, ConvPass pass, const std::string& name) {
    std::vector<Algorithm> found;
    for (const Algorithm& algorithm : algorithms({nullptr, properties_.get()}, desc, pass)) {
      EXPECT_TRUE(found.empty() || algorithm.form == Form::norm) << name << ": one that serves none is after";
      if (algorithm.form == Form::norm) {
        found.push_back(algorithm);
      }
    }
    return found;
  }

  /// Returns cuDNN's error text for a plan. The stub driver cannot load kernels, so an engine that compiles fails with
  /// the driver's error.
  std::string outcome(const ConvDesc& desc, ConvPass pass, const Algorithm& algorithm) {
    const Target target{nullptr, properties_.get()};
    const OperationGraph graph(describe(desc, pass, Form::norm), target);
    const EngineConfig config(graph, target, algorithm.engine);
    EXPECT_FALSE(config.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config.descriptor());
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *properties_);
    try {
      plan.finalize();
    } catch (const Error& error) {
      return error.what();
    }
    return "planned";
  }

 private:
  std::unique_ptr<Descriptor> properties_;
};

bool compiled(const std::string& outcome) {
  return outcome == "planned" || outcome.find("cuLibraryLoadData") != std::string::npos;
}

std::vector<ConvNorm> norms_of(ConvPass pass) {
  if (pass == ConvPass::forward) {
    return {{.wanted = true}};
  }
  return {{.wanted = true}, {.wanted = true, .addend = true}, {.wanted = true, .addend = true, .pair = true}};
}

TEST_F(CudnnNorm, HasEnginesForResNet50) {
  int asked = 0;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const ConvCase& item : testing::resnet50_cases(256)) {
      for (const ConvPass pass : {ConvPass::forward, ConvPass::backward_data}) {
        for (const ConvNorm& norm : norms_of(pass)) {
          ConvDesc desc = item.desc;
          desc.dtype = dtype;
          desc.norm = norm;
          const std::string name = concat(item.name, ' ', dtype, " pass ", static_cast<int>(pass),
                                          norm.addend ? " addend" : "", norm.pair ? " pair" : "");
          const bool may = conv_may_serve_norm(desc, pass);
          EXPECT_EQ(may, std::string(item.name) != "stem" && (pass == ConvPass::forward || desc.stride[0] == 1))
              << name;
          EXPECT_EQ(serving(desc, pass, name).empty(), !may) << name;
          asked += may ? 1 : 0;
        }
      }
    }
  }
  EXPECT_EQ(asked, 2 * (7 + 5 * 3));
}

/// cuDNN's heuristics also recommend engines that do not compile. At least the first engine must compile.
TEST_F(CudnnNorm, TheFirstOneCompiles) {
  for (const ConvCase& item : testing::resnet50_cases(256)) {
    if (const std::string which = item.name; which != "56x56_64_to_256_k1" && which != "14x14_256_to_256") {
      continue;
    }
    for (const ConvPass pass : {ConvPass::forward, ConvPass::backward_data}) {
      ConvDesc desc = item.desc;
      desc.dtype = DType::bf16;
      desc.norm = norms_of(pass).back();
      const std::vector<Algorithm> found = serving(desc, pass, item.name);
      ASSERT_FALSE(found.empty()) << item.name;
      const std::string said = outcome(desc, pass, found.front());
      EXPECT_TRUE(compiled(said)) << item.name << ": " << said;
    }
  }
}

}  // namespace
}  // namespace lockstep::ops::cudnn
