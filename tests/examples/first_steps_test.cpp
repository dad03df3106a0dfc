// Tests that first_steps exits with 0 and prints the expected lines about devices, tensors, copies and the network.
#include <string>

#include <gtest/gtest.h>

#include <lockstep/runtime/machine/device.hpp>

#include "tests/support/run_command.hpp"

namespace lockstep {
namespace {

TEST(FirstSteps, SaysWhatTheChapterSays) {
  const testing::Ended ended = testing::run_command(FIRST_STEPS).finished();
  const auto shows = [&](const std::string& line) {
    EXPECT_NE(ended.output.find(line + "\n"), std::string::npos) << line << "\nis not in\n" << ended.output;
  };
  const int gpus = num_gpus();
  const std::string first = gpus > 0 ? "cuda:0" : "cpu";
  const std::string second = gpus > 1 ? "cuda:1" : first;
  const std::string other = gpus > 1 ? first : "cuda:" + std::to_string(gpus);
  shows("Device::cpu(), Device::gpu(0), Device::parse(\"gpu:1\"): cpu, cuda:0, cuda:1");
  shows("num_gpus(): " + std::to_string(gpus));
  shows("try_gpu(): " + first + "; try_gpu(10): cpu");
  shows("x = [1., 2., 3.] f32 (3) on cpu");
  shows("X =\n[[1., 1., 1.],\n [1., 1., 1.]] f32 (2, 3) on " + first);
  shows("Y + X: add: tensor 1 is on " + other + ", expected " + second);
  shows("Z = X.to(second) =\n[[1., 1., 1.],\n [1., 1., 1.]] f32 (2, 3) on " + second);
  shows("Z.to(second) has the storage of Z: yes");
  shows("X.to(second) has the storage of X: " + std::string(first == second ? "yes" : "no") + ", X is on " + first +
        " and second on " + second);
  // The random numbers depend only on a seed, so they are the same on every machine.
  shows("Y =\n[[0.6412, 0.1913, 0.3552],\n [0.0637, 0.6301, 0.0388]] f32 (2, 3) on " + second);
  shows("Y + Z =\n[[1.6412, 1.1913, 1.3552],\n [1.0637, 1.6301, 1.0388]] f32 (2, 3) on " + second);
  if (gpus == 0) {
    shows("0.weight: f32 (1, 3) on cpu");
    shows("0.bias: f32 (1) on cpu");
    // Each output is 1 + 2 + 3 + 0.5, the weights and the bias, because the input is 1.
    shows("net(X) =\n[[6.5000],\n [6.5000]] f32 (2, 1) on cpu");
  }
}

}  // namespace
}  // namespace lockstep
