#include <lockstep/comm/cost/cost_file.hpp>

#include <cmath>
#include <set>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

void cost(Input input) {
  comm::CostFile file;
  if (!accepts<DataError>([&] { file = comm::parse_cost(text_of(input), "cost.json"); })) {
    return;
  }
  check(comm::parse_cost(comm::cost_text(file), "again") == file, "differs when it is read again");
  std::set<std::string> names;
  for (const comm::CostPath& path : file.paths) {
    check(names.insert(path.name).second, "path ", path.name, " stands twice");
    std::int64_t before = 0;
    for (const comm::CostPoint& point : path.points) {
      check(point.bytes > before && point.min_s > 0 && point.min_s <= point.median_s && point.median_s <= point.max_s &&
                std::isfinite(point.max_s),
            "a point cannot be");
      before = point.bytes;
    }
    for (const double bytes : {0.0, 1.0, 4096.0, 1e9, 1e15}) {
      const double seconds = path.model.predict(bytes);
      check(std::isfinite(seconds) && seconds >= 0, "the model predicts ", seconds, " s for ", bytes, " bytes");
    }
  }
  for (const comm::GradientPath way : {comm::GradientPath::host, comm::GradientPath::nccl}) {
    (void)accepts<DataError>([&] { (void)comm::all_reduce_cost(file, way, file.ranks, file.nodes, "cost.json"); });
  }
}

}  // namespace lockstep::fuzz
