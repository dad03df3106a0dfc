#include "bench/support/peer_matrix.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/support/report.hpp"

namespace lockstep::bench {
namespace {

const std::vector<Device> kGpus{Device::cuda(0), Device::cuda(1), Device::cuda(3)};

TEST(PeerMatrix, HasEveryPairAtTheLargestSize) {
  const std::vector<PeerRate> rates{
      {Device::cuda(0), Device::cuda(1), 1 << 20, 1e9},    {Device::cuda(0), Device::cuda(1), 1 << 30, 371.234e9},
      {Device::cuda(1), Device::cuda(0), 1 << 30, 25.5e9}, {Device::cuda(0), Device::cuda(3), 1 << 20, 7e9},
      {Device::cuda(3), Device::cuda(0), 1 << 30, 0.5e9},  {Device::cuda(3), Device::cuda(0), 1 << 30, 9e9},
      {Device::cuda(3), Device::cuda(1), 1 << 30, NAN}};
  const std::optional<Conclusion> matrix = peer_matrix(kGpus, rates);
  ASSERT_TRUE(matrix);
  EXPECT_EQ(matrix->name, "peers");
  EXPECT_EQ(matrix->text,
            "GB/s one way, 1073741824 bytes, from each GPU (row) to each other\n"
            "            cuda:0   cuda:1   cuda:3\n"
            "   cuda:0        -   371.23      n/a\n"
            "   cuda:1    25.50        -      n/a\n"
            "   cuda:3     9.00      n/a        -");
  ASSERT_EQ(matrix->counters.size(), 6U);
  EXPECT_EQ(matrix->counters[0].name, "0_to_1");
  EXPECT_EQ(matrix->counters[0].value, 371.234e9);
  EXPECT_EQ(matrix->counters[1].name, "0_to_3");
  EXPECT_TRUE(std::isnan(matrix->counters[1].value)) << "of a smaller size";
  const std::string json = report_json({}, {}, {*matrix});
  EXPECT_NE(json.find("\"1_to_0\""), std::string::npos) << json;
  EXPECT_EQ(json.find("\"0_to_3\""), std::string::npos) << json;
}

TEST(PeerMatrix, IsNothingWithoutAMeasurement) {
  EXPECT_FALSE(peer_matrix(kGpus, {}));
  EXPECT_FALSE(peer_matrix({}, {}));
}

}  // namespace
}  // namespace lockstep::bench
