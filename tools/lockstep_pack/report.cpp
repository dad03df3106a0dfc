#include "tools/lockstep_pack/report.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::tools {
namespace {

/// Formats a time as "3 h 12 min" or "41 s".
std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 60) {
    return concat(whole, " s");
  }
  return whole < 3600 ? concat(whole / 60, " min ", whole % 60, " s")
                      : concat(whole / 3600, " h ", whole / 60 % 60, " min");
}

std::string bytes_of(std::uint64_t bytes) {
  return bytes_text(static_cast<double>(bytes));
}

/// Returns the unit of a file's ids: "tokens" or "bytes of text".
const char* unit_of(nn::PackedIds ids) {
  return ids == nn::PackedIds::text ? "bytes of text" : "tokens";
}

/// Returns a line for each damaged sample or block that `check` names, and a line with the number of all other damaged
/// samples or blocks.
std::string damage_text(const nn::PackedCheck& check) {
  std::string text;
  for (const std::string& damage : check.texts) {
    text += damage + "\n";
  }
  const std::int64_t more = check.damaged - static_cast<std::int64_t>(check.texts.size());
  return more > 0 ? concat(text, "and ", more, " more\n") : text;
}

/// Returns the texts of the damage as JSON. JSON holds UTF-8 only, while file names may hold any bytes.
Json::Array texts_of(const nn::PackedCheck& check) {
  Json::Array texts;
  for (const std::string& text : check.texts) {
    texts.emplace_back(utf8_text(text));
  }
  return texts;
}

/// Returns the number of the file's ids for training, and the number for validation.
std::pair<std::int64_t, std::int64_t> tokens_of(const nn::PackedTokens& file) {
  std::int64_t train = 0;
  std::int64_t validation = 0;
  for (std::size_t i = 0; i < file.parts().size(); ++i) {
    (i < file.train_parts() ? train : validation) += file.parts()[i].size;
  }
  return {train, validation};
}

}  // namespace

std::string pack_header(const nn::FolderPack& pack) {
  const nn::PackOptions& options = pack.options();
  std::string stored = "the files as they are, every one decoded once to find damage";
  if (options.store == nn::PackedStore::pixels) {
    stored = options.resize > 0 ? concat("pixels, larger pictures resized to a shorter side of ", options.resize)
                                : std::string("pixels of the pictures' own size");
  }
  return concat("lockstep-pack\n  pictures   ", displayed(options.folder), ": ", pack.train_size(), " training and ",
                pack.test_size(), " test images, ", pack.class_names().size(), " classes; ", pack.about(),
                "\n  file       ", displayed(options.out), options.overwrite ? ", an older one is replaced" : "",
                "; appears when it is whole\n  stored     ", stored,
                options.shuffle ? "; the training pictures in a random order" : "", "\n  damaged    ",
                options.skip_damaged ? "images are left out" : "images end the program (--skip-damaged)",
                "\n  threads    ", options.threads, "\n");
}

std::string pack_progress(const nn::PackProgress& progress, double seconds) {
  const double share = static_cast<double>(progress.done) / static_cast<double>(progress.all);
  return concat(progress.done, " of ", progress.all, ' ', progress.what, ", ", percent_text(share), ", ",
                bytes_of(progress.bytes), ", ", duration(share > 0 ? seconds * (1 - share) / share : 0), " left");
}

std::string pack_report(const nn::FolderPack& pack, const nn::PackSummary& summary, double seconds) {
  constexpr std::size_t kShown = 10;
  std::string text = concat(displayed(pack.options().out), ": ", summary.train, " training and ", summary.test,
                            " test images, ", bytes_of(summary.bytes), ", in ", duration(seconds), "\n");
  if (pack.options().resize > 0) {
    text += concat("  ", summary.resized, " pictures were resized\n");
  }
  if (!summary.damaged.empty()) {
    text += concat("  ", summary.damaged.size(), " damaged images were left out:\n");
  }
  for (std::size_t i = 0; i < summary.damaged.size() && i < kShown; ++i) {
    text += concat("    ", summary.damaged[i].text, "\n");
  }
  if (summary.damaged.size() > kShown) {
    text += concat("    and ", summary.damaged.size() - kShown, " more (--json has all)\n");
  }
  return text + concat("  train_resnet --data packed:", displayed(pack.options().out), "\n");
}

Json pack_json(const nn::FolderPack& pack, const nn::PackSummary& summary, double seconds) {
  Json::Array damaged;
  for (const nn::DamagedImage& image : summary.damaged) {
    Json::Object entry;
    entry["file"] = utf8_text(image.file);
    entry["text"] = utf8_text(image.text);
    damaged.emplace_back(std::move(entry));
  }
  const nn::PackOptions& options = pack.options();
  Json::Object json;
  json["folder"] = utf8_text(options.folder);
  json["file"] = utf8_text(options.out);
  json["store"] = nn::name_of(options.store);
  json["resize"] = options.resize;
  json["shuffled"] = options.shuffle;
  json["classes"] = static_cast<std::int64_t>(pack.class_names().size());
  json["training_images"] = summary.train;
  json["test_images"] = summary.test;
  json["resized_images"] = summary.resized;
  json["damaged_images"] = std::move(damaged);
  json["bytes"] = summary.bytes;
  json["seconds"] = seconds;
  return json;
}

std::string check_report(const nn::PackedFile& file, const nn::PackedCheck& check) {
  if (check.damaged == 0) {
    const bool unseen = file.store() == nn::PackedStore::files && !check.decoded;
    return concat(file.train_size() + file.test_size(), " samples, ", file.class_names().size(), " classes, ",
                  file.bytes(), " bytes: all checksums right",
                  unseen ? "; no picture was decoded, as this build reads no JPEG and PNG files" : "", "\n");
  }
  return damage_text(check);
}

std::string pack_header(const nn::TokenPack& pack) {
  const nn::TokenPackOptions& options = pack.options();
  std::string stored = "the bytes as they are";
  if (pack.ids() == nn::PackedIds::tokens) {
    stored = concat("token ids of 1, 2 or 4 bytes, as the largest needs\n  vocabulary ",
                    options.vocabulary.has_value() ? concat("ids are below ", *options.vocabulary)
                                                   : std::string("any ids (--vocabulary)"));
  }
  return concat("lockstep-pack\n  source     ", displayed(options.source), ": ", counted(pack.files(), "file"), ", ",
                pack.train_tokens(), ' ', unit_of(pack.ids()), " to train on and ", pack.validation_tokens(),
                " for validation\n  file       ", displayed(options.out),
                options.overwrite ? ", an older one is replaced" : "", "; appears when it is whole\n  stored     ",
                stored, "\n");
}

std::string pack_report(const nn::TokenPack& pack, const nn::TokenPackSummary& summary, double seconds) {
  const bool tokens = pack.ids() == nn::PackedIds::tokens;
  return concat(displayed(pack.options().out), ": ", pack.train_tokens(), ' ', unit_of(pack.ids()), " to train on and ",
                pack.validation_tokens(), " for validation, ", bytes_of(summary.bytes), ", in ", duration(seconds),
                "\n  the largest id is ", summary.vocabulary - 1, "; ", counted(summary.width, "byte"),
                " each\n  train_text --data packed:", displayed(pack.options().out),
                tokens ? " --vocabulary N, as with tokens:DIR" : "", "\n");
}

Json pack_json(const nn::TokenPack& pack, const nn::TokenPackSummary& summary, double seconds) {
  const nn::TokenPackOptions& options = pack.options();
  Json::Object json;
  json["source"] = utf8_text(options.source);
  json["file"] = utf8_text(options.out);
  json["ids"] = nn::name_of(pack.ids());
  json["files"] = pack.files();
  json["training_tokens"] = pack.train_tokens();
  json["validation_tokens"] = pack.validation_tokens();
  json["vocabulary"] = summary.vocabulary;
  json["bytes_per_id"] = summary.width;
  json["bytes"] = summary.bytes;
  json["seconds"] = seconds;
  return json;
}

std::string check_report(const nn::PackedTokens& file, const nn::PackedCheck& check) {
  if (check.damaged > 0) {
    return damage_text(check);
  }
  const auto [train, validation] = tokens_of(file);
  return concat(train, " and ", validation, ' ', unit_of(file.ids()), " of a vocabulary of ", file.vocabulary(),
                ", in ", file.parts().size(), " parts of ", counted(file.width(), "byte"), " an id, ", file.bytes(),
                " bytes: all checksums right\n");
}

Json check_json(const nn::PackedFile& file, const nn::PackedCheck& check) {
  Json::Object json;
  json["file"] = utf8_text(file.path());
  json["store"] = nn::name_of(file.store());
  json["classes"] = static_cast<std::int64_t>(file.class_names().size());
  json["training_images"] = file.train_size();
  json["test_images"] = file.test_size();
  json["bytes"] = file.bytes();
  json["decoded"] = check.decoded;
  json["damaged"] = check.damaged;
  json["texts"] = texts_of(check);
  return json;
}

Json check_json(const nn::PackedTokens& file, const nn::PackedCheck& check) {
  const auto [train, validation] = tokens_of(file);
  Json::Object json;
  json["file"] = utf8_text(file.path());
  json["ids"] = nn::name_of(file.ids());
  json["vocabulary"] = file.vocabulary();
  json["parts"] = static_cast<std::int64_t>(file.parts().size());
  json["training_tokens"] = train;
  json["validation_tokens"] = validation;
  json["bytes_per_id"] = file.width();
  json["bytes"] = file.bytes();
  json["blocks"] = file.blocks();
  json["damaged"] = check.damaged;
  json["texts"] = texts_of(check);
  return json;
}

std::string checked_text(const nn::PackedFile& file) {
  return concat(file.train_size() + file.test_size(), " samples");
}

std::string checked_text(const nn::PackedTokens& file) {
  return concat(file.blocks(), " blocks of ids");
}

}  // namespace lockstep::tools
