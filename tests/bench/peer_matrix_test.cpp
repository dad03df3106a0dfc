#include "bench/support/peer_matrix.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

const std::vector<Device> kGpus{Device::cuda(0), Device::cuda(1), Device::cuda(3)};

TEST(PeerMatrix, HasEveryPairAtTheLargestSize) {
  const std::vector<PeerRate> rates{
      {Device::cuda(0), Device::cuda(1), 1 << 20, 1e9},    {Device::cuda(0), Device::cuda(1), 1 << 30, 371.234e9},
      {Device::cuda(1), Device::cuda(0), 1 << 30, 25.5e9}, {Device::cuda(0), Device::cuda(3), 1 << 20, 7e9},
      {Device::cuda(3), Device::cuda(0), 1 << 30, 0.5e9},  {Device::cuda(3), Device::cuda(0), 1 << 30, 9e9},
      {Device::cuda(3), Device::cuda(1), 1 << 30, NAN}};
  EXPECT_EQ(peer_matrix(kGpus, rates),
            "GB/s one way, 1073741824 bytes, from each GPU (row) to each other\n"
            "            cuda:0   cuda:1   cuda:3\n"
            "   cuda:0        -   371.23      n/a\n"
            "   cuda:1    25.50        -      n/a\n"
            "   cuda:3     9.00      n/a        -\n");
}

TEST(PeerMatrix, IsNothingWithoutAMeasurement) {
  EXPECT_EQ(peer_matrix(kGpus, {}), "");
  EXPECT_EQ(peer_matrix({}, {}), "");
}

}  // namespace
}  // namespace lockstep::bench
