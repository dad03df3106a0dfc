/* DLPack 1.x: makes views of other libraries' arrays (NumPy, PyTorch, CuPy, JAX, ..), and DLPack arrays of parameters.
 * Takes only the versioned struct DLManagedTensorVersioned, not the older DLManagedTensor.
 *
 * In Python a capsule "dltensor_versioned" holds the pointer: array.__dlpack__(stream=.., max_version=(1, 1)). On a GPU
 * the producer makes the data ready in that `stream`. Give the same stream to lockstep_infer and lockstep_trainer_add.
 * In DLPack, stream 1 is CUDA's legacy stream (NULL in lockstep), 2 is the stream of the thread, another number is a
 * cudaStream_t, and -1 means that the caller has waited. The functions of this header do not use streams. */
#ifndef LOCKSTEP_LOCKSTEP_DLPACK_H
#define LOCKSTEP_LOCKSTEP_DLPACK_H

#include <lockstep/lockstep.h>

#if defined(__cplusplus)
extern "C" {
#endif

struct DLManagedTensorVersioned; /* defined in <dlpack/dlpack.h> of DLPack 1.0 and newer, which is not needed here */

/* The layout of DLManagedTensorVersioned, by DLPack's specification, for programs that do not include
 * <dlpack/dlpack.h>. Cast a DLManagedTensorVersioned* to a lockstep_dlpack*. */
typedef struct lockstep_dlpack {
  uint32_t version_major; /* 1; with another version no field after `deleter` may be read */
  uint32_t version_minor;
  void* owner; /* the producer's own data, which only `deleter` uses */
  /* Ends the producer's share in the tensor and frees the struct. The receiver must call it once. May be NULL. */
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags; /* bits: LOCKSTEP_DLPACK_READ_ONLY */
  void* data;
  int32_t device_type; /* 1 CPU, 2 CUDA, 3 page-locked host memory, 13 CUDA's managed memory */
  int32_t device_id;
  int32_t ndim;
  uint8_t type_code; /* 0 int, 1 unsigned int, 2 float, 4 bfloat */
  uint8_t type_bits;
  uint16_t type_lanes; /* 1 */
  int64_t* shape;
  int64_t* strides;     /* strides in elements; NULL (version 1.1 and before): row-major without gaps */
  uint64_t byte_offset; /* bytes from data to the first element */
} lockstep_dlpack;

#define LOCKSTEP_DLPACK_READ_ONLY 1 /* a bit of lockstep_dlpack.flags */

/* Makes a view of the tensor. The view points to the tensor's data, shape and strides, and to `axes`: the tensor and
 * `axes` must outlive every call that takes the view. The caller must still call the tensor's deleter once, whatever
 * this function returns. `axes` is the view's axes (lockstep.h), or NULL. `written` is 1 when a call will write
 * through the view, else 0. On failure the view does not change.
 *
 * Returns these errors:
 * LOCKSTEP_ERR_FORMAT if the tensor's version_major is not 1; no other field is read then.
 * LOCKSTEP_ERR_DTYPE if the elements are not f16, f32, f64, bf16, i32, i64 or u8, or have several lanes.
 * LOCKSTEP_ERR_DEVICE if the memory is neither the host's (page-locked or not) nor CUDA's.
 * LOCKSTEP_ERR_SHAPE for more than 8 axes, for extents or strides that no address can hold, if data is NULL, if the
 * address is no multiple of the element's size (256 bytes are not required), or if elements share memory although
 * `written` is 1.
 * LOCKSTEP_ERR_INVALID if `written` is 1 and the tensor is read-only. */
LOCKSTEP_API lockstep_status lockstep_view_from_dlpack(const struct DLManagedTensorVersioned* tensor, const char* axes,
                                                       int32_t written, lockstep_view* view) LOCKSTEP_NOEXCEPT;

/* Makes a tensor of a parameter's own memory, not a copy. Training and loading change its elements. The tensor has
 * the logical shape (lockstep_parameter_info), strides that are never NULL, and type f32 or f64. The tensor is
 * read-only; to change the parameter, use lockstep_parameter_write. The tensor holds a share in the parameters and
 * their context, so their handles may be destroyed first. The receiver must call the deleter once, which gives the
 * share back. If no other share is left, only the thread that uses the context may call the deleter. On a GPU, the
 * caller must read only after the work of the context's stream (lockstep_context_synchronize, or an event). On
 * failure *tensor is NULL. */
LOCKSTEP_API lockstep_status lockstep_parameter_to_dlpack(lockstep_model model, const char* name, size_t name_n,
                                                          struct DLManagedTensorVersioned** tensor) LOCKSTEP_NOEXCEPT;

#if defined(__cplusplus)
}
#endif
#endif
