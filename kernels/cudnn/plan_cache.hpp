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

/// A cache of cuDNN's answers: lists of algorithms, and execution plans, which take up to a second each. Equal layers
/// of a model, its evaluation and the tuner request the same ones again.
namespace lockstep::ops::cudnn {

/// A finalised execution plan with the graph and the configuration that it was made of. Immutable: any number of
/// ConvPlans run it, each with a variant pack and a workspace of its own.
class Execution {
 public:
  /// Makes a plan. Throws UnsupportedError when the algorithm rounds more than `desc` allows or cuDNN does not support
  /// it; else as check().
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

/// One thread at a time uses a cache. An algorithm that cuDNN has refused is refused again with the same text, without
/// a call to cuDNN; OutOfMemory and CudaError are not kept.
class PlanCache {
 public:
  /// The result of algorithms(), and the lines that it put into `refused`.
  struct Listed {
    std::vector<Algorithm> algorithms;
    std::vector<std::string> refused;
  };

  [[nodiscard]] const Listed& list(const Target& target, const ConvDesc& desc, ConvPass pass, Engines engines);
  [[nodiscard]] std::shared_ptr<const Execution> plan(const Target& target, const ConvDesc& desc, ConvPass pass,
                                                      const Algorithm& algorithm);
  /// A call, and the only algorithm that is wanted for it; none: all that cuDNN lists.
  struct Wanted {
    ConvDesc desc;
    ConvPass pass;
    std::optional<Algorithm> algorithm{};
  };
  /// Lists the algorithms of all calls and makes their plans, at once on one thread for each of `targets`, which are of
  /// one device. Drops the other plans that only the cache holds. Calls that cuDNN does not compute are left out.
  void prepare(std::span<const Target> targets, std::span<const Wanted> calls, Engines engines);

  [[nodiscard]] int lists_made() const { return lists_made_; }  ///< lists requested from cuDNN
  [[nodiscard]] int plans_made() const { return plans_made_; }  ///< plans requested from cuDNN, with refused ones

 private:
  using ListKey = std::tuple<ConvDesc, ConvPass, Engines>;
  using PlanKey = std::tuple<ConvDesc, ConvPass, std::string>;
  struct Made {
    std::shared_ptr<const Execution> plan;  ///< null: cuDNN has refused it
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
