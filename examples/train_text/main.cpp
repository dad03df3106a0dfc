// mpirun -np N train_text [options]: data-parallel training of a small GPT on the bytes of a text. --help explains the
// rest.
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/run/program/training_program.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "corpus.hpp"
#include "options.hpp"
#include "sampling.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using train_text::Options;
using train_text::TextWindows;

std::string bits_text(double bits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << bits;
  return text.str();
}

nn::Recipe recipe_of(const Options& o, const nn::Model& model, const train_text::Corpus& corpus,
                     const std::shared_ptr<const TextWindows>& train,
                     const std::shared_ptr<const TextWindows>& validation) {
  const double histogram = train_text::histogram_bits(corpus.train, corpus.validation);
  nn::Recipe recipe{.model = model, .train = train, .test = validation};
  if (o.training.optimizer.starts_with("adam")) {
    recipe.rate = {2e-3, 0};
  }
  recipe.samples = "windows";
  recipe.model_text = concat("GPT, ", o.layers, o.layers == 1 ? " layer" : " layers", " of width ", o.width, " with ",
                             o.heads, o.heads == 1 ? " head" : " heads");
  recipe.about = {
      {"text", concat(corpus.source, ": ", corpus.files, corpus.files == 1 ? " file, " : " files, ",
                      corpus.train.size(), " bytes to train on (", train->size(), " windows of ", o.length, "), ",
                      corpus.validation.size(), " for validation (", validation->size(), " windows)")},
      {"baseline",
       concat(bits_text(histogram), " bits a byte: validation by the byte histogram of the text to train on")}};
  recipe.options["heads"] = std::to_string(o.heads);  // changes numbers, but no shape
  recipe.config = {{"data", o.data},   {"layers", o.layers}, {"heads", o.heads},
                   {"width", o.width}, {"length", o.length}, {"histogram_bits", histogram}};
  recipe.metrics = {{.name = "bits_per_byte",
                     .of_report = [](const nn::ReportEvent& e) { return train_text::bits_of(e.loss); },
                     .of_evaluation = [](const nn::EvaluationEvent& e) { return train_text::bits_of(e.loss); }}};
  recipe.best = {.metric = "bits_per_byte", .lowest = true};
  return recipe;
}

int run(comm::Session& session, comm::Workplace& place, const Options& o) {
  nn::TrainingProgram program(session, place, o.training);
  train_text::Corpus corpus;
  std::shared_ptr<const TextWindows> train;
  std::shared_ptr<const TextWindows> validation;
  std::optional<nn::Model> model;
  session.agree([&] {
    corpus = train_text::read_corpus(o.data);
    train = std::make_shared<TextWindows>(corpus.source + ", the part to train on,", corpus.train, o.length);
    validation = std::make_shared<TextWindows>(corpus.source + ", the last tenth,", corpus.validation, o.length);
    const std::int64_t batch = o.training.batch_size.value_or(o.training.default_batch);
    require<DataError>(train->size() >= batch, train->name(), " has ", train->size(), " windows of --length ", o.length,
                       ", expected at least --batch-size ", batch);
    model.emplace(nn::transformer({.vocabulary = train_text::kVocabulary,
                                   .length = o.length,
                                   .width = o.width,
                                   .heads = o.heads,
                                   .layers = o.layers}));
  });
  const int code = program.run(recipe_of(o, *model, corpus, train, validation));
  if (session.rank() == 0 && code == exit_code::kFinished && program.result() != nullptr && o.sample > 0) {
    const nn::PlanOptions& plan = program.trainer().options().plan;
    std::cout << train_text::printable(o.prompt)
              << train_text::printable(train_text::sample_text(place.context(), *model, program.trainer().parameters(),
                                                               {.bytes = o.sample,
                                                                .prompt = o.prompt,
                                                                .temperature = o.temperature,
                                                                .seed = o.training.seed,
                                                                .plan = {.dtype = plan.dtype, .tf32 = plan.tf32}}))
              << '\n';
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  return cli::training_main<Options>(argc, argv, train_text::parse, run);
}
