#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <lockstep/kernels/cudnn/conv_graph.hpp>

/// A cache of cuDNN's lists of algorithms and of execution plans. cuDNN takes up to a second to make a plan. Equal
/// layers, the evaluation and the tuner need the same lists and plans, so each is made only once.
namespace lockstep::ops::cudnn {

/// A finalised execution plan with its graph and its configuration. A finalised plan never changes: any number of
/// ConvPlans run it, each with its own variant pack and workspace.
class Execution {
 public:
  /// Makes a plan. Throws UnsupportedError if the algorithm rounds more than `desc` allows, or if cuDNN does not
  /// support the algorithm. Throws all other errors of check(), too.
  Execution(const Target& target, const ConvDesc& desc, ConvPass pass, const Algorithm& algorithm);
  [[nodiscard]] const Descriptor& descriptor() const { return plan_; }
  [[nodiscard]] std::size_t workspace_bytes() const { return workspace_bytes_; }
  [[nodiscard]] bool deterministic() const { return deterministic_; }

 private:
  OperationGraph graph_;
  EngineConfig config_;
  Descriptor plan_;
  std::size_t workspace_bytes_ = 0;
  bool deterministic_ = false;
};

/// The cache of one context, used by one thread at a time. If cuDNN has refused an algorithm, the cache throws the same
/// error again, without a call to cuDNN. OutOfMemory and CudaError are not cached: the next request calls cuDNN again.
class PlanCache {
 public:
  /// The result of algorithms(), and the lines that algorithms() put into `refused`.
  struct Listed {
    std::vector<Algorithm> algorithms;
    std::vector<std::string> refused;
  };

  [[nodiscard]] const Listed& list(const Target& target, const ConvDesc& desc, ConvPass pass, Engines engines);
  [[nodiscard]] std::shared_ptr<const Execution> plan(const Target& target, const ConvDesc& desc, ConvPass pass,
                                                      const Algorithm& algorithm);
  /// A pass of a convolution, and the algorithm for which a plan is wanted. Without an algorithm, plans of all
  /// algorithms that cuDNN lists for the pass are wanted.
  struct Wanted {
    ConvDesc desc;
    ConvPass pass;
    std::optional<Algorithm> algorithm{};
  };
  /// Fills the cache for `calls`: requests from cuDNN first the missing lists of algorithms, then the missing execution
  /// plans. Works in parallel, on at most one thread for each of `targets`; all targets must belong to one device.
  /// Drops plans that no call needs and that only the cache holds. Skips calls that cuDNN does not support.
  void prepare(std::span<const Target> targets, std::span<const Wanted> calls, Engines engines);

  [[nodiscard]] int lists_made() const { return lists_made_; }  ///< number of lists requested from cuDNN
  [[nodiscard]] int plans_made() const { return plans_made_; }  ///< number of plans requested from cuDNN

 private:
  using ListKey = std::tuple<ConvDesc, ConvPass, Engines>;
  using PlanKey = std::tuple<ConvDesc, ConvPass, std::string>;
  struct Made {
    std::shared_ptr<const Execution> plan;  ///< null if cuDNN has refused the plan
    std::string refusal;
    bool unsupported = false;
  };
  [[nodiscard]] static Listed ask(const Target& target, const ConvDesc& desc, ConvPass pass, Engines engines);
  [[nodiscard]] static Made make(const Target& target, const ConvDesc& desc, ConvPass pass, const Algorithm& algorithm);
  [[nodiscard]] static PlanKey plan_key(const ConvDesc& desc, ConvPass pass, const Algorithm& algorithm);

  std::map<ListKey, Listed> lists_;
  std::map<PlanKey, Made> plans_;
  int lists_made_ = 0, plans_made_ = 0;
};

}  // namespace lockstep::ops::cudnn
