#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/loss_scale.hpp>
#include <lockstep/nn/optim/update_rule.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// The built-in rules: rules/NAME.cpp, and the table of their names in optimizer.cpp.
enum class OptimizerKind : unsigned char { sgd, adam, adamw, lars, muon };

[[nodiscard]] std::string_view name_of(OptimizerKind kind);          ///< "sgd", ...
[[nodiscard]] OptimizerKind parse_optimizer(std::string_view name);  ///< inverse of name_of; UsageError otherwise

[[nodiscard]] bool is_hidden_matrix(const ParameterSpec& spec);  ///< whether muon orthogonalises its updates

/// For the rules and the ranges of the values see kernels/sgd.hpp, adam.hpp, lars.hpp, muon.hpp.
///
/// muon updates hidden matrices by kernels/muon.hpp and nn/optim/orthogonalizer.hpp: weights of at least two axes,
/// taken as (first axis, all others), except embeddings and those of the layer whose gradients are ready first, which
/// is the last one. All other parameters are adamw's. So that one learning rate serves both, a matrix (rows, columns)
/// takes 0.2 sqrt(max(rows, columns)) times it (Liu et al. 2025, arXiv:2502.16982, equation 4; torch.optim.Muon's
/// "match_rms_adamw"); decay is decoupled for both and takes the rate itself. Products are in the type of the plan (f32
/// with tf32). torch.optim.Muon's momentum is 0.95 with nesterov, which are to be given here. Ranks compute the same
/// update, each for itself: GPUs of one kind.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double momentum = 0.9;             ///< sgd, lars, muon
  bool nesterov = false;             ///< sgd, lars, muon
  double beta1 = 0.9;                ///< adam, adamw, muon
  double beta2 = 0.999;              ///< adam, adamw, muon
  double epsilon = 1e-8;             ///< adam, adamw, lars, muon
  double trust_coefficient = 0.001;  ///< lars
  double clip_norm = 0;              ///< largest norm of all gradients together; 0: no clipping
  double clip_value = 0;             ///< largest size of one gradient, behind clip_norm; 0: no clipping; not for lars
  bool skip_non_finite = false;      ///< also without clip_norm: skips an update whose gradients have NaN or infinity
  LossScale loss_scale{};            ///< of the plan; unless off, it also skips such updates
  std::shared_ptr<const UpdateRule> rule{};  ///< a rule of your own, instead of `kind` and its numbers
};
/// The rule's name if there is a rule, else that of the kind.
[[nodiscard]] std::string name_of(const OptimizerOptions& options);

void describe(Schema& schema, OptimizerOptions& options);

}  // namespace lockstep::nn
