/* DLPack 1.x in and out: arrays of other libraries (NumPy, PyTorch, CuPy, JAX, ..) as views, parameters as their
 * arrays. Only the versioned struct, DLManagedTensorVersioned; the older DLManagedTensor is not taken.
 *
 * In Python a capsule "dltensor_versioned" holds the pointer: array.__dlpack__(stream=.., max_version=(1, 1)). `stream`
 * there is how a GPU's work is ordered: the producer makes the data ready in that stream, which is the one to give to
 * lockstep_infer and lockstep_trainer_add: 1 is CUDA's legacy stream (here NULL), 2 the stream of the thread, another
 * number a cudaStream_t, -1 none: the caller has waited. Nothing here looks at streams. */
#ifndef LOCKSTEP_LOCKSTEP_DLPACK_H
#define LOCKSTEP_LOCKSTEP_DLPACK_H

#include <lockstep/lockstep.h>

#if defined(__cplusplus)
extern "C" {
#endif

struct DLManagedTensorVersioned; /* <dlpack/dlpack.h> of DLPack 1.0 and newer, which is not needed here */

/* Its layout, by DLPack's specification, for programs without that header: a pointer to one is cast to a pointer to the
 * other. */
typedef struct lockstep_dlpack {
  uint32_t version_major; /* 1; with another one nothing behind `deleter` may be read */
  uint32_t version_minor;
  void* owner; /* the producer's own */
  /* Ends the producer's share in the tensor and frees the struct; may be NULL. Whoever received the tensor calls it
   * once. */
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags; /* LOCKSTEP_DLPACK_READ_ONLY */
  void* data;
  int32_t device_type; /* 1 CPU, 2 CUDA, 3 page-locked host memory, 13 CUDA's managed memory */
  int32_t device_id;
  int32_t ndim;
  uint8_t type_code; /* 0 int, 1 unsigned int, 2 float, 4 bfloat */
  uint8_t type_bits;
  uint16_t type_lanes; /* 1 */
  int64_t* shape;
  int64_t* strides;     /* in elements; NULL, in version 1.1 and before: row-major without gaps */
  uint64_t byte_offset; /* from data to the first element */
} lockstep_dlpack;

#define LOCKSTEP_DLPACK_READ_ONLY 1 /* in flags */

/* A view of the tensor. It borrows data, shape, strides and axes: the tensor outlives every call that is given the
 * view, and its deleter stays the caller's to call once, whatever is returned here. axes: of the view (lockstep.h), or
 * NULL. written: 1 where something will be written through the view, 0 otherwise. On failure the view is left as it is.
 *
 * FORMAT: another major version, of which nothing else is read. DTYPE: not f16, f32, f64, bf16, i32, i64 or u8, or of
 * several lanes. DEVICE: not the host's memory (page-locked or not) or CUDA's. SHAPE: more than 8 axes, extents or
 * strides that no address can hold, NULL in place of data, an address that is no multiple of the element's size (none
 * of 256 bytes is asked for); written: elements that share memory. INVALID: written is 1 and the tensor is read-only.
 */
LOCKSTEP_API lockstep_status lockstep_view_from_dlpack(const struct DLManagedTensorVersioned* tensor, const char* axes,
                                                       int32_t written, lockstep_view* view) LOCKSTEP_NOEXCEPT;

/* A parameter where it lies, not a copy: training and loading show in it. In its logical shape
 * (lockstep_parameter_info) with strides that are never NULL, of type f32 or f64, read-only: lockstep_parameter_write
 * writes. The receiver calls the deleter once, which gives back a share in the parameters and their context: either may
 * be destroyed before. The last share goes as a call of the context does: on the thread that has it at that time. On a
 * GPU the caller orders its reading behind the context's stream (lockstep_context_synchronize, or an event). On failure
 * *tensor is NULL. */
LOCKSTEP_API lockstep_status lockstep_parameter_to_dlpack(lockstep_model model, const char* name, size_t name_n,
                                                          struct DLManagedTensorVersioned** tensor) LOCKSTEP_NOEXCEPT;

#if defined(__cplusplus)
}
#endif
#endif
