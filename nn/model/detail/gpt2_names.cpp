#include <lockstep/nn/model/detail/gpt2_names.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kPrefix = "transformer.";

/// Returns the part of `name` after "h.N.", where N is the number of a layer, or an empty text if `name` has no "h.N.".
std::string_view in_layer(std::string_view name) {
  if (name.starts_with(kPrefix)) {
    name.remove_prefix(kPrefix.size());
  }
  if (!name.starts_with("h.")) {
    return {};
  }
  name.remove_prefix(2);
  const std::size_t dot = name.find_first_not_of("0123456789");
  return dot == 0 || dot == std::string_view::npos || name[dot] != '.' ? std::string_view() : name.substr(dot + 1);
}

/// Order of the axes of a c_attn weight: `ours` is (3 C, C), `turned` is (C, 3 C) as in Hugging Face's Conv1D, and
/// `other` is any other shape.
enum class Way : unsigned char { ours, turned, other };
Way way_of(const TensorEntry& c_attn) {
  const auto is_triple = [](std::int64_t a, std::int64_t b) { return a > 0 && a % 3 == 0 && a / 3 == b; };
  const std::vector<std::int64_t>& shape = c_attn.shape;
  if (shape.size() != 2) {
    return Way::other;
  }
  return is_triple(shape[0], shape[1]) ? Way::ours : is_triple(shape[1], shape[0]) ? Way::turned : Way::other;
}

void turn(const TensorFile& file, TensorEntry& entry) {
  require<DataError>(entry.shape.size() == 2, file.path(), ": tensor '", entry.name, "' has ", entry.shape.size(),
                     " dimensions, expected 2");
  if (entry.strides.empty()) {
    entry.strides = {entry.shape[1], 1};
  }
  std::swap(entry.shape[0], entry.shape[1]);
  std::swap(entry.strides[0], entry.strides[1]);
}

/// Throws DataError unless lm_head.weight, the matrix of the last product, equals the embedding matrix.
void require_tied(const TensorFile& file, const TensorEntry& head, const TensorEntry* embedding) {
  const auto bytes_of = [&](const TensorEntry& entry) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes));
    file.read(entry, bytes);
    return bytes;
  };
  const bool same = embedding != nullptr && head.shape == embedding->shape && head.dtype == embedding->dtype;
  require<DataError>(same && ((head.offset == embedding->offset && head.strides == embedding->strides) ||
                              bytes_of(head) == bytes_of(*embedding)),
                     file.path(),
                     ": tensor 'lm_head.weight' differs from 'wte.weight', or 'wte.weight' is missing; expected two "
                     "equal tensors, which the model shares");
}

}  // namespace

void read_as_gpt2(TensorFile& file) {
  std::vector<TensorEntry> entries = file.entries();
  std::optional<Way> way;
  for (const TensorEntry& entry : entries) {
    if (in_layer(entry.name) == "attn.c_attn.weight"sv) {
      const Way here = way_of(entry);
      require<DataError>(!way || *way == here, file.path(), ": tensor '", entry.name, "' of shape (",
                         entry.shape.empty() ? 0 : entry.shape[0],
                         ", ...) is transposed where that of another layer is not, expected all layers alike");
      way = here;
    }
  }
  if (!way || *way == Way::other) {
    return;
  }
  constexpr std::array kMatrices{"attn.c_attn.weight"sv, "attn.c_proj.weight"sv, "mlp.c_fc.weight"sv,
                                 "mlp.c_proj.weight"sv};
  std::erase_if(entries, [](const TensorEntry& entry) {
    const std::string_view name = in_layer(entry.name);
    return name == "attn.bias"sv || name == "attn.masked_bias"sv;
  });
  for (TensorEntry& entry : entries) {
    if (*way == Way::turned && std::find(kMatrices.begin(), kMatrices.end(), in_layer(entry.name)) != kMatrices.end()) {
      turn(file, entry);
    }
    if (entry.name.starts_with(kPrefix)) {
      entry.name.erase(0, kPrefix.size());
    }
  }
  file.set_entries(std::move(entries));
  if (const TensorEntry* head = file.find("lm_head.weight"); head != nullptr) {
    require_tied(file, *head, file.find("wte.weight"));
    std::vector<TensorEntry> rest = file.entries();
    std::erase_if(rest, [](const TensorEntry& entry) { return entry.name == "lm_head.weight"; });
    file.set_entries(std::move(rest));
  }
}

}  // namespace lockstep::nn
