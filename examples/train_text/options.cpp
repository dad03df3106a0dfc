#include "options.hpp"

#include <cmath>
#include <limits>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "cli/command_line.hpp"

namespace train_text {

using lockstep::require;
using lockstep::UsageError;

namespace {

constexpr const char* kAbout =
    "Trains a small GPT to foretell the next byte of a text, says how many bits a byte it needs for the last tenth of\n"
    "the text, which it does not train on, and writes some text of its own.\n"
    "\n"
    "  train_text                                  the documents of lockstep, on all GPUs, one rank each; without\n"
    "                                              GPUs one rank on the CPU\n"
    "  train_text --data FILE --devices cpu:2      a text of yours, two ranks on this machine's CPU\n"
    "  train_text --resume auto --sample 1000 --prompt \"A stream is\"\n"
    "                                              goes on from the last checkpoint; where the run is complete, it\n"
    "                                              only writes text\n";

constexpr const char* kFooter =
    "The text is cut into windows of --length bytes, which do not overlap: an epoch reads each window once, in an\n"
    "order drawn anew. The rate rises over a twentieth of the run and then falls to 0 along a cosine, so that "
    "--epochs\n"
    "and --steps are a part of the run: give --resume the same.\n"
    "Files in --out DIR: config.json (as resolved), metrics.jsonl (one object a line: step, epoch, bits, end), the\n"
    "checkpoints last/ and best/ (the one that foretold the largest share of bytes; model.safetensors,\n"
    "optimizer.safetensors, state.json), and run.lock, which keeps other runs out.\n"
    "Exit codes: 0 finished, 2 bad input, 3 failure in the run, 75 stopped by a signal with a checkpoint\n"
    "(--resume auto goes on from there).";

constexpr int kMaxThreads = 1024;  // a rank; libgomp ends the program when the system refuses it a thread
constexpr std::int64_t kMost = std::int64_t{1} << 20;

template <class T>
void in_range(const char* name, T value, T least, T most) {
  require<UsageError>(value >= least && value <= most, name, " is ", value, ", expected ", least, " to ", most);
}

}  // namespace

Parsed parse(int argc, const char* const* argv, const lockstep::cli::ConfigFile& config) {
  Parsed parsed;
  Options& o = parsed.options;
  CLI::App app(kAbout, "train_text");
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // what is given last counts
  app.get_formatter()->column_width(32);

  app.add_option("--data", o.data,
                 "a file, or a folder: its files *.md, *.txt, *.hpp and *.cpp in the order of their paths; none: the "
                 "documents of lockstep")
      ->group("Text");
  app.add_option("--length", o.length, "bytes that the model sees at once")->group("Text");
  app.add_option("--layers", o.layers, "of attention and feed-forward")->group("Model");
  app.add_option("--heads", o.heads, "of attention in a layer; a divisor of the width")->group("Model");
  app.add_option("--width", o.width, "numbers that stand for a byte between the layers")->group("Model");
  app.add_option("--dtype", o.dtype,
                 "fp32 (or f32); tf32: fp32, on GPUs products round their factors; bf16, fp16: activations and weights "
                 "in 16 bits, master weights and sums in fp32 (fp16 on GPUs only); f64 (host only)")
      ->check(CLI::IsMember({"fp32", "f32", "tf32", "bf16", "fp16", "f64"}))
      ->group("Model");
  app.add_option("--batch-size", o.batch_size, "windows of one update, of all ranks together")->group("Training");
  app.add_option("--epochs", o.epochs, "passes over the text")->group("Training");
  app.add_option("--steps", o.steps, "stop after N updates; 0: no limit")->group("Training");
  app.add_option("--lr", o.lr, "largest learning rate of AdamW")->group("Training");
  app.add_option("--seed", o.seed, "of weights, order and samples")
      ->check([](const std::string& text) {  // the parser takes -1 for 2^64 - 1
        return text.find('-') == std::string::npos ? std::string() : "is " + text + ", expected at least 0";
      })
      ->group("Training");
  lockstep::cli::add_launch_options(app, o.launch, "Ranks");
  app.add_option("--threads", o.threads, "compute threads a rank; 0: OMP_NUM_THREADS, else the rank's share")
      ->group("Ranks");
  app.add_option("--out", o.out, "folder for results")->group("Results");
  app.add_option("--resume", o.resume, "go on from this checkpoint; auto: OUT/last if it is there")->group("Results");
  app.add_option("--log-every", o.log_every, "steps between reports")->group("Results");
  app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints within an epoch; 0: none")
      ->group("Results");
  app.add_option("--sample", o.sample, "bytes of text to write after training; 0: none")->group("Samples");
  app.add_option("--prompt", o.prompt, "text that the sample goes on from; none: a line end")->group("Samples");
  app.add_option("--temperature", o.temperature,
                 "above 0; 1: bytes as likely as the model has them; smaller: the likeliest more often")
      ->group("Samples");

  parsed.text = lockstep::cli::parse_command_line(app, argc, argv, config);
  if (!parsed.text.empty()) {
    return parsed;
  }
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  in_range<std::int64_t>("--layers", o.layers, 1, 1000);
  in_range<std::int64_t>("--heads", o.heads, 1, kMost);
  in_range<std::int64_t>("--width", o.width, 1, kMost);
  require<UsageError>(o.width % o.heads == 0, "--heads is ", o.heads, ", expected a divisor of --width ", o.width);
  in_range<std::int64_t>("--length", o.length, 1, kMost);
  in_range<std::int64_t>("--batch-size", o.batch_size, 1, kMost);
  in_range<std::int64_t>("--epochs", o.epochs, 1, kMost);
  in_range<std::int64_t>("--steps", o.steps, 0, kAny);
  in_range("--threads", o.threads, 0, kMaxThreads);
  in_range<std::int64_t>("--log-every", o.log_every, 1, kAny);
  in_range<std::int64_t>("--checkpoint-every", o.checkpoint_every, 0, kAny);
  in_range<std::int64_t>("--sample", o.sample, 0, kMost);
  require<UsageError>(std::isfinite(o.lr) && o.lr > 0, "--lr is ", o.lr, ", expected a number above 0");
  require<UsageError>(std::isfinite(o.temperature) && o.temperature > 0, "--temperature is ", o.temperature,
                      ", expected a number above 0");
  require<UsageError>(!o.out.empty(), "--out is empty, expected a folder");
  (void)lockstep::cli::ranks_request(o.launch);
  return parsed;
}

}  // namespace train_text
