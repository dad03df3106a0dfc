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

/// A finished model and its parameters: what handles on several contexts share.
struct Learned {
  Learned(std::shared_ptr<ContextObject> owner, nn::Model finished, DType dtype);

  std::shared_ptr<ContextObject> context;  ///< whose memory holds them
  nn::Model model;
  nn::ParameterSet parameters;
  std::weak_ptr<TrainerObject> trainer;
  std::atomic<bool> stale = false;  ///< ranks have trained since the statistics of evaluation were averaged

  /// What has to be the same on ranks that train or share parameters, a line each: types, layers, parameters. Extents
  /// of samples may differ.
  [[nodiscard]] std::string contract() const;
  /// StateError while they are stale.
  void require_statistics() const;
};

/// What a lockstep_model names: being built (`builder`), or finished (`learned`).
struct ModelObject {
  std::shared_ptr<ContextObject> context;
  DType dtype = DType::f32;
  std::optional<nn::ModelBuilder> builder{};
  std::vector<nn::NodeId> nodes{};   ///< by the numbers that the caller has; 0: the input
  std::vector<std::string> names{};  ///< of the layers
  std::shared_ptr<Learned> learned{};
  std::unique_ptr<nn::Inference> inference{};  ///< goes before `learned`
  std::vector<nn::SampleView> inputs{};        ///< of a call
  std::vector<nn::SampleView> outputs{};

  /// StateError before lockstep_model_initialise or _load.
  [[nodiscard]] Learned& finished() const;
};

}  // namespace lockstep::c
