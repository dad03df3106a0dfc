#include <lockstep/nn/data/packed/check_packed.hpp>

#include <algorithm>
#include <span>
#include <utility>

#include <lockstep/nn/data/detail/ahead.hpp>
#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/nn/data/detail/token_ids.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {
namespace {

/// Largest token id read so far in one part of a packed file of tokens.
struct Largest {
  std::size_t part = 0;
  std::uint32_t id = 0;
  std::int64_t at = 0;  ///< index within the part of the id's first occurrence
};

/// Result of checking a few samples, or one block of ids.
struct Checked {
  std::vector<std::string> damage{};
  std::uint64_t bytes = 0;
  std::vector<Largest> largest{};  ///< largest id of each part that has ids in the block

  /// Calls work(), which checks a sample or block, and keeps the text of a DataError that `work` throws.
  template <class Work>
  void note(Work&& work) {
    if (std::string text = detail::damage_in(std::forward<Work>(work)); !text.empty()) {
      damage.push_back(std::move(text));
    }
  }
};

/// Calls check(begin, end) in threads until all samples or blocks are checked; each call checks `together` samples or
/// blocks. Calls take(checked) in the caller's thread for each result, in order.
template <class Check, class Take>
PackedCheck check_all(PackProgress progress, std::int64_t together, int threads, std::size_t most,
                      const std::function<void(const PackProgress&)>& report, Check check, Take take) {
  detail::require_threads(threads);
  const auto end_of = [together, all = progress.all](std::int64_t i) { return std::min(all, (i + 1) * together); };
  const std::int64_t parts = (progress.all + together - 1) / together;
  detail::Ahead<Checked> checked(parts, threads, [&](std::int64_t i) { return check(i * together, end_of(i)); });
  PackedCheck found;
  for (std::int64_t i = 0; i < parts; ++i) {
    Checked part = checked.take();
    found.damaged += static_cast<std::int64_t>(part.damage.size());
    for (std::string& text : part.damage) {
      if (found.texts.size() < most) {
        found.texts.push_back(std::move(text));
      }
    }
    take(part);
    progress.done = end_of(i);
    progress.bytes += part.bytes;
    report(progress);
  }
  return found;
}

/// Checks samples [begin, end) of a packed file of pictures.
Checked check_pictures(const PackedFile& file, std::int64_t begin, std::int64_t end, bool decode) {
  thread_local images::Picture picture;
  Checked found;
  for (std::int64_t i = begin; i < end; ++i) {
    found.note([&] {
      const auto bytes = file.read(i);
      found.bytes += bytes.size();
      if (decode) {
        const std::string text = file.text_of(i);
        const images::Header header = detail::packed_header(file.sample(i), bytes, text);
        images::decode(bytes, text, header, 8, picture);  // decodes the whole file; shrink = 8 takes the least time
      }
    });
  }
  detail::keep_little(picture.pixels);
  return found;
}

/// Returns the largest id of each part that has ids in a block. `begin` is the index of the block's first id, and
/// `first` holds the index of each part's first id; both indices count the ids of all parts.
std::vector<Largest> largest_in(std::span<const std::byte> bytes, std::int64_t begin, const PackedTokens& file,
                                std::span<const std::int64_t> first) {
  thread_local std::vector<std::int32_t> ids;
  const auto width = static_cast<std::uint64_t>(file.width());
  ids.resize(bytes.size() / width);
  (void)detail::widen_ids(bytes.data(), width, detail::kLargestId + 1, ids);
  const std::int64_t end = begin + static_cast<std::int64_t>(ids.size());
  std::vector<Largest> found;
  auto part = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), begin) - first.begin()) - 1;
  for (std::int64_t from = begin; from < end; ++part) {
    const std::int64_t to = std::min(end, first[part] + file.parts()[part].size);
    const auto those =
        std::span(ids).subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from));
    const auto most = std::max_element(those.begin(), those.end(), [](std::int32_t a, std::int32_t b) {
      return static_cast<std::uint32_t>(a) < static_cast<std::uint32_t>(b);
    });
    found.push_back({part, static_cast<std::uint32_t>(*most), from - first[part] + (most - those.begin())});
    from = to;
  }
  return found;
}

Checked check_tokens(const PackedTokens& file, std::int64_t block, std::span<const std::int64_t> first) {
  Checked found;
  found.note([&] {
    const auto bytes = file.read_block(block);
    found.bytes = bytes.size();
    const auto ids = static_cast<std::int64_t>(PackedTokens::kBlockBytes) / file.width();
    found.largest = largest_in(bytes, block * ids, file, first);
  });
  return found;
}

}  // namespace

PackedCheck check_packed(const PackedFile& file, int threads, std::size_t most,
                         const std::function<void(const PackProgress&)>& report) {
  constexpr std::int64_t kTogether = 16;
  const bool decode = file.store() == PackedStore::files && images::available();
  PackedCheck all = check_all(
      {.all = file.train_size() + file.test_size()}, kTogether, threads, most, report,
      [&](std::int64_t begin, std::int64_t end) { return check_pictures(file, begin, end, decode); },
      [](const Checked&) {});
  all.decoded = decode;
  return all;
}

PackedCheck check_packed(const PackedTokens& file, int threads, std::size_t most,
                         const std::function<void(const PackProgress&)>& report) {
  std::vector<std::int64_t> first;
  std::int64_t ids = 0;
  for (const PackedPart& part : file.parts()) {
    first.push_back(ids);
    ids += part.size;
  }
  std::vector<Largest> largest(file.parts().size());
  PackedCheck all = check_all(
      {.all = file.blocks(), .what = "blocks"}, 1, threads, most, report,
      [&](std::int64_t block, std::int64_t) { return check_tokens(file, block, first); },
      [&](const Checked& block) {
        for (const Largest& found : block.largest) {
          Largest& known = largest[found.part];
          known = found.id > known.id ? found : known;
        }
      });
  for (std::size_t i = 0; i < largest.size() && all.damaged == 0; ++i) {
    const PackedPart& told = file.parts()[i];
    require<DataError>(largest[i].id == static_cast<std::uint32_t>(told.largest) && largest[i].at == told.largest_at,
                       file.text_of(i), ": its largest id is ", largest[i].id, " at place ", largest[i].at,
                       ", expected ", told.largest, " at place ", told.largest_at, ", as the index has it");
  }
  return all;
}

}  // namespace lockstep::nn
