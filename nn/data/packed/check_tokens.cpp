// check_packed() of text and tokens.
#include <algorithm>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <lockstep/nn/data/detail/token_ids.hpp>
#include <lockstep/nn/data/packed/ahead.hpp>
#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {
namespace {

/// The largest id of a part, as far as it is known.
struct Largest {
  std::size_t part = 0;
  std::uint32_t id = 0;
  std::int64_t at = 0;  ///< its first place in the part
};

/// Of a block.
struct Checked {
  std::string damage{};
  std::uint64_t bytes = 0;
  std::vector<Largest> largest{};  ///< of each part that has ids in it
  std::exception_ptr failed{};
  [[nodiscard]] static std::size_t held() { return 0; }
};

/// first: id of each part, counted over all parts.
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

Checked check(const PackedTokens& file, std::int64_t block, std::span<const std::int64_t> first) {
  Checked found;
  try {
    const auto bytes = file.read_block(block);
    found.bytes = bytes.size();
    const auto ids = static_cast<std::int64_t>(PackedTokens::kBlockBytes) / file.width();
    found.largest = largest_in(bytes, block * ids, file, first);
  } catch (const FileError&) {
    found.failed = std::current_exception();
  } catch (const DataError& error) {
    found.damage = error.what();
  } catch (...) {
    found.failed = std::current_exception();
  }
  return found;
}

}  // namespace

PackedCheck check_packed(const PackedTokens& file, int threads, std::size_t most,
                         const std::function<void(const PackProgress&)>& report) {
  detail::require_threads(threads);
  std::vector<std::int64_t> first;
  std::int64_t ids = 0;
  for (const PackedPart& part : file.parts()) {
    first.push_back(ids);
    ids += part.size;
  }
  PackedCheck all;
  std::vector<Largest> largest(file.parts().size());
  PackProgress progress{.all = file.blocks(), .what = "blocks"};
  detail::Ahead<Checked> checked(progress.all, threads, [&](std::int64_t i) { return check(file, i, first); });
  while (progress.done < progress.all) {
    Checked block = checked.take();
    if (block.failed != nullptr) {
      std::rethrow_exception(block.failed);
    }
    if (!block.damage.empty()) {
      ++all.damaged;
      if (all.texts.size() < most) {
        all.texts.push_back(std::move(block.damage));
      }
    }
    for (const Largest& found : block.largest) {
      Largest& known = largest[found.part];
      known = found.id > known.id ? found : known;
    }
    ++progress.done;
    progress.bytes += block.bytes;
    report(progress);
  }
  for (std::size_t i = 0; i < largest.size() && all.damaged == 0; ++i) {
    const PackedPart& told = file.parts()[i];
    require<DataError>(largest[i].id == static_cast<std::uint32_t>(told.largest) && largest[i].at == told.largest_at,
                       file.text_of(i), ": its largest id is ", largest[i].id, " at ", largest[i].at, ", expected ",
                       told.largest, " at ", told.largest_at, ", as the index has it");
  }
  return all;
}

}  // namespace lockstep::nn
