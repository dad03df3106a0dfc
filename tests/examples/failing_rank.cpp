// A training run in which one rank fails in the middle of an epoch, while the other ranks reduce gradients:
// failing_rank RANK [hang]. Reading an image on rank RANK throws an error, or with `hang` never returns.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

/// A data set that fails after `reads` images: read() throws, or hangs if `hangs` is true.
class Breaking final : public nn::ImageDataset {
 public:
  Breaking(const nn::ImageDataset& whole, std::int64_t reads, bool hangs)
      : ImageDataset({whole.name(), whole.size(), whole.height(), whole.width(), whole.classes()}),
        whole_(whole),
        left_(reads),
        hangs_(hangs) {}
  std::int32_t label(std::int64_t index) const override { return whole_.label(index); }
  void read(std::int64_t index, std::span<std::uint8_t> image) const override {
    if (left_.fetch_sub(1) <= 0) {
      while (hangs_) {
        std::this_thread::sleep_for(std::chrono::hours(1));
      }
      throw std::runtime_error("the disk is gone");
    }
    whole_.read(index, image);
  }
  std::uint64_t fingerprint() const override { return whole_.fingerprint(); }

 private:
  const nn::ImageDataset& whole_;
  mutable std::atomic<std::int64_t> left_;
  bool hangs_;
};

int run(comm::Session& session, int argc, char** argv) {
  const int failing = argc > 1 ? std::atoi(argv[1]) : 0;
  const bool hangs = argc > 2 && std::string_view(argv[2]) == "hang";
  std::optional<comm::Watchdog> watchdog;
  if (hangs) {
    watchdog.emplace(session, 5);
  }
  nn::DataOptions options;
  options.synthetic = {.train_size = 64, .test_size = 16, .height = 12, .width = 12, .classes = 4};
  const nn::DataSplit whole = nn::open_data(options);
  nn::DataSplit data;
  data.train = std::make_unique<Breaking>(*whole.train, session.rank() == failing ? 100 : 1000000000, hangs);
  data.test = nn::open_data(options).test;
  CpuContext context({.threads = 1});
  nn::TrainerOptions trainer_options;
  trainer_options.global_batch = 16;
  nn::Trainer trainer(
      context, {session.grad(), session.control(), session.communication_stream(), watchdog ? &*watchdog : nullptr},
      nn::cifar_resnet(20, 4, 12, 12), data, trainer_options);
  session.agree([&] { trainer.start(); });
  for (;;) {  // runs until a read fails
    trainer.step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::comm::run_program(argc, argv, run);
}
