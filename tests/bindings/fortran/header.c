/* Values of lockstep.h, with which calls_test.F90 compares the constants and structs of the Fortran module. */
#include <lockstep/lockstep_fortran.h>
#include <string.h>

/* clang-format off */
#define NAMES(X) \
  X(OK) X(ERR_INVALID) X(ERR_SHAPE) X(ERR_DTYPE) X(ERR_DEVICE) X(ERR_UNSUPPORTED) X(ERR_STATE) \
  X(ERR_OUT_OF_MEMORY) X(ERR_IO) X(ERR_FORMAT) X(ERR_CUDA) X(ERR_NCCL) X(ERR_MPI) X(ERR_PEER) X(ERR_INTERNAL) \
  X(F32) X(F64) X(BF16) X(F16) X(I32) X(I64) X(U8) X(CPU) X(CUDA) X(STREAM_OWN) X(STREAM_GIVEN) \
  X(ACTIVATION_NONE) X(ACTIVATION_RELU) X(ACTIVATION_TANH) X(ACTIVATION_SIGMOID) X(ACTIVATION_GELU) \
  X(ACTIVATION_GELU_TANH) X(ACTIVATION_SILU) X(BIAS_DEFAULT) X(BIAS_WITH) X(BIAS_WITHOUT) X(OPTIMIZER_SGD) \
  X(OPTIMIZER_ADAM) X(OPTIMIZER_ADAMW) X(OPTIMIZER_LARS) X(LOSS_MSE) X(LOSS_L1) X(LOSS_HUBER) \
  X(LOSS_CROSS_ENTROPY) X(WEIGHTS_NONE) X(WEIGHTS_SAMPLE) X(WEIGHTS_ELEMENT) X(VERSION_MAJOR) \
  X(VERSION_MINOR) X(VERSION_PATCH)
/* clang-format on */

/* Returns the value of the macro LOCKSTEP_name, or -1 if NAMES has no such name. */
int32_t header_constant(const char* name);
int32_t header_constant(const char* name) {
#define COMPARE(N)             \
  if (strcmp(name, #N) == 0) { \
    return LOCKSTEP_##N;       \
  }
  NAMES(COMPARE)
  return -1;
}

/* Each function below sets the fields of a struct to ascending numbers and returns the size of the struct. */
int64_t header_trainer_options(lockstep_trainer_options* o);
int64_t header_trainer_options(lockstep_trainer_options* o) {
  const lockstep_trainer_options set = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  *o = set;
  return sizeof *o;
}
int64_t header_layer_options(lockstep_layer_options* o);
int64_t header_layer_options(lockstep_layer_options* o) {
  const lockstep_layer_options set = {1,  2,  3,  4,  {5, 6, 7},    {8, 9, 10}, {11, 12, 13}, {14, 15, 16}, 17,
                                      18, 19, 20, 21, {22, 23, 24}, 25};
  *o = set;
  return sizeof *o;
}
int64_t header_context_options(lockstep_context_options* o);
int64_t header_context_options(lockstep_context_options* o) {
  const lockstep_context_options set = {1, 2, 3, 4, 5, 6, NULL, NULL, 9};
  *o = set;
  return sizeof *o;
}
int64_t header_report(lockstep_report* r);
int64_t header_report(lockstep_report* r) {
  const lockstep_report set = {1, 2, 3, 4, 5, 6, 7};
  *r = set;
  return sizeof *r;
}
int64_t header_sizes(int64_t* allocator, int64_t* comm_ops);
int64_t header_sizes(int64_t* allocator, int64_t* comm_ops) {
  *allocator = sizeof(lockstep_allocator);
  *comm_ops = sizeof(lockstep_comm_ops);
  return sizeof(lockstep_f_view);
}
