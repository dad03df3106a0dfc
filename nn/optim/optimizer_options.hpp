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
/// A function that makes a rule for a parameter set (detail/rule.hpp). UsageError for options out of range.
using RuleMaker = Rule(Context& context, const ParameterSet& parameters, const OptimizerOptions& options);

/// Traits of a rule for other code: they decide help, the header and the identity of a run, refusals and the usual
/// rate.
struct RuleTraits {
  std::string_view name;
  RuleMaker* make;
  std::string_view help{};  ///< a few words for --help; empty: the name says all
  // Numbers of OptimizerOptions that the rule reads.
  bool momentum = false;  ///< reads momentum and nesterov
  bool betas = false;     ///< reads beta1 and beta2
  bool epsilon = false;
  bool trust_coefficient = false;
  // How the rule updates.
  bool decoupled = false;  ///< weight decay shrinks parameters by rate times decay; false: decay is added to gradients
  bool layer_norms = false;     ///< updates depend on norms of whole tensors, which zero1 sums over the ranks
  bool whole_matrices = false;  ///< updates each hidden matrix as a whole, by `momentum`: zero1 cannot divide it
  bool normalised = false;      ///< the size of an update does not depend on the size of the gradients
  double rate = 1;              ///< usual learning rate relative to sgd's; normalised: relative to adam's
};
/// Returns the traits of the built-in rules, in the order of OptimizerKind.
[[nodiscard]] std::span<const RuleTraits> built_in_rules();
[[nodiscard]] const RuleTraits& traits_of(OptimizerKind kind);
/// For a rule of your own the traits name only its maker.
[[nodiscard]] const RuleTraits& traits_of(const OptimizerOptions& options);
/// Lists the built-in rules that have a trait: "sgd, lars or muon", with `last` = " or ".
[[nodiscard]] std::string rules_with(bool RuleTraits::*trait, std::string_view last);

[[nodiscard]] std::string_view name_of(OptimizerKind kind);          ///< "sgd", ...
[[nodiscard]] OptimizerKind parse_optimizer(std::string_view name);  ///< inverse of name_of; UsageError otherwise

[[nodiscard]] bool is_hidden_matrix(const ParameterSpec& spec);  ///< true when muon orthogonalises its updates

/// kernels/sgd.hpp, adam.hpp, lars.hpp and muon.hpp define the rules and the ranges of the values.
///
/// muon updates hidden matrices by kernels/muon.hpp and nn/optim/orthogonalizer.hpp. A hidden matrix is a weight of at
/// least two axes, taken as (first axis, all others), but no embedding and not a weight of the last layer, whose
/// gradients are ready first. adamw updates all other parameters. So that one learning rate serves both, a matrix
/// (rows, columns) takes 0.2 sqrt(max(rows, columns)) times the rate (Liu et al. 2025, arXiv:2502.16982, equation 4;
/// torch.optim.Muon's "match_rms_adamw"). Decay is decoupled for both and uses the unscaled rate. Products are in the
/// type of the plan (f32 with tf32). torch.optim.Muon has momentum 0.95 with nesterov; the defaults here are others.
/// Each rank computes the same update by itself, so GPUs must be of one kind.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double momentum = 0.9;             ///< read by sgd, lars, muon
  bool nesterov = false;             ///< read by sgd, lars, muon
  double beta1 = 0.9;                ///< read by adam, adamw, muon
  double beta2 = 0.999;              ///< read by adam, adamw, muon
  double epsilon = 1e-8;             ///< read by adam, adamw, lars, muon
  double trust_coefficient = 0.001;  ///< read by lars
  double clip_norm = 0;              ///< largest norm of all gradients together; 0: no clipping
  double clip_value = 0;  ///< largest size of one gradient, applied after clip_norm; 0: no clipping; not for lars
  bool skip_non_finite = false;  ///< skips an update whose gradients have NaN or infinity, also without clip_norm
  LossScale loss_scale{};        ///< the plan's loss scale; unless off, such updates are skipped, too
  std::shared_ptr<const UpdateRule> rule{};  ///< a rule of your own, instead of `kind` and its numbers
};
/// Returns the rule's name if there is a rule, else the name of the kind.
[[nodiscard]] std::string name_of(const OptimizerOptions& options);
/// Returns the numbers that the rule reads, by name, as checkpoints keep them: {"momentum", "0.9"}.
[[nodiscard]] std::map<std::string, std::string> rule_texts(const OptimizerOptions& options);
/// Returns all that is chosen, in one line: "momentum 0.9 (Nesterov), clip norm 1".
[[nodiscard]] std::string text_of(const OptimizerOptions& options, const ParameterSet& parameters);

void describe(Schema& schema, OptimizerOptions& options);

}  // namespace lockstep::nn
