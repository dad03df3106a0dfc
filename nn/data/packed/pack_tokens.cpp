#include <lockstep/nn/data/packed/pack_tokens.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <utility>

#include <lockstep/nn/data/detail/packed_frame.hpp>
#include <lockstep/nn/data/detail/token_ids.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/fnv1a.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::nn {
namespace {

constexpr std::string_view kTokens = "tokens:";
constexpr std::string_view kText = "text:";
constexpr std::int64_t kIdsAtOnce = std::int64_t{1} << 16;

/// Calls take(ids) for all ids of `file`, in order, with at most kIdsAtOnce ids in a call. Throws DataError if an id is
/// not below `vocabulary`.
template <class Take>
void for_ids(const TokenIds& file, std::int64_t vocabulary, Take&& take) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kIdsAtOnce, file.size())));
  for (std::int64_t done = 0; done < file.size();) {
    const auto some = std::span(ids).first(static_cast<std::size_t>(std::min(kIdsAtOnce, file.size() - done)));
    file.read(done, vocabulary, some);
    done += static_cast<std::int64_t>(some.size());
    take(std::span<const std::int32_t>(some));
  }
}

/// Token ids of a text: the text's bytes.
class TextIds final : public TokenIds {
 public:
  explicit TextIds(const std::string& text) : text_(text) {}
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(text_.size()); }
  void read(std::int64_t begin, std::int64_t /*vocabulary*/, std::span<std::int32_t> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<unsigned char>(text_[static_cast<std::size_t>(begin) + i]);
    }
  }
  void ahead(std::int64_t /*begin*/, std::int64_t /*count*/) const noexcept override {}  // the text is in memory
  [[nodiscard]] std::uint64_t fingerprint() const override { return fnv1a(std::as_bytes(std::span(text_))); }

 private:
  const std::string& text_;
};

}  // namespace

bool is_token_source(const std::string& source) {
  return source.starts_with(kTokens) || source.starts_with(kText);
}

TokenPack::TokenPack(TokenPackOptions options) : options_(std::move(options)) {
  require<UsageError>(is_token_source(options_.source), "the source is ", printable(options_.source),
                      ", expected tokens:DIR or text:PATH");
  ids_ = options_.source.starts_with(kText) ? PackedIds::text : PackedIds::tokens;
  const std::string path = options_.source.substr((ids_ == PackedIds::text ? kText : kTokens).size());
  require<UsageError>(!path.empty(), "the source is ", printable(options_.source), ", expected a path after the colon");
  if (options_.vocabulary.has_value()) {
    require<UsageError>(ids_ == PackedIds::tokens, "the vocabulary is ", *options_.vocabulary,
                        ", expected it with tokens:DIR alone: a text's tokens are its bytes");
    require<UsageError>(*options_.vocabulary >= 1 && *options_.vocabulary <= detail::kLargestId + 1,
                        "the vocabulary is ", *options_.vocabulary, ", expected 1 to ", detail::kLargestId + 1);
  }
  if (ids_ == PackedIds::text) {
    text_ = read_text(path, printable(options_.source));
    files_ = text_.files;
    train_tokens_ = static_cast<std::int64_t>(text_.train.size());
    validation_tokens_ = static_cast<std::int64_t>(text_.validation.size());
    require<DataError>(validation_tokens_ >= 1, printable(options_.source), ": ", train_tokens_,
                       " bytes, expected at least 10: the last tenth is for validation");
  } else {
    folder_ = find_token_files(path);
    files_ = static_cast<std::int64_t>(folder_.train.size() + folder_.validation.size());
    for (const std::string& file : folder_.train) {  // opens one file at a time, because there may be thousands
      train_tokens_ += TokenFile(file).size();
    }
    for (const std::string& file : folder_.validation) {
      validation_tokens_ += TokenFile(file).size();
    }
  }
  detail::require_pack_output(options_.out, path, options_.overwrite);
}

TokenPackSummary TokenPack::write(const std::function<void(const PackProgress&)>& report) const {
  const bool text = ids_ == PackedIds::text;
  PackProgress progress{.all = (text ? 1 : 2) * (train_tokens_ + validation_tokens_),
                        .what = text ? "bytes of text" : "tokens (each is read twice)"};
  const auto count = [&](std::size_t ids, std::uint64_t bytes) {
    progress.done += static_cast<std::int64_t>(ids);
    progress.bytes = bytes;
    report(progress);
  };
  std::int64_t largest = text ? 255 : 0;
  for (const std::vector<std::string>* files : {&folder_.train, &folder_.validation}) {
    for (const std::string& path : *files) {
      for_ids(TokenFile(path), options_.vocabulary.value_or(detail::kLargestId + 1),
              [&](std::span<const std::int32_t> ids) {
                largest = std::max<std::int64_t>(largest, *std::max_element(ids.begin(), ids.end()));
                count(ids.size(), 0);
              });
    }
  }
  const int width = largest < 256 ? 1 : largest < 65536 ? 2 : 4;
  PackedTokensWriter writer(options_.out, ids_, width);
  const auto add = [&](bool validation, const std::string& name, const TokenIds& part) {
    writer.begin_part(validation, name, part.fingerprint());
    for_ids(part, largest + 1, [&](std::span<const std::int32_t> ids) {
      writer.add(ids);
      count(ids.size(), writer.bytes());
    });
  };
  if (text) {
    add(false, "train", TextIds(text_.train));
    add(true, "val", TextIds(text_.validation));
  }
  for (const std::vector<std::string>* files : {&folder_.train, &folder_.validation}) {
    for (const std::string& path : *files) {
      add(files == &folder_.validation, std::filesystem::path(path).filename().string(), TokenFile(path));
    }
  }
  writer.commit();
  return {.vocabulary = writer.vocabulary(), .width = width, .bytes = writer.bytes()};
}

}  // namespace lockstep::nn
