// lockstep-scale TIMELINE: predicts the time of a step with more ranks (docs/cost.md). One process, no mpirun.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "app/cli/run_alone.hpp"
#include "tools/lockstep_scale/cluster.hpp"
#include "tools/lockstep_scale/scaling.hpp"
#include "tools/lockstep_scale/step_profile.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

struct Options {
  std::string timeline;
  std::string system = "h100";
  double network_gbs = 0;
  std::vector<int> ranks{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  std::vector<std::string> costs;
  double bucket_mb = 0;
  tools::ScalingOptions how{};
  std::string out;
};

/// Returns one point for each number of ranks on a known cluster.
std::vector<tools::ScalingPoint> on_cluster(const Options& options, const tools::StepProfile& profile) {
  tools::Cluster cluster = tools::known_cluster(options.system);
  if (options.network_gbs > 0) {
    cluster.network_bus = options.network_gbs * 1e9;
  }
  std::vector<tools::ScalingPoint> points;
  for (const int ranks : options.ranks) {
    if (ranks == 1) {
      points.push_back(tools::predict(profile, 1, {}, options.how));
      continue;
    }
    points.push_back(tools::predict(profile, ranks, tools::sum_model(cluster, ranks), options.how));
    const tools::SumCost best = tools::best_sum(cluster, ranks, static_cast<double>(points.back().largest_bytes));
    points.back().algorithm = concat(tools::name_of(best.algorithm), " ", best.protocol);
  }
  return points;
}

/// Returns a point for one rank and one for each file, with the file's number of ranks and its measured all-reduce.
std::vector<tools::ScalingPoint> on_measured(const Options& options, const tools::StepProfile& profile) {
  std::vector<tools::ScalingPoint> points{tools::predict(profile, 1, {}, options.how)};
  for (const std::string& path : options.costs) {
    const comm::CostFile file = comm::read_cost(path);
    const auto where = file.find(comm::all_reduce_name(comm::GradientPath::nccl)) != nullptr ? comm::GradientPath::nccl
                                                                                             : comm::GradientPath::host;
    points.push_back(tools::predict(profile, file.ranks,
                                    comm::all_reduce_cost(file, where, file.ranks, file.nodes, path), options.how));
    points.back().algorithm = "as measured";
  }
  return points;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Predicts a step of many ranks from the timeline of a few ranks (train_resnet --trace FILE\n"
      "--bucket-mb 0.001 --cuda-graph off): when gradients are ready, what the sums of buckets cost then,\n"
      "and which part of the sums backward does not hide. Each rank keeps the batch of the timeline.\n\n"
      "The cost of sums is what NCCL's own model says of a known system, or what lockstep-cost measured.\n"
      "The prediction leaves out that sums slow the computation beside them, that others may share the\n"
      "network, and the loader.\n\n"
      "Exit codes: 0 finished; 2 a file that is no such timeline, or options that do not fit; 3 a full\n"
      "disk.",
      "lockstep-scale");
  Options options;
  app.add_option("TIMELINE", options.timeline, "timeline, a file of train_resnet --trace")->required();
  auto* const system =
      app.add_option(
             "--system", options.system,
             "system whose cost is predicted: a100 or h100, with nodes of 8 GPUs and a network card for each GPU")
          ->capture_default_str();
  auto* const network = app.add_option("--network-gbs", options.network_gbs,
                                       "bus bandwidth of a node's network cards in GB/s (default: that of --system)")
                            ->check(CLI::Range(0.1, 1e5));
  auto* const ranks = app.add_option("--ranks", options.ranks, "numbers of ranks, each 1 to 8 or a multiple of 8")
                          ->delimiter(',')
                          ->check(CLI::Range(1, 1 << 20))
                          ->capture_default_str();
  app.add_option("--cost", options.costs, "files cost.json of lockstep-cost, one for each number of ranks")
      ->excludes(system)
      ->excludes(network)
      ->excludes(ranks);
  app.add_option("--bucket-mb", options.bucket_mb,
                 "size limit of all buckets in MiB (default: the buckets that end first)")
      ->check(CLI::Range(0.001, 1e5));
  app.add_flag("!--no-overlap", options.how.overlap,
               "sum gradients after backward, as on hosts without a processor to spare");
  app.add_option("--processors", options.how.processors,
                 "number of processors that all ranks share (default: each rank has its own)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--out", options.out, "folder for scale.json and scale.svg; older files are replaced");
  return cli::run_alone(app, argc, argv, [&] {
    options.how.bucket_bytes = static_cast<std::int64_t>(options.bucket_mb * 1024 * 1024);
    std::sort(options.ranks.begin(), options.ranks.end());
    const tools::StepProfile profile = tools::step_profile(read_json(options.timeline), options.timeline);
    const std::vector<tools::ScalingPoint> points =
        options.costs.empty() ? on_cluster(options, profile) : on_measured(options, profile);
    if (!options.out.empty()) {
      std::error_code error;
      std::filesystem::create_directories(options.out, error);
      require<DataError>(!error, options.out, ": cannot be made: ", error.message(),
                         "; expected a folder above it that this user may write");
      const std::string title =
          options.costs.empty() ? "A step on nodes like " + options.system : "A step by measured costs";
      replace_file(options.out + "/scale.json", Json(tools::scaling_json(profile, points)).text(2) + "\n");
      replace_file(options.out + "/scale.svg", tools::scaling_plot(title, profile, points));
    }
    std::fputs(tools::scaling_table(profile, points).c_str(), stdout);
    return exit_code::kFinished;
  });
}
