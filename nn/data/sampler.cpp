#include <lockstep/nn/data/sampler.hpp>

#include <algorithm>
#include <bit>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn {
namespace {

// Finaliser of MurmurHash3 (Appleby, public domain): every input bit affects every output bit.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

std::uint64_t low_bits(std::uint64_t x, int bits) {
  return x & ((std::uint64_t{1} << bits) - 1);
}

}  // namespace

Permutation::Permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t size, std::uint64_t part)
    : size_(static_cast<std::uint64_t>(size)) {
  require<UsageError>(size > 0, "permutation of ", size, " samples, expected at least 1");
  const int bits = std::max(2, static_cast<int>(std::bit_width(size_ - 1)));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  Random random(seed, RandomUse::shuffle, static_cast<std::uint64_t>(epoch), part);
  for (std::uint64_t& key : keys_) {
    const std::uint64_t high = random.bits();
    key = high << 32 | random.bits();
  }
}

std::int64_t Permutation::operator()(std::int64_t position) const {
  auto x = static_cast<std::uint64_t>(position);
  do {
    // Even rounds change the left half, odd rounds the right half. If the number of bits is odd, the right half has one
    // bit more.
    std::uint64_t left = x >> right_bits_;
    std::uint64_t right = low_bits(x, right_bits_);
    for (std::size_t round = 0; round < kRounds; round += 2) {
      left ^= low_bits(mix(right + keys_[round]), left_bits_);
      right ^= low_bits(mix(left + keys_[round + 1]), right_bits_);
    }
    x = left << right_bits_ | right;
  } while (x >= size_);
  return static_cast<std::int64_t>(x);
}

std::int64_t Permutation::position_of(std::int64_t value) const {
  auto x = static_cast<std::uint64_t>(value);
  do {
    std::uint64_t left = x >> right_bits_;
    std::uint64_t right = low_bits(x, right_bits_);
    for (std::size_t round = kRounds; round > 0; round -= 2) {
      right ^= low_bits(mix(left + keys_[round - 1]), right_bits_);
      left ^= low_bits(mix(right + keys_[round - 2]), left_bits_);
    }
    x = left << right_bits_ | right;
  } while (x >= size_);
  return static_cast<std::int64_t>(x);
}

Sampler::Order::Order(const SamplerOptions& options, std::int64_t epoch)
    : seed_(options.seed),
      epoch_(epoch),
      size_(options.size),
      shuffle_(options.shuffle),
      chunk_(options.shuffle ? std::min(options.chunk, options.size) : 0),
      chunks_(chunk_ > 0 ? (size_ - 1) / chunk_ + 1 : 1),
      windows_(std::max<std::int64_t>(1, chunks_ / kWindowChunks)),
      permutation_(options.seed, epoch, chunk_ > 0 ? chunks_ : options.size) {
  if (chunk_ > 0) {
    last_place_ = permutation_.position_of(chunks_ - 1);
    missing_ = chunks_ * chunk_ - size_;
  }
}

std::int64_t Sampler::Order::begin_of(std::int64_t place) const {
  return place * chunk_ - (place > last_place_ ? missing_ : 0);
}

std::int64_t Sampler::Order::place_of(std::int64_t position) const {
  const std::int64_t place = position / chunk_;
  // The data set's last chunk has only chunk_ - missing_ positions. So each chunk that follows this chunk in the
  // permuted row begins at place * chunk_ - missing_.
  return position < begin_of(last_place_ + 1) ? place : (position + missing_) / chunk_;
}

std::int64_t Sampler::Order::window_of(std::int64_t position) const {
  if (windows_ == 1) {
    return 0;
  }
  const std::int64_t place = place_of(position);
  const std::int64_t chunks = chunks_ / windows_;  // chunks of a small window; the first `larger` windows have one more
  const std::int64_t larger = chunks_ % windows_;
  const std::int64_t behind = place - larger * (chunks + 1);
  return behind < 0 ? place / (chunks + 1) : larger + behind / chunks;
}

Partition Sampler::Order::positions_of(std::int64_t window) const {
  if (windows_ == 1) {
    return {0, size_};
  }
  const Partition places = partition_of(chunks_, windows_, window);
  const std::int64_t begin = begin_of(places.begin);
  return {begin, begin_of(places.begin + places.count) - begin};
}

std::int64_t Sampler::Order::most_positions() const {
  return windows_ == 1 ? size_ : partition_of(chunks_, windows_, 0).count * chunk_;
}

std::int64_t Sampler::Order::in_chunks(std::int64_t position) const {
  const std::int64_t window = window_of(position);
  const Partition positions = positions_of(window);
  const Permutation within(seed_, epoch_, positions.count, static_cast<std::uint64_t>(window) + 2);
  const std::int64_t at = positions.begin + within(position - positions.begin);
  const std::int64_t place = place_of(at);
  return permutation_(place) * chunk_ + at - begin_of(place);
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  require<UsageError>(options.size > 0 && options.batch_size > 0, "sampler: ", options.size, " samples in batches of ",
                      options.batch_size, ", expected positive numbers");
  require<UsageError>(options.ranks > 0 && options.rank >= 0 && options.rank < options.ranks, "sampler: rank ",
                      options.rank, " of ", options.ranks, " ranks, expected 0 <= rank < ranks");
  require<UsageError>(options.batch_size >= options.ranks, "batch size ", options.batch_size,
                      " is smaller than the number of ranks, ", options.ranks, ": expected at least one sample a rank");
  options_.parts = options.parts == 0 ? options.ranks : options.parts;
  require<UsageError>(options_.parts > 0 && options_.parts % options.ranks == 0, "sampler: parts is ", options.parts,
                      ", expected a multiple of the ", options.ranks, " ranks, or 0 for one part a rank");
  require<UsageError>(options.batch_size >= options_.parts, "batch size ", options.batch_size,
                      " is smaller than the number of parts, ", options_.parts,
                      ": expected at least one sample a part");
  require<UsageError>(options.chunk >= 0, "sampler: chunks of ", options.chunk, " samples, expected at least 0");
  require<UsageError>(options.keep_last || options.batch_size <= options.size, "batch size ", options.batch_size,
                      " is larger than the data set, ", options.size,
                      " samples: expected keep_last or a smaller batch");
  batches_ = batches(0);
}

std::int64_t Sampler::batches(std::int64_t skipped) const {
  require<UsageError>(skipped >= 0 && skipped <= options_.size, "sampler: ", skipped,
                      " samples are left out, expected ", "0 to ", options_.size);
  const std::int64_t left = options_.size - skipped;
  return left / options_.batch_size + (options_.keep_last && left % options_.batch_size != 0 ? 1 : 0);
}

std::int64_t Sampler::capacity() const {
  return share_of(options_.batch_size, 0).count;
}

Partition Sampler::share_of(std::int64_t samples, int rank) const {
  const std::int64_t each = options_.parts / options_.ranks;
  const Partition first = partition_of(samples, options_.parts, rank * each);
  const Partition last = partition_of(samples, options_.parts, (rank + 1) * each - 1);
  return {first.begin, last.begin + last.count - first.begin};
}

Partition Sampler::part_of_share(std::int64_t samples, std::int64_t part) const {
  const std::int64_t first = options_.rank * (options_.parts / options_.ranks);
  const Partition own = partition_of(samples, options_.parts, first + part);
  return {own.begin - share_of(samples, options_.rank).begin, own.count};
}

std::int64_t Sampler::samples(std::int64_t batch, std::int64_t skipped) const {
  const std::int64_t all = batches(skipped);
  require<UsageError>(batch >= 0 && batch < all, "sampler: batch is ", batch, ", expected 0 to ", all - 1);
  return std::min(options_.batch_size, options_.size - skipped - batch * options_.batch_size);
}

Partition Sampler::share(std::int64_t batch, std::int64_t skipped) const {
  const Partition own = share_of(samples(batch, skipped), options_.rank);
  return {skipped + batch * options_.batch_size + own.begin, own.count};
}

}  // namespace lockstep::nn
