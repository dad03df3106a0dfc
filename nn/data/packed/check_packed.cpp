#include <lockstep/nn/data/packed/check_packed.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/nn/data/packed/ahead.hpp>
#include <lockstep/nn/data/packed/detail/packed_header.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {
namespace {

/// Of a few samples.
struct Checked {
  std::int64_t damaged = 0;
  std::vector<std::string> texts{};
  std::uint64_t bytes = 0;
  std::exception_ptr failed{};
  [[nodiscard]] static std::size_t held() { return 0; }
};

/// The samples [begin, end).
Checked check(const PackedFile& file, std::int64_t begin, std::int64_t end, bool decode, std::size_t most) {
  thread_local images::Picture picture;
  Checked found;
  for (std::int64_t i = begin; i < end && found.failed == nullptr; ++i) {
    try {
      const auto bytes = file.read(i);
      found.bytes += bytes.size();
      if (decode) {
        const std::string text = file.text_of(i);
        const images::Header header = detail::packed_header(file.sample(i), bytes, text);
        images::decode(bytes, text, header, 8, picture);  // all of the file, in the least time
      }
    } catch (const FileError&) {
      found.failed = std::current_exception();
    } catch (const DataError& error) {
      ++found.damaged;
      if (found.texts.size() < most) {
        found.texts.emplace_back(error.what());
      }
    } catch (...) {
      found.failed = std::current_exception();
    }
  }
  detail::keep_little(picture.pixels);
  return found;
}

}  // namespace

PackedCheck check_packed(const PackedFile& file, int threads, std::size_t most,
                         const std::function<void(const PackProgress&)>& report) {
  constexpr std::int64_t kTogether = 16;
  detail::require_threads(threads);
  PackedCheck all;
  all.decoded = file.store() == PackedStore::files && images::available();
  PackProgress progress{.all = file.train_size() + file.test_size()};
  const std::int64_t parts = (progress.all + kTogether - 1) / kTogether;
  detail::Ahead<Checked> checked(parts, threads, [&](std::int64_t i) {
    return check(file, i * kTogether, std::min(progress.all, (i + 1) * kTogether), all.decoded, most);
  });
  for (std::int64_t i = 0; i < parts; ++i) {
    Checked part = checked.take();
    if (part.failed != nullptr) {
      std::rethrow_exception(part.failed);
    }
    all.damaged += part.damaged;
    for (std::string& text : part.texts) {
      if (all.texts.size() < most) {
        all.texts.push_back(std::move(text));
      }
    }
    progress.done = std::min(progress.all, (i + 1) * kTogether);
    progress.bytes += part.bytes;
    report(progress);
  }
  return all;
}

}  // namespace lockstep::nn
