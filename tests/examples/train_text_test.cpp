// Tests train_text as users call it, and its parts: reading text, windows of text, and sampling.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/packed/pack_tokens.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "examples/train_text/corpus.hpp"
#include "examples/train_text/sampling.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mpi_here.hpp"
#include "tests/support/program_test.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/run_here.hpp"
#include "tests/support/token_files.hpp"

int train_text_main(int argc, char** argv);

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::Ended;
using testing::expect_refused;
using testing::put_file;
using testing::run_command;

constexpr bool kMpi = LOCKSTEP_HAS_MPI != 0;
/// Options that start two ranks if the build has MPI.
const std::string kRanks = kMpi ? " --devices cpu:2 " : " --devices cpu ";

/// Options of a model with about 20,000 parameters.
const std::string kTiny = " --layers 1 --heads 2 --width 32 --length 32 --batch-size 16 --threads 1 ";

class TrainText : public testing::ProgramTest {
 protected:
  /// Runs the program in this process, or as a process of its own if it starts ranks.
  static Ended run(const std::string& options) {
    return options.find("cpu:") != std::string::npos ? run_command(TRAIN_TEXT + (" " + options))
                                                     : testing::run_here(train_text_main, "train_text " + options);
  }
  void expect_same_files(const std::string& a, const std::string& b, const std::vector<std::string>& files) const {
    for (const std::string& file : files) {
      EXPECT_TRUE(get(a + file) == get(b + file)) << a << ", " << b << file;
    }
  }

  /// Trains on lockstep's own documents, and checks losses and metrics. Other tests check the text that
  /// a trained model generates (--sample).
  void expect_learns(const std::string& options, int ranks) {
    const Ended ended = run(kTiny + options + "--steps 1200 --lr 1e-2 --log-every 300 --sample 0" + out("run"))
                            .finished({}, {{"lockstep: error:", 0},
                                           {"the documents of lockstep: ", 1},
                                           {"1200 steps in all", 1},
                                           {"finished: bits per byte ", 1}});
    EXPECT_GE(ended.count(" windows/s "), 4) << ended.output;
    testing::expect_members(config("run"), {{"ranks", ranks}});
    double bits = 0;
    const auto histogram = config("run").get<double>("histogram_bits", "config");
    for (const Json& event : events("run", "epoch")) {
      bits = event.get<double>("bits_per_byte", "epoch");
      EXPECT_DOUBLE_EQ(bits, event.get<double>("test_loss", "epoch") / std::log(2.0));
    }
    for (const Json& event : events("run", "step")) {
      EXPECT_GT(event.get<double>("windows_per_second", "step"), 0);
    }
    EXPECT_GT(histogram, 4);
    EXPECT_GT(bits, 1) << "more than a model of this size can know";
    EXPECT_LT(bits, histogram - 0.8) << ended.output;
    const nn::RunProgress progress = nn::read_checkpoint_state(path("run/last")).progress;
    EXPECT_EQ(progress.position.step, 1200);
    EXPECT_EQ(progress.best_by, "bits_per_byte");
    EXPECT_EQ(progress.metrics.at("bits_per_byte"), bits);
    EXPECT_LE(progress.best, bits) << "the lowest is the best";
    EXPECT_EQ(nn::read_checkpoint_state(path("run/best")).progress.best, progress.best);
    const Ended evaluated = run(kTiny + options + "--evaluate " + path("run/last")).finished();
    EXPECT_NEAR(evaluated.number_after("  bits_per_byte "), bits, 1e-3 * bits);
  }
};

TEST_F(TrainText, OneRankBeatsTheHistogramBy0Point8Bits) {
  expect_learns("--devices cpu ", 1);
}

TEST_F(TrainText, TwoRanksBeatTheHistogramBy0Point8Bits) {
  if (!kMpi) {
    GTEST_SKIP() << "this build has no MPI";
  }
  expect_learns("--devices cpu:2 ", 2);
}

TEST_F(TrainText, StoppedAndResumedItEndsAsIfItHadNotStopped) {
  const std::string options = kTiny + kRanks + "--batch-size 64 --steps 160 --log-every 1 --sample 0 ";
  run(options + out("whole")).finished();
  // The shell sends SIGTERM as soon as the log shows the first step.
  const std::string log = path("log");
  const Ended stopped = run_command("sh -c '" + std::string(TRAIN_TEXT) + options + out("parts") + "> " + log +
                                    " & pid=$!; while kill -0 $pid && ! grep -q windows/s " + log +
                                    " 2> /dev/null; do sleep 0.1; done; kill -TERM $pid; wait $pid'");
  ASSERT_EQ(stopped.code, 75) << stopped.output << get("log");
  run(options + "--resume auto" + out("parts")).finished({}, {{"  resuming   ", 1}, {"  differs    ", 0}});
  expect_same_files("whole", "parts",
                    {"/last/model.safetensors", "/last/optimizer.safetensors", "/best/model.safetensors"});
}

TEST_F(TrainText, RecomputedItEndsWithTheSameBytesInLessMemory) {
  const std::string deep = " --layers 4 --heads 2 --width 32 --length 32 --batch-size 16 --threads 1 ";
  const std::string job = deep + "--devices cpu --steps 6 --sample 0 --log-every 1 --recompute ";
  run(job + "off" + out("off")).finished();
  const std::vector<std::string> files{"/last/model.safetensors", "/last/optimizer.safetensors"};
  for (const std::string how : {"cheap", "blocks"}) {
    run(job + how + " --checkpoint-every 4 --keep 1" + out(how))
        .finished({}, {{"  recompute  " + how + ": workspace ", 1}, {" more operations, ", 1}});
    testing::expect_holds(get(how + "/config.json"), "\"recompute\": \"" + how + '"');
    // A run that began with recomputation must continue without it.
    run(job + "off --resume " + path(how) + "/last.1" + out("rest_" + how))
        .finished({}, {{"  differs    ", 0}, {"  recompute  ", 0}});
    expect_same_files(how, "off", files);
    expect_same_files("rest_" + how, "off", files);
  }
  run(deep + "--devices cpu --recompute blocks --dry-run" + out("none"))
      .finished({"< again matmul forward"}, {{" calls again in backward: ", 1}});
}

TEST_F(TrainText, InAWorldTheModelIsTheSameOnAnyNumberOfRanks) {
  if (!kMpi) {
    GTEST_SKIP() << "this build has no MPI";
  }
  const std::string job = kTiny + "--steps 12 --clip-norm 1 --sample 0 --reproducible ";
  const auto trained = [&](const std::string& options) {
    run(job + options + " --overwrite" + out("run")).finished();
    return model("run");
  };
  const std::string one = trained("world --virtual-ranks 4 --devices cpu");
  EXPECT_TRUE(trained("world --virtual-ranks 4 --devices cpu:2") == one);
  EXPECT_TRUE(trained("world --virtual-ranks 4 --devices cpu:4") == one);
  EXPECT_FALSE(trained("run --devices cpu") == trained("run --devices cpu:2")) << "the control";
}

TEST_F(TrainText, SamplesAreThoseOfTheSeed) {
  const std::string options = kTiny + "--devices cpu --epochs 1 --steps 20 --sample 40 ";
  const auto sample = [&](const std::string& more) {
    const Ended ended = run(options + more + out("run")).finished();
    const std::size_t at = ended.output.find("; results in ");
    const std::size_t begin = ended.output.find('\n', std::min(at, ended.output.size()));
    return begin == std::string::npos ? ended.output : ended.output.substr(begin + 1);
  };
  const std::string first = sample("--prompt 'A stream'");
  EXPECT_TRUE(first.starts_with("A stream")) << first;
  EXPECT_GE(first.size(), 8U + 40 + 1);
  // The run is complete, so these calls do not train. They only sample text.
  EXPECT_EQ(sample("--prompt 'A stream' --resume auto"), first);
  EXPECT_NE(sample("--prompt 'A stream' --resume auto --seed 2"), first);
}

/// Trains on tokens in the file formats of nanoGPT and llm.c. The tokens repeat a cycle of 40, so the model must learn
/// to predict each next token.
TEST_F(TrainText, FilesOfTokens) {
  testing::write_tokens(path("data/train.bin"), 0, testing::token_cycle(4000, 40));
  testing::write_tokens(path("data/corpus_val_000001.bin"), 20240520, testing::token_cycle(700, 40));
  const std::string options = kTiny + kRanks + "--data tokens:" + path("data") + " --vocabulary 300 ";
  run(options + "--epochs 8 --lr 1e-2 --sample 3 --temperature 0.01 --prompt '37 38'" + out("run"))
      .finished({"\n39 0 1\n"}, {{"4000 tokens in 1 file to train on (124 windows of 32)", 1},
                                 {"700 in 1 file for validation (21 windows)", 1},
                                 {" bits a token: validation by the token histogram", 1}});
  const nn::RunProgress progress = nn::read_checkpoint_state(path("run/last")).progress;
  EXPECT_EQ(progress.best_by, "bits_per_token");
  EXPECT_LT(progress.best, 0.5) << "of " << std::log2(40.0);

  const std::string one_rank = kTiny + "--devices cpu ";
  const std::string tokens = "--data tokens:" + path("data") + " ";
  testing::expect_refusals(
      run, {{one_rank + tokens + "--vocabulary 39" + out("other"), {"train.bin", "token 39 is 39", "39"}},
            {one_rank + tokens + "--vocabulary 300 --prompt '300'" + out("other"), {"--prompt", "'300'", "0 to 299"}},
            {one_rank + "--vocabulary 300" + out("other"), {"--vocabulary is 300", "tokens:DIR"}},
            {one_rank + "--data tokens:" + path("nowhere") + out("other"), {path("nowhere"), "cannot be read"}}});
  fs::remove(path("data/corpus_val_000001.bin"));
  expect_refused(run(options + out("other")), {path("data"), "val.bin"});
  EXPECT_FALSE(fs::exists(path("other")));
}

TEST_F(TrainText, BadInput) {
  put("short.txt", std::string(400, 'a'));
  fs::create_directories(path("empty"));
  const std::string tiny = kTiny + "--devices cpu ";
  testing::expect_refusals(
      run, {{"--data " + path("none") + out("run"), {"--data", path("none"), "no such file"}},
            {"--data text:f" + out("run"), {"--data is 'text:f'", "alone: f"}},
            {tiny + "--data " + path("short.txt") + out("run"),
             {path("short.txt"), "11 windows", "--length 32", "--batch-size 16"}},
            {tiny + "--length 64 --data " + path("short.txt") + out("run"),
             {path("short.txt"), "last tenth", "40 bytes", "--length 64"}},
            {"--devices cpu --data " + path("empty") + out("run"), {"--data", path("empty"), "*.md"}},
            {"--heads 3 --width 64", {"--heads is 3", "--width 64"}},
            {"--heads 0", {"--heads is 0", "1 to"}},
            {"--layers 0", {"--layers is 0", "1 to"}},
            {"--temperature 0", {"--temperature is 0", "above 0"}},
            {"--temperature -1", {"--temperature is -1", "above 0"}},
            {"--lr nan", {"--lr is 'nan'", "positive"}},
            {"--sample -1", {"--sample is -1"}},
            {"--seed -1", {"--seed", "-1"}},
            {"--dtype f8", {"--dtype", "f8", "bf16"}},
            {"--recompute all", {"--recompute", "all", "blocks"}},
            {"--length many", {"--length", "many"}},
            {"--heads", {"--heads"}},
            {"book.txt", {"book.txt"}},
            {tiny + "--no-decay-norm --bias-weight-decay 0.1", {"--bias-weight-decay", "--no-decay-norm"}},
            {tiny + "--resume " + path("nowhere") + out("run"), {path("nowhere")}}});
  expect_refused(run_command(TRAIN_TEXT " --heads 3 --width 64"), {"--heads is 3", "--width 64"});
  expect_refused(run(kTiny + kRanks + "--data " + path("none") + out("run")), {"--data", path("none")});
  if (kMpi) {
    expect_refused(run(kTiny + kRanks + "--batch-size 1" + out("run")), {"batch size is 1", "2 ranks"});
  }
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(TrainText, ACheckpointOfAnotherModelIsRefused) {
  run(kTiny + "--devices cpu --steps 1 --sample 0" + out("run")).finished();
  expect_refused(run(kTiny + "--devices cpu --width 64 --resume auto" + out("run")),
                 {"model.safetensors", "another model"});
}

/// Options of the user override the program's defaults. The header must show the options that change results.
TEST_F(TrainText, WeightDecayOfNormsMayBeGiven) {
  const std::string dry = kTiny + "--devices cpu --dry-run" + out("run");
  run(dry).finished({}, {{"weight decay 0.1, none on biases and norms", 1}});
  run(dry + "--norm-weight-decay 0.01").finished({}, {{"weight decay 0.1, none on biases and norms", 1}, {"0.01", 1}});
  run(dry + "--decay-norm").finished({}, {{"none on biases", 0}});
  run(dry + "--decay-norm --no-decay-norm").finished({}, {{"none on biases", 1}});
}

TEST_F(TrainText, HelpNamesEveryOption) {
  run("--help all").finished({"  --data ",       "  --length ",   "  --vocabulary ",  "  --layers ",   "  --heads ",
                              "  --width ",      "  --dtype ",    "  --batch-size ",  "  --epochs ",   "  --steps ",
                              "  --lr ",         "  --seed ",     "  --devices ",     "  --out ",      "  --resume ",
                              "  --sample ",     "  --prompt ",   "  --temperature ", "  --watchdog ", "  --optimizer ",
                              "  --accumulate ", "  --evaluate ", "  --recompute "});
}

/// Returns the tokens and the labels of a sample.
std::vector<std::vector<std::int32_t>> window(const nn::Dataset& windows, std::int64_t index) {
  std::vector<std::vector<std::int32_t>> fields;
  std::vector<std::span<std::byte>> bytes;
  for (const nn::SampleField& field : windows.fields()) {
    fields.emplace_back(static_cast<std::size_t>(field.shape.numel()));
  }
  for (std::vector<std::int32_t>& field : fields) {
    bytes.push_back(std::as_writable_bytes(std::span(field)));
  }
  windows.read_sample(index, bytes);
  return fields;
}

TEST(TextWindows, LieSideBySideWithTheNextByteAsLabel) {
  const train_text::TextWindows windows("text", "abcdef\xff", 3);
  EXPECT_EQ(windows.size(), 2);
  const std::vector<std::vector<std::int32_t>> first{{'a', 'b', 'c'}, {'b', 'c', 'd'}};
  const std::vector<std::vector<std::int32_t>> second{{'d', 'e', 'f'}, {'e', 'f', 255}};
  EXPECT_EQ(window(windows, 0), first);
  EXPECT_EQ(window(windows, 1), second);
  EXPECT_EQ(train_text::TextWindows("text", "abcdef", 3).size(), 1) << "the last label would be missing";
  EXPECT_EQ(train_text::TextWindows("other", "abcdef\xff", 3).fingerprint(), windows.fingerprint());
  EXPECT_NE(train_text::TextWindows("text", "abcdeg\xff", 3).fingerprint(), windows.fingerprint());
  EXPECT_NE(train_text::TextWindows("text", "abcdef\xff", 2).fingerprint(), windows.fingerprint());
  EXPECT_THROW(train_text::TextWindows("text", "abc", 3), DataError);
}

TEST(Corpus, TakesTextFilesInOrderAndCutsOffTheLastTenth) {
  const testing::TemporaryFolder folder;
  for (const char* name : {"/build", "/.git", "/a"}) {
    fs::create_directories(folder.path() + name);
  }
  put_file(folder / "b.txt", "23456");
  put_file(folder / "a/z.md", "01");
  put_file(folder / "c.hpp", "7");
  put_file(folder / "d.cpp", "89");
  put_file(folder / "e.png", "no text");
  put_file(folder / ".git/f.md", "hidden");
  put_file(folder / "build/g.md", "built");
  put_file(folder / "build/CMakeCache.txt", "built");
  const nn::TextFiles corpus = train_text::read_corpus(folder.path()).text;
  EXPECT_EQ(corpus.train, "012345678");
  EXPECT_EQ(corpus.validation, "9");
  EXPECT_EQ(corpus.files, 4);
  EXPECT_EQ(train_text::read_corpus(folder / "b.txt").text.train, "23456");
  EXPECT_GT(train_text::read_corpus("").text.files, 10) << "the documents of lockstep";
}

/// Expects that a packed file of `source` has the same sizes, windows and fingerprints as `data`.
void expect_packed_like(const std::string& data, const std::string& source, std::int64_t length) {
  const testing::TemporaryFolder folder;
  const std::string out = folder / "a.pack";
  (void)nn::TokenPack({.source = source, .out = out}).write([](const nn::PackProgress&) {});
  const train_text::TextData expected = train_text::open_text(data, length, 300);
  const train_text::TextData packed = train_text::open_text("packed:" + out, length, 300);
  EXPECT_EQ(packed.unit, expected.unit);
  EXPECT_EQ(packed.vocabulary, expected.vocabulary);
  fs::remove(out);  // the file is mapped, so its bytes stay readable
  for (const auto& [set, other] : {std::pair(packed.train, expected.train), {packed.validation, expected.validation}}) {
    ASSERT_EQ(set->size(), other->size());
    EXPECT_EQ(set->fingerprint(), other->fingerprint());
    for (std::int64_t i = 0; i < set->size(); ++i) {
      ASSERT_EQ(window(*set, i), window(*other, i)) << data << ", window " << i << " of " << length;
    }
  }
  EXPECT_EQ(train_text::histogram_bits(*packed.train, *packed.validation, packed.vocabulary),
            train_text::histogram_bits(*expected.train, *expected.validation, expected.vocabulary));
}

TEST(PackedText, IsWhatItWasMadeOf) {
  const testing::TemporaryFolder folder;
  fs::create_directories(folder / "text/a");
  for (const char* name : {"text/b.txt", "text/a/z.md", "text/c.hpp"}) {
    std::string text(901, '\0');
    std::generate(text.begin(), text.end(),
                  [i = 7 * name[5]]() mutable { return static_cast<char>(i = 75 * i % 65537); });
    put_file(folder / name, text);
  }
  testing::write_tokens(folder / "tokens/a_train.bin", 0, testing::token_cycle(1234, 300));
  // A file that is too short for windows of length 64.
  testing::write_tokens(folder / "tokens/b_train.bin", 20240801, testing::token_cycle(31, 30));
  testing::write_tokens(folder / "tokens/c_train.bin", 20240520, testing::token_cycle(500, 11));
  testing::write_tokens(folder / "tokens/val.bin", 0, testing::token_cycle(300, 12));
  for (const std::int64_t length : {1, 7, 64}) {
    expect_packed_like(folder / "text", "text:" + (folder / "text"), length);
    expect_packed_like(folder / "text/b.txt", "text:" + (folder / "text/b.txt"), length);
    expect_packed_like("tokens:" + (folder / "tokens"), "tokens:" + (folder / "tokens"), length);
  }
}

TEST(Corpus, BitsOfAHistogram) {
  // The histogram counts the tokens of all windows, and adds 1 to each count: a 4, b 2, and 1 for each of 254 others.
  // The last byte of a text is only a label, so it is not counted.
  const train_text::TextWindows train("train", "aaab.", 2);
  const train_text::TextWindows validation("validation", "ab.", 2);
  EXPECT_DOUBLE_EQ(train_text::histogram_bits(train, validation, 256),
                   (std::log2(260.0 / 4) + std::log2(260.0 / 2)) / 2);
  EXPECT_DOUBLE_EQ(train_text::bits_of(std::log(2.0)), 1);
}

TEST(Sampling, TokensOfBytesAndIdsInDigits) {
  const std::string bytes("a\0\xff", 3);
  EXPECT_EQ(train_text::tokens_of(bytes), (std::vector<std::int32_t>{'a', 0, 255}));
  EXPECT_EQ(train_text::bytes_of({'a', 0, 255}), bytes);
  EXPECT_EQ(train_text::ids_text({50256, 0, 7}), "50256 0 7");
  EXPECT_EQ(train_text::ids_text({}), "");
  EXPECT_EQ(train_text::parse_ids(" 50256 0\n7", 50257), (std::vector<std::int32_t>{50256, 0, 7}));
  for (const char* wrong : {"", " ", "50257", "-1", "7,8", "one", "99999999999", "0x7"}) {
    EXPECT_THROW((void)train_text::parse_ids(wrong, 50257), UsageError) << wrong;
  }
}

TEST(Sampling, PrintableText) {
  EXPECT_EQ(train_text::printable("a ~\n\t\x1b[0m\x7f\xc3\xa9"), "a ~\n\t\\x1b[0m\\x7f\\xc3\\xa9");
  EXPECT_EQ(train_text::printable(std::string(1, '\0')), "\\x00");
}

TEST(Sampling, GoesOnFromTheLastByteThatIsKnown) {
  constexpr std::int64_t kLength = 6;
  CpuContext context({.threads = 1});
  const nn::Model model = nn::transformer({.vocabulary = 256, .length = kLength, .width = 8, .heads = 2, .layers = 2});
  nn::ParameterSet parameters(context, model, DType::f32);
  parameters.initialise(context, 3);
  // Returns the most likely byte after a text. The unused positions have other values than in sample_tokens(), which
  // must not change the result.
  nn::Inference predict(context, model, parameters, {.max_batch = 1});
  const auto likeliest = [&](std::string text) {
    text = text.substr(text.size() - std::min<std::size_t>(text.size(), kLength));
    const std::size_t last = text.size() - 1;
    std::vector<std::int32_t> tokens(kLength, 'x');
    std::transform(text.begin(), text.end(), tokens.begin(), [](char c) { return static_cast<unsigned char>(c); });
    std::vector<float> logits(kLength * 256);
    predict.run(TensorView(std::span(tokens), {1, kLength}), TensorView(std::span(logits), {1, kLength, 256}));
    context.synchronize();
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(last * 256);
    return static_cast<char>(std::max_element(row, row + 256) - row);
  };
  for (const std::string prompt : {"ab", "abcdef", "abcdefghi"}) {
    const std::string found = train_text::bytes_of(train_text::sample_tokens(
        context, model, parameters, {.tokens = 9, .prompt = train_text::tokens_of(prompt), .temperature = 1e-9}));
    std::string text = prompt;
    for (int i = 0; i < 9; ++i) {
      text += likeliest(text);
    }
    EXPECT_EQ(prompt + found, text);
  }
  const auto drawn = [&](std::uint64_t seed) {
    return train_text::sample_tokens(context, model, parameters, {.tokens = 20, .temperature = 1, .seed = seed});
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
  for (float& value : parameters.values().span<float>()) {
    value = std::nanf("");
  }
  EXPECT_THROW(drawn(1), Error) << "no token follows from outputs that are NaN";
}

}  // namespace
}  // namespace lockstep
