// A host program that owns MPI, its communicator, its stream and its memory, and lends them to lockstep.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#include <mpi.h>

#include <lockstep/comm/mpi/mpi_communicator.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/nn/step/train_step.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

struct Pool final : lockstep::MemoryResource {
  int calls = 0;
  void* allocate(std::size_t bytes, std::size_t alignment, lockstep::Stream&) override {
    ++calls;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void deallocate(void* pointer, std::size_t, std::size_t, lockstep::Stream&) noexcept override { std::free(pointer); }
  lockstep::Device device() const override { return lockstep::Device::cpu(); }
};

// An op that this program adds to lockstep. Without a GPU the second overload is compiled and linked but not called.
namespace backend {
static void double_values(lockstep::CpuContext&, const lockstep::TensorView& x) {
  for (float& value : x.span<float>()) {
    value *= 2;
  }
}
static void double_values(lockstep::CudaContext&, const lockstep::TensorView&) {}
}  // namespace backend

static void double_values(lockstep::Context& context, const lockstep::TensorView& x) {
  lockstep::ops::dispatch(context, "double_values",
                          [x](auto& c) -> decltype(backend::double_values(c, x)) { backend::double_values(c, x); });
}

static bool is_fatal(MPI_Comm comm) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(comm, &handler);
  const bool fatal = handler == MPI_ERRORS_ARE_FATAL;
  MPI_Errhandler_free(&handler);
  return fatal;
}

// Trains for some steps with the host's communicator and the host's memory. Rank 0 has one sample, rank 1 has two.
static bool trains(lockstep::Context& context, lockstep::comm::Communicator& communicator, lockstep::Stream& stream) {
  namespace nn = lockstep::nn;
  nn::ModelBuilder b("line", {1});
  b.linear("fc", b.input(), 1);
  const nn::Model model = b.build();
  nn::TrainStep step(context, {communicator, stream}, model, {.max_batch = 2, .plan = {.loss = nn::Loss::mse}});
  const std::int64_t n = communicator.rank() + 1;
  double x[] = {0.5, -1};
  double y[] = {2 * x[0] + 1, 2 * x[1] + 1};
  if (communicator.rank() == 1) {
    x[0] = 1.5;
    y[0] = 4;
  }
  for (int i = 0; i < 400; ++i) {
    step.update(
        {{nn::StateField::values, lockstep::TensorView(std::span(x).first(static_cast<std::size_t>(n)), {n, 1})},
         {nn::StateField::targets, lockstep::TensorView(std::span(y).first(static_cast<std::size_t>(n)), {n, 1})}},
        0.05);
  }
  nn::Inference predict(context, model, step.parameters(), {.max_batch = 1});
  double at[] = {3};
  double result[] = {0};
  predict.run(lockstep::TensorView(std::span(at), {1, 1}), lockstep::TensorView(std::span(result), {1, 1}));
  return step.wait_loss().value < 1e-4 && result[0] > 6.9 && result[0] < 7.1;  // the model learned 2 x + 1
}

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm mine = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &mine);
  bool good = false;
  {
    Pool pool;
    lockstep::Stream stream = lockstep::Stream::host_inline();
    lockstep::CpuContext context({.threads = 1, .stream = &stream, .memory = &pool});
    const auto communicator = lockstep::comm::make_mpi_communicator(mine);
    const auto tensor = lockstep::Tensor::empty(context, {1000}, lockstep::DType::f32);
    for (float& x : tensor.view().span<float>()) {
      x = static_cast<float>(communicator->rank() + 1);
    }
    double_values(context, tensor.view());
    communicator->all_reduce(context.stream(), tensor.view());
    const int size = communicator->size();
    good = pool.calls == 1 && size == 2 && is_fatal(mine) && is_fatal(MPI_COMM_WORLD);
    for (const float x : tensor.view().span<float>()) {
      good = good && x == static_cast<float>(size * (size + 1));  // sum over the ranks: 2 (1 + 2 + ...)
    }
    good = good && trains(context, *communicator, stream);
    std::printf("downstream: rank %d of %d: %s\n", communicator->rank(), size, good ? "good" : "WRONG");
  }
  MPI_Comm_free(&mine);
  MPI_Finalize();
  return good ? 0 : 1;
}
