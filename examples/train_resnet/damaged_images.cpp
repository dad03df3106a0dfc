#include "damaged_images.hpp"

#include <cstddef>
#include <sstream>
#include <string>
#include <utility>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace train_resnet {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

std::vector<nn::DamagedImage> find_damaged(comm::Session& session, const comm::CpuShare& share,
                                           const nn::DataOptions& data) {
  if (comm::Watchdog* watchdog = session.watchdog()) {
    watchdog->pause("looking for damaged images");  // reading all images may take any time
  }
  std::string found;  // names and error texts of damaged images, each ended by a zero
  session.agree([&] {
    for (const nn::DamagedImage& image : nn::damaged_images(data, session.size(), session.rank(), share.threads())) {
      found += image.file + '\0' + image.text + '\0';
    }
  });
  std::vector<nn::DamagedImage> damaged;
  for (const std::string& part : comm::all_gather_text(session.control(), found)) {
    std::istringstream in(part);
    for (nn::DamagedImage image; std::getline(in, image.file, '\0') && std::getline(in, image.text, '\0');) {
      damaged.push_back(image);
    }
  }
  return damaged;
}

void add_damaged(const std::vector<nn::DamagedImage>& damaged, nn::TrainingInputs& inputs) {
  constexpr std::size_t kShown = 10;
  Json::Array texts;
  for (const nn::DamagedImage& image : damaged) {
    if (texts.size() < kShown) {
      inputs.about.emplace_back(
          texts.empty() ? "left out" : "",
          concat(texts.empty() ? concat(damaged.size(), " damaged images: ") : std::string(), image.text));
    }
    texts.emplace_back(image.text);
  }
  if (damaged.size() > kShown) {
    inputs.about.emplace_back("", concat("and ", damaged.size() - kShown, " more (config.json)"));
  }
  inputs.config["damaged_images"] = std::move(texts);
}

}  // namespace train_resnet
