#include "options.hpp"

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>

#include "app/cli/command_line.hpp"

namespace train_text {

namespace cli = lockstep::cli;
namespace nn = lockstep::nn;
using lockstep::require;
using lockstep::UsageError;

namespace {

constexpr const char* kAbout =
    "Trains a small GPT to predict the next byte of a text, or the next token of files of token ids.\n"
    "Reports the bits that the model needs for a byte of the last tenth of the text, which is not trained\n"
    "on, and writes some text of its own.\n"
    "\n"
    "  train_text                                  the documents of lockstep\n"
    "  train_text --data FILE --devices cpu:2      a text of yours, two ranks on this machine's CPU\n"
    "  train_text --data tokens:DIR --length 256   DIR/train.bin and DIR/val.bin, as of nanoGPT and llm.c\n"
    "  train_text --resume auto --sample 1000 --prompt \"A stream is\"\n"
    "                                              goes on from the last checkpoint; a complete run only\n"
    "                                              writes text\n";

constexpr const char* kFooter =
    "The text is cut into windows of --length bytes, which do not overlap: an epoch reads each window\n"
    "once, in a new random order. --lr auto is 0.002 with adam, adamw and muon. The learning rate rises\n"
    "over a twentieth of the run and then falls along the schedule. The length of the run (--epochs,\n"
    "--steps) thus decides the rate of each step: give --resume the length of the first start.\n"
    "Files in --out DIR: config.json (as resolved), metrics.jsonl (one object a line: step, epoch, end),\n"
    "run.lock (keeps other runs out), and the checkpoints last/ and best/ (fewest bits a byte or token),\n"
    "each with model.safetensors, optimizer.safetensors and state.json.\n"
    "Exit codes: 0 finished, 2 bad input, 3 failure in the run, 75 stopped by a signal with a checkpoint\n"
    "(--resume auto goes on from this checkpoint), 76 no progress (--watchdog).";

constexpr double kMost = 1 << 20;

void describe_model(lockstep::Schema& schema, Options& o) {
  schema.group("Text");
  schema
      .add("data", o.data,
           "text: a file, a folder, tokens:DIR or packed:FILE; default: the documents of lockstep; a folder: its files "
           "*.md, *.txt, *.hpp and *.cpp in the order of their paths; tokens: files of token ids, *train*.bin and "
           "*val*.bin in DIR; packed: text or tokens in a file of lockstep-pack, with equal bits")
      .is_common();
  schema
      .add("vocabulary", o.vocabulary,
           "size of the vocabulary of token ids, above every id; for tokens:DIR, or for a packed:FILE of tokens; 50257 "
           "is GPT-2's")
      .between(1, kMost)
      .is_common();
  schema.add("length", o.length, "context length: bytes, or tokens, that the model sees at once")
      .between(1, kMost)
      .is_common();
  schema.group("Model");
  schema.add("layers", o.layers, "number of transformer layers").between(1, kMost).is_common();
  schema.add("heads", o.heads, "number of attention heads of a layer; a divisor of --width")
      .between(1, kMost)
      .is_common();
  schema.add("width", o.width, "width of the embedding").between(1, kMost).is_common();
  schema.group("Samples");
  schema.add("sample", o.sample, "length of the text to write after training, in bytes or tokens; 0: no text")
      .between(0, kMost)
      .is_common();
  schema
      .add("prompt", o.prompt,
           "text that the sample goes on from; default: a line end; for tokens: ids as \"464 3290\", by default the "
           "last id of the vocabulary, GPT-2's end of a text")
      .is_common();
  schema
      .add(
          "temperature", o.temperature,
          "temperature of the sample, above 0; 1: bytes by the model's probabilities; smaller: likely bytes more often")
      .above(0);
}

}  // namespace

void require_no_vocabulary(const Options& options) {
  require<UsageError>(!options.vocabulary_given, "--vocabulary is ", options.vocabulary,
                      ", expected it with --data tokens:DIR alone: a text's tokens are its bytes");
}

cli::Parsed<Options> parse(int argc, const char* const* argv, const cli::ConfigFile& config) {
  cli::Parsed<Options> parsed;
  Options& o = parsed.options;
  o.training.run.epochs = 10;
  o.training.default_batch = 16;
  o.training.trainer.step.optimizer.kind = nn::OptimizerKind::adamw;
  o.training.trainer.step.weight_decay = 0.1;
  o.training.trainer.step.decay_all = false;
  o.training.trainer.step.optimizer.clip_norm = 1;
  o.training.workers = 0;  // no reader threads: reading a window copies a few bytes
  o.training.out = "text.out";
  lockstep::Schema schema;
  describe_model(schema, o);
  cli::describe(schema, o.launch, cli::Restarts::yes);
  nn::describe(schema, o.training);
  parsed.text = cli::parse_command_line({"train_text", kAbout, kFooter, true}, schema, argc, argv, config);
  if (!parsed.text.empty()) {
    return parsed;
  }
  o.training.chosen = schema.given(/*kept_only=*/true);
  require<UsageError>(o.width % o.heads == 0, "--heads is ", o.heads, ", expected a divisor of --width ", o.width);
  o.vocabulary_given = schema.find("vocabulary")->given;
  // A packed: file may hold text or tokens; open_text() checks which.
  if (!o.data.starts_with("tokens:") && !o.data.starts_with("packed:")) {
    require_no_vocabulary(o);
  }
  require<UsageError>(o.training.trainer.step.plan.top_k == 0, "--top-k is ", o.training.trainer.step.plan.top_k,
                      ", expected 0: a window has an answer for each of its bytes");
  nn::require_training_options(o.training);
  (void)cli::ranks_request(o.launch);
  return parsed;
}

}  // namespace train_text
