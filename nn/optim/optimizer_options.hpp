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

/// The built-in rules. rules/NAME.cpp defines the rule NAME; optimizer.cpp has the traits of all rules.
enum class OptimizerKind : unsigned char { sgd, adam, adamw, lars, muon };

struct Rule;
/// Function that makes a rule (detail/rule.hpp) for a parameter set. Throws UsageError for options out of range.
using RuleMaker = Rule(Context& context, const ParameterSet& parameters, const OptimizerOptions& options);

/// Properties of a rule: its name and help text, the options that it reads, how it updates, and its usual learning
/// rate. Other code uses these properties for a run's header and identity, and to refuse combinations of options.
struct RuleTraits {
  std::string_view name;
  RuleMaker* make;
  std::string_view help{};  ///< explanation for --help; empty: the name suffices
  // Fields of OptimizerOptions that the rule reads:
  bool momentum = false;  ///< true: the rule reads momentum and nesterov
  bool betas = false;     ///< true: the rule reads beta1 and beta2
  bool epsilon = false;
  bool trust_coefficient = false;
  // How the rule updates:
  bool decoupled = false;    ///< true: decay shrinks parameters by rate times decay; false: decay is added to gradients
  bool layer_norms = false;  ///< true: updates depend on norms of whole tensors; with zero1, the ranks sum these norms
  /// True: the rule updates each hidden matrix (is_hidden_matrix()) as a whole, so zero1 cannot divide the optimizer's
  /// states. Momentum is used only for hidden matrices.
  bool whole_matrices = false;
  bool normalised = false;  ///< true: multiplying all gradients by a positive factor hardly changes an update
  double rate = 1;          ///< usual learning rate relative to sgd's, or to adam's if `normalised`
};
/// Returns the traits of the built-in rules, in the order of OptimizerKind.
[[nodiscard]] std::span<const RuleTraits> built_in_rules();
[[nodiscard]] const RuleTraits& traits_of(OptimizerKind kind);
/// Returns the traits of the rule in the options. For a user's rule, only RuleTraits::make is set.
[[nodiscard]] const RuleTraits& traits_of(const OptimizerOptions& options);
/// Lists the names of the built-in rules that have a trait, with `last` before the last name: if `last` is " or ",
/// "sgd, lars or muon".
[[nodiscard]] std::string rules_with(bool RuleTraits::*trait, std::string_view last);

[[nodiscard]] std::string_view name_of(OptimizerKind kind);  ///< "sgd", ...
[[nodiscard]] OptimizerKind parse_optimizer(
    std::string_view name);  ///< inverse of name_of(); throws UsageError for other names

[[nodiscard]] bool is_hidden_matrix(const ParameterSpec& spec);  ///< true if muon orthogonalises updates of `spec`

/// Options of an optimizer. kernels/sgd.hpp, adam.hpp, lars.hpp and muon.hpp define the rules and the ranges of values.
///
/// The rule muon updates hidden matrices by kernels/muon.hpp and nn/optim/orthogonalizer.hpp, and updates all other
/// parameters by adamw. A hidden matrix is a weight of at least two axes, reshaped to (first axis, product of all
/// others). Embeddings and the weight of the last layer are not hidden.
///
/// A hidden matrix (rows, columns) is updated with 0.2 sqrt(max(rows, columns)) times the learning rate, so that one
/// learning rate suits hidden matrices and adamw (Liu et al. 2025, arXiv:2502.16982, equation 4; torch.optim.Muon's
/// "match_rms_adamw"). Decay is decoupled for all parameters and uses the unscaled rate. Matrix products are computed
/// in the type of the plan (f32 for tf32). torch.optim.Muon's defaults are momentum 0.95 with nesterov; the defaults
/// here differ. Each rank computes all matrix products itself. The results must have the same bits on all ranks, so all
/// GPUs must be of one kind.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double momentum = 0.9;             ///< read by sgd, lars, muon
  bool nesterov = false;             ///< read by sgd, lars, muon
  double beta1 = 0.9;                ///< read by adam, adamw, muon
  double beta2 = 0.999;              ///< read by adam, adamw, muon
  double epsilon = 1e-8;             ///< read by adam, adamw, lars, muon
  double trust_coefficient = 0.001;  ///< read by lars
  double clip_norm = 0;              ///< largest allowed norm over all gradients; 0: no clipping
  double clip_value = 0;         ///< limit of |gradient element|, applied after clip_norm; 0: no clipping; not for lars
  bool skip_non_finite = false;  ///< true: skips updates whose gradients have NaN or infinity, also without clip_norm
  LossScale loss_scale{};  ///< loss scale of the plan; any kind except `off` also skips updates that are not finite
  std::shared_ptr<const UpdateRule> rule{};  ///< a user's rule, used instead of the rule `kind`
};
/// Returns the name of the user's rule, if there is one, otherwise the name of `kind`.
[[nodiscard]] std::string name_of(const OptimizerOptions& options);
/// Returns the options that the rule reads, by name, as texts for checkpoints, such as {"momentum", "0.9"}.
[[nodiscard]] std::map<std::string, std::string> rule_texts(const OptimizerOptions& options);
/// Returns a one-line text of all chosen settings: "momentum 0.9 (Nesterov), clip norm 1".
[[nodiscard]] std::string text_of(const OptimizerOptions& options, const ParameterSet& parameters);

void describe(Schema& schema, OptimizerOptions& options);

}  // namespace lockstep::nn
