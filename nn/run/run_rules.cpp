#include <lockstep/nn/run/run_rules.hpp>

#include <algorithm>
#include <bit>
#include <cmath>

#include <lockstep/nn/data/partition.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

constexpr std::int64_t kLargeBatch = 8192;  // largest batch without loss of accuracy in Goyal et al. 2017, figure 1
constexpr int kMostWorkers = 8;

std::int64_t resolved_batch(const RunRequest& r) {
  const auto at_least_1 = [](const char* what, std::int64_t value) {
    require<UsageError>(value >= 1, what, " is ", value, ", expected at least 1");
  };
  at_least_1("the number of ranks", r.ranks);
  at_least_1("the number of micro-batches an update", r.accumulate);
  require<UsageError>(r.global_batch || r.batch_per_rank,
                      "no batch size is given, expected one for all ranks together or one for each rank");
  std::int64_t batch = r.global_batch.value_or(0);
  if (r.batch_per_rank) {
    at_least_1("the batch size of a rank", *r.batch_per_rank);
    std::int64_t product = 0;
    require<UsageError>(!__builtin_mul_overflow(*r.batch_per_rank, r.accumulate, &product) &&
                            !__builtin_mul_overflow(product, std::int64_t{r.ranks}, &product),
                        "the batch size is ", *r.batch_per_rank, " x ", r.accumulate, " x ", r.ranks,
                        ", expected fewer than 2^63 samples");
    require<UsageError>(!r.global_batch || batch == product, "the batch size is given twice: ", batch,
                        " over all ranks, but ", *r.batch_per_rank, " a rank x ", r.accumulate, " micro-batches x ",
                        r.ranks, " ranks are ", product, "; expected one of the two");
    batch = product;
  }
  at_least_1("the batch size", batch);
  require<UsageError>(batch >= r.virtual_ranks, "the batch size is ", batch,
                      ", expected at least one sample for each of the ", r.virtual_ranks, " virtual ranks");
  require<UsageError>(batch / r.ranks >= r.accumulate, "the batch size is ", batch,
                      ", expected at least one sample for each of the ", r.ranks, " ranks",
                      r.accumulate > 1 ? concat(" in each of ", r.accumulate, " micro-batches") : std::string());
  return batch;
}

void require_virtual_ranks(const RunRequest& r) {
  const std::int64_t all = r.virtual_ranks;
  require<UsageError>(all == 0 || (all > 0 && std::has_single_bit(static_cast<std::uint64_t>(all))),
                      "the number of virtual ranks is ", all, ", expected a power of two");
  require<UsageError>(all % r.ranks == 0, all, " virtual ranks on ", r.ranks,
                      " ranks, expected a number of ranks that divides the number of virtual ranks");
  require<UsageError>(all == 0 || r.accumulate == 1, r.accumulate, " micro-batches an update with ", all,
                      " virtual ranks, expected 1: each virtual rank is a micro-batch, so take more of them");
}

double resolved_rate(const RunRequest& r, std::int64_t batch) {
  const auto positive = [](const char* what, double value) {
    require<UsageError>(std::isfinite(value) && value > 0, what, " is ", value, ", expected a positive number");
  };
  if (r.learning_rate) {
    positive("the learning rate", *r.learning_rate);
    return *r.learning_rate;
  }
  positive("the base learning rate", r.base_learning_rate);
  require<UsageError>(r.reference_batch >= 0, "the reference batch is ", r.reference_batch, ", expected at least 0");
  return r.reference_batch == 0
             ? r.base_learning_rate
             : r.base_learning_rate * static_cast<double>(batch) / static_cast<double>(r.reference_batch);
}

int resolved_workers(const RunRequest& r) {
  require<UsageError>(r.processors >= 1 && r.sharers >= 1, r.processors, " processors for ", r.sharers,
                      " ranks, expected at least 1 of each");
  if (r.workers) {
    require<UsageError>(*r.workers >= 0, "the number of workers is ", *r.workers, ", expected at least 0");
    return *r.workers;
  }
  return r.processors < r.sharers ? 0 : std::clamp(r.processors / r.sharers - 1, 1, kMostWorkers);
}

/// Describes how `total` is divided into nearly equal parts, larger parts first: "1 of 5, 2 of 4" means one part of
/// size 5 and two parts of size 4.
std::string parts_text(std::int64_t total, std::int64_t parts) {
  const std::int64_t larger = total % parts;
  return concat(larger, " of ", total / parts + 1, ", ", parts - larger, " of ", total / parts);
}

}  // namespace

std::string RunRules::batch_text(std::string_view rank) const {
  if (virtual_ranks > 0) {
    RunRules as_ranks = *this;
    as_ranks.ranks = static_cast<int>(virtual_ranks);
    as_ranks.virtual_ranks = 0;
    return as_ranks.batch_text("virtual rank");
  }
  const std::int64_t least = global_batch / ranks;
  const bool even = global_batch % ranks == 0;
  if (even && least % accumulate == 0 && accumulate > 1) {
    return concat(least / accumulate, " x ", accumulate, " x ", ranks, " = ", global_batch,
                  " (a micro-batch x micro-batches x ", rank, "s)");
  }
  std::string text = even ? concat(least, " x ", ranks, " = ", global_batch, " (a ", rank, " x ", rank, "s)")
                          : concat(global_batch, " over ", ranks, ' ', rank, "s: ", parts_text(global_batch, ranks));
  if (accumulate > 1) {
    const std::int64_t most = partition_of(partition_of(global_batch, ranks, 0).count, accumulate, 0).count;
    text += concat("; in ", accumulate, " micro-batches of ", least / accumulate, " to ", most);
  }
  return text;
}

RunRules run_rules(const RunRequest& request) {
  RunRules rules;
  rules.ranks = request.ranks;
  rules.virtual_ranks = request.virtual_ranks;
  rules.global_batch = resolved_batch(request);
  require_virtual_ranks(request);
  rules.accumulate = request.accumulate;
  rules.learning_rate = resolved_rate(request, rules.global_batch);
  rules.workers = resolved_workers(request);
  rules.processors = request.processors;
  rules.sharers = request.sharers;
  return rules;
}

std::int64_t warmup_steps(std::int64_t total_steps) {
  return total_steps / 20;
}

std::vector<std::string> warnings(const RunRules& rules, bool layerwise_rates, std::int64_t warmup_steps) {
  std::vector<std::string> lines;
  if (rules.global_batch > kLargeBatch && !layerwise_rates && warmup_steps == 0) {
    lines.push_back(concat("the global batch is ", rules.global_batch, ", above ", kLargeBatch,
                           ", without warm-up and without LARS: expect the loss to diverge or accuracy to be lost"));
  }
  const std::int64_t workers = std::int64_t{rules.workers} * rules.sharers;
  if (workers > rules.processors) {
    lines.push_back(concat(workers, " reading threads (", rules.workers, " x ", counted(rules.sharers, "rank"), ") on ",
                           counted(rules.processors, "processor"), ": they slow the computing threads"));
  }
  return lines;
}

}  // namespace lockstep::nn
