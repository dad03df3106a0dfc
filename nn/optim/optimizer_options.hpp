#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/loss_scale.hpp>
#include <lockstep/nn/optim/update_rule.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

struct OptimizerOptions;

/// The built-in rules: rules/NAME.cpp, and their traits in optimizer.cpp.
enum class OptimizerKind : unsigned char { sgd, adam, adamw, lars, muon };

struct Rule;
/// Makes a rule for a set (detail/rule.hpp). UsageError for options out of range.
using RuleMaker = Rule(Context& context, const ParameterSet& parameters, const OptimizerOptions& options);

/// What a rule is to its neighbours: help, the header and the identity of a run, refusals and the usual rate follow.
struct RuleTraits {
  std::string_view name;
  RuleMaker* make;
  std::string_view help{};  ///< a few words; empty: the name says all
  // The numbers of OptimizerOptions that it reads.
  bool momentum = false;  ///< and nesterov
  bool betas = false;     ///< beta1 and beta2
  bool epsilon = false;
  bool trust_coefficient = false;
  // How it updates.
  bool decoupled = false;       ///< weight decay shrinks parameters by rate times it; false: it is added to gradients
  bool layer_norms = false;     ///< by norms of whole tensors, which zero1 adds by rank
  bool whole_matrices = false;  ///< hidden matrices by `momentum`, each at once, so that zero1 cannot divide them
  bool normalised = false;      ///< the size of an update does not follow that of the gradients
  double rate = 1;              ///< that is usual, relative to sgd's; normalised: to adam's
};
/// In the order of OptimizerKind.
[[nodiscard]] std::span<const RuleTraits> built_in_rules();
[[nodiscard]] const RuleTraits& traits_of(OptimizerKind kind);
/// Of a rule of your own: nothing but its maker.
[[nodiscard]] const RuleTraits& traits_of(const OptimizerOptions& options);
/// The built-in rules that have a trait: "sgd, lars or muon", with `last` = " or ".
[[nodiscard]] std::string rules_with(bool RuleTraits::*trait, std::string_view last);

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
/// The numbers that the rule reads, by name, as checkpoints keep them: {"momentum", "0.9"}.
[[nodiscard]] std::map<std::string, std::string> rule_texts(const OptimizerOptions& options);
/// All that is chosen, in one line: "momentum 0.9 (Nesterov), clip norm 1".
[[nodiscard]] std::string text_of(const OptimizerOptions& options, const ParameterSet& parameters);

void describe(Schema& schema, OptimizerOptions& options);

}  // namespace lockstep::nn
