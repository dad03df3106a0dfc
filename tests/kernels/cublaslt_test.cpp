// Tests how the cuBLASLt provider describes matrix products, without the library. A naive loop that follows the
// description must give the result of the host's reference. The text of an algorithm must parse to the same algorithm.
#include <lockstep/kernels/cublaslt/description.hpp>

#include <gtest/gtest.h>

#include "tests/kernels/matmul_cases.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::MatmulDesc;
using ops::cublaslt::Algorithm;
using ops::cublaslt::ColumnMajor;
using ops::cublaslt::Description;

/// Returns out (+)= op(first) op(second) + bias along out's rows. The arguments are read as cuBLASLt reads column-major
/// matrices.
std::vector<double> multiply(const MatmulDesc& d, const Description& description, const std::vector<double>& first,
                             const std::vector<double>& second, const std::vector<double>& bias,
                             std::vector<double> out) {
  const auto at = [](const ColumnMajor& matrix, std::int64_t product, std::int64_t i, std::int64_t j) {
    EXPECT_TRUE(i < matrix.rows && j < matrix.columns && matrix.leading >= matrix.rows);
    return static_cast<std::size_t>(product * matrix.stride + j * matrix.leading + i);
  };
  const ColumnMajor& c = description.out;
  const std::int64_t sum = description.transpose_first ? description.first.rows : description.first.columns;
  EXPECT_EQ(sum, description.transpose_second ? description.second.columns : description.second.rows);
  for (std::int64_t product = 0; product < description.products; ++product) {
    for (std::int64_t i = 0; i < c.rows; ++i) {
      for (std::int64_t j = 0; j < c.columns; ++j) {
        double total = bias.empty() ? 0.0 : bias.at(static_cast<std::size_t>(i));
        for (std::int64_t l = 0; l < sum; ++l) {
          total += first.at(description.transpose_first ? at(description.first, product, l, i)
                                                        : at(description.first, product, i, l)) *
                   second.at(description.transpose_second ? at(description.second, product, j, l)
                                                          : at(description.second, product, l, j));
        }
        double& to = out.at(at(c, product, i, j));
        to = d.grad_mode == ops::GradMode::accumulate ? to + total : total;
      }
    }
  }
  return out;
}

TEST(CublasLt, TheDescriptionReadsAsTheSameProduct) {
  for (const MatmulDesc& d : matmul_descs(DType::f64)) {
    expect_matches(matmul_case(d, "reference"), [&](Inputs in, Outputs expected) {
      expected[0].assign(multiply(d, ops::cublaslt::describe(d), in[1].values(), in[0].values(),
                                  d.bias ? in[2].values() : std::vector<double>(), expected[0].values()));
    });
  }
}

TEST(CublasLt, AnotherDescriptionIsAnotherProduct) {
  MatmulDesc d;
  d.m = d.n = d.k = 2;
  const std::vector<double> a{1, 2, 3, 4};
  const std::vector<double> b{5, 6, 7, 8};
  Description description = ops::cublaslt::describe(d);
  EXPECT_EQ(multiply(d, description, b, a, {}, {0, 0, 0, 0}), (std::vector<double>{19, 22, 43, 50}));
  description.transpose_first = true;
  EXPECT_EQ(multiply(d, description, b, a, {}, {0, 0, 0, 0}), (std::vector<double>{17, 23, 39, 53}));
}

TEST(CublasLt, TheEpilogueHasBiasAndActivation) {
  using ops::Activation;
  using ops::cublaslt::Epilogue;
  using Function = Epilogue::Function;
  const auto of = [](DType dtype, bool bias, Activation activation, bool accumulator_output = false) {
    MatmulDesc d;
    d.dtype = dtype;
    d.bias = bias;
    d.activation = activation;
    d.accumulator_output = accumulator_output;
    return ops::cublaslt::epilogue_of(d);
  };
  EXPECT_EQ(of(DType::f32, false, Activation::identity), Epilogue{});
  EXPECT_EQ(of(DType::f32, true, Activation::identity), (Epilogue{true, false, Function::none}));
  EXPECT_EQ(of(DType::f32, true, Activation::relu), (Epilogue{true, false, Function::relu}));
  EXPECT_EQ(of(DType::f32, false, Activation::gelu_tanh), (Epilogue{false, false, Function::gelu}));
  for (const DType dtype : {DType::bf16, DType::f16}) {
    EXPECT_EQ(of(dtype, true, Activation::gelu_tanh), (Epilogue{true, true, Function::gelu}));
    EXPECT_EQ(of(dtype, true, Activation::relu, true), (Epilogue{true, false, Function::relu}));  // c is f32
    EXPECT_EQ(of(dtype, false, Activation::relu), (Epilogue{false, false, Function::relu}));
  }
  for (const Activation other : {Activation::gelu, Activation::silu, Activation::tanh, Activation::sigmoid}) {
    EXPECT_THROW((void)of(DType::f32, true, other), UnsupportedError);
  }
}

TEST(CublasLt, AChoiceIsTheAlgorithm) {
  const Algorithm algorithm{66, 20, 36, 3, 2, 1, 7, 4, 5};
  const std::string text = ops::cublaslt::choice_text(algorithm);
  EXPECT_EQ(text, "cublaslt:66-20-36-3-2-1-7-4-5");
  EXPECT_EQ(ops::cublaslt::parse_choice(text), algorithm);
  Algorithm with_bytes = algorithm;
  with_bytes.bytes = {0x0123456789abcdef, 0, 1, 2, 3, 4, 5, 0xfedcba9876543210};
  const std::string longer = ops::cublaslt::choice_text(with_bytes);
  EXPECT_EQ(longer, text + ":0123456789abcdef0000000000000000000000000000000100000000000000020000000000000003" +
                        "00000000000000040000000000000005fedcba9876543210");
  EXPECT_EQ(ops::cublaslt::parse_choice(longer), with_bytes);
  EXPECT_NE(ops::cublaslt::parse_choice(longer), algorithm);
  for (const std::string& wrong : {longer.substr(0, longer.size() - 1), longer + "0", longer + ":", text + ":",
                                   longer.substr(0, longer.size() - 1) + "g"}) {
    EXPECT_THROW((void)ops::cublaslt::parse_choice(wrong), UsageError) << wrong;
  }
  const Algorithm largest{INT32_MAX, UINT32_MAX, UINT32_MAX, INT32_MAX, 4, 1, UINT32_MAX, UINT16_MAX, UINT16_MAX};
  EXPECT_EQ(ops::cublaslt::parse_choice(ops::cublaslt::choice_text(largest)), largest);
  EXPECT_NE(ops::cublaslt::parse_choice(ops::cublaslt::choice_text(largest)), algorithm);
}

TEST(CublasLt, OtherTextsAreNoChoice) {
  for (const char* text :
       {"", "cublaslt", "cublaslt:", "onednn:66-20-36-3-2-1-7-4-5", "cublaslt:66-20-36-3-2-1-7-4",
        "cublaslt:66-20-36-3-2-1-7-4-5-6", "cublaslt:66-20-36-3-2-1-7-4-", "cublaslt:66-20-36-3-2-1-7-4-5 ",
        "cublaslt:-66-20-36-3-2-1-7-4-5", "cublaslt:66-20-36-3-2-1-7-4-65536", "cublaslt:66-20--36-3-2-1-7-4-5",
        "cublaslt:x-20-36-3-2-1-7-4-5", "cublaslt:66,20,36,3,2,1,7,4,5"}) {
    EXPECT_THROW((void)ops::cublaslt::parse_choice(text), UsageError) << text;
  }
}

}  // namespace
}  // namespace lockstep::testing
