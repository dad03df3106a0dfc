/* lockstep for C, C++ and languages that call C: training and inference inside a program that owns its memory, its
 * streams, its communicator and its process. C99 and newer, C++11 and newer. bindings/c/README.md explains the design,
 * docs/embedding.md shows a program.
 *
 * Handles (contexts, communicators, models, trainers) are numbers stored in pointer types; no handle is 0 (NULL). A
 * call with a handle that was destroyed, or that is of another kind, returns LOCKSTEP_ERR_INVALID. A handle keeps the
 * objects that it was made from alive, so handles may be destroyed in any order. Destroying NULL returns LOCKSTEP_OK.
 *
 * Threads: only one thread at a time may use a context and the handles made with it. The thread may change between
 * calls; a call returns LOCKSTEP_ERR_STATE while another thread is in a call with the same context. Different
 * contexts are independent. Any thread may call lockstep_version, lockstep_build_info, lockstep_status_name and
 * lockstep_last_error.
 *
 * No function prints, exits, installs a signal handler, or changes the floating-point environment, the locale, the
 * current device or the caller's memory outside of the views that the function writes. */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <stddef.h>
#include <stdint.h>

#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 1
#define LOCKSTEP_VERSION_PATCH 0
#define LOCKSTEP_VERSION (LOCKSTEP_VERSION_MAJOR * 10000 + LOCKSTEP_VERSION_MINOR * 100 + LOCKSTEP_VERSION_PATCH)

#if defined(__cplusplus)
#define LOCKSTEP_NOEXCEPT noexcept
extern "C" {
#else
#define LOCKSTEP_NOEXCEPT
#endif
#if defined(__GNUC__)
#define LOCKSTEP_API __attribute__((visibility("default")))
#else
#define LOCKSTEP_API
#endif

/* ---- Status. Numbers and their meaning never change within a soname. */
typedef int32_t lockstep_status;
#define LOCKSTEP_OK 0
/* 1 to 19: the caller's error; nothing was changed. */
#define LOCKSTEP_ERR_INVALID 1     /* an argument, an option or a handle is invalid */
#define LOCKSTEP_ERR_SHAPE 2       /* extents, strides, axes or alignment are invalid */
#define LOCKSTEP_ERR_DTYPE 3       /* the function does not take this type of elements */
#define LOCKSTEP_ERR_DEVICE 4      /* the device does not exist, or the memory belongs to another device */
#define LOCKSTEP_ERR_UNSUPPORTED 5 /* not available in this build or this version */
#define LOCKSTEP_ERR_STATE 6       /* the call is not allowed now: wrong order, after MPI_Finalize, from a callback */
/* 20 to 39: a resource is missing; nothing was changed. */
#define LOCKSTEP_ERR_OUT_OF_MEMORY 20
#define LOCKSTEP_ERR_IO 21     /* the system cannot open, read or write a file */
#define LOCKSTEP_ERR_FORMAT 22 /* the contents of a file, a label or a sum of weights is invalid */
/* 40 to 59: a device or a communicator has failed. Destroy the handles made with the failed device or communicator. */
#define LOCKSTEP_ERR_CUDA 40
#define LOCKSTEP_ERR_NCCL 41
#define LOCKSTEP_ERR_MPI 42
/* Another rank failed. A text that begins with "agreed" says that the ranks found the failure before they exchanged
 * data: nothing was changed on this rank, and all ranks may go on. */
#define LOCKSTEP_ERR_PEER 43
/* 60: lockstep itself has an error. */
#define LOCKSTEP_ERR_INTERNAL 60

/* ---- Types of elements; types of devices, with the numbers of DLPack. */
typedef int32_t lockstep_dtype;
#define LOCKSTEP_F32 1
#define LOCKSTEP_F64 2
#define LOCKSTEP_BF16 3
#define LOCKSTEP_F16 4
#define LOCKSTEP_I32 5
#define LOCKSTEP_I64 6
#define LOCKSTEP_U8 7

#define LOCKSTEP_CPU 1
#define LOCKSTEP_CUDA 2

typedef struct lockstep_context_s* lockstep_context;
typedef struct lockstep_comm_s* lockstep_comm;
typedef struct lockstep_model_s* lockstep_model;
typedef struct lockstep_trainer_s* lockstep_trainer;
typedef struct lockstep_tape_s* lockstep_tape;
typedef void* lockstep_stream; /* a cudaStream_t; contexts on the host ignore the argument */

/* ---- A view of the caller's memory. lockstep uses host memory only until the call returns, and device memory until
 * the stream has completed the work of the call. lockstep keeps no pointer to the struct. A view that a call writes
 * must not share memory with other views of the call.
 *
 * `axes` has a letter for each axis of `shape`, slowest first: n samples, c channels or features, d planes, h rows,
 * w columns, t positions. If several axes have the letter n, they count the samples together, in row-major order. An
 * axis whose letter is missing has extent 1: a view with the axes "hw" is one sample with one channel. If `axes` is
 * NULL, the view has all axes of the model in the model's order, samples first and channels last ("nhwc", "ntc",
 * "nc"). An array of features with one axis needs axes: "c" if it holds one sample, "n" if it holds many samples of
 * one feature. */
typedef struct lockstep_view {
  void* data;
  lockstep_dtype dtype;
  int32_t device_type;    /* LOCKSTEP_CPU or LOCKSTEP_CUDA */
  int32_t device_id;      /* number of the GPU; ignored for LOCKSTEP_CPU */
  int32_t ndim;           /* number of axes, 0 to 8 */
  const int64_t* shape;   /* (ndim) extents */
  const int64_t* strides; /* (ndim) strides in elements, of any sign; NULL: row-major without gaps */
  const char* axes;
} lockstep_view;

/* ---- Structs of options begin with struct_size (sizeof), which a function *_init or the caller must set. A struct
 * from an older header is shorter: the fields that it lacks have their defaults. A struct from a newer header is
 * accepted if the bytes that this library does not know are zero (otherwise LOCKSTEP_ERR_UNSUPPORTED). */

/* An allocator of the host program. The allocator serves one context, and is called by the thread that uses the
 * context. A callback must not call lockstep (LOCKSTEP_ERR_STATE) and must not throw (lockstep returns
 * LOCKSTEP_ERR_INVALID). */
typedef struct lockstep_allocator {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  void* user;
  /* Returns `bytes` bytes at a multiple of alignment, which is a power of two, or NULL when no memory is left.
   * lockstep uses and frees the memory in the order of `stream`. */
  void* (*allocate)(void* user, size_t bytes, size_t alignment, lockstep_stream stream);
  void (*deallocate)(void* user, void* memory, size_t bytes, lockstep_stream stream);
} lockstep_allocator;

#define LOCKSTEP_STREAM_OWN 0   /* lockstep makes a stream */
#define LOCKSTEP_STREAM_GIVEN 1 /* the context uses `stream`; NULL is CUDA's legacy stream */
typedef struct lockstep_context_options {
  uint32_t struct_size;
  int32_t device_type; /* default LOCKSTEP_CPU */
  int32_t device_id;
  int32_t threads;     /* threads that one operation on the host uses; 0: OpenMP's number in the creating thread */
  int32_t stream_kind; /* default LOCKSTEP_STREAM_OWN; ignored on the host */
  int32_t reserved;
  lockstep_stream stream;
  const lockstep_allocator* memory; /* allocator of device memory; the struct is copied; NULL: lockstep's own */
  int64_t memory_limit;             /* most bytes in use at once; 0: no limit. Must be 0 when `memory` is set. */
} lockstep_context_options;

/* A communicator of the host program, for example over threads, sockets or another MPI. lockstep calls these
 * functions in the same order on all ranks. Each function must work on host (CPU) memory and block until it is
 * complete. A function returns 0 for success. Any other number is a failure: lockstep returns LOCKSTEP_ERR_STATE and
 * the numbers from LOCKSTEP_ERR_CUDA to LOCKSTEP_ERR_PEER unchanged, and LOCKSTEP_ERR_PEER for all other numbers. */
typedef struct lockstep_comm_ops {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  void* user;
  int32_t rank;
  int32_t size;
  /* Replaces the `count` elements of `data` by their sums over the ranks, with the same bits on every rank. */
  int32_t (*all_reduce_sum)(void* user, void* data, int64_t count, lockstep_dtype dtype);
  int32_t (*broadcast)(void* user, void* data, int64_t bytes, int32_t root);
  /* Gathers the `bytes` bytes at `in` of every rank into `out`, in rank order. `out` holds size * bytes bytes. */
  int32_t (*all_gather)(void* user, const void* in, void* out, int64_t bytes);
  int32_t (*barrier)(void* user);
  /* Returns the text of the last failure, ended by a zero byte, or NULL for no text. error_text itself may be NULL. */
  const char* (*error_text)(void* user);
  /* lockstep calls destroy once, when no handle uses the communicator any more. destroy may be NULL. */
  void (*destroy)(void* user);
} lockstep_comm_ops;

#define LOCKSTEP_ACTIVATION_NONE 0
#define LOCKSTEP_ACTIVATION_RELU 1
#define LOCKSTEP_ACTIVATION_TANH 2
#define LOCKSTEP_ACTIVATION_SIGMOID 3
#define LOCKSTEP_ACTIVATION_GELU 4
#define LOCKSTEP_ACTIVATION_GELU_TANH 5
#define LOCKSTEP_ACTIVATION_SILU 6

#define LOCKSTEP_BIAS_DEFAULT 0 /* linear: with a bias; convolutions: without */
#define LOCKSTEP_BIAS_WITH 1
#define LOCKSTEP_BIAS_WITHOUT 2

/* Options of every kind of layer. A field that is 0 has its default. Fields that a kind does not use must be 0.
 *
 * kernel, stride, pad, dilation and output_pad have one number per axis of space, slowest first, as in PyTorch:
 * (positions), (rows, columns) or (planes, rows, columns). If element [1] or [2] is 0, this element takes the number
 * of element [0], or the default if element [0] is 0, too. Elements after the layer's last axis must be 0 or equal
 * element [0]. In pad and output_pad, -1 in element [1] or [2] means no padding: pad {1, -1, -1} adds one plane at
 * both ends. */
typedef struct lockstep_layer_options {
  uint32_t struct_size;
  int32_t activation; /* for linear, activation, batch_norm (none or relu) */
  int32_t bias;
  int32_t pad_mode;      /* 0: zeros */
  int32_t kernel[3];     /* default 3 for convolutions, 2 for conv_transpose and pools */
  int32_t stride[3];     /* default: the kernel for pools and conv_transpose, otherwise 1 */
  int32_t pad[3];        /* default 0; added on both sides */
  int32_t dilation[3];   /* default 1; for convolutions and conv_transpose */
  int32_t groups;        /* default 1; channels of different groups are not combined (convolutions, conv_transpose) */
  int32_t reserved;      /* ignored */
  double epsilon;        /* default 1e-5; for norms */
  double momentum;       /* default 0.1; for batch_norm */
  double rate;           /* probability that dropout sets an element to zero */
  int32_t output_pad[3]; /* default 0; positions that conv_transpose adds at the end; must be less than stride */
  int32_t share;         /* 0: the name is new; 1: the layer uses the parameters of an earlier layer of this name */
} lockstep_layer_options;

#define LOCKSTEP_OPTIMIZER_SGD 0 /* v = momentum v + g; p -= learning_rate v, with weight_decay p added to g */
#define LOCKSTEP_OPTIMIZER_ADAM 1
#define LOCKSTEP_OPTIMIZER_ADAMW 2
#define LOCKSTEP_OPTIMIZER_LARS 3

/* A loss is the mean over the elements of a sample, then over samples; d: output minus target. */
#define LOCKSTEP_LOSS_MSE 0   /* d^2 */
#define LOCKSTEP_LOSS_L1 1    /* |d| */
#define LOCKSTEP_LOSS_HUBER 2 /* d^2 / 2 up to |d| = huber_delta, beyond it huber_delta (|d| - huber_delta / 2) */
#define LOCKSTEP_LOSS_CROSS_ENTROPY 3 /* the target is a class (i32, i64, u8) for each sample and position */
#define LOCKSTEP_LOSS_GIVEN 4 /* the loss of the host program; tapes add gradients, lockstep_trainer_add fails */

#define LOCKSTEP_WITHOUT_STATISTICS 0 /* a vector of the parameters */
#define LOCKSTEP_WITH_STATISTICS 1    /* a vector of the parameters and the running statistics of batch norms */

#define LOCKSTEP_WEIGHTS_NONE 0    /* every sample counts once */
#define LOCKSTEP_WEIGHTS_SAMPLE 1  /* lockstep_trainer_add takes a weight for each sample */
#define LOCKSTEP_WEIGHTS_ELEMENT 2 /* a weight per target element; with classes, per position */

/* Call lockstep_trainer_options_init first: 0 does not mean the default in this struct. The fields' comments give the
 * defaults. */
typedef struct lockstep_trainer_options {
  uint32_t struct_size;
  int32_t optimizer;       /* LOCKSTEP_OPTIMIZER_ADAM */
  int32_t loss;            /* LOCKSTEP_LOSS_MSE */
  int32_t nesterov;        /* 0 */
  int32_t skip_non_finite; /* default 0; 1: gradients with NaN or infinity cause no update */
  int32_t check_input;     /* default 0; 1: host inputs, targets and weights with NaN or infinity are refused */
  int32_t weights;         /* default LOCKSTEP_WEIGHTS_NONE; ranks may differ; without weights, each sample weighs 1 */
  int32_t sync_batch_norm; /* default 0; 1: batch norms take the samples of all ranks as one batch */
  double beta1;            /* 0.9 */
  double beta2;            /* 0.999 */
  double epsilon;          /* 1e-8 */
  double momentum;         /* default 0.9; for sgd and lars */
  double weight_decay;     /* 0 */
  double clip_norm;        /* default 0: no clipping; else the largest allowed norm over all gradients */
  double huber_delta;      /* 1 */
  int64_t max_batch;       /* most samples of one lockstep_trainer_add on any rank; the caller must set it, to 1 with
                              LOSS_GIVEN */
  int64_t bucket_bytes;    /* default 0: lockstep's choice; else bytes of gradients that one all-reduce sums */
  double clip_value;       /* default 0: no clipping; else limit of |gradient element|, after clip_norm; not for lars */
} lockstep_trainer_options;

#define LOCKSTEP_PASS_TRAIN 0 /* training pass: batch norm uses the statistics of the samples, dropout is active */
#define LOCKSTEP_PASS_INFER 1 /* inference pass, with the bits of lockstep_infer: running statistics, no dropout */

/* Options of a tape. Call lockstep_tape_options_init first: 0 does not mean the default in this struct. */
typedef struct lockstep_tape_options {
  uint32_t struct_size;
  int32_t own_gradients; /* default 0: backward adds the gradients of parameters to those of the model's trainer, which
                          * must have LOCKSTEP_LOSS_GIVEN. 1: the tape keeps the gradients until
                          * lockstep_trainer_collect. Use 1 for a tape of another thread, with a model of
                          * lockstep_model_share that has no batch norm. */
  int32_t recompute;     /* default 0; 1: backward computes some activations again, so a pass keeps less memory */
  int32_t reserved;      /* ignored */
  int64_t max_batch;     /* most samples of one lockstep_tape_forward; the caller must set it */
  int64_t slots;         /* default 1; largest number of passes whose backward is still to come */
  int32_t pass;          /* LOCKSTEP_PASS_TRAIN */
  int32_t parameter_gradients; /* default 1; 0: backward computes only dL/d(in), so the tape needs no trainer */
  int32_t vjp;                 /* default 0; 1: lockstep_tape_vjp may be called. Not needed if parameter_gradients and
                                * recompute are both 0. */
  int32_t jvp;                 /* default 0; 1: lockstep_tape_jvp may be called */
} lockstep_tape_options;

#define LOCKSTEP_SCHEDULE_CONSTANT 0
#define LOCKSTEP_SCHEDULE_COSINE 1     /* end + (base - end) (1 + cos(pi d)) / 2; d: fraction done after the warm-up */
#define LOCKSTEP_SCHEDULE_POLYNOMIAL 2 /* end + (base - end) (1 - d)^power */

/* A learning rate for each step. Call lockstep_schedule_init first. */
typedef struct lockstep_schedule {
  uint32_t struct_size;
  int32_t kind;         /* LOCKSTEP_SCHEDULE_CONSTANT */
  double base;          /* learning rate after the warm-up, above 0; the caller must set it */
  double end;           /* default 0; learning rate at step total_steps */
  double power;         /* 2 */
  int64_t warmup_steps; /* default 0; in step s below warmup_steps the rate is base (s + 1) / warmup_steps */
  int64_t total_steps;  /* number of steps, warm-up included; not for LOCKSTEP_SCHEDULE_CONSTANT */
} lockstep_schedule;

/* A parameter, as lockstep_parameter_info describes it; the caller sets struct_size. */
typedef struct lockstep_parameter {
  uint32_t struct_size;
  int32_t ndim;
  int64_t shape[8];
  const char* name; /* "1.weight"; valid as long as a handle of the model lives */
} lockstep_parameter;

/* The last step of all ranks together, as lockstep_trainer_report describes it; the caller sets struct_size. */
typedef struct lockstep_report {
  uint32_t struct_size;
  int32_t reserved;
  int64_t step;         /* number of the last step; 0 before the first */
  int64_t skipped;      /* updates left out since create: gradients not finite (with skip_non_finite or clip_norm) */
  int64_t samples;      /* samples that all ranks added to this step; 0 before the first update after create or load */
  double loss;          /* weighted mean of the loss over these samples; NaN without samples */
  double gradient_norm; /* norm of the gradients before clip_norm; NaN if `loss` is NaN or after a later add */
} lockstep_report;

/* ---- The library. */
LOCKSTEP_API uint32_t lockstep_version(void) LOCKSTEP_NOEXCEPT; /* LOCKSTEP_VERSION of the library that runs */
/* Returns a JSON text that describes the build. "cpu_arch" lists the processors for which the host's loops were
 * compiled; "cpu_variant" is the entry of this list whose loops this process uses, or "none" if no entry runs here
 * and no context can be made. The text is never freed. */
LOCKSTEP_API const char* lockstep_build_info(void) LOCKSTEP_NOEXCEPT;
/* Returns the name of a status, e.g. "SHAPE", or "UNKNOWN". */
LOCKSTEP_API const char* lockstep_status_name(lockstep_status) LOCKSTEP_NOEXCEPT;
/* Returns why this thread's last call failed: the function, the argument, its value and the expected value. The text
 * is empty if the call succeeded. It is valid until the next call of this thread. */
LOCKSTEP_API const char* lockstep_last_error(void) LOCKSTEP_NOEXCEPT;
/* Sets the text of lockstep_last_error and returns the status; for wrappers of this interface. */
LOCKSTEP_API lockstep_status lockstep_error_set(lockstep_status, const char* text, size_t text_n) LOCKSTEP_NOEXCEPT;
/* The functions *_options_init set the defaults. `size` is the sizeof of the caller's struct. */
LOCKSTEP_API lockstep_status lockstep_context_options_init(lockstep_context_options*, size_t size) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_layer_options_init(lockstep_layer_options*, size_t size) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_trainer_options_init(lockstep_trainer_options*, size_t size) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_tape_options_init(lockstep_tape_options*, size_t size) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_schedule_init(lockstep_schedule*, size_t size) LOCKSTEP_NOEXCEPT;
/* Computes the learning rate of step `step`, counted from 0, for lockstep_trainer_update. Checkpoints do not keep the
 * schedule. After lockstep_trainer_load, lockstep_trainer_report gives the number of the last step. */
LOCKSTEP_API lockstep_status lockstep_schedule_rate(const lockstep_schedule*, int64_t step,
                                                    double* rate) LOCKSTEP_NOEXCEPT;

/* ---- Context: a device, a stream, memory. If `options` is NULL, the device is the host. When a create function fails,
 * the new handle is NULL. Returns LOCKSTEP_ERR_UNSUPPORTED on a processor that the library was not built for; the text
 * of lockstep_last_error says what the processor lacks. */
LOCKSTEP_API lockstep_status lockstep_context_create(const lockstep_context_options* options,
                                                     lockstep_context* context) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_context_destroy(lockstep_context) LOCKSTEP_NOEXCEPT;
/* Waits for the context's stream. */
LOCKSTEP_API lockstep_status lockstep_context_synchronize(lockstep_context) LOCKSTEP_NOEXCEPT;
/* Returns the bytes of the context's memory that are in use now, and the peak so far. Both numbers are -1 if the
 * context does not count bytes. */
LOCKSTEP_API lockstep_status lockstep_context_memory(lockstep_context, int64_t* in_use,
                                                     int64_t* peak) LOCKSTEP_NOEXCEPT;

/* ---- Communicator: the ranks that train together. <lockstep/lockstep_mpi.h> makes a communicator from an MPI_Comm. */
/* Makes a communicator of one rank. */
LOCKSTEP_API lockstep_status lockstep_comm_self(lockstep_context, lockstep_comm*) LOCKSTEP_NOEXCEPT;
/* Makes a communicator from functions of the host program. Collective: the ranks compare their rank and size, and
 * all return LOCKSTEP_ERR_INVALID if these do not fit together. The struct is copied. After a failure `destroy` is
 * not called. */
LOCKSTEP_API lockstep_status lockstep_comm_from_ops(lockstep_context, const lockstep_comm_ops* ops,
                                                    lockstep_comm*) LOCKSTEP_NOEXCEPT;
/* Makes a communicator of ranks on GPUs. nccl_comm is the host program's ncclComm_t, on the GPU of the context, with
 * the same ranks as `control`. lockstep still uses `control` to exchange host memory. lockstep does not configure,
 * destroy or abort nccl_comm. The host program must destroy nccl_comm only after all trainers and communicators made
 * with it, and must abort nccl_comm if one of these has failed (LOCKSTEP_ERR_NCCL). lockstep calls the NCCL that the
 * process has loaded, on the context's stream. NCCL requires that one thread uses all communicators of a GPU.
 * Collective, with one small all-reduce. Returns LOCKSTEP_ERR_UNSUPPORTED when the process has no NCCL. */
LOCKSTEP_API lockstep_status lockstep_comm_from_nccl(lockstep_context, void* nccl_comm, lockstep_comm control,
                                                     lockstep_comm*) LOCKSTEP_NOEXCEPT;
/* Returns the rank, which counts from 0, and the number of ranks. */
LOCKSTEP_API lockstep_status lockstep_comm_rank(lockstep_comm, int32_t* rank, int32_t* size) LOCKSTEP_NOEXCEPT;
/* Returns the largest of the ranks' numbers, for phases of the host program that may fail on one rank. Collective. */
LOCKSTEP_API lockstep_status lockstep_comm_agree(lockstep_comm, int32_t mine, int32_t* largest) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_comm_destroy(lockstep_comm) LOCKSTEP_NOEXCEPT;

/* ---- Model. A string is given by a pointer and a length. If the length is 0, a zero byte ends the string. */
/* Makes a model without layers. The dtype is the type of computation and parameters, f32 or f64; bf16 computes in bf16
 * with f32 parameters. sample_shape is (features), (positions, channels), (rows, columns, channels) or (planes, rows,
 * columns, channels). */
LOCKSTEP_API lockstep_status lockstep_model_create(lockstep_context, lockstep_dtype, const int64_t* sample_shape,
                                                   int32_t ndim, lockstep_model*) LOCKSTEP_NOEXCEPT;
/* Makes a model of linear layers "1", "2", ... with widths[1], widths[2], ... outputs, and an activation after each
 * layer except the last. widths[0] is the number of features of the input. */
LOCKSTEP_API lockstep_status lockstep_model_mlp(lockstep_context, lockstep_dtype, const int64_t* widths, int32_t n,
                                                int32_t activation, lockstep_model*) LOCKSTEP_NOEXCEPT;
/* Adds a layer. The output of the layer added last is the model's output. Returns LOCKSTEP_ERR_STATE once the model
 * has parameters. Arguments:
 * - kind: linear, conv2d, conv_transpose2d, batch_norm, layer_norm, activation, max_pool, average_pool,
 *   global_average_pool, add, dropout; for samples (positions, channels) conv1d, conv_transpose1d, max_pool1d,
 *   average_pool1d; for samples with planes conv3d, conv_transpose3d, max_pool3d, average_pool3d.
 * - name: the name of the layer and its parameters. A second layer of the same name returns LOCKSTEP_ERR_INVALID
 *   unless options->share is 1.
 * - inputs (ninputs): numbers of nodes; 0 is the model's input. linear and batch_norm take an optional second input,
 *   which is added to the result. The kind add takes two inputs.
 * - size: features of linear, channels of convolutions, 0 for all other kinds.
 * - options: NULL for the defaults.
 * - node: receives the number of the layer's output; may be NULL. */
LOCKSTEP_API lockstep_status lockstep_model_add(lockstep_model, const char* kind, size_t kind_n, const char* name,
                                                size_t name_n, const int32_t* inputs, int32_t ninputs, int64_t size,
                                                const lockstep_layer_options* options, int32_t* node) LOCKSTEP_NOEXCEPT;
/* Freezes the parameter `name`, or all parameters whose name begins with `name` and a dot ("conv1": "conv1.weight"), of
 * the layers added so far. A trainer leaves frozen parameters unchanged and computes no gradients for them. Returns
 * LOCKSTEP_ERR_INVALID if there is no such parameter, and LOCKSTEP_ERR_STATE once the model has parameters. If all
 * parameters are frozen, the call that makes the parameters returns LOCKSTEP_ERR_INVALID. */
LOCKSTEP_API lockstep_status lockstep_model_freeze(lockstep_model, const char* name, size_t name_n) LOCKSTEP_NOEXCEPT;
/* Makes the model's parameters and sets their first values from the seed. The values depend neither on the rank nor on
 * the number of ranks. */
LOCKSTEP_API lockstep_status lockstep_model_initialise(lockstep_model, uint64_t seed) LOCKSTEP_NOEXCEPT;
/* Plans and allocates for up to max_batch samples; lockstep_infer with at most max_batch then allocates nothing. */
LOCKSTEP_API lockstep_status lockstep_model_prepare(lockstep_model, int64_t max_batch) LOCKSTEP_NOEXCEPT;
/* Makes a model that uses the same parameters, not a copy, on another context of the same device, for use in another
 * thread. Any number of such models may infer at the same time. Meanwhile the caller must not train, load or write any
 * of these models. On a GPU a write has ended when lockstep_context_synchronize has returned for the context that
 * wrote. */
LOCKSTEP_API lockstep_status lockstep_model_share(lockstep_model, lockstep_context,
                                                  lockstep_model* shared) LOCKSTEP_NOEXCEPT;
/* Makes a model with the same layers and the same parameters, not a copy, for samples of other extents. The new
 * model infers like a model of lockstep_model_share, on a context of the same device, and has no trainer. Returns
 * LOCKSTEP_ERR_SHAPE, with the parameter in the text, if a layer would need a parameter of another shape. */
LOCKSTEP_API lockstep_status lockstep_model_reshape(lockstep_model, const int64_t* sample_shape, int32_t ndim,
                                                    lockstep_context, lockstep_model* reshaped) LOCKSTEP_NOEXCEPT;
/* Sends the root's parameters and running statistics to all ranks of the communicator, also to ranks that do not
 * train. The models of all ranks must have equal layers. Returns LOCKSTEP_ERR_STATE when the root has trained with
 * other ranks and has not called lockstep_trainer_average since. A trainer of a receiving model keeps its own
 * running statistics. Collective. */
LOCKSTEP_API lockstep_status lockstep_model_broadcast(lockstep_model, lockstep_comm, int32_t root) LOCKSTEP_NOEXCEPT;
/* Writes a safetensors file with PyTorch's names. At any moment the path names the complete old or new file. */
LOCKSTEP_API lockstep_status lockstep_model_save(lockstep_model, const char* path, size_t path_n) LOCKSTEP_NOEXCEPT;
/* Reads a file of lockstep_model_save or of PyTorch, or a folder of lockstep_trainer_save. If a tensor does not fit the
 * model, returns an error and changes nothing. If the model has no parameters yet, makes them. */
LOCKSTEP_API lockstep_status lockstep_model_load(lockstep_model, const char* path, size_t path_n) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_model_destroy(lockstep_model) LOCKSTEP_NOEXCEPT;

/* ---- Parameters, in PyTorch's logical shapes: linear (out, in), conv2d (out, in, rows, columns). */
LOCKSTEP_API lockstep_status lockstep_parameter_count(lockstep_model, int32_t* count) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_parameter_info(lockstep_model, int32_t index,
                                                     lockstep_parameter*) LOCKSTEP_NOEXCEPT;
/* lockstep_parameter_read copies a parameter to host memory, lockstep_parameter_write from host memory. The view
 * must have the parameter's logical shape and axes NULL. It may have any type and strides. Both functions wait for
 * the context's stream. */
LOCKSTEP_API lockstep_status lockstep_parameter_read(lockstep_model, const char* name, size_t name_n,
                                                     const lockstep_view*) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_parameter_write(lockstep_model, const char* name, size_t name_n,
                                                      const lockstep_view*) LOCKSTEP_NOEXCEPT;

/* ---- Vectors: all parameters, or all gradients, as one array of n numbers, for an optimizer of the host program.
 * The parameters are in the order of lockstep_parameter_info, each row-major in its shape, without gaps. With
 * statistics LOCKSTEP_WITH_STATISTICS the running statistics of batch norms follow. The view must have one axis of n
 * elements, type f32 or f64, and axes NULL. A view of host memory may have any stride, and the call waits for the
 * stream. A view of the model's GPU must be f32 without gaps, and the copy runs on the context's stream. */
/* Returns n, the number of elements of a vector. A vector of gradients has the n of LOCKSTEP_WITHOUT_STATISTICS. */
LOCKSTEP_API lockstep_status lockstep_parameters_size(lockstep_model, int32_t statistics, int64_t* n) LOCKSTEP_NOEXCEPT;
/* Copies the parameters to `values`. Running statistics are those for inference. Returns LOCKSTEP_ERR_STATE when
 * lockstep_infer would. */
LOCKSTEP_API lockstep_status lockstep_parameters_read(lockstep_model, int32_t statistics,
                                                      const lockstep_view* values) LOCKSTEP_NOEXCEPT;
/* Copies `values` to the parameters. Running statistics are set both for inference and for training. Ranks that train
 * together must write equal parameters. */
LOCKSTEP_API lockstep_status lockstep_parameters_write(lockstep_model, int32_t statistics,
                                                       const lockstep_view* values) LOCKSTEP_NOEXCEPT;
/* Copies the gradients of the current step to a vector. Before lockstep_trainer_reduce, these are the gradients of the
 * sum of weight times loss over the samples that this rank has added since the last update. After
 * lockstep_trainer_reduce, they are the gradients of the loss that the step minimises, equal on all ranks. Returns
 * LOCKSTEP_ERR_STATE without samples added since the last update. Local. */
LOCKSTEP_API lockstep_status lockstep_gradients_read(lockstep_trainer, const lockstep_view* values) LOCKSTEP_NOEXCEPT;
/* Replaces the gradients that lockstep_gradients_read reads, for example by their sum with the gradients of a
 * penalty. After lockstep_trainer_reduce, all ranks must write equal numbers. Local. */
LOCKSTEP_API lockstep_status lockstep_gradients_write(lockstep_trainer, const lockstep_view* values) LOCKSTEP_NOEXCEPT;

/* ---- Inference: out = model(in) for any number of samples. A call with more samples than the model is prepared for
 * prepares the model for at least 1.5 times the old number. Batch norm uses the running statistics of the last
 * update. With several ranks and without sync_batch_norm, each rank has its own statistics after an update.
 * lockstep_infer then returns LOCKSTEP_ERR_STATE until lockstep_trainer_average is called. On a GPU the call runs
 * after the work in `stream`, and later work in `stream` runs after the call. Host memory is read and written before
 * the call returns. Local. */
LOCKSTEP_API lockstep_status lockstep_infer(lockstep_model, const lockstep_view* in, const lockstep_view* out,
                                            lockstep_stream stream) LOCKSTEP_NOEXCEPT;
/* Computes many views together: out[i] from in[i]. Checks all views before it writes the first. */
LOCKSTEP_API lockstep_status lockstep_infer_many(lockstep_model, const lockstep_view* in, const lockstep_view* out,
                                                 int64_t views, lockstep_stream stream) LOCKSTEP_NOEXCEPT;

/* ---- Training. One step is lockstep_trainer_add, once or several times, then lockstep_trainer_update. A step
 * minimises the weighted mean of the loss over all samples of all ranks; each rank may have any number of samples. A
 * step whose weights have no positive sum changes nothing; after a negative sum, later calls return
 * LOCKSTEP_ERR_FORMAT.
 *
 * A batch with NaN or infinity in a channel leaves the running statistics of batch norms for that channel unchanged.
 *
 * Collective entries: model_broadcast, comm_agree, trainer_create, update, reduce, apply, report, check, broadcast,
 * average, save, load; with sync_batch_norm also add. In such an entry, each rank checks its arguments, and the
 * ranks exchange the results of these checks. If a check fails, this rank returns its own error, and the other ranks
 * return LOCKSTEP_ERR_PEER instead of waiting. When the ranks call different entries, all ranks return
 * LOCKSTEP_ERR_STATE. */
/* Makes a trainer of a model. The model must have parameters, and must not have another trainer. The trainer updates
 * the parameters in place. The ranks compare options (except max_batch, weights and check_input), layers with their
 * options, and parameters with their values. All of these must be equal (lockstep_model_broadcast makes the values
 * equal). The extents of samples may differ. The largest max_batch of all ranks counts. Several ranks on GPUs need a
 * communicator of lockstep_comm_from_nccl. */
LOCKSTEP_API lockstep_status lockstep_trainer_create(lockstep_model, lockstep_comm,
                                                     const lockstep_trainer_options* options,
                                                     lockstep_trainer*) LOCKSTEP_NOEXCEPT;
/* Adds the gradients of 0 to max_batch samples. `weight` must be NULL with LOCKSTEP_WEIGHTS_NONE. If an earlier step
 * has failed, returns LOCKSTEP_ERR_FORMAT and discards the samples added since the last update. A label that is no
 * class also causes LOCKSTEP_ERR_FORMAT. Without weights, this call finds such a label in host memory and adds
 * nothing. In all other cases, a later call returns the error. If the weight of a label is 0, the label may be any
 * i32. Local. With sync_batch_norm and several ranks, the call is collective, and all ranks must make the same
 * number of calls in each step. */
LOCKSTEP_API lockstep_status lockstep_trainer_add(lockstep_trainer, const lockstep_view* in,
                                                  const lockstep_view* target, const lockstep_view* weight,
                                                  lockstep_stream stream) LOCKSTEP_NOEXCEPT;
/* Sums the gradients over the ranks and updates the parameters. Returns LOCKSTEP_ERR_STATE without an earlier add in
 * this step, so a rank without samples must add a view of 0 samples. With LOCKSTEP_LOSS_GIVEN a step without
 * lockstep_tape_backward has gradients of zero, which count as a step of the optimizer. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_update(lockstep_trainer, double learning_rate) LOCKSTEP_NOEXCEPT;
/* lockstep_trainer_reduce and lockstep_trainer_apply are the two halves of lockstep_trainer_update and compute the same
 * bits. Between the two calls the host program may read and write the gradients, and lockstep_trainer_report already
 * describes the step. lockstep_trainer_abandon in place of lockstep_trainer_apply ends the step without an update, for
 * example if the host program has written new parameters itself. */
/* Sums the gradients over the ranks. `norm` receives the norm of the summed gradients before clipping, and the call
 * then waits for the norm. If `norm` is NULL, the norm is not computed. Returns LOCKSTEP_ERR_STATE without an earlier
 * add in this step, and after another reduce. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_reduce(lockstep_trainer, double* norm) LOCKSTEP_NOEXCEPT;
/* Updates the parameters from the summed gradients, clipped as the options say. Returns LOCKSTEP_ERR_STATE without an
 * earlier reduce in this step. Collective: the ranks compare learning_rate. */
LOCKSTEP_API lockstep_status lockstep_trainer_apply(lockstep_trainer, double learning_rate) LOCKSTEP_NOEXCEPT;
/* Discards the samples added since the last update, and the sums of lockstep_trainer_reduce. The step is not
 * counted, and lockstep_trainer_loss and lockstep_trainer_report then describe the step before. A host program with
 * an optimizer of its own must therefore read the loss before this call, and count steps itself. Local. The host
 * program must make this call on all ranks or on none. */
LOCKSTEP_API lockstep_status lockstep_trainer_abandon(lockstep_trainer) LOCKSTEP_NOEXCEPT;
/* Returns the mean loss over this rank's samples (NaN without samples) and the number of the step, 0 before the first
 * step. If `wait` is 0, the step is the newest step whose loss has arrived, and the call does not wait. If `wait` is 1,
 * the call waits for the last step. Either pointer may be NULL. Local. */
LOCKSTEP_API lockstep_status lockstep_trainer_loss(lockstep_trainer, int32_t wait, double* loss,
                                                   int64_t* step) LOCKSTEP_NOEXCEPT;
/* Describes the last step of all ranks together. Waits for the last step. Returns LOCKSTEP_ERR_STATE between add and
 * update. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_report(lockstep_trainer, lockstep_report*) LOCKSTEP_NOEXCEPT;
/* Compares the bits of the parameters over the ranks. If a parameter differs, returns LOCKSTEP_ERR_INVALID on all
 * ranks, with a text that names the parameter and the ranks. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_check(lockstep_trainer) LOCKSTEP_NOEXCEPT;
/* Sends the root's parameters, optimizer state and running statistics to all ranks. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_broadcast(lockstep_trainer, int32_t root) LOCKSTEP_NOEXCEPT;
/* Averages the running statistics of batch norms over the ranks, for lockstep_infer, lockstep_model_save and
 * lockstep_model_broadcast. Training goes on from each rank's own statistics. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_average(lockstep_trainer) LOCKSTEP_NOEXCEPT;
/* Writes to a folder the state from which training continues. At any moment the folder holds the old state or the
 * new one. All ranks must name the same folder. Rank 0 writes the folder. Averages as lockstep_trainer_average does.
 * Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_save(lockstep_trainer, const char* folder,
                                                   size_t folder_n) LOCKSTEP_NOEXCEPT;
/* Reads a folder of lockstep_trainer_save, written by any number of ranks. Every rank reads the folder. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_load(lockstep_trainer, const char* folder,
                                                   size_t folder_n) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_trainer_destroy(lockstep_trainer) LOCKSTEP_NOEXCEPT;

/* ---- Tapes: derivatives of a model for a host program that computes the loss L itself. A pass is one
 * lockstep_tape_forward, whose activations stay in a slot, and later one lockstep_tape_backward. Between these two
 * calls the host program computes L and dL/d(out). Gradients are sums over samples and passes, not means;
 * lockstep_trainer_update sums the gradients over the ranks. A rank that calls no lockstep_tape_backward adds zero.
 * All calls are local; on a GPU they run in the order of `stream`, and do not wait if all views are in device
 * memory. */
/* Makes a tape. With parameter_gradients 1 and own_gradients 0, returns LOCKSTEP_ERR_STATE unless the model has a
 * trainer of LOCKSTEP_LOSS_GIVEN. The tape keeps this trainer alive: destroy the tape before the model's next trainer
 * is made. */
LOCKSTEP_API lockstep_status lockstep_tape_create(lockstep_model, const lockstep_tape_options* options,
                                                  lockstep_tape* tape) LOCKSTEP_NOEXCEPT;
/* Computes out = model(in); out may be NULL. `pass` receives the number of this pass, which is unique in the tape.
 * Returns LOCKSTEP_ERR_STATE when all slots are taken. */
LOCKSTEP_API lockstep_status lockstep_tape_forward(lockstep_tape, const lockstep_view* in, const lockstep_view* out,
                                                   int64_t* pass, lockstep_stream stream) LOCKSTEP_NOEXCEPT;
/* Adds dL/d(parameters) to the gradients, writes dL/d(in) to in_gradient if in_gradient is not NULL, and frees the
 * slot of the pass. `out_gradient` is dL/d(out) in the shape of out. The caller may choose any order of passes.
 * Returns LOCKSTEP_ERR_INVALID if there is no such pass, and LOCKSTEP_ERR_STATE if the parameters may have changed
 * since the pass. After an error the pass still has its slot. */
LOCKSTEP_API lockstep_status lockstep_tape_backward(lockstep_tape, int64_t pass, const lockstep_view* out_gradient,
                                                    const lockstep_view* in_gradient,
                                                    lockstep_stream stream) LOCKSTEP_NOEXCEPT;
/* Products with the Jacobian J = d(out)/d(in) of a pass: lockstep_tape_vjp computes in_gradient = J^T out_gradient,
 * lockstep_tape_jvp computes out_tangent = J in_tangent. Neither changes the slot or the gradients, and both may be
 * called any number of times. Errors are those of lockstep_tape_backward, and LOCKSTEP_ERR_STATE if the tape was made
 * without the option vjp or jvp. With vjp or jvp, lockstep_tape_create returns LOCKSTEP_ERR_INVALID for recompute 1.
 * With jvp, it also returns LOCKSTEP_ERR_UNSUPPORTED, with the layer's name, for attention, embedding and max pools. */
LOCKSTEP_API lockstep_status lockstep_tape_vjp(lockstep_tape, int64_t pass, const lockstep_view* out_gradient,
                                               const lockstep_view* in_gradient,
                                               lockstep_stream stream) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_tape_jvp(lockstep_tape, int64_t pass, const lockstep_view* in_tangent,
                                               const lockstep_view* out_tangent,
                                               lockstep_stream stream) LOCKSTEP_NOEXCEPT;
/* Frees the slot of a pass without a backward. Pass -1 frees the slots of all passes. */
LOCKSTEP_API lockstep_status lockstep_tape_release(lockstep_tape, int64_t pass) LOCKSTEP_NOEXCEPT;
/* Adds the gradients of a tape with own_gradients to the gradients of the model's trainer, and sets the tape's
 * gradients to zero. The gradients of several tapes are added in the order of the calls. No other thread may use the
 * tape meanwhile. */
LOCKSTEP_API lockstep_status lockstep_trainer_collect(lockstep_trainer, lockstep_tape) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_tape_destroy(lockstep_tape) LOCKSTEP_NOEXCEPT;

#if defined(__cplusplus)
}
#endif
#endif
