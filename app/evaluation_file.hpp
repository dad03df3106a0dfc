#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/app/run_folder.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/run/evaluation/class_statistics.hpp>
#include <lockstep/nn/run/observer.hpp>

namespace lockstep::nn {

/// Returns the contents of a PNG file with the image of `sample`. The image is reduced by a whole factor if a side has
/// more than `most_side` pixels. Returns an empty text if `set` has no u8 images with three channels, or if this build
/// has no libpng.
[[nodiscard]] std::string picture_of(const Dataset& set, std::int64_t sample, std::int64_t most_side = 96);

/// Writes OUT/evaluation.json on rank 0 after each evaluation: step, loss, accuracy and samples, with the fields of
/// json_of(ClassReport) and pictures of the worst samples. Add the object as an observer on every rank, after the
/// observer that the constructor gets as `watch`. All arguments of the constructor must outlive the object.
class EvaluationFile final : public RunObserver {
 public:
  EvaluationFile(RunFolder& files, ClassStatistics& watch, const Dataset& test,
                 const std::vector<std::string>& class_names)
      : files_(files), watch_(watch), test_(test), class_names_(class_names) {}
  void on_evaluation_end(const EvaluationEvent& event) override;

 private:
  RunFolder& files_;
  ClassStatistics& watch_;
  const Dataset& test_;
  const std::vector<std::string>& class_names_;
};

}  // namespace lockstep::nn
