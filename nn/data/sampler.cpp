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

Permutation::Permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t size)
    : size_(static_cast<std::uint64_t>(size)) {
  require<UsageError>(size > 0, "permutation of ", size, " samples, expected at least 1");
  const int bits = std::max(2, static_cast<int>(std::bit_width(size_ - 1)));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  Random random(seed, RandomUse::shuffle, static_cast<std::uint64_t>(epoch));
  for (std::uint64_t& key : keys_) {
    const std::uint64_t high = random.bits();
    key = high << 32 | random.bits();
  }
}

std::int64_t Permutation::operator()(std::int64_t position) const {
  auto x = static_cast<std::uint64_t>(position);
  do {
    // The halves differ by a bit when the width is odd: even rounds change the left one, odd rounds the right one.
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

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  require<UsageError>(options.size > 0 && options.batch_size > 0, "sampler: ", options.size, " samples in batches of ",
                      options.batch_size, ", expected positive numbers");
  require<UsageError>(options.ranks > 0 && options.rank >= 0 && options.rank < options.ranks, "sampler: rank ",
                      options.rank, " of ", options.ranks, " ranks");
  require<UsageError>(options.batch_size >= options.ranks, "batch size ", options.batch_size,
                      " is smaller than the number of ranks, ", options.ranks, ": expected at least one sample a rank");
  options_.parts = options.parts == 0 ? options.ranks : options.parts;
  require<UsageError>(options_.parts > 0 && options_.parts % options.ranks == 0, "sampler: ", options.parts,
                      " parts for ", options.ranks, " ranks, expected a multiple");
  require<UsageError>(options.batch_size >= options_.parts, "batch size ", options.batch_size,
                      " is smaller than the number of parts, ", options_.parts);
  require<UsageError>(options.keep_last || options.batch_size <= options.size, "batch size ", options.batch_size,
                      " is larger than the data set, ", options.size, " samples");
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
  require<UsageError>(batch >= 0 && batch < all, "sampler: batch ", batch, ", expected 0 to ", all - 1);
  return std::min(options_.batch_size, options_.size - skipped - batch * options_.batch_size);
}

Partition Sampler::share(std::int64_t batch, std::int64_t skipped) const {
  const Partition own = share_of(samples(batch, skipped), options_.rank);
  return {skipped + batch * options_.batch_size + own.begin, own.count};
}

}  // namespace lockstep::nn
