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

/// Choices of library and algorithm for a plan's calls. A call's key consists of its layer and pass ("layer1.0.conv1
/// backward_data", "layer1.0.conv1 forward beside a norm"). Checkpoints store the choices, so that a resumed run uses
/// the same choices.
using Choices = std::map<std::string, std::string>;

/// Loss of a sample. cross_entropy applies softmax to the last axis of the output, compares the result with
/// StateField::labels, and takes the mean over the positions of a sample. The other losses compare the output with
/// StateField::targets (kernels/regression_loss.hpp) and take the mean over the elements of the output. A step
/// minimises the mean over the valid samples of all ranks. With `given`, the caller computes its own loss L of the
/// outputs and stores dL/d(output) in StateField::targets. Backward begins with this gradient, unscaled, and the
/// metrics contain no loss.
enum class Loss : unsigned char { cross_entropy, mse, l1, huber, given };
[[nodiscard]] std::string_view name_of(Loss loss);

/// Selects whether a training plan fuses calls. Fused calls read and write less memory, but round differently in 16
/// bits. `automatic` fuses on GPUs, and not on the host. With fused calls,
/// - the masked gradient of a residual block is stored once, instead of being computed in both passes of batch norm's
///   backward;
/// - the pass that adds a shortcut also computes the shortcut's batch norm, in forward and backward;
/// - the max pool of a ResNet's first layers (3 x 3 at stride 2) also computes the batch norm before the pool.
enum class Fusions : unsigned char { automatic, off, on };

struct PlanOptions {
  /// Type of activations and their gradients, and of the weights that convolutions and products read. Parameters of
  /// norms, biases, statistics and the gradients of parameters have accumulation_dtype(dtype): f32 for bf16 and f16.
  DType dtype = DType::f32;
  bool tf32 = false;              ///< true: on a GPU, convolutions and products in f32 may round their factors to TF32
  ops::AugmentDesc augment = {};  ///< augmentation of u8 images; evaluation ignores pad and flip
  Loss loss = Loss::cross_entropy;
  /// true: a training plan computes the gradients of the loss times ParameterSet::loss_scale(). Metrics are not scaled.
  bool scaled_loss = false;
  double label_smoothing = 0;  ///< label smoothing of cross_entropy, only in training
  double huber_delta = 1;      ///< parameter delta of the Huber loss
  /// Kind of the loss weights that every batch contains (StateField::weights). Let w_nj be the weight of position or
  /// element j of sample n (w_nj = w_n with LossWeights::sample), l_nj the loss of this element, and J the number of
  /// elements per sample. Let
  ///   L = sample_weight * sum_n 1/J sum_j w_nj l_nj        and        W = sample_weight * sum_n 1/J sum_j w_nj
  /// with sums over the valid samples of the batch.
  ///
  /// A training plan computes the gradient of L. It writes W to ParameterSet::weight_sum(), or adds W there with
  /// `accumulate`. TrainStep sums the gradient and W over micro-batches and ranks, and divides the sum of the gradient
  /// by the sum of W. The metrics of loss and accuracy are weighted in the same way. Mode::infer reads no weights.
  ///
  /// An element with weight 0 has no effect, whatever its label, target and output. A common factor of all weights has
  /// no effect on the result. In f16, weights far from 1 make gradients overflow or underflow, so the caller should
  /// scale the weights to about 1.
  LossWeights weights = LossWeights::none;
  /// For cross_entropy in training. true: each sample is a mixture of two samples (mixup, cutmix) and has two labels
  /// with shares (StateField::other_labels, shares, other_shares). The loss of a sample is share * l(label) +
  /// other_share * l(other label). If the prediction is one of the two labels, the share of that label is added to the
  /// number of correct samples. With two_labels, `weights` must be LossWeights::none.
  bool two_labels = false;
  /// Evaluation with cross_entropy also counts samples whose label is among the top_k largest logits; 0: off.
  int top_k = 0;
  std::uint64_t dropout_seed = 0;
  /// For training: the context whose stream is the side stream. The side stream computes the gradients of the weights
  /// of convolutions and products. Meanwhile the plan's stream runs the next backward calls, which do not need these
  /// gradients. Results are the same as on one stream. Up to two calls are in progress on the side stream, so the
  /// tensors that these calls read live longer.
  ///
  /// The context must not be the plan's own, but must be on the same device (otherwise UsageError). The context must
  /// outlive the plan. Its stream must have no other work during a run. nullptr: all calls run on one stream.
  Context* beside = nullptr;
  /// For training. true: the plan adds parameter gradients to their arena instead of overwriting them. In a step of
  /// several micro-batches, `accumulate` is false in the plan of the first micro-batch, and true in the plan of all
  /// later micro-batches.
  bool accumulate = false;
  /// For training. true: the plan also computes dL/d(input), Plan::input_gradient(). Throws UsageError unless the
  /// model's input is numbers (InputKind::values).
  bool input_gradient = false;
  /// For training. true: tensors that live from forward to backward use the first kept_bytes() bytes of the workspace.
  /// Each set that Plan::add_kept() adds then needs only kept_bytes() bytes, because all sets of kept activations share
  /// the remaining bytes of the workspace.
  bool kept_apart = false;
  /// In training, true: backward computes no gradients of parameters, as if all parameters were frozen.
  bool constant_parameters = false;
  /// In training, true: the forward pass computes the outputs of inference, and backward their derivatives. Batch norms
  /// read their running statistics without an update, and dropout returns its input unchanged.
  bool inference_pass = false;
  /// In training, true: the plan can also compute products with the Jacobian J = d(output)/d(input) after a forward(),
  /// any number of times: Plan::vjp() and Plan::jvp(). Both options need kept_apart, input_gradient, Loss::given
  /// and no recompute. With `jvp`, the plan throws UnsupportedError with the layer's name if a layer has no rule for
  /// tangents.
  bool vjp = false;
  bool jvp = false;
  Exchange exchange{};  ///< ranks with which a training plan communicates
  /// For training with an exchange. true: batch norms compute their statistics over the batches of all ranks, as if
  /// these were one batch (SyncBatchNorm). Each layer gathers the results of all ranks once in forward (mean, M2 and
  /// count of each channel) and once in backward (two sums per channel). Every rank combines the results in rank order,
  /// so all ranks get the same bits. The gradients of the norm's weight and bias contain only the rank's own samples,
  /// until the reducer sums all gradients. Running statistics are updated with the statistics of all ranks.
  bool sync_batch_norm = false;
  [[nodiscard]] bool shares_statistics() const { return sync_batch_norm && exchange.given(); }
  Fusions fusions = Fusions::automatic;
  /// For training. true: fused calls may run a pass of batch norm as one cooperative launch. TrainStep sets false if
  /// there are other ranks, because the launch could wait for multiprocessors that a running collective occupies.
  bool cooperative = true;
  /// Memory sizes of a GPU, used on the host with Fusions::on. The sizes decide how batch norm is fused, so that the
  /// host plans the calls that this GPU would run.
  ops::ChipMemory chip{};
  /// Used on the host with `chip`. true: convolutions also compute the sums of batch norms wherever cuDNN could do so
  /// (ops::conv_may_serve_norm()). false: a convolution computes these sums only if its choice says so. Must be false
  /// for a plan on a GPU.
  bool norms_in_convolutions = false;
  Recompute recompute = Recompute::off;  ///< activations that backward computes again, in training
  Choices choices = {};                  ///< choice of library and algorithm for each call; the key names the call
  /// Choice for calls that `choices` does not name. If this choice is empty or cannot be planned, the provider's
  /// default is used.
  std::string default_choice = {};
  /// true: a choice that cannot be planned in this build or on this processor is an error. false: the provider's
  /// default replaces the choice, and Plan::choices() shows the default.
  bool choices_required = true;
  /// Verifier that compares each library call with our own kernel when the plan is made. A call with wrong results gets
  /// another choice (choice_verifier.hpp), which Plan::choices() shows. nullptr: no library call is verified.
  std::shared_ptr<ChoiceVerifier> verifier = {};
  /// false: every slot has its own memory, and no slot is overwritten, so that a debugger or test can read all
  /// intermediate values.
  bool reuse_memory = true;
  /// true: a guard band (runtime/memory/guard_band.hpp) follows each slot of the workspace. Applies only to a host
  /// stream that runs in the calling thread. The band is written before each call that writes the slot, and checked
  /// after the call. If a band has changed, an Error names layer, call and slot. Costs 256 bytes per slot.
  bool guard_bands = guards_workspaces();
};

/// Adds the options that a program may offer its users: types, recomputation, label smoothing and top k.
void describe(Schema& schema, PlanOptions& options);
/// Returns the layout (shapes and types) that a StepState needs for a batch of `model`.
[[nodiscard]] StepLayout step_layout(const Model& model, const PlanOptions& options);

}  // namespace lockstep::nn
