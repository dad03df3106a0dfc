#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <lockstep/kernels/augment.hpp>
#include <lockstep/kernels/batch_norm_fused.hpp>
#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/exchange.hpp>
#include <lockstep/nn/plan/recompute.hpp>
#include <lockstep/runtime/memory/guard_band.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

class ChoiceVerifier;

/// Choices of library and algorithm for a plan's calls. A call's key is its layer and pass ("layer1.0.conv1
/// backward_data", "layer1.0.conv1 forward beside a norm"). Checkpoints keep the choices, and a resume uses them again.
using Choices = std::map<std::string, std::string>;

/// Loss of a sample. cross_entropy applies softmax to the last axis of the output, compares the result with
/// StateField::labels, and takes the mean over the positions of a sample. The other losses compare the output with
/// StateField::targets (kernels/regression_loss.hpp) and take the mean over its elements. A step minimises the mean
/// over the valid samples of all ranks. With `given` the caller has computed a loss L of the outputs:
/// StateField::targets holds dL/d(output), backward begins with these numbers as they are, and the metrics have no
/// loss.
enum class Loss : unsigned char { cross_entropy, mse, l1, huber, given };
[[nodiscard]] std::string_view name_of(Loss loss);

/// Option for fusing calls of a training plan. Fused calls move less memory, but round differently in 16 bits. With
/// fused calls, the masked gradient of a residual block is stored once instead of being computed in both passes of
/// batch norm. The pass that adds a shortcut also computes the shortcut's batch norm, in forward and backward. The max
/// pool of a stem (3 x 3 at stride 2) also computes the batch norm before it. `automatic` is on for GPUs and off for
/// the host.
enum class Fusions : unsigned char { automatic, off, on };

struct PlanOptions {
  /// Type of activations and their gradients, and of the weights that convolutions and products read. Parameters of
  /// norms, biases, statistics and the gradients of parameters have accumulation_dtype(dtype): f32 for bf16 and f16.
  DType dtype = DType::f32;
  bool tf32 = false;              ///< true: on a GPU, convolutions and products in f32 may round their factors to TF32
  ops::AugmentDesc augment = {};  ///< augmentation, if the model reads u8 images; evaluation ignores pad and flip
  Loss loss = Loss::cross_entropy;
  /// true: a training plan computes the gradients of the loss times ParameterSet::loss_scale(). Metrics are not scaled.
  bool scaled_loss = false;
  double label_smoothing = 0;  ///< label smoothing of cross_entropy, in training
  double huber_delta = 1;      ///< parameter delta of Loss::huber
  /// Kind of the weights of the loss, StateField::weights, that every batch brings. Let w_nj be the weight of position
  /// or element j of sample n (w_nj = w_n with `sample`), l_nj its loss, and J the number of elements per sample, in
  ///   L = sample_weight * sum_n 1/J sum_j w_nj l_nj        and        W = sample_weight * sum_n 1/J sum_j w_nj
  /// with sums over the valid samples of the batch. A training plan computes the gradient of L. It writes W to
  /// ParameterSet::weight_sum(), or adds W there with `accumulate`. The metrics of loss and accuracy are weighted in
  /// the same way. TrainStep sums the gradient and W over micro-batches and ranks, and divides the sum of the gradient
  /// by the sum of W. A weight of 0 removes its element, whatever label, target and output it has. Mode::infer reads no
  /// weights. In f16, weights far from 1 take gradients out of range. Scale the weights to about 1; a common factor has
  /// no effect on the result.
  LossWeights weights = LossWeights::none;
  /// For cross_entropy in training, true: each sample is a mixture of two (mixup, cutmix) and has two labels with
  /// shares (StateField::other_labels, shares, other_shares). Its loss is share * l(label) + other_share * l(other
  /// label). A prediction of one of the labels counts as correct with the share of that label. With two_labels,
  /// `weights` must be LossWeights::none.
  bool two_labels = false;
  int top_k = 0;  ///< cross_entropy in evaluation also counts labels among the top_k largest logits; 0: off
  std::uint64_t dropout_seed = 0;
  /// In training, the context whose stream is the side stream. The side stream computes the gradients of weights of
  /// convolutions and products, while the plan's stream runs the following backward calls, which do not need these
  /// gradients. Results are the same as on one stream. Up to two such calls are in progress on the side stream, and the
  /// tensors that they read live longer. The context must be another one on the plan's device (otherwise UsageError),
  /// and must outlive the plan. The context's stream must have no other work during a run. nullptr: all calls run on
  /// one stream.
  Context* beside = nullptr;
  /// In training, true: adds parameter gradients to their arena instead of overwriting it. In a step of several
  /// micro-batches, `accumulate` is false in the plan of the first micro-batch, and true in the plan of the others.
  bool accumulate = false;
  /// In training, true: the plan also computes dL/d(input), Plan::input_gradient(). UsageError unless the model's input
  /// is numbers (InputKind::values).
  bool input_gradient = false;
  /// In training, true: tensors that live from forward to backward lie in the first kept_bytes() bytes of the
  /// workspace. Further sets of kept activations then take only these bytes, and share the rest (Plan::add_kept()).
  bool kept_apart = false;
  /// In training, true: backward computes no gradients of parameters, as if all parameters were frozen.
  bool constant_parameters = false;
  /// In training, true: the forward pass computes the numbers of inference, whose derivatives backward then computes.
  /// Batch norms read their running statistics, which stay as they are, and dropout passes its input on.
  bool inference_pass = false;
  /// In training, true: the plan can also compute products with the Jacobian J = d(output)/d(input) after a forward(),
  /// any number of times: Plan::vjp() and Plan::jvp(). Both need kept_apart, input_gradient, Loss::given and no
  /// recompute. A plan with `jvp` of a layer that has no rule for tangents is an UnsupportedError with the layer's
  /// name.
  bool vjp = false;
  bool jvp = false;
  Exchange exchange{};  ///< ranks with which a training plan communicates
  /// In training, with an exchange, true: batch norms take their statistics over the batches of all ranks, as if these
  /// were one batch (SyncBatchNorm). Each layer gathers the results of all ranks once in forward (mean, M2 and count of
  /// each channel) and once in backward (two sums per channel). The results are joined in rank order, so every rank has
  /// the same bits. The gradients of weight and bias are those of the rank's own samples, like all gradients before the
  /// reduction. Running statistics are updated with the statistics of all ranks.
  bool sync_batch_norm = false;
  [[nodiscard]] bool shares_statistics() const { return sync_batch_norm && exchange.given(); }
  Fusions fusions = Fusions::automatic;
  /// In training, true: fused calls may run a pass of batch norm as one cooperative launch. TrainStep sets false if
  /// there are other ranks, because the launch would wait for multiprocessors that a collective holds.
  bool cooperative = true;
  /// Used on the host with Fusions::on, to plan the calls that a GPU would run: memory sizes of that GPU, which decide
  /// how batch norm is fused.
  ops::ChipMemory chip{};
  /// Used on the host with `chip`. If true, convolutions also compute the sums of batch norms wherever cuDNN may do so
  /// (ops::conv_may_serve_norm()). If false, and always on a GPU, the convolutions' choices decide where.
  bool norms_in_convolutions = false;
  Recompute recompute = Recompute::off;  ///< in training: which activations backward computes again
  Choices choices = {};                  ///< choices of library calls, by the call's key
  /// Choice for calls that `choices` does not name. If it is empty or cannot be planned, the provider's first guess is
  /// used.
  std::string default_choice = {};
  /// true: a choice that cannot be planned in this build or on this processor is an error. false: the provider's first
  /// guess replaces the choice, and Plan::choices() shows the guess.
  bool choices_required = true;
  /// Verifier that compares each library call with our own kernel while the call is planned. A call with wrong results
  /// gets another choice (choice_verifier.hpp), which Plan::choices() shows. nullptr: libraries are trusted.
  std::shared_ptr<ChoiceVerifier> verifier = {};
  /// false: every slot has its own memory, and no slot is overwritten, so that intermediate values can be inspected.
  bool reuse_memory = true;
  /// On a host stream that runs in the calling thread, true: a guard band (runtime/memory/guard_band.hpp) follows each
  /// slot of the workspace. The band is written before each call that writes the slot, and checked after the call. If a
  /// band has changed, an Error names layer, call and slot. Costs 256 bytes per slot.
  bool guard_bands = guards_workspaces();
};

/// Adds the options that a program may offer: types, recomputation, label smoothing and top k.
void describe(Schema& schema, PlanOptions& options);
/// Returns the layout (shapes and types) that a StepState needs for a batch of `model`.
[[nodiscard]] StepLayout step_layout(const Model& model, const PlanOptions& options);

}  // namespace lockstep::nn
