#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>

#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include <lockstep/nn/model/checkpoint_files.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

namespace {

constexpr std::int64_t kFormat = 2;  // format 1 has other entry names, and its best value is always an accuracy

Json to_json(const std::map<std::string, std::string>& texts) {
  return Json::Object(texts.begin(), texts.end());
}

Json to_json(const RunIdentity& identity) {
  Json::Array buckets(identity.buckets.begin(), identity.buckets.end());
  return Json::Object{{"model", identity.model},
                      {"seed", identity.seed},
                      {"ranks", identity.ranks},
                      {"threads", identity.threads},
                      {"global_batch", identity.global_batch},
                      {"options", to_json(identity.options)},
                      {"layers", to_json(identity.layers)},
                      {"choices", to_json(identity.choices)},
                      {"buckets", buckets}};
}

std::vector<std::int64_t> integers(const Json& json, const std::string& key, const std::string& source) {
  std::vector<std::int64_t> values;
  for (const Json& item : json.get<Json::Array>(key, source)) {
    values.push_back(item.as<std::int64_t>(concat(source, ": ", key)));
  }
  return values;
}

std::map<std::string, std::string> texts(const Json& json, const std::string& key, const std::string& source) {
  std::map<std::string, std::string> values;
  for (const auto& [name, item] : json.get<Json::Object>(key, source)) {
    values[name] = item.as<std::string>(concat(source, ": ", key));
  }
  return values;
}

RunIdentity identity_of(const Json& json, const std::string& source) {
  RunIdentity identity;
  identity.model = json.get<std::string>("model", source);
  identity.seed = json.get<std::uint64_t>("seed", source);
  identity.ranks = json.get<int>("ranks", source);
  identity.threads = json.get<int>("threads", source);
  require<DataError>(identity.ranks >= 1 && identity.threads >= 1, source, ": ranks ", identity.ranks, ", threads ",
                     identity.threads, ", expected at least 1 of each");
  identity.global_batch = json.get<std::int64_t>("global_batch", source);
  identity.options = texts(json, "options", source);
  if (json.has("layers")) {  // files of earlier versions lack layers
    identity.layers = texts(json, "layers", source);
  }
  identity.choices = texts(json, "choices", source);
  identity.buckets = integers(json, "buckets", source);
  return identity;
}

/// Returns `number` as JSON. Returns null for NaN, infinity and an empty optional, because JSON cannot represent these.
Json to_json(std::optional<double> number) {
  return number && std::isfinite(*number) ? Json(*number) : Json();
}

std::optional<double> number_or_none(const Json& json, const std::string& source) {
  return json.is_null() ? std::nullopt : std::optional(json.as<double>(source));
}

/// Reads the entries of state.json that have other names in format 1. Format 1 stores only accuracies, with the value
/// -1 before the first evaluation.
void read_format_1(const Json& json, const std::string& path, CheckpointState& state) {
  const auto best = json.get<double>("best_accuracy", path);
  const auto test = json.get<double>("test_accuracy", path);
  state.progress.best_by = "test_accuracy";
  state.progress.best = best < 0 ? std::nullopt : std::optional(best);
  state.progress.test_accuracy = test < 0 ? std::nullopt : std::optional(test);
  const std::string hidden = joined(integers(json.member("identity", path), "hidden", path + ": identity"), ",");
  if (!hidden.empty()) {
    state.identity.options["hidden"] = hidden;
  }
}

}  // namespace

std::string option_of(const RunIdentity& run, const std::string& name) {
  const auto found = run.options.find(name);
  return found == run.options.end() ? "" : found->second;
}

bool choices_hold(const RunIdentity& saved, const RunIdentity& now) {
  const auto same = [&](const char* option) { return option_of(saved, option) == option_of(now, option); };
  return saved.ranks == now.ranks && saved.global_batch == now.global_batch && same("dtype") && same("tf32") &&
         same("accumulate") && same("device");
}

std::string differences(const RunIdentity& saved, const RunIdentity& now,
                        const std::map<std::string, std::string>& names) {
  std::string text;
  const Json a = to_json(saved);
  const Json b = to_json(now);
  // Milestones depend on the run's length, and have an effect only with the schedule `step`. So they are compared only
  // if one of the runs has this schedule.
  const bool steps = option_of(saved, "schedule") == "step" || option_of(now, "schedule") == "step";
  const auto text_in = [](const Json::Object& object, const std::string& name) {
    const auto found = object.find(name);
    return found == object.end() ? std::string("nothing") : found->second.text();
  };
  for (const auto& [key, value] : *a.if_object()) {
    const Json& other = b.if_object()->at(key);
    const Json::Object* members = value.if_object();
    if (value == other || (key == "layers" && saved.layers.empty())) {
      continue;
    }
    if (members == nullptr) {
      text += concat(key, ": checkpoint ", value.text(), ", now ", other.text(), '\n');
      continue;
    }
    Json::Object all = *members;
    all.insert(other.if_object()->begin(), other.if_object()->end());
    std::vector<std::string> lines;
    for (const auto& [name, unused] : all) {
      const std::string before = text_in(*members, name);
      const std::string after = text_in(*other.if_object(), name);
      if (before != after && (key != "options" || name != "milestones" || steps)) {
        const auto called = key == "options" ? names.find(name) : names.end();
        lines.push_back(concat(key, " '", name, "': checkpoint ", before, ", now ", after,
                               called == names.end() ? "" : concat(" (", called->second, ')'), '\n'));
      }
    }
    if (key == "choices" && lines.size() > 1) {  // all choices usually differ for one reason, so one line is enough
      lines = {concat(lines.size(), " choices, first", lines.front().substr(key.size()))};
    }
    for (const std::string& line : lines) {
      text += line;
    }
  }
  return text;
}

void write_checkpoint(const std::string& dir, Context& context, const ParameterSet& parameters,
                      comm::Communicator& control, const RunIdentity& identity, const RunProgress& progress, int keep) {
  const Json::Array seen(progress.samples_seen.begin(), progress.samples_seen.end());
  Json::Object metrics;
  for (const auto& [name, value] : progress.metrics) {
    metrics[name] = to_json(value);
  }
  const Json state = Json::Object{{"format", kFormat},
                                  {"identity", to_json(identity)},
                                  {"epoch", progress.position.epoch},
                                  {"batch", progress.position.batch},
                                  {"step", progress.position.step},
                                  {"skipped", progress.position.skipped},
                                  {"test_loss", to_json(progress.test_loss)},
                                  {"test_accuracy", to_json(progress.test_accuracy)},
                                  {"metrics", metrics},
                                  {"best_by", progress.best_by},
                                  {"best", to_json(progress.best)},
                                  {"since_best", progress.since_best},
                                  {"samples_seen", seen}};
  save_state(dir, context, parameters, control, {.files = {{kStateFile, state.text(2) + "\n"}}, .keep = keep});
}

CheckpointState read_checkpoint_state(const std::string& dir) {
  const std::string path = existing_checkpoint(dir) + "/" + kStateFile;
  const Json json = read_json(path);
  const auto format = json.get<std::int64_t>("format", path);
  require<DataError>(format == 1 || format == kFormat, path, ": format is ", format, ", expected 1 or ", kFormat);
  CheckpointState state;
  state.identity = identity_of(json.member("identity", path), path + ": identity");
  const auto count = [&](const char* key) { return json.get<std::int64_t>(key, path); };
  state.progress.position = {count("epoch"), count("batch"), count("step"), json.has("skipped") ? count("skipped") : 0};
  if (format == 1) {
    read_format_1(json, path, state);
  } else {
    state.progress.test_loss = number_or_none(json.member("test_loss", path), path + ": test_loss");
    state.progress.test_accuracy = number_or_none(json.member("test_accuracy", path), path + ": test_accuracy");
    state.progress.best_by = json.get<std::string>("best_by", path);
    state.progress.best = number_or_none(json.member("best", path), path + ": best");
    state.progress.since_best = json.has("since_best") ? count("since_best") : 0;
    for (const auto& [name, value] : json.get<Json::Object>("metrics", path)) {
      const std::optional<double> number = number_or_none(value, concat(path, ": metrics: ", name));
      state.progress.metrics[name] = number.value_or(std::numeric_limits<double>::quiet_NaN());
    }
  }
  for (const Json& item : json.get<Json::Array>("samples_seen", path)) {
    state.progress.samples_seen.push_back(item.as<double>(path + ": samples_seen"));
    const double seen = state.progress.samples_seen.back();
    require<DataError>(seen >= 0 && seen <= 0x1p53, path, ": samples_seen holds ", seen, ", expected 0 to 2^53");
  }
  const Position& at = state.progress.position;
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  const std::int64_t since_best = state.progress.since_best;
  for (const std::int64_t number : {at.epoch, at.batch, at.step, at.skipped, since_best}) {
    require<DataError>(number >= 0 && number <= kMost, path, ": epoch ", at.epoch, ", batch ", at.batch, ", step ",
                       at.step, ", skipped ", at.skipped, ", since_best ", since_best, ", expected 0 to 2^53");
  }
  const std::optional<double>& accuracy = state.progress.test_accuracy;
  require<DataError>(!accuracy || (*accuracy >= 0 && *accuracy <= 1), path, ": test_accuracy is ", accuracy.value_or(0),
                     ", expected 0 to 1");
  const std::optional<double>& best = state.progress.best;
  require<DataError>(!best || state.progress.best_by != "test_accuracy" || (*best >= 0 && *best <= 1), path,
                     ": best is ", best.value_or(0), ", expected a test_accuracy of 0 to 1");
  require_checksums(std::filesystem::path(path).parent_path().string(), {kStateFile});
  return state;
}

std::string checkpoint_text(const std::string& dir) {
  constexpr std::uint64_t kMostBytes = 1 << 24;
  try {
    return read_file(concat(find_folder(dir), '/', kStateFile), kMostBytes);
  } catch (const Error&) {
    return "";
  }
}

bool is_checkpoint(const std::string& dir) {
  return file_exists(concat(dir, '/', kStateFile));
}

std::string existing_checkpoint(const std::string& dir) {
  std::string folder = find_folder(dir);
  require<DataError>(!folder.empty(), dir, ": there is no checkpoint, expected a folder with ", kStateFile, " and ",
                     kModelFile);
  return folder;
}

std::string checkpoint_folder(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path file(path);
  if (!std::filesystem::is_regular_file(file, ignored)) {
    return path;
  }
  std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  for (const CheckpointFile& known : kCheckpointFiles) {
    if (known.is_model && file.filename() == known.name && is_checkpoint(folder)) {
      return folder;
    }
  }
  return "";
}

std::int64_t valid_step(const std::string& dir) {
  const std::int64_t step = read_checkpoint_state(dir).progress.position.step;
  const std::string folder = existing_checkpoint(dir);
  require_checksums(folder);
  for (const CheckpointFile& file : kCheckpointFiles) {
    require<DataError>(!file.of_resume || file_exists(concat(folder, '/', file.name)), folder, ": has no ", file.name,
                       ", expected a whole checkpoint");
  }
  return step;
}

std::optional<std::int64_t> step_if_valid(const std::string& dir) {
  try {
    return valid_step(dir);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::nn
