// mpirun -np N train_text [options]: data-parallel training of a small GPT on the bytes of a text, or on files of
// tokens. --help explains the options.
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

#include "corpus.hpp"
#include "options.hpp"
#include "sampling.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using train_text::Options;
using train_text::TextData;

nn::TrainingInputs inputs_of(const Options& o, const nn::Model& model, const TextData& text) {
  const double histogram = train_text::histogram_bits(*text.train, *text.validation, text.vocabulary);
  nn::TrainingInputs inputs{.model = model, .train = text.train, .test = text.validation};
  const nn::RuleTraits& rule = nn::traits_of(o.training.trainer.step.optimizer.kind);
  if (rule.normalised) {
    inputs.rate = {2e-3 * rule.rate, 0};
  }
  inputs.samples = "windows";
  inputs.model_text = concat("GPT, ", o.layers, o.layers == 1 ? " layer" : " layers", " of width ", o.width, " with ",
                             o.heads, o.heads == 1 ? " head" : " heads");
  inputs.about = {{"text", text.about},
                  {"baseline", concat(digits(histogram, 3), " bits a ", text.unit, ": validation by the ", text.unit,
                                      " histogram of the text to train on")}};
  // Checkpoints must keep the number of heads, because no parameter's shape depends on this number. They keep all of
  // inputs.options.
  inputs.options["heads"] = std::to_string(o.heads);
  inputs.config = {{"data", o.data},   {"layers", o.layers}, {"heads", o.heads},
                   {"width", o.width}, {"length", o.length}, {"histogram_bits", histogram}};
  const std::string bits = "bits_per_" + text.unit;
  inputs.metrics = {{.name = bits,
                     .of_report = [](const nn::ReportEvent& e) { return train_text::bits_of(e.loss); },
                     .of_evaluation = [](const nn::EvaluationEvent& e) { return train_text::bits_of(e.loss); }}};
  inputs.best = {.metric = bits, .lowest = true};
  return inputs;
}

/// Returns the prompt's tokens, which the sampled text continues.
std::vector<std::int32_t> prompt_of(const Options& o, const TextData& text) {
  if (text.bytes()) {
    return train_text::tokens_of(o.prompt.empty() ? "\n" : o.prompt);
  }
  return train_text::parse_ids(o.prompt.empty() ? std::to_string(text.vocabulary - 1) : o.prompt, text.vocabulary);
}

std::string sample(Context& context, const Options& o, const TextData& text, nn::Trainer& trainer,
                   const nn::Model& model, const std::vector<std::int32_t>& prompt) {
  const nn::PlanOptions& plan = trainer.options().step.plan;
  const std::vector<std::int32_t> said = train_text::sample_tokens(context, model, trainer.parameters(),
                                                                   {.tokens = o.sample,
                                                                    .prompt = prompt,
                                                                    .temperature = o.temperature,
                                                                    .seed = o.training.trainer.step.seed,
                                                                    .plan = {.dtype = plan.dtype, .tf32 = plan.tf32}});
  return text.bytes() ? train_text::printable(o.prompt + train_text::bytes_of(said)) : train_text::ids_text(said);
}

int run(comm::Session& session, comm::RankContext& place, const Options& o) {
  nn::TrainingProgram program(session, place, o.training);
  TextData text;
  std::vector<std::int32_t> prompt;
  std::optional<nn::Model> model;
  session.agree([&] {
    text = train_text::open_text(o.data, o.length, o.vocabulary);
    if (text.bytes()) {
      train_text::require_no_vocabulary(o);
    }
    const std::int64_t batch = o.training.batch_size.value_or(o.training.default_batch);
    require<DataError>(text.train->size() >= batch || !o.training.evaluate.empty(), text.train->name(), " has ",
                       text.train->size(), " windows of --length ", o.length, ", expected at least --batch-size ",
                       batch);
    prompt = prompt_of(o, text);
    model.emplace(nn::transformer(
        {.vocabulary = text.vocabulary, .length = o.length, .width = o.width, .heads = o.heads, .layers = o.layers}));
  });
  std::optional<nn::TrainingInputs> inputs;
  session.agree([&] { inputs.emplace(inputs_of(o, *model, text)); });
  const int code = program.run(*inputs);
  if (session.rank() == 0 && code == exit_code::kFinished && program.result() != nullptr && o.sample > 0) {
    std::cout << sample(place.context(), o, text, program.trainer(), *model, prompt) << '\n';
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  return cli::training_main<Options>(argc, argv, train_text::parse, run);
}
