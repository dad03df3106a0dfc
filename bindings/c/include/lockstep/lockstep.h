/* lockstep for C, C++ and whatever calls C: training and inference inside a program that owns its memory, its streams,
 * its communicator and its process. C99 and newer, C++11 and newer. bindings/c/README.md explains the design,
 * docs/embedding.md shows a program.
 *
 * Handles (contexts, communicators, models, trainers) are numbers in a pointer's clothes: 0 is none, and one that was
 * destroyed, or is of another kind, is found out (LOCKSTEP_ERR_INVALID). What a handle was made from stays alive as
 * long as it needs it, so that handles are destroyed in any order. Destroying none (NULL) is LOCKSTEP_OK.
 *
 * Threads: a context, and every handle made with it, is used by one thread at a time, which may change between calls:
 * LOCKSTEP_ERR_STATE for a call while another thread is in one. Different contexts are independent. lockstep_version,
 * _build_info, _status_name and _last_error: any thread.
 *
 * Nothing here prints, exits, installs a signal handler, or changes the floating-point environment, the locale, the
 * current device or a byte of the caller's memory outside a view that is written. */
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
#define LOCKSTEP_ERR_INVALID 1     /* an argument, an option or a handle */
#define LOCKSTEP_ERR_SHAPE 2       /* extents, strides, axes, alignment */
#define LOCKSTEP_ERR_DTYPE 3       /* a type of elements */
#define LOCKSTEP_ERR_DEVICE 4      /* a device that is not there, or memory of another one */
#define LOCKSTEP_ERR_UNSUPPORTED 5 /* not in this build, or not yet */
#define LOCKSTEP_ERR_STATE 6       /* not now: calls in another order, after MPI_Finalize, from a callback */
/* 20 to 39: a resource is missing; nothing was changed. */
#define LOCKSTEP_ERR_OUT_OF_MEMORY 20
#define LOCKSTEP_ERR_IO 21     /* the system cannot open, read or write a file */
#define LOCKSTEP_ERR_FORMAT 22 /* a file, or numbers in it, are not what they should be; a label out of range */
/* 40 to 59: device or communicator have failed: destroy what was made with them and go on without. */
#define LOCKSTEP_ERR_CUDA 40
#define LOCKSTEP_ERR_NCCL 41
#define LOCKSTEP_ERR_MPI 42
/* Another rank failed. Where the text begins with "agreed", the ranks found it before they exchanged anything: nothing
 * was changed on this one, and all may go on. */
#define LOCKSTEP_ERR_PEER 43
/* 60: an error in lockstep. */
#define LOCKSTEP_ERR_INTERNAL 60

/* ---- Types of elements and devices. Device types have DLPack's numbers. */
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
typedef void* lockstep_stream; /* a cudaStream_t; on the host it is not looked at */

/* ---- A window on the caller's memory, for the duration of a call (host memory) or until the stream has passed it
 * (memory of a device). Nothing keeps a pointer to the struct.
 *
 * axes: a letter for each axis of shape, slowest first: n samples, c channels or features, d h w space, t positions.
 * Several n are one batch, in row-major order; letters that are missing have extent 1: a 2-D section "hw" is a batch of
 * one with one channel. NULL: as the model counts, samples first and channels last ("nhwc", "ntc", "nc"). */
typedef struct lockstep_view {
  void* data;
  lockstep_dtype dtype;
  int32_t device_type;    /* LOCKSTEP_CPU, LOCKSTEP_CUDA */
  int32_t device_id;      /* of a GPU */
  int32_t ndim;           /* 0 to 8 */
  const int64_t* shape;   /* (ndim) */
  const int64_t* strides; /* (ndim), in elements, any sign; NULL: row-major without gaps */
  const char* axes;
} lockstep_view;

/* ---- Structs of options begin with their size, which the functions *_init set, or the caller (sizeof). A struct from
 * an older header is shorter: what it lacks has its default. One from a newer header is taken as long as what is not
 * known here is zero (else LOCKSTEP_ERR_UNSUPPORTED). */

/* Memory of the host program. It serves one context, whose thread calls it. A callback neither calls lockstep
 * (LOCKSTEP_ERR_STATE) nor throws (it would be LOCKSTEP_ERR_INVALID). */
typedef struct lockstep_allocator {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  void* user;
  /* So many bytes at a multiple of alignment, a power of two; NULL: there are none left. In the stream's order. */
  void* (*allocate)(void* user, size_t bytes, size_t alignment, lockstep_stream stream);
  void (*deallocate)(void* user, void* memory, size_t bytes, lockstep_stream stream);
} lockstep_allocator;

#define LOCKSTEP_STREAM_OWN 0   /* lockstep makes a stream */
#define LOCKSTEP_STREAM_GIVEN 1 /* `stream` is used; NULL is CUDA's legacy stream */
typedef struct lockstep_context_options {
  uint32_t struct_size;
  int32_t device_type; /* LOCKSTEP_CPU */
  int32_t device_id;
  int32_t threads;     /* of one operation on the host; 0: what OpenMP would take here */
  int32_t stream_kind; /* LOCKSTEP_STREAM_OWN; of a GPU */
  int32_t reserved;
  lockstep_stream stream;
  const lockstep_allocator* memory; /* of the device; the struct is copied; NULL: lockstep's own */
  int64_t memory_limit;             /* bytes in use at once; 0: no limit. Not beside `memory`. */
} lockstep_context_options;

/* A communicator of the host program: another MPI, threads, sockets. All ranks call these in the same order. Each
 * returns 0, or a failure: LOCKSTEP_ERR_CUDA to LOCKSTEP_ERR_PEER mean what they say, any other number becomes
 * LOCKSTEP_ERR_PEER. Each is over when it returns. Memory is the host's (CPU). */
typedef struct lockstep_comm_ops {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  void* user;
  int32_t rank;
  int32_t size;
  /* data (count) becomes the sum over the ranks, the same bits on each of them. */
  int32_t (*all_reduce_sum)(void* user, void* data, int64_t count, lockstep_dtype dtype);
  int32_t (*broadcast)(void* user, void* data, int64_t bytes, int32_t root);
  /* out (size * bytes) holds what every rank gave, in rank order. */
  int32_t (*all_gather)(void* user, const void* in, void* out, int64_t bytes);
  int32_t (*barrier)(void* user);
  /* The text of the last failure, ended by a zero; NULL, here or returned: none. */
  const char* (*error_text)(void* user);
  /* Once, when nothing uses the communicator any more; NULL: nothing to do. */
  void (*destroy)(void* user);
} lockstep_comm_ops;

#define LOCKSTEP_ACTIVATION_NONE 0
#define LOCKSTEP_ACTIVATION_RELU 1
#define LOCKSTEP_ACTIVATION_TANH 2
#define LOCKSTEP_ACTIVATION_SIGMOID 3
#define LOCKSTEP_ACTIVATION_GELU 4
#define LOCKSTEP_ACTIVATION_GELU_TANH 5
#define LOCKSTEP_ACTIVATION_SILU 6

#define LOCKSTEP_BIAS_DEFAULT 0 /* linear: with; convolutions: without */
#define LOCKSTEP_BIAS_WITH 1
#define LOCKSTEP_BIAS_WITHOUT 2

/* Of all kinds of layers; a field that is 0 has its default, and fields that a kind has no use for are 0.
 *
 * kernel to dilation and output_pad have a number for each axis of space, slowest first, as axes letters and PyTorch
 * count them: (positions), (rows, columns) or (planes, rows, columns). 0 behind the first: as the first, or, where the
 * first is 0, the default; behind the axes that the layer has, 0 or as the first. Since 0 is taken, -1 behind the first
 * says that an axis has no pad or output_pad: pad {1, -1, -1} is one plane at both ends. */
typedef struct lockstep_layer_options {
  uint32_t struct_size;
  int32_t activation; /* linear, activation, batch_norm (none or relu) */
  int32_t bias;
  int32_t pad_mode;      /* 0: zeros */
  int32_t kernel[3];     /* convolutions 3, conv_transpose and pools 2 */
  int32_t stride[3];     /* 1; of pools and conv_transpose: as kernel */
  int32_t pad[3];        /* 0; on both sides */
  int32_t dilation[3];   /* 1; of convolutions, conv_transpose */
  int32_t groups;        /* 1; likewise: parts of the channels that do not meet */
  int32_t reserved;      /* not looked at */
  double epsilon;        /* norms: 1e-5 */
  double momentum;       /* batch_norm: 0.1 */
  double rate;           /* dropout */
  int32_t output_pad[3]; /* 0; of conv_transpose: positions more at the end, fewer than stride */
  int32_t share;         /* 0: the name is new; 1: the parameters are those of a layer of this name before */
} lockstep_layer_options;

#define LOCKSTEP_OPTIMIZER_SGD 0
#define LOCKSTEP_OPTIMIZER_ADAM 1
#define LOCKSTEP_OPTIMIZER_ADAMW 2
#define LOCKSTEP_OPTIMIZER_LARS 3

#define LOCKSTEP_LOSS_MSE 0
#define LOCKSTEP_LOSS_L1 1
#define LOCKSTEP_LOSS_HUBER 2
#define LOCKSTEP_LOSS_CROSS_ENTROPY 3 /* the target is a class (i32, i64, u8) for each sample and position */

#define LOCKSTEP_WEIGHTS_NONE 0    /* every sample counts once */
#define LOCKSTEP_WEIGHTS_SAMPLE 1  /* lockstep_trainer_add takes a weight for each sample */
#define LOCKSTEP_WEIGHTS_ELEMENT 2 /* and for each element of the target, or position with classes */

/* Begin with lockstep_trainer_options_init: here 0 is a value like others. */
typedef struct lockstep_trainer_options {
  uint32_t struct_size;
  int32_t optimizer;       /* LOCKSTEP_OPTIMIZER_ADAM */
  int32_t loss;            /* LOCKSTEP_LOSS_MSE */
  int32_t nesterov;        /* 0 */
  int32_t skip_non_finite; /* 0; 1: no update from gradients with NaN or infinity */
  int32_t check_input;     /* 0; 1: host inputs, targets and weights with NaN or infinity are refused */
  int32_t weights;         /* LOCKSTEP_WEIGHTS_NONE; ranks may differ, one without weighs a sample 1 */
  int32_t sync_batch_norm; /* 0; 1: batch norms take the samples of all ranks as one batch */
  double beta1;            /* 0.9 */
  double beta2;            /* 0.999 */
  double epsilon;          /* 1e-8 */
  double momentum;         /* 0.9; sgd, lars */
  double weight_decay;     /* 0 */
  double clip_norm;        /* largest norm of all gradients together; 0: as they come */
  double huber_delta;      /* 1 */
  int64_t max_batch;       /* most samples of one lockstep_trainer_add on any rank; to be set */
  int64_t bucket_bytes;    /* of the gradients that one all-reduce sums; 0: lockstep's choice */
} lockstep_trainer_options;

/* What lockstep_parameter_info writes; the caller sets struct_size. */
typedef struct lockstep_parameter {
  uint32_t struct_size;
  int32_t ndim;
  int64_t shape[8];
  const char* name; /* "1.weight"; as long as a handle of the model lives */
} lockstep_parameter;

/* What lockstep_trainer_report writes, of all ranks together; the caller sets struct_size. */
typedef struct lockstep_report {
  uint32_t struct_size;
  int32_t reserved;
  int64_t step;    /* the last one, 0 before the first; what follows is of this step, but for skipped */
  int64_t skipped; /* updates left out for gradients that were not finite (skip_non_finite, clip_norm), since create */
  int64_t samples; /* that the ranks added; 0 before the first update after create or load */
  double loss;     /* the mean over these, each times its weight; NaN where there are none */
  double gradient_norm; /* of that mean, before clip_norm; NaN likewise, and once samples were added behind it */
} lockstep_report;

/* ---- The library. */
LOCKSTEP_API uint32_t lockstep_version(void) LOCKSTEP_NOEXCEPT; /* LOCKSTEP_VERSION of the library that runs */
/* JSON, for ever. */
LOCKSTEP_API const char* lockstep_build_info(void) LOCKSTEP_NOEXCEPT;
/* "SHAPE"; "UNKNOWN". */
LOCKSTEP_API const char* lockstep_status_name(lockstep_status) LOCKSTEP_NOEXCEPT;
/* Why this thread's last call failed: entry, argument, value, what was expected; empty when it did not. Until the next
 * call of this thread. */
LOCKSTEP_API const char* lockstep_last_error(void) LOCKSTEP_NOEXCEPT;
/* Sets that text and returns the status, for layers above this one. */
LOCKSTEP_API lockstep_status lockstep_error_set(lockstep_status, const char* text, size_t text_n) LOCKSTEP_NOEXCEPT;
/* Defaults; size: sizeof of the caller's struct. */
LOCKSTEP_API lockstep_status lockstep_context_options_init(lockstep_context_options*, size_t size) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_layer_options_init(lockstep_layer_options*, size_t size) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_trainer_options_init(lockstep_trainer_options*, size_t size) LOCKSTEP_NOEXCEPT;

/* ---- Context: a device, a stream, memory. options NULL: the host. On failure *context is NULL (all creators).
 * LOCKSTEP_ERR_UNSUPPORTED on a processor that the library was not built for, with what it lacks. */
LOCKSTEP_API lockstep_status lockstep_context_create(const lockstep_context_options* options,
                                                     lockstep_context* context) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_context_destroy(lockstep_context) LOCKSTEP_NOEXCEPT;
/* Waits for its stream. */
LOCKSTEP_API lockstep_status lockstep_context_synchronize(lockstep_context) LOCKSTEP_NOEXCEPT;
/* Bytes that were taken from its memory; -1 where that is not counted. */
LOCKSTEP_API lockstep_status lockstep_context_memory(lockstep_context, int64_t* in_use,
                                                     int64_t* peak) LOCKSTEP_NOEXCEPT;

/* ---- Communicator: the ranks that train together. <lockstep/lockstep_mpi.h> makes one from an MPI_Comm. */
/* Of one rank. */
LOCKSTEP_API lockstep_status lockstep_comm_self(lockstep_context, lockstep_comm*) LOCKSTEP_NOEXCEPT;
/* Collective: the ranks compare what they were told (LOCKSTEP_ERR_INVALID on each of them where it does not fit). The
 * struct is copied. `destroy` is not called when this fails. */
LOCKSTEP_API lockstep_status lockstep_comm_from_ops(lockstep_context, const lockstep_comm_ops* ops,
                                                    lockstep_comm*) LOCKSTEP_NOEXCEPT;
/* Ranks on GPUs: nccl_comm is the host program's ncclComm_t, on the GPU of the context, of the ranks of `control`,
 * which goes on carrying what lies in host memory. It is neither configured nor ended nor aborted here: it is destroyed
 * after every trainer and communicator made with it, and when one of these has failed (LOCKSTEP_ERR_NCCL), aborting it
 * is the host program's. Calls go to the NCCL that the process has loaded, in the order of the context's stream; NCCL
 * wants one thread for all communicators of a GPU. Collective, one small all-reduce included; UNSUPPORTED where the
 * process has no NCCL. */
LOCKSTEP_API lockstep_status lockstep_comm_from_nccl(lockstep_context, void* nccl_comm, lockstep_comm control,
                                                     lockstep_comm*) LOCKSTEP_NOEXCEPT;
/* Its rank, from 0, and how many there are. */
LOCKSTEP_API lockstep_status lockstep_comm_rank(lockstep_comm, int32_t* rank, int32_t* size) LOCKSTEP_NOEXCEPT;
/* Collective: the largest of the ranks' numbers, for phases of the host program that may fail on one rank. */
LOCKSTEP_API lockstep_status lockstep_comm_agree(lockstep_comm, int32_t mine, int32_t* largest) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_comm_destroy(lockstep_comm) LOCKSTEP_NOEXCEPT;

/* ---- Model. Strings are a pointer and a length; length 0: ended by a zero. */
/* Without layers yet. dtype, of what is computed and of the parameters: f32 or f64 (bf16: f32 parameters beside it).
 * sample_shape: (features), (positions, channels), (rows, columns, channels) or (planes, rows, columns, channels). */
LOCKSTEP_API lockstep_status lockstep_model_create(lockstep_context, lockstep_dtype, const int64_t* sample_shape,
                                                   int32_t ndim, lockstep_model*) LOCKSTEP_NOEXCEPT;
/* Linear layers "1", "2", ... of widths[1], ..., an activation behind each but the last. widths[0]: features. */
LOCKSTEP_API lockstep_status lockstep_model_mlp(lockstep_context, lockstep_dtype, const int64_t* widths, int32_t n,
                                                int32_t activation, lockstep_model*) LOCKSTEP_NOEXCEPT;
/* Adds a layer; the model's output is the one added last. kind: linear, conv2d, batch_norm, layer_norm, activation,
 * max_pool, average_pool, global_average_pool, add, dropout; for samples (positions, channels) and those with planes
 * conv1d, conv3d, max_pool1d, max_pool3d, average_pool1d, average_pool3d; conv_transpose1d, conv_transpose2d and
 * conv_transpose3d (kernel 2) lead back to a finer grid. name: of the layer and its parameters, of no other layer
 * (LOCKSTEP_ERR_INVALID) unless options->share is 1. inputs (ninputs): nodes; 0 is the
 * model's input. linear and batch_norm take a second one, which is added to the result; add has two. size: features of
 * linear, channels of convolutions, 0 otherwise. options NULL: defaults. node, which may be NULL: the layer's output.
 * STATE once the model has parameters. */
LOCKSTEP_API lockstep_status lockstep_model_add(lockstep_model, const char* kind, size_t kind_n, const char* name,
                                                size_t name_n, const int32_t* inputs, int32_t ninputs, int64_t size,
                                                const lockstep_layer_options* options, int32_t* node) LOCKSTEP_NOEXCEPT;
/* Gives it parameters, which begin as the seed says; equal on all ranks and for every number of them. */
LOCKSTEP_API lockstep_status lockstep_model_initialise(lockstep_model, uint64_t seed) LOCKSTEP_NOEXCEPT;
/* Plans and allocates for lockstep_infer with up to max_batch samples, which then allocates nothing. */
LOCKSTEP_API lockstep_status lockstep_model_prepare(lockstep_model, int64_t max_batch) LOCKSTEP_NOEXCEPT;
/* The same parameters, not a copy, on another context of the same device: for another thread. Any number may infer at
 * once while nobody trains, loads or writes them, which is for the caller to order. */
LOCKSTEP_API lockstep_status lockstep_model_share(lockstep_model, lockstep_context,
                                                  lockstep_model* shared) LOCKSTEP_NOEXCEPT;
/* A rank's parameters and running statistics for all ranks of the communicator, whether they train or not; the models
 * have the same layers. STATE on a root that has trained with others and not averaged (lockstep_trainer_average). A
 * trainer goes on from its own running statistics. Collective. */
LOCKSTEP_API lockstep_status lockstep_model_broadcast(lockstep_model, lockstep_comm, int32_t root) LOCKSTEP_NOEXCEPT;
/* safetensors with PyTorch's names. At any moment the path is the old file or the new one. */
LOCKSTEP_API lockstep_status lockstep_model_save(lockstep_model, const char* path, size_t path_n) LOCKSTEP_NOEXCEPT;
/* A file of lockstep_model_save or of PyTorch, or a folder of lockstep_trainer_save. All tensors fit, or nothing is
 * changed. Gives a model without parameters some. */
LOCKSTEP_API lockstep_status lockstep_model_load(lockstep_model, const char* path, size_t path_n) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_model_destroy(lockstep_model) LOCKSTEP_NOEXCEPT;

/* ---- Parameters, in logical shapes as PyTorch has them: linear (out, in), conv2d (out, in, rows, columns). */
LOCKSTEP_API lockstep_status lockstep_parameter_count(lockstep_model, int32_t* count) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_parameter_info(lockstep_model, int32_t index,
                                                     lockstep_parameter*) LOCKSTEP_NOEXCEPT;
/* Copies to and from host memory of that shape; any type and strides; axes are NULL. Waits for the stream. */
LOCKSTEP_API lockstep_status lockstep_parameter_read(lockstep_model, const char* name, size_t name_n,
                                                     const lockstep_view*) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_parameter_write(lockstep_model, const char* name, size_t name_n,
                                                      const lockstep_view*) LOCKSTEP_NOEXCEPT;

/* ---- Inference: out = model(in) for any number of samples. More than were prepared for: prepares for them first, and
 * for half as many again as before. Batch norm takes the running statistics of the last update. With several ranks each
 * has its own, unless sync_batch_norm is set: STATE from the update until lockstep_trainer_average. On a
 * GPU the call is ordered behind `stream`, and `stream` behind the call. Host memory is read and written before the
 * call returns. Local. */
LOCKSTEP_API lockstep_status lockstep_infer(lockstep_model, const lockstep_view* in, const lockstep_view* out,
                                            lockstep_stream stream) LOCKSTEP_NOEXCEPT;
/* Many views, computed together: in[i] gives out[i]. All are checked before the first is written. */
LOCKSTEP_API lockstep_status lockstep_infer_many(lockstep_model, const lockstep_view* in, const lockstep_view* out,
                                                 int64_t views, lockstep_stream stream) LOCKSTEP_NOEXCEPT;

/* ---- Training. One step: lockstep_trainer_add once or several times, lockstep_trainer_update. It minimises the mean
 * of the loss over all samples of all ranks, each times its weight over the sum of the weights; a rank may have any
 * number. A step whose weights have no positive sum changes nothing; of a negative one later calls say so (FORMAT).
 *
 * A batch that is not finite leaves the running statistics of batch norms alone, in each channel that it has spoilt.
 *
 * Collective entries: model_broadcast, comm_agree, trainer_create, update, report, check, broadcast, average, save,
 * load, with sync_batch_norm also add. They check their arguments, then the ranks agree; a rank that cannot go on gets
 * its own error and the others LOCKSTEP_ERR_PEER, and nobody waits. Where the ranks are in different entries: STATE on
 * all. */
/* Of a model with parameters, which it updates in place; one trainer a model. The ranks compare options, layers and
 * what these are set to, and parameters with their values, which begin equal (lockstep_model_broadcast); samples may
 * have other extents. The largest max_batch counts. Several ranks on GPUs want a communicator of
 * lockstep_comm_from_nccl. */
LOCKSTEP_API lockstep_status lockstep_trainer_create(lockstep_model, lockstep_comm,
                                                     const lockstep_trainer_options* options,
                                                     lockstep_trainer*) LOCKSTEP_NOEXCEPT;
/* Adds the gradients of samples; none at all is fine. weight: NULL where the
 * options say LOCKSTEP_WEIGHTS_NONE. What an earlier step left behind (LOCKSTEP_ERR_FORMAT) gives up what was added.
 * A label that is no class is FORMAT, too: at once in host memory, where nothing is added, unless there are weights,
 * beside 0 of which it may be any i32; else from a later call.
 * Local; with sync_batch_norm and several ranks collective: all add equally often. */
LOCKSTEP_API lockstep_status lockstep_trainer_add(lockstep_trainer, const lockstep_view* in,
                                                  const lockstep_view* target, const lockstep_view* weight,
                                                  lockstep_stream stream) LOCKSTEP_NOEXCEPT;
/* Sums the gradients over the ranks and updates the parameters. STATE without an add before: give a view of no samples
 * where a rank has none. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_update(lockstep_trainer, double learning_rate) LOCKSTEP_NOEXCEPT;
/* Forgets what was added since the last update. Local; the ranks see to it that the others do the same. */
LOCKSTEP_API lockstep_status lockstep_trainer_abandon(lockstep_trainer) LOCKSTEP_NOEXCEPT;
/* The mean loss over this rank's samples of the newest step whose loss is there (NaN where it had none), and the step's
 * number, 0 before the first. wait 0: never waits; 1: for the last step. Either pointer may be NULL. Local. */
LOCKSTEP_API lockstep_status lockstep_trainer_loss(lockstep_trainer, int32_t wait, double* loss,
                                                   int64_t* step) LOCKSTEP_NOEXCEPT;
/* The last update as all ranks made it, and what it began with. Waits. STATE between add and update. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_report(lockstep_trainer, lockstep_report*) LOCKSTEP_NOEXCEPT;
/* Compares the parameters of the ranks, bit by bit: LOCKSTEP_ERR_INVALID on all of them names a parameter and the ranks
 * that have another one. Collective. */
LOCKSTEP_API lockstep_status lockstep_trainer_check(lockstep_trainer) LOCKSTEP_NOEXCEPT;
/* A rank's parameters, optimizer state and running statistics for all. */
LOCKSTEP_API lockstep_status lockstep_trainer_broadcast(lockstep_trainer, int32_t root) LOCKSTEP_NOEXCEPT;
/* Averages the running statistics of batch norms over the ranks, for lockstep_infer, lockstep_model_save and
 * lockstep_model_broadcast. Training goes on from each rank's own. */
LOCKSTEP_API lockstep_status lockstep_trainer_average(lockstep_trainer) LOCKSTEP_NOEXCEPT;
/* Everything that training goes on from, in a folder, which is the old state or the new one at any moment. All ranks
 * name the same folder, which rank 0 writes. Averages as lockstep_trainer_average does. */
LOCKSTEP_API lockstep_status lockstep_trainer_save(lockstep_trainer, const char* folder,
                                                   size_t folder_n) LOCKSTEP_NOEXCEPT;
/* Any number of ranks may have written it. Every rank reads it. */
LOCKSTEP_API lockstep_status lockstep_trainer_load(lockstep_trainer, const char* folder,
                                                   size_t folder_n) LOCKSTEP_NOEXCEPT;
LOCKSTEP_API lockstep_status lockstep_trainer_destroy(lockstep_trainer) LOCKSTEP_NOEXCEPT;

#if defined(__cplusplus)
}
#endif
#endif
