#include <lockstep/nn/data/partition.hpp>

#include <algorithm>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

Partition partition_of(std::int64_t total, std::int64_t parts, std::int64_t index) {
  require<UsageError>(total >= 0 && index >= 0 && index < parts, "part ", index, " of ", total, " in ", parts,
                      " parts, expected nothing negative and an index below the number of parts");
  const std::int64_t least = total / parts;
  const std::int64_t larger = total % parts;
  return {index * least + std::min(index, larger), least + (index < larger ? 1 : 0)};
}

}  // namespace lockstep::nn
