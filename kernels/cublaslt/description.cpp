#include <lockstep/kernels/cublaslt/description.hpp>

#include <charconv>
#include <cstddef>
#include <system_error>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::ops::cublaslt {
namespace {

constexpr std::string_view kPrefix = "cublaslt:";
constexpr std::string_view kDigits = "0123456789abcdef";

/// Returns the layout of a row-major matrix (one per product), read as its transpose in column-major order.
ColumnMajor turned(std::int64_t rows, std::int64_t columns) {
  return {columns, rows, columns, rows * columns};
}

/// Calls f for each setting of an algorithm, in the order in which the text of a choice has them.
template <class A, class F>
void for_each_setting(A& algorithm, F f) {
  f(algorithm.id);
  f(algorithm.tile);
  f(algorithm.stages);
  f(algorithm.split_k);
  f(algorithm.reduction);
  f(algorithm.swizzle);
  f(algorithm.custom);
  f(algorithm.inner_shape);
  f(algorithm.cluster_shape);
}

}  // namespace

Description describe(const MatmulDesc& d) {
  return {d.products(),
          d.transpose_b,
          d.transpose_a,
          d.transpose_b ? turned(d.n, d.k) : turned(d.k, d.n),
          d.transpose_a ? turned(d.k, d.m) : turned(d.m, d.k),
          turned(d.m, d.n)};
}

Epilogue epilogue_of(const MatmulDesc& d) {
  Epilogue epilogue{.bias = d.bias, .rounds_bias = d.bias && size_of(d.c_dtype()) == 2};
  switch (d.activation) {
    case Activation::identity:
      return epilogue;
    case Activation::relu:
      epilogue.function = Epilogue::Function::relu;
      return epilogue;
    case Activation::gelu_tanh:
      epilogue.function = Epilogue::Function::gelu;
      return epilogue;
    default:
      throw UnsupportedError(
          concat("matmul: activation is ", name_of(d.activation), ", expected relu or gelu_tanh with cublaslt"));
  }
}

std::string choice_text(const Algorithm& algorithm) {
  std::string text;
  for_each_setting(algorithm, [&](auto value) { text += concat(text.empty() ? kPrefix : "-", value); });
  if (algorithm.bytes) {
    text += ':';
    for (const std::uint64_t word : *algorithm.bytes) {
      for (int shift = 60; shift >= 0; shift -= 4) {
        text += kDigits[word >> shift & 15];
      }
    }
  }
  return text;
}

Algorithm parse_choice(std::string_view choice) {
  Algorithm algorithm;
  const char* at = choice.data() + (choice.substr(0, kPrefix.size()) == kPrefix ? kPrefix.size() : 0);
  const char* const end = choice.data() + choice.size();
  bool good = at != choice.data();
  bool first = true;
  for_each_setting(algorithm, [&](auto& value) {
    if (!first) {
      good = good && at != end && *at == '-';
      at += good ? 1 : 0;
    }
    first = false;
    if (good) {
      const auto [stop, error] = std::from_chars(at, end, value);
      good = error == std::errc() && value >= 0;
      at = stop;
    }
  });
  if (good && at != end && *at == ':') {
    ++at;
    for (std::uint64_t& word : algorithm.bytes.emplace()) {
      for (int digit = 0; digit < 16 && good; ++digit) {
        const std::size_t value = at == end ? std::string_view::npos : kDigits.find(*at++);
        good = value != std::string_view::npos;
        word = word << 4 | value;
      }
    }
  }
  require<UsageError>(good && at == end, "matmul: choice is '", choice,
                      "', expected cublaslt: and nine whole numbers with - between them, and nothing or : and 128 "
                      "hexadecimal digits");
  return algorithm;
}

}  // namespace lockstep::ops::cublaslt
