// Tests lockstep-pack as users call it, and training on its files.
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/files.hpp"
#if LOCKSTEP_HAS_IMAGES
#include "tests/support/image_files.hpp"
#endif
#include "tests/tools/pack_runs.hpp"
#include "tools/lockstep_pack/report.hpp"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::expect_holds;
using testing::expect_refused;

class Pack : public PackTest {
 protected:
  static Ended train_resnet(const std::string& options) {
    return testing::run_here(
        train_resnet_main,
        "train_resnet --image-size 16 --batch-size 6 --log-every 1 --threads 1 --model mlp --hidden 8 " + options);
  }
};

TEST(PackReport, SaysHowLongItTakes) {
  EXPECT_EQ(pack_progress({.done = 1200, .all = 5000, .bytes = 3 << 20}, 60),
            "1200 of 5000 images, 24 %, 3 MiB, 3 min 10 s left");
  EXPECT_EQ(pack_progress({.done = 1, .all = 100, .bytes = 64}, 200), "1 of 100 images, 1.0 %, 64 B, 5 h 30 min left");
  EXPECT_EQ(pack_progress({.done = 100, .all = 100, .bytes = 64}, 200), "100 of 100 images, 100 %, 64 B, 0 s left");
}

TEST_F(Pack, OptionsThatAreNoneAreOneLine) {
  pack("--version").finished();
  pack("--help").finished({"--store", "--resize", "--skip-damaged", "--data packed:FILE", "--check", "Exit codes"});
  const std::string data = path("data");
  testing::expect_refusals(pack, {{"", {"DIR is required", "--help"}},
                                  {data, {"FILE is required"}},
                                  {data + " x --store jpeg", {"--store is jpeg, expected files or pixels"}},
                                  {data + " x --stoer files", {"--stoer"}},
                                  {"--check", {"--check"}},
                                  {"--check ''", {"--check is empty, expected a packed file"}},
                                  {"'' x", {"DIR is empty, expected a folder"}},
                                  {data + " ''", {"FILE is empty, expected a file to write"}},
                                  {"--check x y", {"DIR is given with --check FILE"}},
                                  {"--check x --overwrite", {"--overwrite is given with --check FILE"}},
                                  {"--check x --json", {"x: cannot be opened"}},
                                  {"--check x --threads 0", {"x: cannot be opened"}}});
  testing::run_command(LOCKSTEP_TEST_PROGRAM " --version").finished({"lockstep "});
  expect_refused(testing::run_command(LOCKSTEP_TEST_PROGRAM " --check ''"), {"--check is empty"});
}

/// Fixture with a file of 30 samples of 12 pixels each. Stored pixels need no library for images.
class PackCheck : public Pack {
 protected:
  PackCheck() {
    nn::PackedWriter writer(file_, nn::PackedStore::pixels, {"cat", "a dog"});
    for (int i = 0; i < kSamples; ++i) {
      const std::vector<std::uint8_t> pixels(kBytes, static_cast<std::uint8_t>(i));
      writer.add(i == kSamples - 1, {i % 2, 2, 2, 1, true, concat("x/", i, ".jpg")}, pixels);
    }
    writer.commit();
    good_ = testing::get_file(file_);
  }
  /// Changes one bit of each byte in `changed`, and runs lockstep-pack --check on the changed file.
  [[nodiscard]] Ended check(const std::vector<std::size_t>& changed, const std::string& options = {}) const {
    std::string bytes = good_;
    for (const std::size_t at : changed) {
      bytes.at(at) = static_cast<char>(bytes.at(at) ^ 4);
    }
    testing::put_file(file_, bytes);
    return pack("--check " + file_ + " " + options);
  }
  static std::size_t place(int sample) { return 16 + kBytes * static_cast<std::size_t>(sample) + 5; }
  static std::vector<std::size_t> first_27() {
    std::vector<std::size_t> all;
    for (int i = 0; i < 27; ++i) {
      all.push_back(place(i));
    }
    return all;
  }

  static constexpr int kSamples = 30;
  static constexpr std::size_t kBytes = 12;
  std::string file_ = path("a.pack");
  std::string good_;
};

TEST_F(PackCheck, AWholeFileIsOneLine) {
  for (const char* options : {"", "--threads 1", "--threads 5"}) {
    const Ended whole = check({}, options).finished();
    EXPECT_EQ(whole.output, concat("30 samples, 2 classes, ", good_.size(), " bytes: all checksums right\n"));
  }
  EXPECT_EQ(testing::get_file(file_), good_);
}

TEST_F(PackCheck, DamagedSamplesAreNamed) {
  for (const int sample : {0, 15, kSamples - 1}) {
    const Ended ended = check({place(sample)});
    expect_refused(ended, {"a.pack': 1 of 30 samples are damaged"});
    ASSERT_EQ(ended.lines().size(), 2U) << ended.output;
    testing::expect_holds(ended.lines()[0],
                          {concat("a.pack': sample ", sample, " of class '", sample % 2 == 0 ? "cat" : "a dog",
                                  "' ('x/", sample, ".jpg'): CRC-32 "),
                           ", expected "});
  }
  const Ended ended = check(first_27());
  expect_refused(ended, {"27 of 30 samples are damaged"});
  ASSERT_EQ(ended.lines().size(), 22U) << ended.output;
  testing::expect_holds(ended.lines()[19], "sample 19 of class");
  EXPECT_EQ(ended.lines()[20], "and 7 more");
}

TEST_F(PackCheck, TheResultIsJsonToo) {
  const Json::Object expected{{"file", file_},         {"store", "pixels"}, {"classes", 2},
                              {"training_images", 29}, {"test_images", 1},  {"bytes", std::uint64_t{good_.size()}},
                              {"decoded", false},      {"damaged", 0},      {"texts", Json::Array{}}};
  EXPECT_EQ(parse_json(check({}, "--json").finished().output, "output").text(), Json(expected).text());
  const Ended damaged = check(first_27(), "--json");
  expect_refused(damaged, {"27 of 30"});
  const Json found = parse_json(damaged.printed, "output");
  EXPECT_EQ(found.get<std::int64_t>("damaged", "output"), 27);
  const auto texts = found.get<Json::Array>("texts", "output");
  ASSERT_EQ(texts.size(), 27U) << "all, not the first 20";
  testing::expect_holds(texts[26].as<std::string>("text"), "a.pack': sample 26 of class 'cat' ('x/26.jpg'): CRC-32 ");
}

TEST_F(PackCheck, JsonNamesFilesOfAnyBytes) {
  file_ = path("a\xff\xc3.pack");
  check({}).finished();
  testing::expect_members(parse_json(check({}, "--json").output, "output"), {{"file", path("a\\xff\\xc3.pack")}});
  const Json texts = parse_json(check({place(3)}, "--json").printed, "output");
  testing::expect_holds(texts.get<Json::Array>("texts", "output").at(0).as<std::string>("text"),
                        "a\\xff\\xc3.pack': sample 3 ");
}

TEST_F(PackCheck, ADamagedHeaderIndexOrEndIsOneError) {
  expect_damage_is_told(good_,
                        {{2, {"begins as no packed file does"}},
                         {8, {"version 5, expected 1"}},
                         {13, {"CRC-32 ", " of its first and last bytes, expected "}},
                         {16 + kSamples * kBytes + 2, {"expected "}},
                         {good_.size() - 100, {"a.pack': CRC-32 ", " of the index, expected "}},
                         {good_.size() - 5, {"of its first and last bytes"}}},
                        [&](const std::string& bytes) {
                          testing::put_file(file_, bytes);
                          return pack("--check " + file_);
                        });
}

#if LOCKSTEP_HAS_IMAGES
/// Writes three classes of `count` images each, all different and of different sizes; half of them are JPEG.
void put_pictures(const std::string& folder, int count) {
  for (int i = 0; i < 3 * count; ++i) {
    const int c = i % 3;
    const auto value = [&](std::int64_t y, std::int64_t x, int channel) {
      return static_cast<int>((80 * (c == channel ? 2 : 1) + 3 * x + 7 * y * (1 + i)) % 256);
    };
    const testing::Pixels picture = testing::pixels(20 + 9 * (i % 5), 37 - 5 * (i % 4), 3, value);
    const std::string name = concat(folder, i < 2 * count ? "/train/c" : "/val/c", c, "/", i);
    fs::create_directories(fs::path(name).parent_path());
    testing::put_file(name + (i % 2 == 0 ? ".jpg" : ".png"), i % 2 == 0 ? jpeg(picture) : png(picture));
  }
}

TEST_F(Pack, TrainingHasTheBitsOfTheFolder) {
  put_pictures(path("data"), 9);
  train_resnet("--epochs 2 --workers 1 --data folder:" + path("data") + out("folder")).finished();
  const std::string expected = state("folder");
  ASSERT_GT(expected.size(), 1000U);
  for (const std::string store : {"files", "pixels"}) {
    const std::string file = path(store + ".pack");
    pack(path("data") + " " + file + " --store " + store).finished();
    for (const std::string workers : {"1", "4"}) {
      const std::string run = store + workers;
      train_resnet("--epochs 2 --workers " + workers + " --data packed:" + file + out(run))
          .finished({"18 training and 9 test images 16 x 16, 3 classes", "random crops to train on",
                     "normalised by ImageNet's mean and standard deviation",
                     "packed " + store + ", resized to 18 and cropped"});
      EXPECT_EQ(state(run), expected) << store << ", " << workers << " workers";
    }
  }
  // The control: training on resized images must give other weights.
  pack(path("data") + " " + path("small.pack") + " --store pixels --resize 18").finished();
  train_resnet("--epochs 2 --data packed:" + path("small.pack") + out("small")).finished();
  EXPECT_NE(state("small"), expected);
}

TEST_F(Pack, ARunGoesOnFromTheFolderToTheFile) {
  put_pictures(path("data"), 9);
  // A constant schedule, so that runs with one epoch and with two have equal learning rates.
  const std::string steady = "--schedule constant --warmup-epochs 0 --lr 0.01 ";
  const std::string folder = " --data folder:" + path("data");
  train_resnet(steady + "--epochs 2" + folder + out("whole")).finished();
  pack(path("data") + " " + path("a.pack")).finished();
  pack(path("data") + " " + path("small.pack") + " --store pixels --resize 18").finished();
  for (const std::string file : {"a.pack", "small.pack"}) {
    const std::string run = "run_" + file;
    train_resnet(steady + "--epochs 1" + folder + out(run)).finished();
    const Ended on =
        train_resnet(steady + "--epochs 2 --resume auto --data packed:" + path(file) + out(run)).finished();
    if (file == "a.pack") {
      on.has({{"training_data", 0}, {"test_data", 0}});
      EXPECT_EQ(state(run), state("whole"));
    } else {
      on.has({{"options 'training_data': checkpoint \"", 1}, {"\" (packed:" + path(file) + " train", 1}});
      EXPECT_NE(state(run), state("whole"));
    }
  }
}

TEST_F(Pack, ListsArePackedAsTheirFolderIs) {
  put_pictures(path("data"), 3);
  for (const std::string part : {"train", "val"}) {
    std::set<std::string> lines;
    for (const auto& entry : fs::recursive_directory_iterator(path("data/" + part))) {
      if (entry.is_regular_file()) {
        lines.insert(fs::relative(entry.path(), path("data")).string() + ',' +
                     entry.path().parent_path().filename().string());
      }
    }
    put("data/" + part + ".csv", joined(lines, "\n") + '\n');
  }
  const std::string lists = "list:" + path("data/train.csv") + ',' + path("data/val.csv");
  pack(path("data") + " " + path("a.pack")).finished();
  pack(lists + " " + path("data/b.pack"))
      .finished({lists + ": 6 training and 3 test images, 3 classes; test images are those of '"});
  EXPECT_EQ(get("data/b.pack"), get("a.pack"));
  testing::expect_refusals(
      pack, {{lists + " " + path("data/val.csv") + " --overwrite", {"val.csv", "is a list of pictures"}},
             {lists + " " + path("data/train/c0/0.jpg") + " --overwrite", {"c0/0.jpg", "is a picture of the list"}},
             {"list:" + path("data/val.csv") + " " + path("c.pack"), {"val.csv", "--val-fraction"}}});
  put("data/val.csv", "val/c0/9.jpg,c0\n");
  expect_refused(pack(lists + " " + path("c.pack")), {"val.csv', line 1: 'val/c0/9.jpg' of label 'c0' does not exist"});
}

/// Returns the samples as pairs of name and label: first for training, then for the test.
std::array<std::vector<std::pair<std::string, int>>, 2> samples_of(const std::string& path) {
  const nn::PackedFile file(path);
  std::array<std::vector<std::pair<std::string, int>>, 2> samples;
  for (std::int64_t i = 0; i < file.train_size() + file.test_size(); ++i) {
    samples[i < file.train_size() ? 0 : 1].emplace_back(file.sample(i).name, file.sample(i).label);
  }
  return samples;
}

TEST_F(Pack, ShufflesTheTrainingPictures) {
  put_pictures(path("data"), 12);
  pack(path("data") + " " + path("a.pack")).finished();
  for (const char* name : {"b.pack", "c.pack"}) {
    const Ended shuffled = pack(path("data") + " " + path(name) + " --shuffle").finished();
    shuffled.says({"the training pictures in a random order"});
  }
  pack(path("data") + " " + path("d.pack") + " --shuffle --seed 2").finished();
  EXPECT_EQ(get("b.pack"), get("c.pack"));
  auto [train, test] = samples_of(path("a.pack"));
  auto [shuffled, same] = samples_of(path("b.pack"));
  EXPECT_EQ(same, test);
  EXPECT_NE(samples_of(path("d.pack"))[0], shuffled);
  EXPECT_NE(shuffled, train);
  std::sort(shuffled.begin(), shuffled.end());
  std::sort(train.begin(), train.end());
  EXPECT_EQ(shuffled, train);
}

TEST_F(Pack, SaysWhatItDoesAndDid) {
  put_pictures(path("data"), 3);
  const std::string call = path("data") + " " + path("a.pack");
  pack(call + " --threads 2")
      .finished({path("data") + ": 6 training and 3 test images, 3 classes; test images are those of val",
                 "the files as they are", "threads    2", path("a.pack") + ": 6 training and 3 test images, ",
                 "train_resnet --data packed:" + path("a.pack")});
  expect_refused(pack(call), {path("a.pack"), "exists", "--overwrite"});
  const Ended checked = pack("--check " + path("a.pack")).finished();
  EXPECT_EQ(checked.output,
            concat("9 samples, 3 classes, ", fs::file_size(path("a.pack")), " bytes: all checksums right\n"));

  const std::string whole = get("data/train/c0/0.jpg");
  put("data/train/c0/0.jpg", whole.substr(0, whole.size() - 20));
  const std::string before = get("a.pack");
  expect_refused(pack(call + " --overwrite"), {"train/c0/0.jpg", "damaged or unknown JPEG data", "--skip-damaged"});
  EXPECT_EQ(get("a.pack"), before);
  pack(call + " --overwrite --skip-damaged --store pixels --resize 25")
      .finished({"an older one is replaced", "larger pictures resized to a shorter side of 25",
                 "1 damaged images were left out:\n    '" + path("data/train/c0/0.jpg")});
  const Json summary = json_of(call + " --overwrite --skip-damaged");
  testing::expect_members(summary, {{"training_images", 5},
                                    {"test_images", 3},
                                    {"classes", 3},
                                    {"store", "files"},
                                    {"bytes", std::uint64_t{fs::file_size(path("a.pack"))}}});
  const auto damaged = summary.get<Json::Array>("damaged_images", "output");
  ASSERT_EQ(damaged.size(), 1U);
  testing::expect_members(damaged[0], {{"file", "train/c0/0.jpg"}});

  fs::rename(path("data/train/c0/0.jpg"), path("data/train/c0/0\xff.jpg"));
  fs::rename(path("data"), path("d\xff"));
  const Json named = json_of(path("d\xff ") + path("a\xff.pack") + " --skip-damaged");
  testing::expect_members(named, {{"folder", path("d\\xff")}, {"file", path("a\\xff.pack")}});
  testing::expect_members(named.get<Json::Array>("damaged_images", "output").at(0), {{"file", "train/c0/0\\xff.jpg"}});
}

TEST_F(Pack, FilesThatAreDamagedEndARun) {
  put_pictures(path("data"), 3);
  pack(path("data") + " " + path("a.pack")).finished();
  const std::string good = get("a.pack");
  const std::string run = "--epochs 1 --data packed:" + path("a.pack");
  put("a.pack", good.substr(0, good.size() / 2));
  expect_refused(train_resnet(run), {"a.pack", "cut off or damaged"});
  for (const std::size_t at : {std::size_t{9}, good.size() / 2, good.size() - 100, good.size() - 5}) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    put("a.pack", bytes);
    expect_refused(train_resnet(run), {"a.pack"});
  }
  testing::expect_refusals(
      train_resnet,
      {{"--data packed:" + path("none"), {"none", "cannot be opened"}},
       {"--data packed:" + path("data"), {"is not a regular file"}},
       {run + " --skip-damaged", {"--skip-damaged", "expected --data folder:DIR", "lockstep-pack has this option"}},
       {run + " --val-fraction 0.5",
        {"--val-fraction", "expected --data folder:DIR", "lockstep-pack has this option"}}});
}

TEST_F(Pack, FoldersThatCannotBePackedAreRefused) {
  put_pictures(path("data"), 3);
  const std::string file = " " + path("a.pack");
  testing::expect_refusals(
      pack, {{path("data") + " " + path("data/a.pack"), {"a.pack", "lies in", "expected a place outside"}},
             {path("none") + file, {"none", "is no folder"}},
             {path("data/train") + file, {"has no folder train", "--val-fraction"}},
             {path("data") + file + " --resize 9", {"resize is 9", "--store pixels"}}});
  EXPECT_EQ(pack(path("data") + " /dev/full/a.pack").code, 2);
  // "ulimit -f 8" limits files to 4 KiB. The limit must be at least 1 KiB, because clang's OpenMP runtime writes a
  // small file.
  EXPECT_EQ(testing::run_command("sh -c 'ulimit -f 8; trap \"\" XFSZ; " + std::string(LOCKSTEP_TEST_PROGRAM) + " " +
                                 path("data") + " " + path("a.pack") + " --store pixels'")
                .code,
            3);
  EXPECT_FALSE(fs::exists(path("a.pack")));
}
#else
TEST_F(Pack, NeedsLibrariesWhichAreNamed) {
  fs::create_directories(path("data"));
  expect_refused(pack(path("data") + " " + path("a.pack")), {"libjpeg-dev libpng-dev", "-DLOCKSTEP_IMAGES=ON"});
}
#endif

}  // namespace
}  // namespace lockstep::tools
