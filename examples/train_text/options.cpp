#include "options.hpp"

#include <cmath>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "app/cli/command_line.hpp"
#include "app/cli/training_options.hpp"

namespace train_text {

namespace cli = lockstep::cli;
namespace nn = lockstep::nn;
using lockstep::require;
using lockstep::UsageError;

namespace {

constexpr const char* kAbout =
    "Trains a small GPT to predict the next byte of a text, says how many bits a byte it needs for the last tenth of\n"
    "the text, which it does not train on, and writes some text of its own. Or the next token of files of token ids.\n"
    "\n"
    "  train_text                                  the documents of lockstep, on all GPUs, one rank each; without\n"
    "                                              GPUs one rank on the CPU\n"
    "  train_text --data FILE --devices cpu:2      a text of yours, two ranks on this machine's CPU\n"
    "  train_text --data tokens:DIR --length 256   DIR/train.bin and DIR/val.bin as nanoGPT's and llm.c's scripts "
    "write\n"
    "                                              them\n"
    "  train_text --data packed:FILE               either of these in one mapped file with checksums (lockstep-pack)\n"
    "  train_text --resume auto --sample 1000 --prompt \"A stream is\"\n"
    "                                              goes on from the last checkpoint; where the run is complete, it\n"
    "                                              only writes text\n";

constexpr const char* kFooter =
    "The text is cut into windows of --length bytes, which do not overlap: an epoch reads each window once, in an\n"
    "order drawn anew. --lr auto is 0.002 with adam, adamw and muon. The rate rises over a twentieth of the run and "
    "then\n"
    "falls along the schedule, so that --epochs and --steps are a part of the run: give --resume the same.\n"
    "Files in --out DIR: config.json (as resolved), metrics.jsonl (one object a line: step, epoch, end), the\n"
    "checkpoints last/ and best/ (the one with the fewest bits a byte or token; model.safetensors, "
    "optimizer.safetensors,\n"
    "state.json), and run.lock, which keeps other runs out.\n"
    "Exit codes: 0 finished, 2 bad input, 3 failure in the run, 75 stopped by a signal with a checkpoint\n"
    "(--resume auto goes on from there), 76 no progress (--watchdog).";

constexpr std::int64_t kMost = std::int64_t{1} << 20;

void in_range(const char* name, std::int64_t value, std::int64_t least) {
  require<UsageError>(value >= least && value <= kMost, name, " is ", value, ", expected ", least, " to ", kMost);
}

}  // namespace

void require_no_vocabulary(const Options& options) {
  require<UsageError>(!options.vocabulary_given, "--vocabulary is ", options.vocabulary,
                      ", which is for --data tokens:DIR: a text's tokens are its bytes");
}

cli::Parsed<Options> parse(int argc, const char* const* argv, const cli::ConfigFile& config) {
  cli::Parsed<Options> parsed;
  Options& o = parsed.options;
  o.training.epochs = 10;
  o.training.default_batch = 16;
  o.training.optimizer = "adamw";
  o.training.weight_decay = 0.1;
  o.training.default_no_decay_norm = true;
  o.training.clip_norm = 1;
  o.training.workers = 0;  // a window is a copy of some bytes
  o.training.out = "text.out";
  CLI::App app(kAbout, "train_text");
  cli::prepare(app, kFooter);
  app.add_option(
         "--data", o.data,
         "a file, or a folder: its files *.md, *.txt, *.hpp and *.cpp in the order of their paths; none: the "
         "documents of lockstep.\n"
         "tokens:DIR: files of token ids, *train*.bin and *val*.bin. packed:FILE: either of these in a file of\n"
         "lockstep-pack, the same bits")
      ->group("Text");
  CLI::Option* vocabulary = app.add_option("--vocabulary", o.vocabulary,
                                           "of tokens:DIR, or such a packed:FILE: ids are below it; 50257 is GPT-2's")
                                ->group("Text");
  app.add_option("--length", o.length, "bytes, or tokens, that the model sees at once")->group("Text");
  app.add_option("--layers", o.layers, "transformer layers")->group("Model");
  app.add_option("--heads", o.heads, "attention heads of a layer; a divisor of the width")->group("Model");
  app.add_option("--width", o.width, "embedding width")->group("Model");
  app.add_option("--sample", o.sample, "bytes of text, or tokens, to write after training; 0: none")->group("Samples");
  app.add_option(
         "--prompt", o.prompt,
         "text that the sample goes on from; none: a line end. Of tokens: their ids, \"464 3290\"; none: the last\n"
         "of the vocabulary, GPT-2's end of a text")
      ->group("Samples");
  app.add_option("--temperature", o.temperature,
                 "above 0; 1: by the model's probabilities; smaller: likely bytes more often")
      ->group("Samples");
  cli::add_launch_options(app, o.launch, "Ranks");
  cli::add_restart_options(app, o.launch, "Ranks");
  cli::add_training_options(app, o.training);

  parsed.text = cli::parse_command_line(app, argc, argv, config);
  if (!parsed.text.empty()) {
    return parsed;
  }
  in_range("--layers", o.layers, 1);
  in_range("--heads", o.heads, 1);
  in_range("--width", o.width, 1);
  require<UsageError>(o.width % o.heads == 0, "--heads is ", o.heads, ", expected a divisor of --width ", o.width);
  in_range("--length", o.length, 1);
  in_range("--vocabulary", o.vocabulary, 1);
  o.vocabulary_given = vocabulary->count() > 0;
  if (!o.data.starts_with("tokens:") && !o.data.starts_with("packed:")) {  // what is packed is known when it is opened
    require_no_vocabulary(o);
  }
  in_range("--sample", o.sample, 0);
  require<UsageError>(std::isfinite(o.temperature) && o.temperature > 0, "--temperature is ", o.temperature,
                      ", expected a number above 0");
  require<UsageError>(o.training.top_k == 0, "--top-k is ", o.training.top_k,
                      ", expected 0: a window has an answer for each of its bytes");
  nn::require_training_options(o.training);
  (void)cli::ranks_request(o.launch);
  return parsed;
}

}  // namespace train_text
