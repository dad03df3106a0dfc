// Compares planned memory with the memory that the process really takes.
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/step/train_step.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/support/files.hpp"
#include "tests/support/sanitized.hpp"

namespace lockstep::nn {
namespace {

using testing::kSanitized;

/// Returns the resident set of this process in bytes.
std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0;
  std::int64_t resident = 0;
  in >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Memory, ReuseSavesAQuarterOfAnInferencePlan) {
  CpuContext context;
  const Plan plan(context, resnet(50).reading(InputKind::values), Mode::infer, 8);
  const double part = static_cast<double>(plan.workspace_bytes()) / static_cast<double>(plan.unshared_bytes());
  EXPECT_LE(part, 0.75);
  const Plan without(context, resnet(50).reading(InputKind::values), Mode::infer, 8, {.reuse_memory = false});
  EXPECT_EQ(without.workspace_bytes(), without.unshared_bytes()) << "the switch turns it off";
}

/// A data set of images whose pixels are one and whose labels are class 0.
class Images {
 public:
  Images(std::int64_t count, std::int64_t size)
      : shape_{count, size, size, 3},
        values_(static_cast<std::size_t>(shape_.numel()), 1.0F),
        labels_(static_cast<std::size_t>(count), 0) {}
  [[nodiscard]] Batch batch() const {
    return {{{StateField::values, TensorView(values_.data(), DType::f32, Device::cpu(), shape_)},
             {StateField::labels, TensorView(labels_.data(), DType::i32, Device::cpu(), {shape_[0]})}}};
  }

 private:
  Shape shape_;
  mutable std::vector<float> values_;  // mutable, because a view of a batch may be written
  mutable std::vector<std::int32_t> labels_;
};

TEST(Memory, PlannedPeakIsTheGrowthOfTheProcess) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer's shadow memory is part of the resident set";
  }
  const Images images(8, 224);
  CpuContext context({.threads = 2});
  const Model model = resnet(50).reading(InputKind::values);
  const std::int64_t before = resident_bytes();
  TrainStep step(context, model, {.max_batch = 8, .microbatches = 1});
  step.update(images.batch(), 0.1);
  step.synchronize();
  const auto growth = static_cast<double>(resident_bytes() - before);
  const auto planned = static_cast<double>(step.planned_bytes());
  RecordProperty("planned_mb", std::to_string(planned / 1e6));
  RecordProperty("growth_mb", std::to_string(growth / 1e6));
  EXPECT_LE(std::abs(growth - planned), 0.1 * planned) << "planned " << planned / 1e6 << " MB, grown " << growth / 1e6;
}

/// Returns the largest resident set since the last call of forget_peak(), in bytes; 0 if the kernel does not report it.
std::int64_t peak_resident_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::stoll(line.substr(6)) * 1024;
    }
  }
  return 0;
}
bool forget_peak() {
  std::ofstream out("/proc/self/clear_refs");
  out << 5 << std::flush;
  return out.good();
}

/// Images that take no time to read: loaders fill all of their batches while one batch is computed.
class Grey final : public ImageDataset {
 public:
  explicit Grey(std::int64_t size) : ImageDataset({"grey", size, 160, 160, 10}) {}
  std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(index % 10); }
  void read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::fill(image.begin(), image.end(), static_cast<std::uint8_t>(index));
  }
  std::uint64_t fingerprint() const override { return 1; }
};

TEST(Memory, ATrainersPlannedBytesAreTheGrowthOfTheProcess) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer's shadow memory is part of the resident set";
  }
  const testing::TemporaryFolder folder;
  const DataSplit data{std::make_unique<Grey>(64), std::make_unique<Grey>(25), {}};
  const Model model = resnet(18, 10, 160);
  comm::on_ranks(1, [&](comm::Communicator& grad, comm::Communicator& control) {
    CpuContext context({.threads = 2});
    // The prefetch is large, so that the batches are a visible part of the memory.
    const TrainerOptions options{.global_batch = 16, .prefetch = 64};
    const std::int64_t before = resident_bytes();
    Trainer trainer(context, {grad, control, context.stream()}, model, data, options);
    trainer.start();
    trainer.step();
    ASSERT_TRUE(forget_peak());
    (void)trainer.evaluate();
    const auto planned = static_cast<double>(trainer.planned_bytes());
    const auto growth = static_cast<double>(peak_resident_bytes() - before);
    EXPECT_LE(std::abs(growth - planned), 0.1 * planned)
        << "planned " << planned / 1e6 << " MB, grown " << growth / 1e6;

    // A checkpoint is written and read with one tensor at a time in host memory; the largest here has 9.4 MB.
    const auto arena = static_cast<std::int64_t>(trainer.parameters().values().bytes());
    const std::int64_t resident = resident_bytes();
    ASSERT_TRUE(forget_peak());
    save_checkpoint(folder / "run", trainer, control, {}, {.position = {}, .samples_seen = {0}});
    EXPECT_LE(peak_resident_bytes() - resident, arena * 3 / 4) << "writing";
    ASSERT_TRUE(forget_peak());
    RunProgress progress;
    (void)resume_checkpoint(folder / "run", trainer, control, {}, progress);
    EXPECT_LE(peak_resident_bytes() - resident, arena * 3 / 4) << "reading";
  });
}

TEST(Memory, StepsDoNotGrowTheProcess) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer keeps freed memory";
  }
  const Images images(8, 16);
  CpuContext context({.threads = 2});
  TrainStep step(context, cifar_resnet(20, 10, 16, 16).reading(InputKind::values), {.max_batch = 8});
  std::int64_t early = 0;
  for (int i = 1; i <= 200; ++i) {
    step.update(images.batch(), 0.1);
    if (i == 20) {
      early = resident_bytes();
    }
  }
  EXPECT_LE(std::abs(resident_bytes() - early), std::int64_t{1} << 20);
}

}  // namespace
}  // namespace lockstep::nn
