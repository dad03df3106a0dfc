#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/c/context.hpp>
#include <lockstep/c/layers.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/step/inference.hpp>

namespace lockstep::c {

struct TrainerObject;

/// A finished model and its parameters. Model handles on several contexts may share one such object.
struct Learned {
  Learned(std::shared_ptr<ContextObject> owner, nn::Model finished, DType dtype);

  std::shared_ptr<ContextObject> context;  ///< owns the memory of the parameters
  nn::Model model;
  nn::ParameterSet parameters;
  std::weak_ptr<TrainerObject> trainer;
  std::atomic<std::int64_t> tapes = 0;  ///< number of tapes made so far; it selects the random numbers of the next tape
  std::atomic<bool> stale = false;      ///< true: ranks have trained since statistics were averaged over ranks

  /// Returns a text of the properties that must be equal on ranks that train or share parameters, one on each line:
  /// types, layers and parameters. The extents of samples may differ.
  [[nodiscard]] std::string contract() const;
  /// Throws StateError if the running statistics are stale, because inference needs statistics averaged over ranks.
  void require_statistics() const;
};

/// One call by which the host program built a model: a layer that was added, or a name that was frozen.
struct BuildStep {
  LayerRequest layer{};                ///< layer without its inputs; `kind` is empty if the call froze a name
  std::vector<std::int32_t> inputs{};  ///< node numbers of the layer's inputs, as in lockstep_model_add()
  std::string frozen{};
};

/// A lockstep_view without its address.
struct ViewForm {
  explicit ViewForm(const lockstep_view& view);
  /// Returns true if `view`, which may be invalid, equals this form in everything but the address.
  [[nodiscard]] bool fits(const lockstep_view& view) const;

  lockstep_dtype dtype;
  std::int32_t device_type, device_id, ndim;
  bool strided, lettered;
  std::array<char, Shape::kMaxRank + 1> axes{};
  std::array<std::int64_t, Shape::kMaxRank> shape{}, strides{};
};

/// The object of a handle of type lockstep_model. The model is being built (`builder`) or finished (`learned`).
struct ModelObject {
  std::shared_ptr<ContextObject> context;
  DType dtype = DType::f32;
  std::optional<nn::ModelBuilder> builder{};
  std::vector<nn::NodeId> nodes{};  ///< nodes by their numbers in the C interface (0: the model's input)
  std::vector<BuildStep> steps{};   ///< calls that built the model, in order; lockstep_model_reshape() repeats them
  std::shared_ptr<Learned> learned{};
  std::optional<nn::Model>
      reshaped{};  ///< model of lockstep_model_reshape(), which computes in place of learned->model
  std::unique_ptr<nn::Inference> inference{};  ///< uses `learned`, so declared after `learned` and destroyed first
  std::vector<nn::SampleView> inputs{};        ///< views of the present call; kept between calls for their memory
  std::vector<nn::SampleView> outputs{};
  std::optional<std::pair<ViewForm, ViewForm>> last{};  ///< input and output forms for which run_again() may be called

  /// Returns `learned`. Throws StateError before lockstep_model_initialise() or lockstep_model_load().
  [[nodiscard]] Learned& finished() const;
};

}  // namespace lockstep::c
