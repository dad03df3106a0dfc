// Tests models and states in files without a Trainer. Reading must give the written numbers. A file that does not fit
// must change nothing.

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/safetensors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/nn/net.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/files.hpp"
#include "tests/support/torch_files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds, testing::to_doubles;

constexpr std::int64_t kClasses = 3;

Model small(std::int64_t classes = kClasses, std::int64_t width = 5) {
  ModelBuilder b("small", {6, 6, 3});
  NodeId x = b.conv2d("conv", b.input(), width, {.kernel = 3, .pad = 1});
  x = b.batch_norm("norm", x, {.relu = true});
  x = b.global_average_pool("pool", x);
  b.linear("fc", x, classes);
  return b.build();
}

/// Parameters and running statistics, filled with random numbers from a seed.
struct Filled {
  Filled(const Model& model, std::uint64_t seed, DType dtype = DType::f32) : set(context, model, dtype) {
    set.initialise(context, seed);
    Random random(seed, RandomUse::test);
    for (const BufferSpec& buffer : set.buffers()) {
      std::vector<double> values(static_cast<std::size_t>(buffer.shape.numel()));
      for (double& value : values) {
        value = 1 + random.uniform();
      }
      set.write_buffer(context, buffer.name, TensorView(std::span(values), buffer.shape));
    }
  }
  [[nodiscard]] auto numbers() const { return numbers_of(set); }
  CpuContext context;
  ParameterSet set;
};

std::vector<double> read(Filled& from, const std::string& name, const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  from.set.read(from.context, name, TensorView(std::span(values), shape));
  return values;
}

/// A safetensors file whose tensors can be changed before it is written again.
struct Editable {
  explicit Editable(const std::string& path) {
    const SafetensorsFile file(path);
    for (const TensorEntry& entry : file.entries()) {
      Part part{entry.name, *entry.type(), entry.shape, std::vector<std::byte>(entry.bytes)};
      file.read(entry, part.bytes);
      parts.push_back(std::move(part));
    }
  }
  struct Part {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };
  Part& part(const std::string& name) {
    for (Part& each : parts) {
      if (each.name == name) {
        return each;
      }
    }
    throw std::runtime_error("no tensor " + name);
  }
  void remove(const std::string& name) {
    std::erase_if(parts, [&](const Part& each) { return each.name == name; });
  }
  void add(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
    const std::int64_t n = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    parts.push_back(
        {name, dtype, std::move(shape), std::vector<std::byte>(static_cast<std::size_t>(n) * size_of(dtype))});
  }
  void write(const std::string& path) const {
    std::vector<SafetensorsTensor> tensors;
    for (const Part& each : parts) {
      tensors.push_back({.name = each.name, .dtype = each.dtype, .shape = each.shape, .data = each.bytes, .fill = {}});
    }
    std::filesystem::remove(path);
    write_safetensors(path, tensors);
  }
  std::vector<Part> parts;
};

class ModelFile : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(ModelFile, WhatIsSavedIsLoaded) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    Filled from(small(), 1, dtype);
    save_model(path("model.safetensors"), from.context, from.set, {{"words", "a b"}});
    EXPECT_EQ(testing::count_entries(path("")), 1U) << "no file next to it";
    for (const std::string& source : {path("model.safetensors"), path("")}) {
      Filled into(small(), 2, dtype);
      EXPECT_NE(into.numbers(), from.numbers());
      load_model(source, into.context, into.set);
      EXPECT_EQ(into.numbers(), from.numbers());
      EXPECT_EQ(to_doubles(into.set.weights()), to_doubles(from.set.weights()));
    }
    EXPECT_EQ(read_metadata(path("")), (Metadata{{"words", "a b"}}));
  }
  const SafetensorsFile file(path("model.safetensors"));
  EXPECT_EQ(file.find("conv.weight")->shape, (std::vector<std::int64_t>{5, 3, 3, 3}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST_F(ModelFile, SavingReplacesTheFile) {
  Filled one(small(), 1);
  Filled two(small(), 2);
  save_model(path("m"), one.context, one.set);
  save_model(path("m"), two.context, two.set);
  load_model(path("m"), one.context, one.set);
  EXPECT_EQ(one.numbers(), two.numbers());
  expect_holds(error_of<FileError>([&] { save_model(path("nowhere/m"), one.context, one.set); }), "nowhere/m");
  std::filesystem::create_directory(path("folder"));
  expect_holds(error_of<DataError>([&] { save_model(path("folder"), one.context, one.set); }), "folder");
  EXPECT_EQ(testing::count_entries(path("")), 2U);
  expect_holds(error_of<UsageError>([&] {
                 save_model(path("m"), one.context, one.set, {{"format", "tf"}});
               }),
               "metadata: a name is 'format', which the file format uses itself");
}

TEST_F(ModelFile, PyTorchsCountsOfBatchesArePassedOver) {
  Filled from(small(), 1);
  save_model(path("m"), from.context, from.set);
  Editable file(path("m"));
  file.add("norm.num_batches_tracked", DType::i64, {});
  file.write(path("m"));
  Filled into(small(), 2);
  load_model(path("m"), into.context, into.set);
  EXPECT_EQ(into.numbers(), from.numbers());
}

/// Loading must remove the prefixes of DistributedDataParallel, AveragedModel, torch.compile and Lightning, and must
/// ignore AveragedModel's counter n_averaged.
TEST_F(ModelFile, PrefixesOfOtherProgramsAreTakenOff) {
  Filled from(small(), 1);
  save_model(path("m"), from.context, from.set);
  for (const std::string prefix : {"module.", "_orig_mod.", "model.", "model._orig_mod.", "module.model."}) {
    Editable file(path("m"));
    for (Editable::Part& part : file.parts) {
      part.name = prefix + part.name;
    }
    file.add("n_averaged", DType::f32, {});
    file.write(path("prefixed"));
    testing::put_file(path("prefixed.pth"), testing::torch::copy_of(path("prefixed"), ""));
    for (const char* name : {"prefixed", "prefixed.pth"}) {
      Filled into(small(), 2);
      load_model(path(name), into.context, into.set);
      EXPECT_EQ(into.numbers(), from.numbers()) << prefix << name;
      Filled pretrained(small(), 3);
      EXPECT_TRUE(load_pretrained(path(name), pretrained.context, small(), pretrained.set).empty());
      EXPECT_EQ(pretrained.numbers(), from.numbers()) << prefix << name;
    }
  }
  // The control: an unknown prefix is refused. The error names the nearest tensor.
  Editable file(path("m"));
  for (Editable::Part& part : file.parts) {
    part.name = "net." + part.name;
  }
  file.write(path("other"));
  Filled into(small(), 2);
  const std::string error = error_of<DataError>([&] { load_model(path("other"), into.context, into.set); });
  expect_holds(error, "there is no tensor 'fc.weight'");
  expect_holds(error, "the nearest is 'net.fc.weight' of shape (3, 5)");
}

TEST_F(ModelFile, WeightsInSeveralFilesAreSaidToBeSo) {
  Filled into(small(), 2);
  std::filesystem::create_directory(path("sharded"));
  testing::put_file(path("sharded/model.safetensors.index.json"), "{}");
  expect_holds(error_of<DataError>([&] { load_model(path("sharded"), into.context, into.set); }),
               "model.safetensors.index.json: weights in several files");
}

TEST_F(ModelFile, FilesOfTorchAreLoadedLikeOurs) {
  Filled from(small(7), 1);
  save_model(path("m"), from.context, from.set);
  testing::put_file(path("m.pth"), testing::torch::copy_of(path("m"), "module."));
  Filled into(small(7), 2);
  load_model(path("m.pth"), into.context, into.set);
  EXPECT_EQ(into.numbers(), from.numbers());
  EXPECT_TRUE(read_metadata(path("m.pth")).empty());
  // With another number of classes, the classifier is not loaded. load_pretrained() returns the names of the
  // classifier's parameters.
  Filled other(small(), 3);
  const auto bias = read(other, "fc.bias", {kClasses});
  EXPECT_EQ(load_pretrained(path("m.pth"), other.context, small(), other.set),
            (std::vector<std::string>{"fc.weight", "fc.bias"}));
  EXPECT_EQ(read(other, "fc.bias", {kClasses}), bias);
  EXPECT_EQ(read(other, "conv.weight", {5, 3, 3, 3}), read(from, "conv.weight", {5, 3, 3, 3}));
  // A file that does not fit must change nothing.
  const auto before = other.numbers();
  expect_holds(error_of<DataError>([&] { load_model(path("m.pth"), other.context, other.set); }),
               "'fc.weight' has shape (7, 5), expected (3, 5)");
  testing::Bytes damaged = testing::get_file(path("m.pth"));
  damaged[damaged.find("archive/data/0") + 100] ^= 1;
  testing::put_file(path("m.pth"), damaged);
  expect_holds(error_of<DataError>(
                   [&] { static_cast<void>(load_pretrained(path("m.pth"), other.context, small(), other.set)); }),
               "CRC-32");
  EXPECT_EQ(other.numbers(), before);
}

/// Returns a GPT-2 with small matrices; its attn.c_proj is square.
Model gpt2() {
  return transformer({.vocabulary = 11, .length = 4, .width = 6, .heads = 2, .layers = 2});
}

/// Transposes a matrix of a file.
void turn(Editable::Part& part) {
  const auto rows = static_cast<std::size_t>(part.shape.at(0));
  const auto columns = static_cast<std::size_t>(part.shape.at(1));
  const std::vector<std::byte> from = part.bytes;
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      std::memcpy(part.bytes.data() + 4 * (j * rows + i), from.data() + 4 * (i * columns + j), 4);
    }
  }
  std::swap(part.shape[0], part.shape[1]);
}

bool is_conv1d(const std::string& name) {
  return name.ends_with("c_attn.weight") || name.ends_with("c_proj.weight") || name.ends_with("c_fc.weight");
}

TEST_F(ModelFile, Gpt2AsOthersStoreIt) {
  Filled from(gpt2(), 1);
  save_model(path("ours"), from.context, from.set);
  // If `turned` is true, the file has transposed matrices, as Hugging Face stores them. Otherwise it has matrices as
  // nanoGPT stores them.
  for (const bool turned : {false, true}) {
    for (const bool prefixed : {false, true}) {  // true: the model with its head; false: the model alone
      Editable file(path("ours"));
      for (Editable::Part& part : file.parts) {
        if (turned && is_conv1d(part.name)) {
          turn(part);
        }
      }
      file.add("h.0.attn.bias", DType::f32, {1, 1, 4, 4});
      file.add("h.1.attn.masked_bias", DType::f32, {});
      const std::string prefix = prefixed ? "transformer." : "";
      for (Editable::Part& part : file.parts) {
        part.name = prefix + part.name;
      }
      Editable::Part head = file.part(prefix + "wte.weight");
      head.name = "lm_head.weight";
      file.parts.push_back(head);
      file.write(path("theirs"));
      testing::put_file(path("theirs.pth"), testing::torch::copy_of(path("theirs")));
      for (const char* name : {"theirs", "theirs.pth"}) {
        Filled into(gpt2(), 2);
        load_model(path(name), into.context, into.set);
        EXPECT_EQ(into.numbers(), from.numbers()) << name << turned << prefixed;
      }
      // The file has a separate output matrix, which the model lacks, so the file must be refused.
      file.part("lm_head.weight").bytes[2] ^= std::byte{1};
      file.write(path("theirs"));
      Filled into(gpt2(), 2);
      expect_holds(error_of<DataError>([&] { load_model(path("theirs"), into.context, into.set); }),
                   "expected two equal tensors");
    }
  }
}

// A square matrix has the right shape in both orientations. Only the shape of c_attn shows the orientation of a file. A
// file whose matrices have different orientations must be refused.
TEST_F(ModelFile, ASquareMatrixOfGpt2IsNotLoadedTheWrongWayRound) {
  Filled from(gpt2(), 1);
  save_model(path("ours"), from.context, from.set);
  Filled into(gpt2(), 2);
  const auto before = into.numbers();
  const auto refused = [&](const std::function<void(Editable&)>& change) {
    Editable file(path("ours"));
    change(file);
    file.write(path("theirs"));
    const std::string text = error_of<DataError>([&] { load_model(path("theirs"), into.context, into.set); });
    EXPECT_EQ(into.numbers(), before);
    return text;
  };
  expect_holds(refused([](Editable& f) { turn(f.part("h.1.attn.c_attn.weight")); }),
               "is transposed where that of another layer is not");
  expect_holds(refused([](Editable& f) {
                 for (Editable::Part& part : f.parts) {
                   if (is_conv1d(part.name) && !part.name.ends_with("c_attn.weight")) {
                     turn(part);
                   }
                 }
               }),
               "expected (");
  expect_holds(refused([](Editable& f) { f.part("h.0.attn.c_attn.weight").shape = {9, 12}; }), "is transposed");
  expect_holds(refused([](Editable& f) { f.remove("h.0.attn.c_attn.weight"); }), "no tensor 'h.0.attn.c_attn.weight'");
}

TEST_F(ModelFile, WhatDoesNotFitChangesNothing) {
  struct Case {
    std::vector<std::string> words;
    std::function<void(const std::string& file)> damage;
  };
  const auto edit = [](const std::function<void(Editable&)>& change) {
    return [change](const std::string& file) {
      Editable editable(file);
      change(editable);
      editable.write(file);
    };
  };
  const std::vector<Case> cases{
      {{"no tensor 'conv.weight'", "(5, 3, 3, 3)", "another model"},
       edit([](Editable& f) { f.remove("conv.weight"); })},
      {{"no tensor 'norm.running_var'", "(5)"}, edit([](Editable& f) { f.remove("norm.running_var"); })},
      {{"'more.weight' has shape (2, 7)", "expected no tensor of this name"}, edit([](Editable& f) {
         f.add("more.weight", DType::f32, {2, 7});
       })},
      {{"'conv.weight' has shape (15, 3, 3)", "expected (5, 3, 3, 3)"}, edit([](Editable& f) {
         f.part("conv.weight").shape = {15, 3, 3};
       })},
      {{"'fc.bias' has shape (1, 1, 1, 1, 1, 1, 1, 1, 1, 3)", "expected (3)"},
       edit([](Editable& f) { f.part("fc.bias").shape = {1, 1, 1, 1, 1, 1, 1, 1, 1, 3}; })},
      {{"'fc.bias' is I32", "expected F32"}, edit([](Editable& f) { f.part("fc.bias").dtype = DType::i32; })},
      {{"no safetensors file"},
       [](const std::string& file) { testing::put_file(file, "PK 0123456789 a zip archive"); }},
      {{"no safetensors file"}, [](const std::string& file) { testing::put_file(file, "PK"); }},
      {{"no complete safetensors file"},
       [](const std::string& file) { testing::put_file(file, testing::get_file(file).substr(0, 40)); }},
      {{"there is no such file or folder", "model.safetensors"},
       [](const std::string& file) { std::filesystem::remove(file); }}};
  Filled from(small(), 1);
  for (const Case& item : cases) {
    save_model(path("m"), from.context, from.set);
    item.damage(path("m"));
    for (const bool pretrained : {false, true}) {
      Filled into(small(), 2);
      const auto before = into.numbers();
      const std::string text = error_of<DataError>([&] {
        if (pretrained) {
          static_cast<void>(load_pretrained(path("m"), into.context, small(), into.set));
        } else {
          load_model(path("m"), into.context, into.set);
        }
      });
      expect_holds(text, path("m"));
      for (const std::string& word : item.words) {
        expect_holds(text, word);
      }
      EXPECT_EQ(into.numbers(), before) << item.words[0];
    }
  }
}

TEST_F(ModelFile, OfAnotherNumberOfClassesTheHeadIsLeft) {
  Filled from(small(7), 1);
  save_model(path("m"), from.context, from.set);
  Filled into(small(), 2);
  const auto weight = read(into, "fc.weight", {kClasses, 5});
  const auto bias = read(into, "fc.bias", {kClasses});
  EXPECT_EQ(load_pretrained(path("m"), into.context, small(), into.set),
            (std::vector<std::string>{"fc.weight", "fc.bias"}));
  EXPECT_EQ(read(into, "fc.weight", {kClasses, 5}), weight);
  EXPECT_EQ(read(into, "fc.bias", {kClasses}), bias);
  EXPECT_EQ(read(into, "conv.weight", {5, 3, 3, 3}), read(from, "conv.weight", {5, 3, 3, 3}));
  EXPECT_EQ(to_doubles(into.set.buffer_arena()), to_doubles(from.set.buffer_arena()));
  // With the same number of classes, all parameters must be loaded.
  Filled same(small(7), 3);
  EXPECT_TRUE(load_pretrained(path("m"), same.context, small(7), same.set).empty());
  EXPECT_EQ(same.numbers(), from.numbers());
  // A model of another width must be refused, because it differs in more than the classes. load_model() takes whole
  // models only.
  Filled wide(small(kClasses, 6), 2);
  auto before = wide.numbers();
  expect_holds(error_of<DataError>(
                   [&] { static_cast<void>(load_pretrained(path("m"), wide.context, small(kClasses, 6), wide.set)); }),
               "has shape (7, 5), expected (3, 6)");
  EXPECT_EQ(wide.numbers(), before);
  before = into.numbers();
  expect_holds(error_of<DataError>([&] { load_model(path("m"), into.context, into.set); }),
               "'fc.weight' has shape (7, 5), expected (3, 5)");
  // A weight and a bias with different numbers of classes are no classifier, so the file must be refused.
  Editable file(path("m"));
  file.remove("fc.bias");
  file.add("fc.bias", DType::f32, {4});
  file.write(path("m"));
  expect_holds(
      error_of<DataError>([&] { static_cast<void>(load_pretrained(path("m"), into.context, small(), into.set)); }),
      "'fc.weight' has shape (7, 5), expected (3, 5)");
  EXPECT_EQ(into.numbers(), before);
}

TEST_F(ModelFile, ATiedWeightIsNoHead) {
  const auto model = [](std::int64_t vocabulary) {
    ModelBuilder b = ModelBuilder::for_tokens("tied", 4);
    const NodeId x = b.embedding("embed", "positions", b.input(), vocabulary, 8);
    b.linear("head", x, vocabulary, {.bias = false, .weight = "embed.weight"});
    return b.build();
  };
  Filled from(model(9), 1);
  save_model(path("m"), from.context, from.set);
  Filled into(model(11), 1);
  expect_holds(
      error_of<DataError>([&] { static_cast<void>(load_pretrained(path("m"), into.context, model(11), into.set)); }),
      "'embed.weight' has shape (9, 8), expected (11, 8)");
}

TEST(Buffers, AreReadAndWritten) {
  Filled filled(small(), 1);
  ParameterSet& set = filled.set;
  std::vector<float> mean{1, 2, 3, 4, 5};
  std::vector<double> got(5);
  set.write_buffer(filled.context, "norm.running_mean", TensorView(std::span(mean), {5}));
  set.read_buffer(filled.context, "norm.running_mean", TensorView(std::span(got), {5}));
  EXPECT_EQ(got, (std::vector<double>{1, 2, 3, 4, 5}));
  const int index = set.find_buffer("norm.running_mean");
  EXPECT_EQ(to_doubles(set.logical_buffer(index, set.buffer(index))), got);
  expect_holds(
      error_of<UsageError>([&] { set.write_buffer(filled.context, "norm.mean", TensorView(std::span(mean), {5})); }),
      "no buffer 'norm.mean'");
  expect_holds(error_of<ShapeError>([&] {
                 set.read_buffer(filled.context, "norm.running_mean", TensorView(std::span(got).first(4), {4}));
               }),
               "buffer 'norm.running_mean' is (5), the given tensor (4)");
}

TEST(Buffers, MayBeginWithGivenValues) {
  const auto model = [](std::vector<double> mean, std::vector<double> var) {
    ModelBuilder b("given", {6, 6, 3});
    const NodeId x = b.batch_norm("norm", b.input(), {.running_mean = std::move(mean), .running_var = std::move(var)});
    b.linear("fc", x, kClasses);
    return b.build();
  };
  CpuContext context;
  for (const DType dtype : {DType::f32, DType::f64}) {
    ParameterSet set(context, model({0.5, 0.25, -2}, {}), dtype);
    set.initialise(context, 1);
    std::vector<double> got(3);
    set.read_buffer(context, "norm.running_mean", TensorView(std::span(got), {3}));
    EXPECT_EQ(got, (std::vector<double>{0.5, 0.25, -2}));
    const int index = set.find_buffer("norm.running_mean");
    EXPECT_EQ(to_doubles(set.logical_buffer(index, set.buffer(index))), got);
    set.read_buffer(context, "norm.running_var", TensorView(std::span(got), {3}));
    EXPECT_EQ(got, (std::vector<double>{1, 1, 1}));
  }
  expect_holds(error_of<ShapeError>([&] {
                 static_cast<void>(model({}, {1, 2}));
               }),
               "buffer norm.running_var is given 2 values, expected 3");
}

// --- states

TrainStepOptions options_of(OptimizerKind kind, int ranks = 1) {
  return {.max_batch = 8 / ranks,
          .seed = 4,
          .plan = {.dtype = DType::f32},
          .optimizer = {.kind = kind, .clip_norm = 0.5},
          .weight_decay = 0.01};
}

TEST_F(ModelFile, AStepGoesOnFromItsState) {
  for (const OptimizerKind kind : testing::optimizer_kinds()) {
    TrainStepOptions options = options_of(kind);
    options.optimizer.loss_scale = parse_loss_scale("dynamic");
    Step whole(small(), options);
    for (int i = 0; i < 3; ++i) {
      Images(i).train(whole);
    }
    save_state(path("state"), whole, {{"epoch", "7"}});
    Step part(small(), options);
    const LoadedState loaded = load_state(path("state"), part);
    EXPECT_EQ(loaded.metadata, (Metadata{{"epoch", "7"}}));
    EXPECT_EQ(loaded.ranks, 1);
    EXPECT_EQ(part.steps(), 3);
    EXPECT_EQ(part.microbatches(), 3);
    EXPECT_EQ(part.lasting(), whole.lasting());
    for (int i = 3; i < 6; ++i) {
      Images(i).train(whole);
      Images(i).train(part);
    }
    EXPECT_EQ(part.lasting(), whole.lasting()) << name_of(kind);
    // Loads the model alone, from the folder of the state.
    Filled model(small(), 9);
    load_model(path("state"), model.context, model.set);
  }
}

TEST_F(ModelFile, RanksGoOnFromTheirOwnStatistics) {
  comm::on_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
    const TrainStepOptions options = options_of(OptimizerKind::adam, 2);
    Step whole(grad, small(), options);
    for (int i = 0; i < 2; ++i) {
      Images(i, grad.rank(), 4).train(whole);
    }
    save_state(path("state"), whole, control);
    Step part(grad, small(), options);
    EXPECT_EQ(load_state(path("state"), part, control).ranks, 2);
    EXPECT_EQ(part.lasting(), whole.lasting());
    part.require_same_state(control);
    for (int i = 2; i < 4; ++i) {
      Images(i, grad.rank(), 4).train(whole);
      Images(i, grad.rank(), 4).train(part);
    }
    EXPECT_EQ(part.lasting(), whole.lasting());
    expect_holds(error_of<UsageError>([&] { save_state(path("alone"), part); }), "1 rank, expected 2");
  });
  // A single rank cannot take the batch-norm statistics of two ranks, so it takes their averages.
  Step one(small(), options_of(OptimizerKind::adam));
  EXPECT_EQ(load_state(path("state"), one).ranks, 2);
  const ParameterSet& set = one.parameters();
  EXPECT_EQ(to_doubles(set.buffer_arena()), to_doubles(set.evaluation_buffer_arena()));
  const SafetensorsFile file(path("state/optimizer.safetensors"));
  EXPECT_EQ(file.find("rank_buffers")->shape[0], 2);
}

TEST_F(ModelFile, AStateThatDoesNotFitChangesNothing) {
  struct Case {
    std::vector<std::string> words;
    std::function<void(Editable&)> change;
  };
  const std::vector<Case> cases{
      {{"no tensor 'fc.bias.exp_avg'", "(3)", "another model or optimizer"},
       [](Editable& f) { f.remove("fc.bias.exp_avg"); }},
      {{"'fc.weight.exp_avg_sq' has shape (5, 3)", "expected (3, 5)"},
       [](Editable& f) {
         f.part("fc.weight.exp_avg_sq").shape = {5, 3};
       }},
      {{"'fc.weight.exp_avg_sq' holds -", "expected squares"},
       [](Editable& f) { f.part("fc.weight.exp_avg_sq").bytes[7] = std::byte{0xbf}; }},  // makes one f32 negative
      {{"'fc.bias.exp_avg_sq' holds ", "nan", "expected squares"},
       [](Editable& f) {
         auto& bytes = f.part("fc.bias.exp_avg_sq").bytes;
         std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
       }},
      {{"no tensor 'step'"}, [](Editable& f) { f.remove("step"); }},
      {{"'step' holds -", "at least 0"}, [](Editable& f) { f.part("step").bytes[7] = std::byte{0xff}; }},
      {{"'rank_buffers' has shape (3)"}, [](Editable& f) {
         f.remove("rank_buffers");
         f.add("rank_buffers", DType::f64, {3});
       }}};
  Step from(small(), options_of(OptimizerKind::adam));
  Images(0).train(from);
  for (const Case& item : cases) {
    save_state(path("state"), from);
    Editable file(path("state/optimizer.safetensors"));
    item.change(file);
    file.write(path("state/optimizer.safetensors"));
    std::filesystem::remove(path("state/checksums.json"));  // otherwise the checksums would give the first error
    Step into(small(), options_of(OptimizerKind::adam));
    const auto before = into.lasting();
    testing::expect_error<DataError>([&] { static_cast<void>(load_state(path("state"), into)); }, item.words);
    EXPECT_EQ(into.lasting(), before);
    EXPECT_EQ(into.steps(), 0);
  }
  save_state(path("state"), from);
  std::filesystem::remove(path("state/optimizer.safetensors"));
  EXPECT_THROW(static_cast<void>(load_state(path("state"), from)), DataError);
  expect_holds(error_of<FileError>([&] { static_cast<void>(load_state(path("nowhere"), from)); }), "no such folder");
  expect_holds(error_of<UsageError>([&] {
                 save_state(path("state"), from, {{"lockstep.steps", "3"}});
               }),
               "are the step's own");
}

}  // namespace
}  // namespace lockstep::nn
