#include "tools/lockstep_report/csv.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>

#include "tools/lockstep_report/quantities.hpp"

namespace lockstep::tools {
namespace {

constexpr std::string_view kRun = "run";

/// Returns the fields of all runs in the order of the columns. A field of several runs occurs once.
std::vector<std::string> columns_of(const std::vector<RunLog>& runs) {
  std::set<std::string> fields;
  for (const RunLog& run : runs) {
    fields.insert(run.fields.begin(), run.fields.end());
  }
  std::set<std::string> quantities;
  for (const std::string& field : fields) {
    quantities.insert(field.starts_with(kTest) ? field.substr(kTest.size()) : field);
  }
  std::vector<std::string> columns;
  for (const std::string& quantity : in_order(quantities)) {
    for (const std::string& field : {quantity, std::string(kTest) + quantity}) {
      if (fields.contains(field)) {
        columns.push_back(field);
      }
    }
  }
  return columns;
}

/// Returns `text` as a cell. The cell has quotes if `text` holds a character that ends a cell, or begins or ends with a
/// blank.
std::string cell(std::string_view text) {
  const std::string shown = utf8_text(text);
  const bool trimmed = shown.starts_with(' ') || shown.ends_with(' ');
  if (!trimmed && shown.find_first_of(",\"\r\n") == std::string::npos) {
    return shown;
  }
  std::string quoted = "\"";
  for (const char letter : shown) {
    quoted.append(letter == '"' ? 2 : 1, letter);
  }
  return quoted + '"';
}

/// Returns a number as a cell. Whole numbers, such as counts of bytes, have no exponent: the shortest text of 1000000
/// would be 1e+06.
std::string cell(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  const bool whole = std::abs(value) < kExact && std::trunc(value) == value && (value != 0 || !std::signbit(value));
  return whole ? std::to_string(static_cast<std::int64_t>(value)) : exact_text(value);
}

}  // namespace

std::string csv_of(const std::vector<RunLog>& runs) {
  const std::vector<std::string> columns = columns_of(runs);
  std::map<std::string, std::size_t> places;
  std::string out = concat(kRun, ",event,epoch,step");
  for (std::size_t i = 0; i < columns.size(); ++i) {
    places[columns[i]] = i;
    out += "," + cell(columns[i] == kRun ? concat(kRun, ".1") : columns[i]);
  }
  out += '\n';
  std::vector<std::string> cells(columns.size());
  for (const RunLog& run : runs) {
    std::vector<std::size_t> place_of;  // column of each field of this run, by the field's index in run.fields
    for (const std::string& field : run.fields) {
      place_of.push_back(places.at(field));
    }
    const std::string name = cell(run.name);
    for (const Row& row : run.rows) {
      cells.assign(columns.size(), "");
      for (const auto& [field, value] : row.values) {
        if (value) {
          cells[place_of[field]] = cell(*value);
        }
      }
      out += name + (row.kind == Row::Kind::step ? ",step," : ",epoch,") +
             (row.epoch ? std::to_string(*row.epoch) : "") + "," + std::to_string(row.step);
      for (const std::string& text : cells) {
        out += "," + text;
      }
      out += '\n';
    }
  }
  return out;
}

}  // namespace lockstep::tools
