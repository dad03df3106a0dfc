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
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // greatest size of a log, some five million reports

class LogReader {
 public:
  explicit LogReader(RunLog& run) : run_(run) {}

  void add_event(const Json& event, const std::string& source) {
    const std::string kind = event.get<std::string>("event", source);
    if (kind == "step") {
      run_.exit_code.reset();
      add_row(Row::Kind::step, event, source);
    } else if (kind == "epoch") {
      add_row(Row::Kind::epoch, event, source);
    } else if (kind == "resume") {
      const std::int64_t step = event.get<std::int64_t>("step", source);
      std::erase_if(run_.rows, [&](const Row& row) { return row.step > step; });
      run_.steps = std::min(run_.steps, step);
      run_.resumed_after.push_back(step);
      run_.exit_code.reset();
    } else if (kind == "end") {
      run_.exit_code = event.get<std::int64_t>("exit_code", source);
      if (event.has("best") && !event.member("best", source).is_null()) {
        run_.best_by = event.get<std::string>("best_by", source);
        run_.best = event.get<double>("best", source);
      }
    }
  }

 private:
  /// Adds the numbers and nulls of an event as a row, without "event", "epoch" and "step".
  void add_row(Row::Kind kind, const Json& event, const std::string& source) {
    Row row{.kind = kind, .step = event.get<std::int64_t>("step", source), .values = {}};
    if (event.has("epoch") && !event.member("epoch", source).is_null()) {
      row.epoch = event.get<std::int64_t>("epoch", source);
    }
    const Json::Object& members = *event.if_object();
    row.values.reserve(members.size());
    for (const auto& [key, value] : members) {
      if (key == "event" || key == "epoch" || key == "step") {
        continue;
      }
      if (value.is_null()) {
        row.values.push_back({.field = number_of(key)});
      } else if (value.kind() == std::string_view("a number") || value.kind() == std::string_view("an integer")) {
        row.values.push_back({.field = number_of(key), .value = value.as<double>(source)});
      }
    }
    run_.steps = std::max(run_.steps, row.step);
    run_.rows.push_back(std::move(row));
  }

  std::size_t number_of(const std::string& field) {
    const auto [found, is_new] = numbers_.try_emplace(field, run_.fields.size());
    if (is_new) {
      run_.fields.push_back(field);
    }
    return found->second;
  }

  RunLog& run_;
  std::map<std::string, std::size_t> numbers_;  ///< maps each field to its index in run_.fields
};

/// Sets run.reports, run.epochs and run.gaps from the rows.
void sort_by_field(RunLog& run) {
  for (const Row& row : run.rows) {
    for (const auto& [field, value] : row.values) {
      const std::string& name = run.fields[field];
      if (value) {
        (row.kind == Row::Kind::step ? run.reports : run.epochs)[name].push_back({row.step, *value});
      } else {
        run.gaps[name].push_back(row.step);
      }
    }
  }
}

/// Adds the texts and numbers of a JSON tree to `into`. A key is the path of names to the value: "options.dtype".
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
  const bool folder = fs::is_directory(path, error);  // after an error, opening the file fails and reports it
  const fs::path log = folder ? fs::path(path) / "metrics.jsonl" : fs::path(path);
  const fs::path named = fs::absolute(folder ? fs::path(path) / "." : fs::path(path)).lexically_normal();
  run.name = folder ? named.parent_path().filename().string() : named.stem().string();

  const std::string text = read_file(log.string(), kMostBytes);
  run.files.push_back(log.string());
  LogReader reader(run);
  std::int64_t number = 0;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    ++number;
    const std::string source = concat(log.string(), ", line ", number);
    const Json event = parse_json(std::string_view(text).substr(begin, end - begin), source);
    require<DataError>(event.if_object() != nullptr, source, " is ", event.kind(), ", expected an object");
    reader.add_event(event, source);
  }
  sort_by_field(run);
  if (const auto seconds = run.epochs.find("seconds"); seconds != run.epochs.end()) {
    for (const Point& p : seconds->second) {
      run.seconds += p.value;
    }
  }
  const fs::path settings = fs::path(path) / "config.json";
  if (folder && fs::exists(settings, error)) {
    flatten(read_json(settings.string()), "", run.settings);
    run.files.push_back(settings.string());
  }
  const fs::path evaluation = fs::path(path) / "evaluation.json";
  if (folder && fs::exists(evaluation, error)) {
    run.evaluation = read_evaluation(evaluation.string());
    run.files.push_back(evaluation.string());
    // The condition is true if a resume discarded the step of the evaluation.
    if (!run.resumed_after.empty() && run.evaluation->step > run.steps) {
      run.evaluation.reset();
    }
  }
  return run;
}

std::vector<RunLog> read_runs(const std::vector<std::string>& paths) {
  std::set<std::filesystem::path> given;
  for (const std::string& path : paths) {
    require<UsageError>(!path.empty(), "a path is empty, expected a folder of results or a file like metrics.jsonl");
    require<UsageError>(given.insert((std::filesystem::path(path) / "").lexically_normal()).second, printable(path),
                        " is given twice, expected each run once");
  }
  std::vector<RunLog> runs;
  std::multiset<std::string> names;
  for (const std::string& path : paths) {
    runs.push_back(read_run(path));
    names.insert(runs.back().name);
  }
  require<DataError>(std::ranges::any_of(runs, [](const RunLog& run) { return run.steps > 0; }), paths.at(0),
                     " tells of no step of training yet, expected at least one");
  for (RunLog& run : runs) {
    if (names.count(run.name) > 1) {
      run.name = run.path;
    }
  }
  return runs;
}

}  // namespace lockstep::tools
