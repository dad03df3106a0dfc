#include "tools/lockstep_report/run_log.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // of a log: some five million reports

/// The numbers of an event, but those that say where it stands.
void add_values(const Json& event, const std::string& source, std::map<std::string, Points>& into, RunLog& run) {
  const std::int64_t step = event.get<std::int64_t>("step", source);
  run.steps = std::max(run.steps, step);
  for (const auto& [key, value] : *event.if_object()) {
    if (key == "event" || key == "epoch" || key == "step") {
      continue;
    }
    if (value.is_null()) {
      run.gaps[key].push_back(step);
    } else if (value.kind() == std::string_view("a number") || value.kind() == std::string_view("an integer")) {
      into[key].push_back({step, value.as<double>(source)});
    }
  }
}

void forget_after(std::int64_t step, std::map<std::string, Points>& values) {
  for (auto& [key, points] : values) {
    std::erase_if(points, [&](const Point& p) { return p.step > step; });
  }
}

void add_event(const Json& event, const std::string& source, RunLog& run) {
  const std::string kind = event.get<std::string>("event", source);
  if (kind == "step") {
    run.exit_code.reset();
    add_values(event, source, run.reports, run);
  } else if (kind == "epoch") {
    add_values(event, source, run.epochs, run);
  } else if (kind == "resume") {
    const std::int64_t step = event.get<std::int64_t>("step", source);
    forget_after(step, run.reports);
    forget_after(step, run.epochs);
    for (auto& [key, steps] : run.gaps) {
      std::erase_if(steps, [&](std::int64_t gap) { return gap > step; });
    }
    run.steps = std::min(run.steps, step);
    run.resumed_after.push_back(step);
    run.exit_code.reset();
  } else if (kind == "end") {
    run.exit_code = event.get<std::int64_t>("exit_code", source);
    if (event.has("best") && !event.member("best", source).is_null()) {
      run.best = event.get<std::string>("best_by", source) + " " + exact_text(event.get<double>("best", source));
    }
  }
}

/// The texts and numbers of a tree, by the names that lead to them: "options.dtype".
void flatten(const Json& value, const std::string& name, std::map<std::string, std::string>& into) {
  if (const Json::Object* const object = value.if_object()) {
    for (const auto& [key, member] : *object) {
      flatten(member, name.empty() ? key : name + "." + key, into);
    }
  } else if (!value.is_null()) {
    const std::string* const text = value.if_text();
    into[name] = text != nullptr ? *text : value.text();
  }
}

}  // namespace

RunLog read_run(const std::string& path) {
  namespace fs = std::filesystem;
  RunLog run;
  run.path = path;
  std::error_code error;
  const bool folder = fs::is_directory(path, error);  // what cannot be looked at cannot be opened either
  const fs::path log = folder ? fs::path(path) / "metrics.jsonl" : fs::path(path);
  const fs::path named = fs::absolute(folder ? fs::path(path) / "." : fs::path(path)).lexically_normal();
  run.name = folder ? named.parent_path().filename().string() : named.stem().string();

  const std::string text = read_file(log.string(), kMostBytes);
  std::int64_t number = 0;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    ++number;
    const std::string source = concat(log.string(), ", line ", number);
    const Json event = parse_json(std::string_view(text).substr(begin, end - begin), source);
    require<DataError>(event.if_object() != nullptr, source, " is ", event.kind(), ", expected an object");
    add_event(event, source, run);
  }
  if (const auto seconds = run.epochs.find("seconds"); seconds != run.epochs.end()) {
    for (const Point& p : seconds->second) {
      run.seconds += p.value;
    }
  }
  const fs::path settings = fs::path(path) / "config.json";
  if (folder && fs::exists(settings, error)) {
    flatten(read_json(settings.string()), "", run.settings);
  }
  const fs::path evaluation = fs::path(path) / "evaluation.json";
  if (folder && fs::exists(evaluation, error)) {
    run.evaluation = read_evaluation(evaluation.string());
    if (!run.resumed_after.empty() && run.evaluation->step > run.steps) {  // of a part that a resume has taken back
      run.evaluation.reset();
    }
  }
  return run;
}

std::vector<RunLog> read_runs(const std::vector<std::string>& paths) {
  std::vector<RunLog> runs;
  std::multiset<std::string> names;
  for (const std::string& path : paths) {
    runs.push_back(read_run(path));
    names.insert(runs.back().name);
  }
  require<DataError>(std::ranges::any_of(runs, [](const RunLog& run) { return run.steps > 0; }), paths.at(0),
                     " tells of no step of training yet");
  for (RunLog& run : runs) {
    if (names.count(run.name) > 1) {
      run.name = run.path;
    }
  }
  return runs;
}

}  // namespace lockstep::tools
