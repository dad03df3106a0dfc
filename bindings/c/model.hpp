#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/c/context.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/inference.hpp>

namespace lockstep::c {

struct TrainerObject;

/// A finished model and its parameters, which model handles on several contexts share.
struct Learned {
  Learned(std::shared_ptr<ContextObject> owner, nn::Model finished, DType dtype);

  std::shared_ptr<ContextObject> context;  ///< owns the memory of the parameters
  nn::Model model;
  nn::ParameterSet parameters;
  std::weak_ptr<TrainerObject> trainer;
  std::atomic<bool> stale = false;  ///< ranks have trained since the statistics of evaluation were averaged

  /// Returns the properties that must be equal on ranks that train or share parameters, one per line: types, layers,
  /// parameters. The extents of samples may differ.
  [[nodiscard]] std::string contract() const;
  /// Throws StateError while the running statistics are stale.
  void require_statistics() const;
};

/// The object that a lockstep_model names: a model that is being built (`builder`) or finished (`learned`).
struct ModelObject {
  std::shared_ptr<ContextObject> context;
  DType dtype = DType::f32;
  std::optional<nn::ModelBuilder> builder{};
  std::vector<nn::NodeId> nodes{};   ///< nodes of the builder by the caller's node numbers; number 0: the input
  std::vector<std::string> names{};  ///< names of the layers
  std::shared_ptr<Learned> learned{};
  std::unique_ptr<nn::Inference> inference{};  ///< uses `learned`, so it is declared after it and destroyed first
  std::vector<nn::SampleView> inputs{};        ///< views of one call, kept for their memory
  std::vector<nn::SampleView> outputs{};

  /// Returns `learned`. Throws StateError before lockstep_model_initialise or _load.
  [[nodiscard]] Learned& finished() const;
};

}  // namespace lockstep::c
