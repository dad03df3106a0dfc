#include <lockstep/comm/cost/cost_file.hpp>

#include <cmath>
#include <cstddef>
#include <set>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::comm {
namespace {

constexpr const char* kFormat = "lockstep-cost";
constexpr int kVersion = 1;

Json optional_json(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

/// Returns the number at `key` of `json`. Throws DataError unless the number is finite and at least `least`.
double number(const Json& json, const std::string& key, const std::string& source, double least) {
  const auto value = json.get<double>(key, source);
  require<DataError>(std::isfinite(value) && value >= least, source, ": '", key, "' is ", value,
                     ", expected a number of at least ", least);
  return value;
}

double seconds(const Json& json, const std::string& key, const std::string& source) {
  const auto value = json.get<double>(key, source);
  require<DataError>(std::isfinite(value) && value > 0, source, ": '", key, "' is ", value,
                     ", expected seconds above 0");
  return value;
}

std::optional<double> optional_seconds(const Json& json, const std::string& key, const std::string& source) {
  return json.member(key, source).is_null() ? std::nullopt : std::optional(seconds(json, key, source));
}

std::int64_t not_negative(const Json& json, const std::string& key, const std::string& source) {
  const auto value = json.get<std::int64_t>(key, source);
  require<DataError>(value >= 0, source, ": '", key, "' is ", value, ", expected at least 0");
  return value;
}

/// Returns a JSON array of make(value) for each value of `values`. Sets the array's size first, because g++ 12 gives
/// false warnings for a Json::Array that grows by temporaries.
template <class Values, class Make>
Json array_of(const Values& values, const Make& make) {
  Json::Array array(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    array[i] = make(values[i]);
  }
  return array;
}

Json point_json(const CostPoint& p) {
  return Json::Object{{"bytes", p.bytes},
                      {"samples", p.samples},
                      {"median_s", p.median_s},
                      {"min_s", p.min_s},
                      {"max_s", p.max_s},
                      {"p95_s", optional_json(p.p95_s)},
                      {"p99_s", optional_json(p.p99_s)}};
}

Json piece_json(const comm::CostPiece& p) {
  return Json::Object{{"first_bytes", p.first_bytes}, {"alpha_s", p.alpha_s}, {"beta_s", p.beta_s}};
}

Json errors_json(const CostErrors& e) {
  return Json::Object{{"count", e.count}, {"median", e.median}, {"p90", e.p90}, {"worst", e.worst}};
}

Json path_json(const CostPath& path) {
  return Json::Object{{"name", path.name},
                      {"text", path.text},
                      {"bus_factor", path.bus_factor},
                      {"limit_text", path.limit_text},
                      {"limit_bytes_per_s", path.limit_bytes_per_s},
                      {"points", array_of(path.points, point_json)},
                      {"model", array_of(path.model.pieces, piece_json)},
                      {"held_out", errors_json(path.held_out)}};
}

CostPath path_of(const Json& json, const std::string& file) {
  CostPath path;
  path.name = json.get<std::string>("name", file + ": a path");
  const std::string source = concat(file, ": path ", printable(path.name));
  path.text = json.get<std::string>("text", source);
  path.bus_factor = number(json, "bus_factor", source, 0);
  path.limit_text = json.get<std::string>("limit_text", source);
  path.limit_bytes_per_s = number(json, "limit_bytes_per_s", source, 0);
  for (const Json& item : json.get<Json::Array>("points", source)) {
    const std::string place = concat(source, ": point ", path.points.size());
    CostPoint point;
    point.bytes = item.get<std::int64_t>("bytes", place);
    const std::int64_t before = path.points.empty() ? 0 : path.points.back().bytes;
    require<DataError>(point.bytes > before, place, ": 'bytes' is ", point.bytes, ", expected more than ", before);
    point.samples = item.get<std::int64_t>("samples", place);
    require<DataError>(point.samples > 0, place, ": 'samples' is ", point.samples, ", expected more than 0");
    point.median_s = seconds(item, "median_s", place);
    point.min_s = seconds(item, "min_s", place);
    point.max_s = seconds(item, "max_s", place);
    point.p95_s = optional_seconds(item, "p95_s", place);
    point.p99_s = optional_seconds(item, "p99_s", place);
    require<DataError>(point.min_s <= point.median_s && point.median_s <= point.max_s, place, ": 'min_s' is ",
                       point.min_s, ", 'median_s' ", point.median_s, ", 'max_s' ", point.max_s,
                       ", expected them to ascend");
    double below = point.median_s;
    for (const std::optional<double>& percentile : {point.p95_s, point.p99_s}) {
      require<DataError>(!percentile || (below <= *percentile && *percentile <= point.max_s), place,
                         ": a percentile is ", percentile.value_or(0), ", expected ", below, " to ", point.max_s);
      below = percentile.value_or(below);
    }
    path.points.push_back(point);
  }
  for (const Json& item : json.get<Json::Array>("model", source)) {
    const std::string place = concat(source, ": piece ", path.model.pieces.size());
    path.model.pieces.push_back({item.get<double>("first_bytes", place), item.get<double>("alpha_s", place),
                                 item.get<double>("beta_s", place)});
  }
  comm::check(path.model, source);
  const Json& held_out = json.member("held_out", source);
  path.held_out = {not_negative(held_out, "count", source), number(held_out, "median", source, 0),
                   number(held_out, "p90", source, 0), number(held_out, "worst", source, 0)};
  require<DataError>(path.held_out.median <= path.held_out.p90 && path.held_out.p90 <= path.held_out.worst, source,
                     ": errors 'median' ", path.held_out.median, ", 'p90' ", path.held_out.p90, ", 'worst' ",
                     path.held_out.worst, ", expected them to ascend");
  return path;
}

CostPairs pairs_of(const Json& json, int ranks, const std::string& source) {
  CostPairs pairs;
  pairs.bytes = not_negative(json, "bytes", source);
  for (const Json& item : json.get<Json::Array>("ranks", source)) {
    const int rank = item.as<int>(source + ": a rank");
    require<DataError>(rank >= 0 && rank < ranks, source, ": rank ", rank, ", expected 0 to ", ranks - 1);
    pairs.ranks.push_back(rank);
  }
  const auto rows = json.get<Json::Array>("seconds", source);
  require<DataError>(rows.size() == pairs.ranks.size(), source, ": 'seconds' has ", rows.size(), " rows, expected ",
                     pairs.ranks.size());
  for (const Json& row : rows) {
    std::vector<double>& values = pairs.seconds.emplace_back();
    for (const Json& value : row.as<Json::Array>(source + ": a row")) {
      const auto time = value.as<double>(source + ": a time");
      const bool same_rank = values.size() + 1 == pairs.seconds.size();
      require<DataError>(std::isfinite(time) && (same_rank ? time == 0 : time > 0), source, ": time ", values.size(),
                         " of row ", pairs.seconds.size() - 1, " is ", time, ", expected ",
                         same_rank ? "0 for the same rank" : "seconds above 0");
      values.push_back(time);
    }
    require<DataError>(values.size() == rows.size(), source, ": a row has ", values.size(), " times, expected ",
                       rows.size());
  }
  return pairs;
}

int count(const Json& json, const std::string& key, const std::string& source) {
  const auto value = json.get<int>(key, source);
  require<DataError>(value > 0, source, ": '", key, "' is ", value, ", expected at least 1");
  return value;
}

}  // namespace

const CostPath* CostFile::find(const std::string& name) const {
  for (const CostPath& path : paths) {
    if (path.name == name) {
      return &path;
    }
  }
  return nullptr;
}

std::string cost_text(const CostFile& file) {
  Json::Object about;
  for (const auto& [key, value] : file.about) {
    about[key] = value;
  }
  const auto same = [](const auto& value) { return Json(value); };
  const auto row = [&](const std::vector<double>& values) { return array_of(values, same); };
  const Json pairs = Json::Object{{"bytes", file.pairs.bytes},
                                  {"ranks", array_of(file.pairs.ranks, same)},
                                  {"seconds", array_of(file.pairs.seconds, row)}};
  const Json json = Json::Object{{"format", kFormat},   {"version", kVersion},
                                 {"about", about},      {"ranks", file.ranks},
                                 {"nodes", file.nodes}, {"paths", array_of(file.paths, path_json)},
                                 {"pairs", pairs},      {"left_out", array_of(file.left_out, same)}};
  return json.text(1) + "\n";
}

CostFile parse_cost(const std::string& text, const std::string& source) {
  const Json json = parse_json(text, source);
  const std::string* format = json.has("format") ? json.member("format", source).if_text() : nullptr;
  require<DataError>(format != nullptr && *format == kFormat, source, ": is no cost file, expected \"format\": \"",
                     kFormat, "\", as lockstep-cost writes it");
  const int version = json.get<int>("version", source);
  require<DataError>(version == kVersion, source, ": is of version ", version, ", expected ", kVersion,
                     ": run lockstep-cost again");
  CostFile file;
  const Json& about = json.member("about", source);
  require<DataError>(about.if_object() != nullptr, source, ": 'about' is ", about.kind(), ", expected an object");
  for (const auto& [key, value] : *about.if_object()) {
    file.about[key] = value.as<std::string>(concat(source, ": 'about': ", printable(key)));
  }
  file.ranks = count(json, "ranks", source);
  file.nodes = count(json, "nodes", source);
  std::set<std::string> names;
  for (const Json& path : json.get<Json::Array>("paths", source)) {
    file.paths.push_back(path_of(path, source));
    require<DataError>(names.insert(file.paths.back().name).second, source, ": path ",
                       printable(file.paths.back().name), " stands twice, expected each path once");
  }
  file.pairs = pairs_of(json.member("pairs", source), file.ranks, source + ": 'pairs'");
  for (const Json& item : json.get<Json::Array>("left_out", source)) {
    file.left_out.push_back(item.as<std::string>(source + ": 'left_out'"));
  }
  return file;
}

std::string read_cost_text(const std::string& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  return read_file(path, kMostBytes);
}

CostFile read_cost(const std::string& path) {
  return parse_cost(read_cost_text(path), path);
}

std::string all_reduce_name(GradientPath gradients) {
  return gradients == GradientPath::nccl ? "all_reduce/nccl" : "all_reduce";
}

CostModel all_reduce_cost(const CostFile& file, GradientPath gradients, int ranks, int nodes,
                          const std::string& source) {
  const std::string name = all_reduce_name(gradients);
  const CostPath* path = file.find(name);
  require<DataError>(
      path != nullptr, source, ": has no path '", name, "', expected one: run lockstep-cost with ", ranks, " ranks",
      gradients == GradientPath::nccl ? " and the GPUs that train (--devices), in a build with NCCL" : "");
  require<DataError>(file.ranks == ranks && file.nodes == nodes, source, ": was measured with ", file.ranks,
                     " ranks on ", file.nodes, file.nodes == 1 ? " node" : " nodes", ", expected ", ranks, " on ",
                     nodes, ": run lockstep-cost with the ranks that train");
  return path->model;
}

}  // namespace lockstep::comm
