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

/// Library choices by "layer pass" ("layer1.0.conv1 backward_data", "layer1.0.conv1 forward beside a norm"), kept in
/// checkpoints and reused on resume.
using Choices = std::map<std::string, std::string>;

/// cross_entropy: softmax over the last axis of the output against StateField::labels, mean over the positions of a
/// sample. The others compare the output with StateField::targets (kernels/regression_loss.hpp), mean over its
/// elements. A step minimises the mean over the valid samples of all ranks.
enum class Loss : unsigned char { cross_entropy, mse, l1, huber };
[[nodiscard]] std::string_view name_of(Loss loss);

/// Whether a training plan moves less memory at the price of other roundings in 16 bits: the masked gradient of a
/// residual block is stored once instead of computed in both passes of batch norm, the batch norm of a shortcut is
/// computed by the pass that adds it, in backward too, and that of a stem by its max pool (3 x 3 at stride 2).
/// automatic: on GPUs.
enum class Fusions : unsigned char { automatic, off, on };

struct PlanOptions {
  /// The type of activations, their gradients, and weights as convolutions and products read them. Parameters of norms,
  /// biases, statistics and the gradients of parameters have accumulation_dtype(dtype): f32 beside bf16 and f16.
  DType dtype = DType::f32;
  bool tf32 = false;              ///< f32 on a GPU: convolutions and products may round their factors to TF32
  ops::AugmentDesc augment = {};  ///< for models that read u8 images; evaluation ignores pad and flip
  Loss loss = Loss::cross_entropy;
  /// In training: gradients are those of the loss times ParameterSet::loss_scale(); metrics are not scaled.
  bool scaled_loss = false;
  double label_smoothing = 0;  ///< cross_entropy, in training
  double huber_delta = 1;      ///< huber
  /// Weights of the loss that every batch brings, StateField::weights. Let w_nj be the weight of position or element j
  /// of sample n (w_nj = w_n with `sample`), l_nj its loss, and J their number per sample, in
  ///   L = sample_weight * sum_n 1/J sum_j w_nj l_nj        and        W = sample_weight * sum_n 1/J sum_j w_nj
  /// with sums over the samples that count. A training plan computes the gradient of L, and writes W to
  /// ParameterSet::weight_sum() or (accumulate) adds it there; the metrics of loss and accuracy are weighted likewise.
  /// TrainStep divides the gradient by W, both summed over micro-batches and ranks. A weight of 0 removes its element,
  /// whatever label, target and output are there. Mode::infer reads no weights. In f16, weights far from 1 take
  /// gradients out of range: scale them to about 1, as a common factor cancels.
  LossWeights weights = LossWeights::none;
  /// cross_entropy, in training: a sample is a mixture of two (mixup, cutmix) and has two labels with their shares
  /// (StateField::other_labels, shares, other_shares). Its loss is share * l(label) + other_share * l(other label), and
  /// it counts as correct by the share of the label that is found. Not beside `weights`.
  bool two_labels = false;
  int top_k = 0;  ///< cross_entropy, in evaluation: also counts labels among this many largest logits; 0: does not
  std::uint64_t dropout_seed = 0;
  /// In training: the gradients of the weights of convolutions and products are computed on the stream of this context,
  /// beside the backward calls that follow, which do not need them. The numbers are the same. Up to two are under way,
  /// and what they read lives longer. Another context of the plan's device (else UsageError), which must outlive the
  /// plan and whose stream has no other work during a run; nullptr: all calls run on one stream.
  Context* beside = nullptr;
  /// In training: adds parameter gradients to their arena instead of overwriting it. For a batch in several
  /// micro-batches, the first one's plan has this off and the others' plan has it on.
  bool accumulate = false;
  Exchange exchange{};  ///< in training
  /// In training, with an exchange: batch norms take their statistics over the batches of all ranks, as if these were
  /// one batch (SyncBatchNorm). What each rank has computed is gathered, once a layer in forward (mean, M2 and count of
  /// each channel) and once in backward (two sums a channel), and joined in rank order: every rank has the same bits.
  /// The gradients of weight and bias stay those of the rank's own samples, as all gradients are before they are
  /// reduced; running statistics become those of all ranks.
  bool sync_batch_norm = false;
  [[nodiscard]] bool shares_statistics() const { return sync_batch_norm && exchange.given(); }
  Fusions fusions = Fusions::automatic;
  /// In training: among the fusions are passes of batch norm as one cooperative launch each. TrainStep clears it where
  /// there are other ranks: such a launch would wait for a collective that holds the multiprocessors that it needs.
  bool cooperative = true;
  /// On the host, with Fusions::on: plans what that GPU would run. The fused passes of batch norm depend on its memory.
  ops::ChipMemory chip{};
  /// On the host, with `chip`: convolutions take the sums of batch norms on their way wherever cuDNN may do so
  /// (ops::conv_may_serve_norm()). Without this, and on a GPU, their choices decide.
  bool norms_in_convolutions = false;
  Recompute recompute = Recompute::off;  ///< in training
  Choices choices = {};                  ///< by call
  /// Of calls that `choices` does not name. Empty, or where it cannot be planned: the provider's first guess.
  std::string default_choice = {};
  /// true: a choice that cannot be planned in this build or on this processor is an error. false: the provider's first
  /// guess replaces it, and Plan::choices() shows that.
  bool choices_required = true;
  /// Compares each library call with our own kernel while it is planned; a call that is wrong gets another choice
  /// (choice_verifier.hpp), as Plan::choices() then shows. nullptr: libraries are trusted.
  std::shared_ptr<ChoiceVerifier> verifier = {};
  /// false: every slot has its own memory, and nothing is overwritten (to inspect intermediate values).
  bool reuse_memory = true;
  /// On a host stream that runs in the calling thread: behind each slot of the workspace there is a guard band
  /// (runtime/memory/guard_band.hpp), which is written before each call that writes the slot, and checked after it. A
  /// changed band is an Error that names layer, call and slot. Costs 256 bytes a slot.
  bool guard_bands = guards_workspaces();
};

/// What a program may choose of a plan: types, what is computed again, the loss.
void describe(Schema& schema, PlanOptions& options);
/// The shapes and types of a batch of the model in a StepState.
[[nodiscard]] StepLayout step_layout(const Model& model, const PlanOptions& options);

}  // namespace lockstep::nn
