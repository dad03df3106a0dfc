/* The C functions that lockstep.F90 calls for Fortran arrays, texts and optional arguments. A function that wraps a
 * function of lockstep.h has the contract documented there. descriptor.c defines these functions. The C compiler
 * that belongs to the Fortran compiler compiles descriptor.c together with the Fortran module, because every compiler
 * has its own ISO_Fortran_binding.h. No library of lockstep exports these functions.
 *
 * If stat is NULL, a failure ends the program by an `error stop` with the text of the failure. Otherwise *stat is the
 * status, and errmsg, if not NULL, receives the text of a failure, cut or filled up with blanks. */
#ifndef LOCKSTEP_LOCKSTEP_FORTRAN_H
#define LOCKSTEP_LOCKSTEP_FORTRAN_H

#include <ISO_Fortran_binding.h>

#include <lockstep/lockstep.h>

#if defined(__cplusplus)
extern "C" {
#endif

/* type(lockstep_view) of Fortran: a lockstep_view that holds its shape, strides and axes, so that it can be copied. */
enum { LOCKSTEP_F_MAX_RANK = 8, LOCKSTEP_F_MAX_AXES = 16 };
typedef struct lockstep_f_view {
  void* data;
  lockstep_dtype dtype;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  int64_t shape[LOCKSTEP_F_MAX_RANK]; /* slowest axis first, as in C */
  int64_t strides[LOCKSTEP_F_MAX_RANK];
  char axes[LOCKSTEP_F_MAX_AXES]; /* letters of the axes, ended by a zero; empty: the model's order */
} lockstep_f_view;

/* Makes a view of a host array, with dimensions and letters in reverse order. If axes is NULL or blank, the axes
 * have the model's order. Returns LOCKSTEP_ERR_SHAPE for scalars, assumed-size and unallocated arrays, too many
 * dimensions, strides that are not whole elements, and a number of letters other than the number of dimensions.
 * Returns LOCKSTEP_ERR_DTYPE for other types than real(4), real(8), integer(4) and integer(8). The text of a failure
 * begins with `entry` and `name`. */
lockstep_status lockstep_f_view_of_array(const char* entry, const char* name, const CFI_cdesc_t* array,
                                         const CFI_cdesc_t* axes, lockstep_f_view* view);
/* Makes a view of the memory at an address, with extents and strides in elements, fastest axis first. If strides is
 * NULL, the elements have no gaps. */
void lockstep_f_view_from_ptr(void* const* data, const CFI_cdesc_t* shape, const CFI_cdesc_t* strides,
                              const int32_t* dtype, const CFI_cdesc_t* axes, const int32_t* device_id,
                              lockstep_f_view* view, int32_t* stat, CFI_cdesc_t* errmsg);
void lockstep_f_view_of(const CFI_cdesc_t* array, lockstep_f_view* view, const CFI_cdesc_t* axes, int32_t* stat,
                        CFI_cdesc_t* errmsg);

void lockstep_f_infer(const lockstep_model*, const CFI_cdesc_t* in, const CFI_cdesc_t* out, const CFI_cdesc_t* in_axes,
                      const CFI_cdesc_t* out_axes, const lockstep_stream*, int32_t* stat, CFI_cdesc_t* errmsg);
void lockstep_f_infer_many(const lockstep_model*, const CFI_cdesc_t* in, const CFI_cdesc_t* out, const lockstep_stream*,
                           int32_t* stat, CFI_cdesc_t* errmsg);
void lockstep_f_trainer_add(const lockstep_trainer*, const CFI_cdesc_t* in, const CFI_cdesc_t* target,
                            const CFI_cdesc_t* weight, const CFI_cdesc_t* in_axes, const CFI_cdesc_t* target_axes,
                            const CFI_cdesc_t* weight_axes, const lockstep_stream*, int32_t* stat, CFI_cdesc_t* errmsg);
void lockstep_f_trainer_add_view(const lockstep_trainer*, const lockstep_f_view* in, const lockstep_f_view* target,
                                 const lockstep_f_view* weight, const lockstep_stream*, int32_t* stat,
                                 CFI_cdesc_t* errmsg);
void lockstep_f_parameter_read(const lockstep_model*, const CFI_cdesc_t* name, const CFI_cdesc_t* values, int32_t* stat,
                               CFI_cdesc_t* errmsg);
void lockstep_f_parameter_write(const lockstep_model*, const CFI_cdesc_t* name, const CFI_cdesc_t* values,
                                int32_t* stat, CFI_cdesc_t* errmsg);

/* Sets stat and errmsg at the end of every call. If stat is NULL, ends the program after a failure. */
void lockstep_f_finish(const lockstep_status*, int32_t* stat, CFI_cdesc_t* errmsg);
/* Ends the program by an `error stop`; defined in lockstep.F90. */
void lockstep_f_stop(const char* text, int64_t length);

#if defined(__cplusplus)
}
#endif
#endif
