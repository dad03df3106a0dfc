#include "tools/lockstep_cost/report.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

#include "tools/svg/plot.hpp"

namespace lockstep::tools {

using comm::all_reduce_name;
using comm::CostFile;
using comm::CostPath;
using comm::CostPoint;
using comm::GradientPath;

namespace {

std::string about(const CostFile& file, const std::string& key) {
  const auto found = file.about.find(key);
  return found == file.about.end() ? "?" : found->second;
}

std::string ranks_text(const CostFile& file) {
  return concat(file.ranks, file.ranks == 1 ? " rank" : " ranks",
                file.nodes == 1 ? std::string() : concat(" on ", file.nodes, " nodes"));
}

bool is_copy(const CostPath& path) {
  return path.name.starts_with("copy/");
}

/// Returns a rate in bytes per second: busbw of a collective; the payload's rate of a copy, whose bus_factor is 1.
double rate(const CostPath& path, double bytes, double seconds) {
  return path.bus_factor * bytes / seconds;
}

/// Returns the copy that remember() describes: the copy to the GPU or, on a machine without a GPU, a copy inside host
/// memory.
const CostPath* typical_copy(const CostFile& file) {
  for (const char* name : {"copy/pinned_to_device", "copy/host/copy", "copy/host/memcpy"}) {
    if (const CostPath* path = file.find(name); path != nullptr && !path->points.empty()) {
      return path;
    }
  }
  return nullptr;
}

/// Returns the measured all-reduces. The all-reduce between GPUs is the first, because gradients use it.
std::vector<const CostPath*> all_reduces(const CostFile& file) {
  std::vector<const CostPath*> paths;
  for (const GradientPath gradients : {GradientPath::nccl, GradientPath::host}) {
    const CostPath* path = file.find(all_reduce_name(gradients));
    if (path != nullptr && !path->points.empty()) {
      paths.push_back(path);
    }
  }
  return paths;
}

bool is_between_gpus(const CostPath& path) {
  return path.name == all_reduce_name(GradientPath::nccl);
}

enum class Value : unsigned char { seconds, rate };

/// Makes the curve of `path`: its dots are the measured values, its line shows the model at eight points per octave.
Curve curve(const CostPath& path, Value value) {
  const auto of = [&](double bytes, double seconds) {
    return value == Value::seconds ? seconds : rate(path, bytes, seconds);
  };
  Curve result;
  result.label = path.text;
  for (const CostPoint& point : path.points) {
    const auto bytes = static_cast<double>(point.bytes);
    result.dots.emplace_back(bytes, of(bytes, point.median_s));
  }
  if (path.points.empty()) {
    return result;
  }
  const double first = std::log2(static_cast<double>(path.points.front().bytes));
  const double last = std::log2(static_cast<double>(path.points.back().bytes));
  const int steps = static_cast<int>((last - first) * 8);
  for (int i = 0; i <= steps; ++i) {
    const double bytes = std::exp2(first + i / 8.0);
    const double seconds = path.model.predict(bytes);
    if (seconds > 0) {
      result.line.emplace_back(bytes, of(bytes, seconds));
    }
  }
  return result;
}

std::vector<Mark> limits_of(const std::vector<const CostPath*>& paths) {
  std::vector<Mark> limits;
  for (const CostPath* path : paths) {
    const std::string label = concat(path->limit_text, ": ", rate_text(path->limit_bytes_per_s));
    const bool known = std::any_of(limits.begin(), limits.end(), [&](const Mark& l) { return l.label == label; });
    if (path->limit_bytes_per_s > 0 && !known) {
      limits.push_back({label, path->limit_bytes_per_s});
    }
  }
  return limits;
}

std::string row(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& cell : cells) {
    text += concat(" ", cell, " |");
  }
  return text + "\n";
}

std::string title_case(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') {
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  }
  return text;
}

std::string model_table(const CostPath& path) {
  std::string text = row({"from", "alpha", "1 / beta", "alpha / beta"}) + row({"--:", "--:", "--:", "--:"});
  for (const comm::CostPiece& piece : path.model.pieces) {
    text += row({bytes_text(piece.first_bytes),
                 piece.alpha_s < 0 ? "-" + seconds_text(-piece.alpha_s) : seconds_text(piece.alpha_s),
                 piece.beta_s > 0 ? rate_text(1 / piece.beta_s) : (piece.beta_s < 0 ? "falls" : "flat"),
                 piece.beta_s > 0 && piece.alpha_s > 0 ? bytes_text(std::round(piece.alpha_s / piece.beta_s)) : ""});
  }
  const auto& pieces = path.model.pieces;
  if (std::any_of(pieces.begin(), pieces.end(), [](const comm::CostPiece& piece) { return piece.alpha_s < 0; })) {
    text +=
        "\nA negative alpha is where the line of its piece meets 0 bytes, not a latency: from that size on the time "
        "grows faster than the bytes. On a machine that others use too, measure again.\n";
  }
  return text;
}

std::string fit_text(const CostPath& path) {
  if (path.held_out.count == 0) {
    return "Too few sizes to test the model on others.\n";
  }
  return concat("Fitted on every second size, the model misses the ", path.held_out.count, " others by ",
                percent_text(path.held_out.median), " in the median, ", percent_text(path.held_out.p90),
                " at the 90th percentile, ", percent_text(path.held_out.worst), " at worst.\n");
}

std::string size_table(const CostPath& path) {
  const bool tails = std::any_of(path.points.begin(), path.points.end(), [](const CostPoint& p) { return p.p95_s; });
  const bool limit = path.limit_bytes_per_s > 0;
  const bool bus = path.bus_factor != 1 && path.bus_factor > 0;
  std::vector<std::string> head{"size", "median", "least", "samples"};
  if (tails) {
    head.insert(head.end(), {"p95", "p99"});
  }
  head.emplace_back(is_copy(path) ? "payload" : "algbw");
  if (bus) {
    head.emplace_back("busbw");
  }
  if (limit) {
    head.emplace_back("of limit");
  }
  head.insert(head.end(), {"model", "off by"});
  std::string text = row(head) + row(std::vector<std::string>(head.size(), "--:"));
  const auto optional = [](const std::optional<double>& s) { return s ? seconds_text(*s) : std::string("-"); };
  for (const CostPoint& p : path.points) {
    const auto bytes = static_cast<double>(p.bytes);
    std::vector<std::string> cells{bytes_text(bytes), seconds_text(p.median_s), seconds_text(p.min_s),
                                   std::to_string(p.samples)};
    if (tails) {
      cells.insert(cells.end(), {optional(p.p95_s), optional(p.p99_s)});
    }
    cells.push_back(rate_text(bytes / p.median_s));
    if (bus) {
      cells.push_back(rate_text(rate(path, bytes, p.median_s)));
    }
    if (limit) {
      cells.push_back(percent_text(rate(path, bytes, p.median_s) / path.limit_bytes_per_s));
    }
    const double predicted = path.model.predict(bytes);
    const double off = predicted / p.median_s - 1;
    cells.insert(cells.end(), {seconds_text(predicted), (off < 0 ? "-" : "+") + percent_text(std::abs(off))});
    text += row(cells);
  }
  return text;
}

/// Returns the reason why the all-reduce `path` between GPUs shows no limit; an empty text for any other path.
std::string no_limit_text(const CostPath& path, const CostFile& file) {
  if (!is_between_gpus(path) || path.limit_bytes_per_s > 0) {
    return {};
  }
  return file.ranks == 2 ? "No limit: what connects the two GPUs is not known.\n"
                         : "No limit: what busbw cannot pass between more than two GPUs depends on how they are "
                           "connected and on where "
                           "sums are made; switches that add pass the rate of a link.\n";
}

std::string path_section(const CostPath& path, const CostFile& file) {
  std::string text = concat("### ", title_case(path.text), " (`", path.name, "`)\n\n", fit_text(path));
  if (path.limit_bytes_per_s > 0 && !path.points.empty()) {
    const CostPoint& large = path.points.back();
    text += concat("Limit: ", path.limit_text, ", ", rate_text(path.limit_bytes_per_s), ", of which ",
                   bytes_text(static_cast<double>(large.bytes)), " reaches ",
                   percent_text(rate(path, static_cast<double>(large.bytes), large.median_s) / path.limit_bytes_per_s),
                   ". Sizes that a cache holds may pass a limit of memory.\n");
  }
  text += no_limit_text(path, file);
  return concat(text, "\n", model_table(path), "\n", size_table(path), "\n");
}

std::string pairs_section(const CostFile& file) {
  std::string text = concat(
      "### Every two ranks, ", bytes_text(static_cast<double>(file.pairs.bytes)),
      "\n\nMessages over MPI between host memories, also of ranks with GPUs (`bench_copy` has all pairs of GPUs). "
      "One pair at a time,\nboth directions in turn; GB/s one way.\n\n");
  std::vector<std::string> head{"rank"};
  for (const int rank : file.pairs.ranks) {
    head.push_back(std::to_string(rank));
  }
  text += row(head) + row(std::vector<std::string>(head.size(), "--:"));
  for (std::size_t i = 0; i < file.pairs.ranks.size(); ++i) {
    std::vector<std::string> cells{std::to_string(file.pairs.ranks[i])};
    for (const double seconds : file.pairs.seconds[i]) {
      cells.push_back(seconds > 0 ? digits(static_cast<double>(file.pairs.bytes) / seconds * 1e-9, 2) : "");
    }
    text += row(cells);
  }
  return text + "\n";
}

/// Returns the paths that remember() describes.
std::vector<const CostPath*> remembered(const CostFile& file) {
  std::vector<const CostPath*> paths = all_reduces(file);
  paths.resize(std::min<std::size_t>(paths.size(), 1));
  if (const CostPath* copy = typical_copy(file); copy != nullptr) {
    paths.push_back(copy);
  }
  return paths;
}

}  // namespace

std::vector<std::string> remember(const CostFile& file) {
  std::vector<std::string> lines;
  for (const CostPath* path : remembered(file)) {
    if (path->held_out.high()) {
      lines.push_back(concat("**Not reliable**: the machine was busy, or the time of ", path->text,
                             " jumps between two sizes. Its model misses other sizes by ",
                             percent_text(path->held_out.median), " in the median, ", percent_text(path->held_out.p90),
                             " at the 90th percentile: measure again, with more --seconds."));
    }
  }
  const auto size = [](const CostPoint& p) { return bytes_text(static_cast<double>(p.bytes)); };
  if (const auto reduces = all_reduces(file); !reduces.empty()) {
    const CostPath* path = reduces.front();
    const CostPoint& small = path->points.front();
    const CostPoint& large = path->points.back();
    lines.push_back(concat("A small all-reduce (", size(small), ")", is_between_gpus(*path) ? " between GPUs" : "",
                           " over ", ranks_text(file), " takes **", seconds_text(small.median_s), "**."));
    lines.push_back(concat("A large one (", size(large), ") runs at **",
                           rate_text(static_cast<double>(large.bytes) / large.median_s), "** (busbw ",
                           rate_text(rate(*path, static_cast<double>(large.bytes), large.median_s)), ")."));
  }
  if (const CostPath* path = typical_copy(file); path != nullptr) {
    // Takes the median over the four smallest sizes, because a single size may be slow on some processors.
    const std::size_t few = std::min<std::size_t>(path->points.size(), 4);
    std::vector<double> small;
    for (std::size_t i = 0; i < few; ++i) {
      small.push_back(path->points[i].median_s);
    }
    std::sort(small.begin(), small.end());
    const CostPoint& large = path->points.back();
    lines.push_back(concat("A copy (", path->text, ", all ranks at once) costs **", seconds_text(small[(few - 1) / 2]),
                           "** up to ", size(path->points[few - 1]), ", and runs at **",
                           rate_text(static_cast<double>(large.bytes) / large.median_s), "** when large (", size(large),
                           ")."));
  }
  return lines;
}

std::vector<std::pair<std::string, std::string>> plots(const CostFile& file) {
  std::vector<std::pair<std::string, std::string>> result;
  const std::string where = concat(about(file, "cpu"), ", ", ranks_text(file));
  const std::string how = "; dots: medians, lines: the fitted alpha-beta model";
  const Axis sizes{.scale = Axis::Scale::log2, .name = "size of the message", .text = bytes_text};
  const Axis rates{.scale = Axis::Scale::log10, .text = rate_text};
  // Makes two panels, because with a GPU, a single panel would have more curves than there are colours.
  std::vector<Panel> copies;
  for (const bool on_host : {true, false}) {
    Panel panel{
        .title = concat("Payload per second of one rank, ", on_host ? "host memory" : "GPU"), .x = sizes, .y = rates};
    std::vector<const CostPath*> shown;
    for (const CostPath& path : file.paths) {
      if (is_copy(path) && path.name.starts_with("copy/host/") == on_host && !path.points.empty()) {
        panel.curves.push_back(curve(path, Value::rate));
        shown.push_back(&path);
      }
    }
    panel.limits = limits_of(shown);
    if (!panel.curves.empty()) {
      copies.push_back(std::move(panel));
    }
  }
  if (!copies.empty()) {
    result.emplace_back("copies.svg", line_plots("What a copy costs", where + how, copies));
  }
  if (const auto reduces = all_reduces(file); !reduces.empty()) {
    Panel time{.title = "Time", .x = sizes, .y = {.scale = Axis::Scale::log10, .text = seconds_text}};
    Panel bus{.title = "Bus bandwidth", .x = sizes, .y = rates, .limits = limits_of(reduces)};
    for (const CostPath* path : reduces) {
      const std::string ranks = concat(file.ranks, " ranks");
      const std::string label =
          reduces.size() == 1 ? ranks : concat(is_between_gpus(*path) ? "GPUs, " : "host, ", ranks);
      for (const auto& [panel, value] : {std::pair{&time, Value::seconds}, std::pair{&bus, Value::rate}}) {
        panel->curves.push_back(curve(*path, value));
        panel->curves.back().label = label;
      }
    }
    result.emplace_back("all_reduce.svg", line_plots("What an all-reduce costs",
                                                     concat(where, ", ", about(file, "mpi"), how), {time, bus}));
  }
  if (file.pairs.ranks.size() > 1) {
    HeatMap map{.title = "Messages between every two ranks",
                .subtitle = concat(bytes_text(static_cast<double>(file.pairs.bytes)),
                                   " one way, one pair at a time, in GB/s; ", where),
                .ranks = file.pairs.ranks,
                .bytes_per_second = file.pairs.seconds};
    for (std::vector<double>& values : map.bytes_per_second) {
      for (double& value : values) {
        value = value > 0 ? static_cast<double>(file.pairs.bytes) / value : 0;
      }
    }
    result.emplace_back("pairs.svg", heat_map(map));
  }
  return result;
}

std::string report(const CostFile& file) {
  const std::vector<const CostPath*> main_paths = remembered(file);
  const bool busy =
      std::any_of(main_paths.begin(), main_paths.end(), [](const CostPath* p) { return p->held_out.high(); });
  std::string text = concat("# What moving data costs on ", about(file, "host"), busy ? " (not reliable)" : "", "\n\n");
  for (const char* key : {"date", "cpu", "gpu", "build", "mpi", "threads", "command", "duration"}) {
    if (file.about.count(key) > 0) {
      text += concat("- ", key, ": ", about(file, key), "\n");
    }
  }
  text += concat("- ranks: ", ranks_text(file), "\n\n");
  text +=
      "Times are of the slowest rank in each call; tables show the median. `docs/cost.md` says how to read them.\n\n";
  text += "## To remember\n\n";
  for (const std::string& line : remember(file)) {
    text += concat("- ", line, "\n");
  }
  text += "\n";
  for (const auto& [name, svg] : plots(file)) {
    text += concat("![", name.substr(0, name.find('.')), "](", name, ")\n\n");
  }
  text += "## Paths\n\n";
  for (const CostPath& path : file.paths) {
    text += path_section(path, file);
  }
  if (file.pairs.ranks.size() > 1) {
    text += pairs_section(file);
  }
  text += "## Left out\n\n";
  for (const std::string& line : file.left_out) {
    text += concat("- ", line, "\n");
  }
  text += file.left_out.empty() ? "Nothing that this program measures.\n" : "";
  return text;
}

}  // namespace lockstep::tools
