// library_sweep: a fuzzer of the CPU libraries of this build. It compares their convolutions and matrix products of
// random shapes with sums in f64. Guard bytes surround every tensor and workspace. Each chunk of shapes runs in a
// process of its own, so that a crash is only one finding. For a shape that fails, the program prints the smallest
// shape that still fails.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "tests/support/guarded.hpp"

namespace lockstep::testing {
namespace {

struct Case {
  bool conv = true;
  ops::ConvDesc desc{};
  ops::ConvPass pass = ops::ConvPass::forward;
  ops::MatmulDesc product{};
  int threads = 1;
};

std::string text_of(const Case& c) {
  const auto sizes = [&](const std::array<std::int64_t, 3>& all) {
    std::string text;
    for (std::size_t i = 0; i < static_cast<std::size_t>(c.desc.spatial_rank); ++i) {
      text += concat(i == 0 ? "" : "x", all[i]);
    }
    return text;
  };
  if (!c.conv) {
    const ops::MatmulDesc& p = c.product;
    return concat("matmul ", p.dtype, " batch ", p.batch, ' ', p.m, 'x', p.n, 'x', p.k,
                  p.transpose_a ? " a transposed" : "", p.transpose_b ? " b transposed" : "", p.bias ? " bias" : "",
                  p.grad_mode == ops::GradMode::accumulate ? " accumulate" : "", p.accumulator_output ? " f32 out" : "",
                  " threads ", c.threads);
  }
  const ops::ConvDesc& d = c.desc;
  constexpr const char* kPasses[] = {"forward", "backward_data", "backward_weights"};
  return concat("conv2d ", kPasses[static_cast<int>(c.pass)], ' ', d.dtype, " batch ", d.batch, " in ",
                sizes(d.in_size), 'x', d.in_channels, " kernel ", sizes(d.kernel), 'x', d.out_channels, " stride ",
                sizes(d.stride), " pad ", sizes(d.pad_before), '+', sizes(d.pad_after), " dilation ", sizes(d.dilation),
                " groups ", d.groups, d.bias ? " bias" : "",
                d.grad_mode == ops::GradMode::accumulate ? " accumulate" : "", " threads ", c.threads);
}

/// Returns true if the shape is valid and needs few enough operations for the f64 reference.
bool usable(const Case& c) {
  constexpr double kMostFlops = 6e7;
  if (!c.conv) {
    return c.product.flops() <= kMostFlops;
  }
  const ops::ConvDesc& d = c.desc;
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.spatial_rank); ++i) {
    if (d.in_size[i] + d.pad_before[i] + d.pad_after[i] < d.dilation[i] * (d.kernel[i] - 1) + 1) {
      return false;
    }
  }
  return d.in_channels % d.groups == 0 && d.out_channels % d.groups == 0 && d.flops() <= kMostFlops &&
         d.x_shape().numel() <= (std::int64_t{1} << 22);
}

Case draw(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto one_of = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  };
  for (;;) {
    Case c;
    c.threads = static_cast<int>(1 + below(4));
    const DType dtype = below(2) == 0 ? DType::f32 : DType::bf16;
    const ops::GradMode mode = below(3) == 0 ? ops::GradMode::accumulate : ops::GradMode::overwrite;
    c.conv = below(4) != 0;
    if (c.conv) {
      ops::ConvDesc& d = c.desc;
      d.dtype = dtype;
      c.pass = static_cast<ops::ConvPass>(below(3));
      d.spatial_rank = static_cast<int>(one_of({1, 2, 2, 2, 3}));
      d.batch = one_of({1, 1, 2, 3, 8});
      d.groups = one_of({1, 1, 1, 1, 2, 3, 4});
      const bool depthwise = below(12) == 0;
      const std::int64_t most =
          one_of({20, 70});  // libraries take channels in blocks; faults are likely where the last block is not full
      d.in_channels = (1 + below(most)) / (depthwise ? 1 : d.groups) * (depthwise ? 1 : d.groups);
      d.out_channels = d.groups * (1 + below(70) / d.groups);
      if (depthwise) {
        d.groups = d.out_channels = d.in_channels;
      }
      const bool alike = below(4) != 0;
      const std::int64_t padded = below(4);  // 0: no padding; 1 or 2: keeps the size; 3: random
      for (std::size_t i = 0; i < static_cast<std::size_t>(d.spatial_rank); ++i) {
        d.in_size[i] = d.spatial_rank == 3 ? 1 + below(24) : 1 + below(130);
        const bool as_before = i > 0 && alike;
        d.kernel[i] = as_before ? d.kernel[0] : one_of({1, 1, 1, 2, 3, 3, 5, 7});
        d.stride[i] = as_before ? d.stride[0] : one_of({1, 1, 2, 2, 3, 4});
        d.dilation[i] = one_of({1, 1, 1, 2});
        d.pad_before[i] = padded == 0 ? 0 : padded < 3 ? d.kernel[i] / 2 : below(d.kernel[i] + 1);
        d.pad_after[i] = padded < 3 ? d.pad_before[i] : below(d.kernel[i] + 1);
      }
      d.bias = c.pass == ops::ConvPass::forward && below(2) == 0;
      d.grad_mode = c.pass == ops::ConvPass::forward ? ops::GradMode::overwrite : mode;
    } else {
      ops::MatmulDesc& p = c.product;
      p.dtype = dtype;
      p.batch = one_of({0, 0, 1, 3, 7});
      p.m = 1 + below(200);
      p.n = 1 + below(200);
      p.k = 1 + below(300);
      p.transpose_a = below(2) == 0;
      p.transpose_b = below(2) == 0;
      p.grad_mode = mode;
      p.bias = mode == ops::GradMode::overwrite && below(2) == 0;
      p.accumulator_output = dtype == DType::bf16 && below(2) == 0;
    }
    if ((!c.conv || c.desc.in_channels > 0) && usable(c)) {
      return c;
    }
  }
}

/// The operands of a case. Every number is exact in bf16, so that each type gets the same numbers.
struct Operands {
  std::vector<double> a, b, bias, before;
};

class Trial {
 public:
  explicit Trial(const Case& c) : case_(c) {
    const ops::ConvDesc& d = c.desc;
    const ops::MatmulDesc& p = c.product;
    dtype_ = c.conv ? d.dtype : p.dtype;
    const DType sums = ops::accumulation_dtype(dtype_);
    out_dtype_ = c.conv ? (c.pass == ops::ConvPass::backward_weights ? sums : dtype_) : p.c_dtype();
    if (!c.conv) {
      a_ = p.a_shape(), b_ = p.b_shape(), out_ = p.c_shape(), bias_ = Shape{p.n};
    } else {
      bias_ = Shape{d.out_channels};
      const Shape x = d.x_shape(), y = d.y_shape(), w = d.weights_shape();
      a_ = c.pass == ops::ConvPass::backward_data ? y : x;
      b_ = c.pass == ops::ConvPass::backward_weights ? y : w;
      out_ = c.pass == ops::ConvPass::forward ? y : c.pass == ops::ConvPass::backward_data ? x : w;
    }
    has_bias_ = c.conv ? d.bias : p.bias;
    accumulates_ = (c.conv ? d.grad_mode : p.grad_mode) == ops::GradMode::accumulate;
    terms_ = c.conv ? d.flops() / 2 / static_cast<double>(out_.numel()) : static_cast<double>(p.k);
    const auto drawn = [](const Shape& shape, std::uint64_t seed) {
      return GuardedTensor(shape, DType::bf16).normal(seed).values();
    };
    given_ = {drawn(a_, 1), drawn(b_, 2), drawn(bias_, 3), drawn(out_, 4)};
    CpuContext one({.threads = 1});
    expected_ = run(one, DType::f64, "reference", given_).value();
    Operands absolute = given_;
    for (std::vector<double>* values : {&absolute.a, &absolute.b, &absolute.bias, &absolute.before}) {
      std::transform(values->begin(), values->end(), values->begin(), [](double v) { return std::abs(v); });
    }
    magnitude_ = run(one, DType::f64, "reference", absolute).value();
  }

  /// Returns a description of what is wrong with a choice's result; empty if nothing is wrong.
  std::string wrong_with(const std::string& choice) {
    CpuContext context({.threads = case_.threads});
    std::string damage;
    const std::optional<std::vector<double>> got = run(context, dtype_, choice, given_, &damage);
    if (!damage.empty() || !got) {
      return damage;
    }
    // The error bound covers a sum of n terms in f32 in any order. It also covers rounding to bf16, which an
    // accumulated gradient undergoes twice.
    const double sum = (terms_ + 4) * std::ldexp(1.0, -24);
    const double stored = out_dtype_ == DType::bf16 ? std::ldexp(accumulates_ ? 2.0 : 1.0, -8) : std::ldexp(1.0, -23);
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      const double most =
          sum * magnitude_[i] + stored * std::max(std::abs(expected_[i]), accumulates_ ? magnitude_[i] : 0);
      if (!(std::abs((*got)[i] - expected_[i]) <= most)) {
        return concat("element ", i, " is ", (*got)[i], ", expected ", expected_[i], " within ", most);
      }
    }
    return {};
  }

  std::vector<std::string> choices() {
    CpuContext context({.threads = case_.threads});
    std::vector<std::string> all =
        case_.conv ? ops::conv2d_choices(context, case_.desc, case_.pass) : ops::matmul_choices(context, case_.product);
    std::erase_if(all, [](const std::string& choice) { return choice.starts_with("reference"); });
    return all;
  }

 private:
  std::optional<std::vector<double>> run(CpuContext& context, DType dtype, const std::string& choice, const Operands& o,
                                         std::string* damage = nullptr) {
    const bool wide = dtype == DType::f64;
    GuardedTensor a(a_, dtype), b(b_, dtype);
    GuardedTensor bias(bias_, wide ? dtype : ops::accumulation_dtype(dtype)), out(out_, wide ? dtype : out_dtype_);
    a.assign(o.a), b.assign(o.b), bias.assign(o.bias);
    if (accumulates_) {
      out.assign(o.before);
    }
    const TensorView added = has_bias_ ? bias.view() : TensorView();
    std::optional<GuardedTensor> workspace;
    const auto with = [&](const auto& plan, const auto& execute) {
      const auto bytes = static_cast<std::int64_t>(plan->workspace_bytes());
      workspace.emplace(Shape{std::max<std::int64_t>(bytes, 1)}, DType::u8);
      execute(*plan, bytes == 0 ? TensorView() : workspace->view());
    };
    if (case_.conv) {
      ops::ConvDesc d = case_.desc;
      d.dtype = dtype;
      with(ops::plan_conv2d(context, d, case_.pass, choice), [&](const ops::ConvPlan& plan, const TensorView& memory) {
        ops::conv2d(context, plan, a, b, added, out, memory);
      });
    } else {
      ops::MatmulDesc p = case_.product;
      p.dtype = dtype;
      p.accumulator_output = p.accumulator_output && !wide;
      with(ops::plan_matmul(context, p, choice), [&](const ops::MatmulPlan& plan, const TensorView& memory) {
        ops::matmul(context, plan, a, b, added, out, memory);
      });
    }
    if (damage != nullptr) {
      for (const auto& [tensor, name] : {std::pair<const GuardedTensor*, const char*>(&a, "the first operand"),
                                         {&b, "the second operand"},
                                         {&bias, "the bias"},
                                         {&out, "the output"},
                                         {&*workspace, "the workspace"}}) {
        if (const std::string said = tensor->check(); !said.empty()) {
          *damage = concat(name, ": ", said);
        }
      }
    }
    return out.values();
  }

  Case case_;
  DType dtype_ = DType::f32, out_dtype_ = DType::f32;
  Shape a_, b_, out_, bias_;
  bool has_bias_ = false, accumulates_ = false;
  double terms_ = 0;
  Operands given_;
  std::vector<double> expected_, magnitude_;
};

/// Checks every choice of a case. Returns the first fault. Adds the number of checked choices to `compared`.
std::string check_case(const Case& c, int& compared) {
  Trial trial(c);
  for (const std::string& choice : trial.choices()) {
    ++compared;
    if (const std::string wrong = trial.wrong_with(choice); !wrong.empty()) {
      return concat(choice, ": ", wrong);
    }
  }
  return {};
}

/// The progress of a child process, in shared memory that survives a crash of the child.
struct Report {
  std::int64_t at = -1;  ///< index of the current case
  int compared = 0;
  bool failed = false;
  char wrong[400] = "";
};

/// Calls check_case() for the cases case_at(0) .. case_at(count - 1) in a child process, until one fails. Returns true
/// if a case failed; report.at is then its index.
bool fails_apart(Report& report, std::int64_t count, const std::function<Case(std::int64_t)>& case_at) {
  report = {};
  std::fflush(stdout);
  const pid_t child = fork();
  require<Error>(child >= 0, "library_sweep: no further process");
  if (child == 0) {
    constexpr unsigned kMostSeconds = 120;  // time limit of a case, after which SIGALRM ends the process
    for (std::int64_t i = 0; i < count; ++i) {
      alarm(kMostSeconds);
      report.at = i;
      std::string wrong;
      try {
        wrong = check_case(case_at(i), report.compared);
      } catch (const std::exception& error) {
        wrong = error.what();
      }
      if (!wrong.empty()) {
        std::snprintf(report.wrong, sizeof report.wrong, "%s", wrong.c_str());
        report.failed = true;
        _exit(0);
      }
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    report.failed = true;
    std::snprintf(report.wrong, sizeof report.wrong, "signal %d", WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {  // exit code of a sanitizer or a library
    report.failed = true;
    std::snprintf(report.wrong, sizeof report.wrong, "exit status %d", WEXITSTATUS(status));
  }
  return report.failed;
}

/// Returns the smallest case that still fails. Reduces one number of the shape at a time.
Case minimised(Report& report, Case c) {
  const auto fails = [&](const Case& smaller) {
    constexpr std::int64_t kTries = 3;  // runs of each case, since faults that depend on timing are rare
    return usable(smaller) && fails_apart(report, kTries, [&](std::int64_t) { return smaller; });
  };
  const auto shrink = [&](const std::function<std::int64_t&(Case&)>& number, std::int64_t least) {
    bool any = false;
    for (std::int64_t step = number(c) - least; step > 0; step /= 2) {
      while (number(c) - step >= least) {
        Case smaller = c;
        number(smaller) -= step;
        if (!fails(smaller)) {
          break;
        }
        c = smaller;
        any = true;
      }
    }
    return any;
  };
  for (bool again = true; again;) {
    again = false;
    if (c.conv) {
      again = shrink([](Case& x) -> std::int64_t& { return x.desc.batch; }, 1) || again;
      again = shrink([](Case& x) -> std::int64_t& { return x.desc.in_channels; }, 1) || again;
      again = shrink([](Case& x) -> std::int64_t& { return x.desc.out_channels; }, 1) || again;
      for (std::size_t i = 0; i < static_cast<std::size_t>(c.desc.spatial_rank); ++i) {
        again = shrink([i](Case& x) -> std::int64_t& { return x.desc.pad_before[i]; }, 0) || again;
        again = shrink([i](Case& x) -> std::int64_t& { return x.desc.pad_after[i]; }, 0) || again;
        again = shrink([i](Case& x) -> std::int64_t& { return x.desc.in_size[i]; }, 1) || again;
        again = shrink([i](Case& x) -> std::int64_t& { return x.desc.stride[i]; }, 1) || again;
        again = shrink([i](Case& x) -> std::int64_t& { return x.desc.kernel[i]; }, 1) || again;
      }
    } else {
      again = shrink([](Case& x) -> std::int64_t& { return x.product.m; }, 1) || again;
      again = shrink([](Case& x) -> std::int64_t& { return x.product.n; }, 1) || again;
      again = shrink([](Case& x) -> std::int64_t& { return x.product.k; }, 1) || again;
    }
  }
  (void)fails(c);  // fills in the report of the smallest case
  return c;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep;
  CLI::App app(
      "Compares the host's libraries on convolutions and products of random shapes with sums in f64, in guarded "
      "memory.\n"
      "Exit codes: 0 nothing was found; 1 something was.");
  double seconds = 60;
  std::uint64_t seed = 1;
  std::int64_t most = 0;
  app.add_option("--seconds", seconds, "how long")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "of the first case")->capture_default_str();
  app.add_option("--cases", most, "how many at most, in hundreds; 0: as many as there is time for")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  void* const memory =
      mmap(nullptr, sizeof(testing::Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "library_sweep: no memory\n");
    return 3;
  }
  auto& report = *new (memory) testing::Report();
  constexpr std::int64_t kChunk = 100;
  std::int64_t cases = 0;
  std::int64_t compared = 0;
  int findings = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  for (std::uint64_t next = seed; passed() < seconds && (most == 0 || cases < most);) {
    const bool failed = testing::fails_apart(
        report, kChunk, [&](std::int64_t i) { return testing::draw(next + static_cast<std::uint64_t>(i)); });
    const std::int64_t done = failed ? report.at + 1 : kChunk;
    cases += done;
    compared += report.compared;
    if (failed) {
      ++findings;
      const testing::Case found = testing::draw(next + static_cast<std::uint64_t>(report.at));
      std::printf("finding: seed %llu: %s: %s\n",
                  static_cast<unsigned long long>(next + static_cast<std::uint64_t>(report.at)),
                  testing::text_of(found).c_str(), report.wrong);
      const testing::Case least = testing::minimised(report, found);
      std::printf("  least: %s: %s\n", testing::text_of(least).c_str(), report.wrong);
    }
    next += static_cast<std::uint64_t>(done);
  }
  std::printf("%lld cases from seed %llu, %lld choices compared in %.0f s, %d findings\n",
              static_cast<long long>(cases), static_cast<unsigned long long>(seed), static_cast<long long>(compared),
              passed(), findings);
  return findings == 0 ? 0 : 1;
}
