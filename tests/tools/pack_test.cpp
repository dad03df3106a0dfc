// lockstep-pack as people call it, and training on what it writes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/files.hpp"
#if LOCKSTEP_HAS_IMAGES
#include "tests/support/image_files.hpp"
#endif
#include "tests/support/run_command.hpp"
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
    return testing::run_command(std::string(TRAIN_RESNET) +
                                " --image-size 16 --batch-size 6 --log-every 1 --threads 1 --model mlp --hidden 8 " +
                                options);
  }
};

TEST(PackReport, SaysHowLongItTakes) {
  EXPECT_EQ(pack_progress({.done = 1200, .all = 5000, .bytes = 3 << 20}, 60),
            "1200 of 5000 images, 24 %, 3 MiB, 3 min 10 s left");
  EXPECT_EQ(pack_progress({.done = 1, .all = 100, .bytes = 64}, 200), "1 of 100 images, 1.0 %, 64 B, 5 h 30 min left");
  EXPECT_EQ(pack_progress({.done = 100, .all = 100, .bytes = 64}, 200), "100 of 100 images, 100 %, 64 B, 0 s left");
}

TEST_F(Pack, OptionsThatAreNoneAreOneLine) {
  EXPECT_EQ(pack("--version").code, 0);
  const Ended help = pack("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* words : {"--store", "--resize", "--skip-damaged", "--data packed:FILE", "--check", "Exit codes"}) {
    expect_holds(help.output, words);
  }
  expect_refused(pack(""), {"DIR is required", "--help"});
  expect_refused(pack(path("data")), {"FILE is required"});
  expect_refused(pack(path("data") + " x --store jpeg"), {"--store is jpeg, expected files or pixels"});
  expect_refused(pack(path("data") + " x --stoer files"), {"--stoer"});
  expect_refused(pack("--check"), {"--check"});
  expect_refused(pack("--check ''"), {"--check is empty, expected a packed file"});
  expect_refused(pack("'' x"), {"DIR is empty, expected a folder"});
  expect_refused(pack(path("data") + " ''"), {"FILE is empty, expected a file to write"});
  expect_refused(pack("--check x y"), {"DIR is given beside --check FILE"});
  expect_refused(pack("--check x --overwrite"), {"--overwrite is given beside --check FILE"});
  expect_refused(pack("--check x --json"), {"x: cannot be opened"});
  expect_refused(pack("--check x --threads 0"), {"x: cannot be opened"});
}

/// A file of 30 samples of 12 pixels' bytes, which needs no library for images.
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
  /// With one bit of each of these bytes changed.
  [[nodiscard]] Ended check(const std::vector<std::size_t>& changed, const std::string& options = {}) const {
    std::string bytes = good_;
    for (const std::size_t at : changed) {
      bytes.at(at) = static_cast<char>(bytes.at(at) ^ 4);
    }
    testing::put_file(file_, bytes);
    return pack("--check " + file_ + " " + options);
  }
  static std::size_t place(int sample) { return 16 + kBytes * static_cast<std::size_t>(sample) + 5; }

  static constexpr int kSamples = 30;
  static constexpr std::size_t kBytes = 12;
  std::string file_ = path("a.pack");
  std::string good_;
};

TEST_F(PackCheck, AWholeFileIsOneLine) {
  for (const char* options : {"", "--threads 1", "--threads 5"}) {
    const Ended whole = check({}, options);
    EXPECT_EQ(whole.code, 0);
    EXPECT_EQ(whole.output, concat("30 samples, 2 classes, ", good_.size(), " bytes: all checksums right\n"));
  }
  EXPECT_EQ(testing::get_file(file_), good_);
}

TEST_F(PackCheck, DamagedSamplesAreNamed) {
  for (const int sample : {0, 15, kSamples - 1}) {
    const Ended ended = check({place(sample)});
    expect_refused(ended, {"a.pack': 1 of 30 samples are damaged"});
    ASSERT_EQ(ended.lines().size(), 2U) << ended.output;
    expect_holds(ended.lines()[0], concat("a.pack': sample ", sample, " of class '", sample % 2 == 0 ? "cat" : "a dog",
                                          "' ('x/", sample, ".jpg'): CRC-32 "));
    expect_holds(ended.lines()[0], ", expected ");
  }
  std::vector<std::size_t> all;
  for (int i = 0; i < 27; ++i) {
    all.push_back(place(i));
  }
  const Ended ended = check(all);
  expect_refused(ended, {"27 of 30 samples are damaged"});
  ASSERT_EQ(ended.lines().size(), 22U) << ended.output;
  expect_holds(ended.lines()[19], "sample 19 of class");
  EXPECT_EQ(ended.lines()[20], "and 7 more");
}

TEST_F(PackCheck, TheResultIsJsonToo) {
  const Ended whole = check({}, "--json");
  EXPECT_EQ(whole.code, 0);
  Json::Object expected{{"file", file_},         {"store", "pixels"}, {"classes", 2},
                        {"training_images", 29}, {"test_images", 1},  {"bytes", std::uint64_t{good_.size()}},
                        {"decoded", false},      {"damaged", 0},      {"texts", Json::Array{}}};
  EXPECT_EQ(parse_json(whole.output, "output"), Json(expected)) << whole.output;

  std::vector<std::size_t> all;
  for (int i = 0; i < 27; ++i) {
    all.push_back(place(i));
  }
  const Ended damaged = check(all, "--json");
  EXPECT_EQ(damaged.code, 2);
  const std::size_t end = damaged.output.find("\n}\n");
  ASSERT_NE(end, std::string::npos) << damaged.output;
  const Json found = parse_json(damaged.output.substr(0, end + 3), "output");
  EXPECT_EQ(found.get<std::int64_t>("damaged", "output"), 27);
  const auto texts = found.get<Json::Array>("texts", "output");
  ASSERT_EQ(texts.size(), 27U) << "all, not the first 20";
  expect_holds(texts[26].as<std::string>("text"), "a.pack': sample 26 of class 'cat' ('x/26.jpg'): CRC-32 ");
  EXPECT_EQ(damaged.error_lines().size(), 1U);
}

TEST_F(PackCheck, JsonNamesFilesOfAnyBytes) {
  file_ = path("a\xff\xc3.pack");
  const Ended whole = check({});
  EXPECT_EQ(whole.code, 0) << whole.output;
  const Json found = parse_json(check({}, "--json").output, "output");
  EXPECT_EQ(found.get<std::string>("file", "output"), path("a\\xff\\xc3.pack"));
  const Ended damaged = check({place(3)}, "--json");
  const Json texts = parse_json(damaged.output.substr(0, damaged.output.find("\n}\n") + 3), "output");
  expect_holds(texts.get<Json::Array>("texts", "output").at(0).as<std::string>("text"), "a\\xff\\xc3.pack': sample 3 ");
}

TEST_F(PackCheck, ADamagedHeaderIndexOrEndIsOneError) {
  expect_refused(check({2}), {"is no packed file of lockstep-pack"});
  expect_refused(check({8}), {"version 5, expected 1"});
  expect_refused(check({13}), {"CRC-32 ", " of its first and last bytes, expected "});
  expect_refused(check({16 + kSamples * kBytes + 2}), {"expected "});
  expect_refused(check({good_.size() - 100}), {"a.pack': CRC-32 ", " of the index, expected "});
  expect_refused(check({good_.size() - 5}), {"of its first and last bytes"});
  for (const std::size_t size : {std::size_t{0}, std::size_t{40}, good_.size() / 2, good_.size() - 1}) {
    testing::put_file(file_, good_.substr(0, size));
    const Ended ended = pack("--check " + file_);
    expect_refused(ended, {size == 0 ? "is no packed file" : "it is cut off"});
    EXPECT_EQ(ended.lines().size(), 1U) << ended.output;
  }
}

#if LOCKSTEP_HAS_IMAGES
/// Three classes of pictures of different sizes, all different, `count` each: half of them JPEG.
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
  const Ended one = train_resnet("--epochs 2 --workers 1 --data folder:" + path("data") + " --out " + path("folder"));
  ASSERT_EQ(one.code, 0) << one.output;
  const std::string expected = state("folder");
  ASSERT_GT(expected.size(), 1000U);
  for (const std::string store : {"files", "pixels"}) {
    const std::string file = path(store + ".pack");
    const Ended packed = pack(path("data") + " " + file + " --store " + store);
    ASSERT_EQ(packed.code, 0) << packed.output;
    for (const std::string workers : {"1", "4"}) {
      const std::string run = store + workers;
      const Ended ended =
          train_resnet("--epochs 2 --workers " + workers + " --data packed:" + file + " --out " + path(run));
      ASSERT_EQ(ended.code, 0) << ended.output;
      EXPECT_EQ(state(run), expected) << store << ", " << workers << " workers";
      for (const char* words : {"18 training and 9 test images 16 x 16, 3 classes", "random crops to train on",
                                "normalised by ImageNet's mean and standard deviation"}) {
        expect_holds(ended.output, words);
      }
      expect_holds(ended.output, "packed " + store + ", resized to 18 and cropped");
    }
  }
  // The control: what is resized has other bits.
  ASSERT_EQ(pack(path("data") + " " + path("small.pack") + " --store pixels --resize 18").code, 0);
  ASSERT_EQ(train_resnet("--epochs 2 --data packed:" + path("small.pack") + " --out " + path("small")).code, 0);
  EXPECT_NE(state("small"), expected);
}

TEST_F(Pack, ARunGoesOnFromTheFolderToTheFile) {
  put_pictures(path("data"), 9);
  const std::string steady = "--schedule constant --warmup-epochs 0 --lr 0.01 ";  // for any number of epochs
  const std::string folder = " --data folder:" + path("data");
  ASSERT_EQ(train_resnet(steady + "--epochs 2" + folder + " --out " + path("whole")).code, 0);
  ASSERT_EQ(pack(path("data") + " " + path("a.pack")).code, 0);
  ASSERT_EQ(pack(path("data") + " " + path("small.pack") + " --store pixels --resize 18").code, 0);
  for (const std::string file : {"a.pack", "small.pack"}) {
    const std::string run = "run_" + file;
    ASSERT_EQ(train_resnet(steady + "--epochs 1" + folder + " --out " + path(run)).code, 0);
    const Ended on =
        train_resnet(steady + "--epochs 2 --resume auto --data packed:" + path(file) + " --out " + path(run));
    ASSERT_EQ(on.code, 0) << on.output;
    if (file == "a.pack") {
      EXPECT_EQ(on.count("training_data"), 0) << on.output;
      EXPECT_EQ(on.count("test_data"), 0) << on.output;
      EXPECT_EQ(state(run), state("whole"));
    } else {
      EXPECT_EQ(on.count("options 'training_data': checkpoint \""), 1) << on.output;
      EXPECT_EQ(on.count("\" (packed:" + path(file) + " train"), 1) << on.output;
      EXPECT_NE(state(run), state("whole"));
    }
  }
}

TEST_F(Pack, ListsArePackedAsTheirFolderIs) {
  put_pictures(path("data"), 3);
  for (const std::string part : {"train", "val"}) {
    std::vector<std::string> lines;
    for (const auto& entry : fs::recursive_directory_iterator(path("data/" + part))) {
      const std::string name = fs::relative(entry.path(), path("data")).string();
      if (entry.is_regular_file()) {
        lines.push_back(name + ',' + entry.path().parent_path().filename().string() + '\n');
      }
    }
    std::sort(lines.begin(), lines.end());
    std::string text;
    for (const std::string& line : lines) {
      text += line;
    }
    testing::put_file(path("data/" + part + ".csv"), text);
  }
  const std::string lists = "list:" + path("data/train.csv") + ',' + path("data/val.csv");
  ASSERT_EQ(pack(path("data") + " " + path("a.pack")).code, 0);
  const Ended listed = pack(lists + " " + path("data/b.pack"));
  ASSERT_EQ(listed.code, 0) << listed.output;
  expect_holds(listed.output, lists + ": 6 training and 3 test images, 3 classes; test images are those of '");
  EXPECT_EQ(testing::get_file(path("data/b.pack")), testing::get_file(path("a.pack")));
  expect_refused(pack(lists + " " + path("data/val.csv") + " --overwrite"), {"val.csv", "is a list of pictures"});
  expect_refused(pack(lists + " " + path("data/train/c0/0.jpg") + " --overwrite"),
                 {"c0/0.jpg", "is a picture of the list"});
  expect_refused(pack("list:" + path("data/val.csv") + " " + path("c.pack")), {"val.csv", "--val-fraction"});
  testing::put_file(path("data/val.csv"), "val/c0/9.jpg,c0\n");
  expect_refused(pack(lists + " " + path("c.pack")), {"val.csv', line 1: 'val/c0/9.jpg' of label 'c0' does not exist"});
}

/// As pairs of name and label, those for training and those of the test.
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
  ASSERT_EQ(pack(path("data") + " " + path("a.pack")).code, 0);
  for (const char* name : {"b.pack", "c.pack"}) {
    const Ended shuffled = pack(path("data") + " " + path(name) + " --shuffle");
    ASSERT_EQ(shuffled.code, 0) << shuffled.output;
    expect_holds(shuffled.output, "the training pictures in a random order");
  }
  ASSERT_EQ(pack(path("data") + " " + path("d.pack") + " --shuffle --seed 2").code, 0);
  EXPECT_EQ(testing::get_file(path("b.pack")), testing::get_file(path("c.pack")));
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
  const Ended first = pack(call + " --threads 2");
  ASSERT_EQ(first.code, 0) << first.output;
  for (const std::string& words :
       {path("data") + ": 6 training and 3 test images, 3 classes; test images are those of val",
        std::string("the files as they are"), std::string("threads    2"),
        path("a.pack") + ": 6 training and 3 test images, ", "train_resnet --data packed:" + path("a.pack")}) {
    expect_holds(first.output, words);
  }
  expect_refused(pack(call), {path("a.pack"), "exists", "--overwrite"});
  const Ended checked = pack("--check " + path("a.pack"));
  EXPECT_EQ(checked.code, 0);
  EXPECT_EQ(checked.output,
            concat("9 samples, 3 classes, ", fs::file_size(path("a.pack")), " bytes: all checksums right\n"));

  const std::string whole = testing::get_file(path("data/train/c0/0.jpg"));
  testing::put_file(path("data/train/c0/0.jpg"), whole.substr(0, whole.size() - 20));
  const std::string before = testing::get_file(path("a.pack"));
  expect_refused(pack(call + " --overwrite"), {"train/c0/0.jpg", "damaged or unknown JPEG data", "--skip-damaged"});
  EXPECT_EQ(testing::get_file(path("a.pack")), before);
  const Ended skipped = pack(call + " --overwrite --skip-damaged --store pixels --resize 25");
  EXPECT_EQ(skipped.code, 0) << skipped.output;
  expect_holds(skipped.output, "an older one is replaced");
  expect_holds(skipped.output, "larger pictures resized to a shorter side of 25");
  expect_holds(skipped.output, "1 damaged images were left out:\n    '" + path("data/train/c0/0.jpg"));
  const Ended json = testing::run_command(std::string("sh -c '") + LOCKSTEP_TEST_PROGRAM + " " + call +
                                          " --overwrite --skip-damaged --json 2>/dev/null'");
  EXPECT_EQ(json.code, 0) << json.output;
  const Json summary = parse_json(json.output, "output");
  EXPECT_EQ(summary.get<std::int64_t>("training_images", "output"), 5);
  EXPECT_EQ(summary.get<std::int64_t>("test_images", "output"), 3);
  EXPECT_EQ(summary.get<std::int64_t>("classes", "output"), 3);
  EXPECT_EQ(summary.get<std::string>("store", "output"), "files");
  EXPECT_EQ(summary.get<std::int64_t>("bytes", "output"), static_cast<std::int64_t>(fs::file_size(path("a.pack"))));
  const auto damaged = summary.get<Json::Array>("damaged_images", "output");
  ASSERT_EQ(damaged.size(), 1U);
  EXPECT_EQ(damaged[0].get<std::string>("file", "output"), "train/c0/0.jpg");

  fs::rename(path("data/train/c0/0.jpg"), path("data/train/c0/0\xff.jpg"));
  fs::rename(path("data"), path("d\xff"));
  const Ended bytes = testing::run_command(std::string("sh -c '") + LOCKSTEP_TEST_PROGRAM + " " + path("d\xff ") +
                                           path("a\xff.pack") + " --skip-damaged --json 2>/dev/null'");
  EXPECT_EQ(bytes.code, 0) << bytes.output;
  const Json named = parse_json(bytes.output, "output");
  EXPECT_EQ(named.get<std::string>("folder", "output"), path("d\\xff"));
  EXPECT_EQ(named.get<std::string>("file", "output"), path("a\\xff.pack"));
  EXPECT_EQ(named.get<Json::Array>("damaged_images", "output").at(0).get<std::string>("file", "output"),
            "train/c0/0\\xff.jpg");
}

TEST_F(Pack, FilesThatAreDamagedEndARun) {
  put_pictures(path("data"), 3);
  ASSERT_EQ(pack(path("data") + " " + path("a.pack")).code, 0);
  const std::string good = testing::get_file(path("a.pack"));
  const std::string run = "--epochs 1 --data packed:" + path("a.pack");
  testing::put_file(path("a.pack"), good.substr(0, good.size() / 2));
  expect_refused(train_resnet(run), {"a.pack", "cut off or damaged"});
  for (const std::size_t at : {std::size_t{9}, good.size() / 2, good.size() - 100, good.size() - 5}) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    testing::put_file(path("a.pack"), bytes);
    expect_refused(train_resnet(run), {"a.pack"});
  }
  expect_refused(train_resnet("--data packed:" + path("none")), {"none", "cannot be opened"});
  expect_refused(train_resnet("--data packed:" + path("data")), {"is not a regular file"});
  for (const std::string option : {"--skip-damaged", "--val-fraction 0.5"}) {
    expect_refused(train_resnet(run + " " + option),
                   {option.substr(0, option.find(' ')), "expected --data folder:DIR", "lockstep-pack has this option"});
  }
}

TEST_F(Pack, FoldersThatCannotBePackedAreRefused) {
  put_pictures(path("data"), 3);
  expect_refused(pack(path("data") + " " + path("data/a.pack")), {"a.pack", "lies in", "expected a place outside"});
  expect_refused(pack(path("none") + " " + path("a.pack")), {"none", "is no folder"});
  expect_refused(pack(path("data/train") + " " + path("a.pack")), {"has no folder train", "--val-fraction"});
  expect_refused(pack(path("data") + " " + path("a.pack") + " --resize 9"), {"resize is 9", "--store pixels"});
  EXPECT_EQ(pack(path("data") + " /dev/full/a.pack").code, 2);
  // 4 KiB, since clang's OpenMP wants a file of 1 KiB itself.
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
