// Tests --config FILE. The file gives values for options that are not on the command line.
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "app/cli/command_line.hpp"
#include "app/cli/launch_options.hpp"
#include "tests/support/error_of.hpp"

namespace {

using lockstep::DataError;
using lockstep::UsageError;
using lockstep::testing::expect_holds;

/// Options of several kinds, read from a command line and a file.
struct Read {
  explicit Read(const std::string& toml, std::vector<const char*> arguments = {}) {
    CLI::App app;
    lockstep::Schema schema;
    lockstep::cli::describe(schema, launch, lockstep::cli::Restarts::yes);
    lockstep::cli::add_options(app, schema);
    app.add_option("--hidden", hidden)->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_option("--epochs", epochs);
    app.add_option("--lr", rate);
    app.add_flag("--nesterov", nesterov);
    arguments.insert(arguments.begin(), "program");
    text = lockstep::cli::parse_command_line(app, static_cast<int>(arguments.size()), arguments.data(),
                                             {"run.toml", toml});
  }
  lockstep::cli::LaunchOptions launch;
  std::vector<int> hidden;
  int epochs = 0;
  double rate = 0;
  bool nesterov = false;
  std::string text;
};

template <class Kind>
std::string failure(const std::string& toml, const std::vector<const char*>& arguments = {}) {
  try {
    (void)Read(toml, arguments);
  } catch (const Kind& error) {
    return error.what();
  }
  return "no error";
}

/// Expects a DataError for each TOML text. The error must contain the given words.
void expect_failures(const std::vector<std::pair<std::string, std::string>>& files) {
  for (const auto& [toml, words] : files) {
    expect_holds(failure<DataError>(toml), words);
  }
}

TEST(ConfigFile, GivesOptionsOfEveryKind) {
  const Read read("hidden = [ 256, 128 ] # two\nepochs = 20\nlr = 1e-2\nnesterov = true\nlauncher = \"none\"\n");
  EXPECT_EQ(read.hidden, (std::vector<int>{256, 128}));
  EXPECT_EQ(read.epochs, 20);
  EXPECT_EQ(read.rate, 0.01);
  EXPECT_TRUE(read.nesterov);
  EXPECT_EQ(read.launch.launcher, "none");
  EXPECT_FALSE(Read("nesterov = false").nesterov);
}

TEST(ConfigFile, NumbersBehindOtherCharactersAreReadWhole) {
  EXPECT_EQ(Read("\xEF\xBB\xBF"
                 "epochs =   1000\n")
                .epochs,
            1000)
      << "a byte-order mark";
  EXPECT_EQ(Read("epochs = 20 # sp\xC3\xA4ter 30\nlr = 0.5").epochs, 20);
  EXPECT_EQ(Read("launcher = \"\"\"a\"\"\"\"\"").launch.launcher, "a\"\"");
  EXPECT_EQ(Read("launcher = \"\\\\\xC3\xA9\"").launch.launcher, "\\\xC3\xA9");
  EXPECT_EQ(Read("hidden = [\n  3,\n  4,\n]\nepochs = 2").hidden, (std::vector<int>{3, 4}));
  EXPECT_EQ(Read("launcher = '\xC3\xA9' # \xC3\xA9").launch.launcher, "\xC3\xA9");
  expect_holds(failure<UsageError>("hidden = [\"1\xC3\xA9\",  345]"), "345");
  expect_failures({{"epochs = 1\n[\xE6\x97\xA5x]", "run.toml:2: a table"},
                   {"[[abl\xC3\xA9", "run.toml:1: a table"},
                   {"\xC3\xA9 = 1", "run.toml:1: a character"},
                   {"epochs = { \xC3\xA9 = 1 }", "run.toml:1: a value"},
                   {"a = \"\"\"\n\"\\\"\xC3\xA9\"\"\"\nb = '\xC3\xA9' # \xC3\xA9\n\xC3\xA9", "run.toml:4: a "},
                   {std::string("epochs = 1\n[[\0", 14), "run.toml:2: a "},
                   {"hidden = [0x\"1\xC3\xA9", "run.toml:1: a value"},
                   {"epochs = 8[\"1\xC3\xA9\"]", "run.toml:1: a value"},
                   {"a = \"\"\"\n\\\xC3\xA9\"\"\"", "run.toml:1: a backslash"},
                   {"hidden = [\n[1]]", "run.toml:2: brackets"},
                   {"hidden = [1]]", "run.toml:1: brackets"},
                   {"epochs = 1\x1b", "run.toml:1: a value"},
                   {"a = { b = 1 }", "run.toml:1: a value is '{'"}});
}

TEST(ConfigFile, CommandLineWins) {
  EXPECT_EQ(Read("epochs = 20", {"--epochs", "3"}).epochs, 3);
  EXPECT_EQ(Read("epochs = 20", {"--epochs=3"}).epochs, 3);
  EXPECT_EQ(Read("hidden = [4, 5]", {"--hidden", "7"}).hidden, std::vector<int>{7});
  EXPECT_EQ(Read("epochs = 20", {"--lr", "3"}).epochs, 20);
  expect_holds(failure<UsageError>("", {"--epochs", "010"}), "'010'");  // CLI11 reads 8.
  expect_holds(failure<UsageError>("", {"--epochs=-07"}), "'-07'");
  expect_holds(failure<UsageError>("", {"--hidden", "8", "010"}), "'010'");
  expect_holds(failure<UsageError>("", {"--hidden", "8,020"}), "'020'");
  expect_holds(failure<UsageError>("", {"--hidden=8,020", "--epochs", "1"}), "'020'");
  EXPECT_EQ(Read("", {"--epochs", "0", "--lr", "0.5"}).epochs, 0);
  // TOML also allows underscores in numbers, and octal numbers that begin with 0o.
  EXPECT_EQ(Read("epochs = 1_000").epochs, 1000);
  EXPECT_EQ(Read("epochs = 0o20").epochs, 16);
}

// Tests the values of `devices` in docs/devices.md: a number, a list and a text mean different things.
TEST(ConfigFile, DevicesKeepTheirType) {
  std::vector<lockstep::GpuInfo> four(4);
  for (int i = 0; i < 4; ++i) {
    four[static_cast<std::size_t>(i)].index = i;
    four[static_cast<std::size_t>(i)].uuid = "GPU-" + std::to_string(i);
  }
  const auto gpus = [&](const std::string& value) {
    const std::string text = Read("devices = " + value).launch.devices;
    std::vector<int> indices;
    for (const lockstep::Device device : lockstep::select_devices(lockstep::DeviceRequest::parse(text), four).devices) {
      indices.push_back(device == lockstep::Device::cpu() ? -1 : device.index);
    }
    return indices;
  };
  EXPECT_EQ(gpus("2"), (std::vector<int>{0, 1}));
  EXPECT_EQ(gpus("[3, 1]"), (std::vector<int>{3, 1}));
  EXPECT_EQ(gpus("[1]"), std::vector<int>{1});
  EXPECT_EQ(gpus("1"), std::vector<int>{0});
  EXPECT_EQ(gpus("-1"), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(gpus("\"cpu:4\""), std::vector<int>{-1});
  for (const char* wrong : {"0", "[]", "[-1]", "-2", "true", "1.0", "\"\"", "[1, 1]", "[true]", "[1.0]", "[4]"}) {
    EXPECT_THROW((void)gpus(wrong), UsageError) << wrong;
  }
}

// Tests the text by which the header of a run describes the device and processors of a rank.
TEST(LaunchOptions, WhereARankIs) {
  EXPECT_EQ(to_string(lockstep::GpuInfo{.index = 1, .uuid = "GPU-5f3e", .pci = "0000:3b:00.0", .name = "NVIDIA H200"}),
            "cuda:1  NVIDIA H200  GPU-5f3e  0000:3b:00.0");
  lockstep::cli::LaunchOptions options;
  EXPECT_EQ(lockstep::cli::bind_rank(options, lockstep::Device::cpu()), "") << "the host's threads stay where they are";
  options.bind = "none";
  EXPECT_EQ(lockstep::cli::bind_rank(options, lockstep::Device::cuda(7)), "not bound: --bind none")
      << "and no GPU is asked";
}

TEST(ConfigFile, ErrorsNameFileAndLine) {
  EXPECT_EQ(
      failure<UsageError>("epochs = 1\nepoch = 2"),
      "run.toml:2: epoch is no option (did you mean --epochs? --help lists the options, here they have no dashes)");
  expect_holds(failure<UsageError>("config = \"other.toml\""), "run.toml:1: config");
  expect_holds(failure<UsageError>("epochs = \"many\""), "--epochs");
  expect_failures({{"epochs = 1\nlr 3", "run.toml:2: "},
                   {"epochs = 1\nepochs = 2", "run.toml:2: "},
                   {"lr = 2020-01-01", "run.toml:1: a value is '2020-01-01'"},
                   {"[ranks]\ndevices = 1", "run.toml:1: a table"},
                   {R"(launcher = "none\u0000x")", "run.toml:1: launcher holds a zero byte"}});
}

TEST(ConfigFile, IsReadFromItsName) {
  const std::string path = ::testing::TempDir() + "lockstep_config_file_test.toml";
  std::ofstream(path) << "epochs = 2\n";
  const std::string joined = "--config=" + path;
  for (const std::vector<const char*>& line :
       {std::vector<const char*>{"p", "--config", path.c_str()}, {"p", "--lr", "1", joined.c_str()}}) {
    const lockstep::cli::ConfigFile file = lockstep::cli::read_config_file(static_cast<int>(line.size()), line.data());
    EXPECT_EQ(file.name, path);
    EXPECT_EQ(file.text, "epochs = 2\n");
  }
  std::ofstream(path, std::ios::trunc).close();  // an empty file is valid and sets no options
  const char* const empty[] = {"p", "--config", path.c_str()};
  const char* const endless[] = {"p", "--config", "/dev/zero"};
  EXPECT_THROW((void)lockstep::cli::read_config_file(3, endless), DataError);
  const lockstep::cli::ConfigFile nothing = lockstep::cli::read_config_file(3, empty);
  EXPECT_EQ(nothing.name, path);
  EXPECT_EQ(nothing.text, "");
  EXPECT_TRUE(lockstep::cli::parse_config(nothing).empty());
  const std::string folder = ::testing::TempDir();
  const char* const directory[] = {"p", "--config", folder.c_str()};
  EXPECT_THROW((void)lockstep::cli::read_config_file(3, directory), DataError);
  std::filesystem::remove(path);
  // A pipe is refused. A second process would find it empty, and a pipe without a writer would block forever.
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW((void)lockstep::cli::read_config_file(3, empty), DataError);
  std::filesystem::remove(path);
  const char* const gone[] = {"p", "--config", path.c_str()};
  EXPECT_THROW((void)lockstep::cli::read_config_file(3, gone), DataError);
  EXPECT_THROW((void)lockstep::cli::read_config_file(2, gone), UsageError);
  EXPECT_TRUE(lockstep::cli::read_config_file(1, gone).name.empty());
}

// A key with too many parts is refused, because the TOML library recurses once per part and would overflow the stack.
TEST(ConfigFile, AKeyOfVeryManyPartsIsRefused) {
  std::string key = "a";
  for (int i = 0; i < 200'000; ++i) {
    key += ".a";
  }
  for (const std::string& text : {key + " = 1", "epochs = 1\n" + key + " = \"\"\n"}) {
    expect_holds(failure<DataError>(text), "run.toml: has more than 10000 dots");
  }
}

}  // namespace
