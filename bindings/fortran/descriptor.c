#include <lockstep/lockstep_fortran.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets the text of lockstep_last_error and returns the status. */
__attribute__((format(printf, 2, 3))) static lockstep_status failure(lockstep_status status, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return lockstep_error_set(status, text, 0);
}

void lockstep_f_finish(const lockstep_status* status, int32_t* stat, CFI_cdesc_t* errmsg) {
  if (stat != NULL) {
    *stat = *status;
  }
  if (*status == LOCKSTEP_OK) {
    return;
  }
  const char* text = lockstep_last_error();
  const size_t length = strlen(text);
  if (stat == NULL) {
    lockstep_f_stop(text, (int64_t)length);
  }
  if (errmsg != NULL && errmsg->base_addr != NULL) {
    const size_t taken = length < errmsg->elem_len ? length : errmsg->elem_len;
    memcpy(errmsg->base_addr, text, taken);
    memset((char*)errmsg->base_addr + taken, ' ', errmsg->elem_len - taken);
  }
}

/* Returns the length of a text without the blanks at its end; 0 for an absent text. */
static size_t trimmed(const CFI_cdesc_t* text) {
  size_t n = text != NULL && text->base_addr != NULL ? text->elem_len : 0;
  while (n > 0 && ((const char*)text->base_addr)[n - 1] == ' ') {
    --n;
  }
  return n;
}

/* Sets the view's letters, in reverse: C counts axes from the slowest, Fortran from the fastest. Returns
 * LOCKSTEP_ERR_SHAPE unless there is one letter per dimension, or none. */
static lockstep_status set_axes(const char* entry, const char* name, const CFI_cdesc_t* axes, lockstep_f_view* view) {
  const size_t letters = trimmed(axes);
  if (letters != 0 && letters != (size_t)view->ndim) {
    return failure(LOCKSTEP_ERR_SHAPE, "%s: %s: axes '%.*s' for %d dimensions, expected a letter for each", entry, name,
                   (int)letters, (const char*)axes->base_addr, (int)view->ndim);
  }
  for (size_t i = 0; i < letters; ++i) {
    view->axes[i] = ((const char*)axes->base_addr)[letters - 1 - i];
  }
  view->axes[letters] = '\0';
  return LOCKSTEP_OK;
}

static lockstep_dtype dtype_of(const CFI_cdesc_t* array) {
  switch (array->type) {
    case CFI_type_float:
      return LOCKSTEP_F32;
    case CFI_type_double:
      return LOCKSTEP_F64;
    case CFI_type_int32_t:
      return LOCKSTEP_I32;
    case CFI_type_int64_t:
      return LOCKSTEP_I64;
    default:
      return 0;
  }
}

static const char* kind_of(const CFI_cdesc_t* array) {
  switch (array->type) {
    case CFI_type_char:
      return "character";
    case CFI_type_Bool:
      return "logical";
    case CFI_type_float_Complex:
    case CFI_type_double_Complex:
      return "complex";
    case CFI_type_int8_t:
    case CFI_type_int16_t:
      return "integer";
    case CFI_type_struct:
      return "a derived type";
    default:
      return "another type or kind";
  }
}

lockstep_status lockstep_f_view_of_array(const char* entry, const char* name, const CFI_cdesc_t* array,
                                         const CFI_cdesc_t* axes, lockstep_f_view* view) {
  if (array->base_addr == NULL) { /* checked first: without memory the extents are undefined */
    return failure(LOCKSTEP_ERR_SHAPE, "%s: %s is not allocated or not associated, expected an array", entry, name);
  }
  view->data = array->base_addr;
  view->dtype = dtype_of(array);
  view->device_type = LOCKSTEP_CPU;
  view->device_id = 0;
  view->ndim = array->rank;
  if (view->dtype == 0) {
    return failure(LOCKSTEP_ERR_DTYPE,
                   "%s: %s is %s, elements of %zu bytes, expected real(4), real(8), integer(4) or integer(8); "
                   "lockstep_view_from_ptr takes others",
                   entry, name, kind_of(array), array->elem_len);
  }
  if (array->rank < 1 || array->rank > LOCKSTEP_F_MAX_RANK) {
    return failure(LOCKSTEP_ERR_SHAPE, "%s: %s has %d dimensions, expected 1 to %d%s", entry, name, (int)array->rank,
                   (int)LOCKSTEP_F_MAX_RANK, array->rank == 0 ? ": pass an array of one element" : "");
  }
  for (int i = 0; i < array->rank; ++i) {
    const CFI_dim_t* dim = &array->dim[i];
    const int c = array->rank - 1 - i;
    const CFI_index_t size = (CFI_index_t)array->elem_len;
    if (dim->extent < 0) {
      return failure(LOCKSTEP_ERR_SHAPE, "%s: %s is assumed-size, expected a section, as a(:, 1:n)", entry, name);
    }
    if (dim->sm % size != 0) {
      return failure(LOCKSTEP_ERR_SHAPE,
                     "%s: elements of %s lie %td bytes apart along dimension %d, expected a multiple of %td, the size "
                     "of an element: pass a copy",
                     entry, name, dim->sm, i + 1, size);
    }
    view->shape[c] = dim->extent;
    view->strides[c] = dim->sm / size;
  }
  return set_axes(entry, name, axes, view);
}

void lockstep_f_view_of(const CFI_cdesc_t* array, lockstep_f_view* view, const CFI_cdesc_t* axes, int32_t* stat,
                        CFI_cdesc_t* errmsg) {
  const lockstep_status status = lockstep_f_view_of_array("lockstep_view_of", "array", array, axes, view);
  lockstep_f_finish(&status, stat, errmsg);
}

static int64_t element_of(const CFI_cdesc_t* list, CFI_index_t i) {
  const char* at = (const char*)list->base_addr + i * list->dim[0].sm;
  return *(const int64_t*)at;
}

static lockstep_status view_from_ptr(void* data, const CFI_cdesc_t* shape, const CFI_cdesc_t* strides, int32_t dtype,
                                     const CFI_cdesc_t* axes, const int32_t* device_id, lockstep_f_view* view) {
  const CFI_index_t n = shape->dim[0].extent;
  if (n < 1 || n > LOCKSTEP_F_MAX_RANK) {
    return failure(LOCKSTEP_ERR_SHAPE, "lockstep_view_from_ptr: shape has %td extents, expected 1 to %d", n,
                   (int)LOCKSTEP_F_MAX_RANK);
  }
  if (strides != NULL && strides->dim[0].extent != n) {
    return failure(LOCKSTEP_ERR_SHAPE, "lockstep_view_from_ptr: %td strides for %td extents, expected one for each",
                   strides->dim[0].extent, n);
  }
  view->data = data;
  view->dtype = dtype;
  view->device_type = device_id != NULL ? LOCKSTEP_CUDA : LOCKSTEP_CPU;
  view->device_id = device_id != NULL ? *device_id : 0;
  view->ndim = (int32_t)n;
  int64_t step = 1;
  for (CFI_index_t i = 0; i < n; ++i) {
    const int64_t extent = element_of(shape, i);
    view->shape[n - 1 - i] = extent;
    view->strides[n - 1 - i] = strides != NULL ? element_of(strides, i) : step;
    if (extent > 0 && step > INT64_MAX / extent) {
      return failure(LOCKSTEP_ERR_SHAPE,
                     "lockstep_view_from_ptr: shape does not fit an address, expected fewer than 2^63 elements");
    }
    step *= extent > 0 ? extent : 1;
  }
  return set_axes("lockstep_view_from_ptr", "view", axes, view);
}

void lockstep_f_view_from_ptr(void* const* data, const CFI_cdesc_t* shape, const CFI_cdesc_t* strides,
                              const int32_t* dtype, const CFI_cdesc_t* axes, const int32_t* device_id,
                              lockstep_f_view* view, int32_t* stat, CFI_cdesc_t* errmsg) {
  const lockstep_status status = view_from_ptr(*data, shape, strides, *dtype, axes, device_id, view);
  lockstep_f_finish(&status, stat, errmsg);
}

static lockstep_view borrowed(const lockstep_f_view* view) {
  const lockstep_view result = {view->data, view->dtype, view->device_type, view->device_id,
                                view->ndim, view->shape, view->strides,     view->axes[0] != '\0' ? view->axes : NULL};
  return result;
}

static lockstep_stream stream_of(const lockstep_stream* stream) {
  return stream != NULL ? *stream : NULL;
}

static lockstep_status infer(lockstep_model model, const CFI_cdesc_t* in, const CFI_cdesc_t* out,
                             const CFI_cdesc_t* in_axes, const CFI_cdesc_t* out_axes, lockstep_stream stream) {
  lockstep_f_view from, to;
  lockstep_status status = lockstep_f_view_of_array("lockstep_infer", "in", in, in_axes, &from);
  if (status == LOCKSTEP_OK) {
    status = lockstep_f_view_of_array("lockstep_infer", "out", out, out_axes, &to);
  }
  if (status != LOCKSTEP_OK) {
    return status;
  }
  const lockstep_view a = borrowed(&from), b = borrowed(&to);
  return lockstep_infer(model, &a, &b, stream);
}

void lockstep_f_infer(const lockstep_model* model, const CFI_cdesc_t* in, const CFI_cdesc_t* out,
                      const CFI_cdesc_t* in_axes, const CFI_cdesc_t* out_axes, const lockstep_stream* stream,
                      int32_t* stat, CFI_cdesc_t* errmsg) {
  const lockstep_status status = infer(*model, in, out, in_axes, out_axes, stream_of(stream));
  lockstep_f_finish(&status, stat, errmsg);
}

static lockstep_status infer_many(lockstep_model model, const CFI_cdesc_t* in, const CFI_cdesc_t* out,
                                  lockstep_stream stream) {
  const CFI_index_t n = in->dim[0].extent;
  if (n != out->dim[0].extent) {
    return failure(LOCKSTEP_ERR_SHAPE, "lockstep_infer_many: %td views in and %td views out, expected as many", n,
                   out->dim[0].extent);
  }
  lockstep_view* views = malloc((2 * (size_t)n + 1) * sizeof *views);
  if (views == NULL) {
    return failure(LOCKSTEP_ERR_OUT_OF_MEMORY,
                   "lockstep_infer_many: no memory for %td views, expected room for them or fewer views", n);
  }
  for (CFI_index_t i = 0; i < n; ++i) {
    views[i] = borrowed((const lockstep_f_view*)((const char*)in->base_addr + i * in->dim[0].sm));
    views[n + i] = borrowed((const lockstep_f_view*)((const char*)out->base_addr + i * out->dim[0].sm));
  }
  const lockstep_status status = lockstep_infer_many(model, views, views + n, n, stream);
  free(views);
  return status;
}

void lockstep_f_infer_many(const lockstep_model* model, const CFI_cdesc_t* in, const CFI_cdesc_t* out,
                           const lockstep_stream* stream, int32_t* stat, CFI_cdesc_t* errmsg) {
  const lockstep_status status = infer_many(*model, in, out, stream_of(stream));
  lockstep_f_finish(&status, stat, errmsg);
}

/* Returns an optional argument, or NULL if the argument is not allocated and therefore absent (F2018 15.5.2.12). */
static const CFI_cdesc_t* present(const CFI_cdesc_t* array) {
  return array != NULL && array->base_addr != NULL ? array : NULL;
}

void lockstep_f_trainer_add_view(const lockstep_trainer* trainer, const lockstep_f_view* in,
                                 const lockstep_f_view* target, const lockstep_f_view* weight,
                                 const lockstep_stream* stream, int32_t* stat, CFI_cdesc_t* errmsg) {
  const lockstep_view a = borrowed(in), b = borrowed(target);
  lockstep_view w;
  if (weight != NULL) {
    w = borrowed(weight);
  }
  const lockstep_status status = lockstep_trainer_add(*trainer, &a, &b, weight != NULL ? &w : NULL, stream_of(stream));
  lockstep_f_finish(&status, stat, errmsg);
}

void lockstep_f_trainer_add(const lockstep_trainer* trainer, const CFI_cdesc_t* in, const CFI_cdesc_t* target,
                            const CFI_cdesc_t* weight, const CFI_cdesc_t* in_axes, const CFI_cdesc_t* target_axes,
                            const CFI_cdesc_t* weight_axes, const lockstep_stream* stream, int32_t* stat,
                            CFI_cdesc_t* errmsg) {
  static const char entry[] = "lockstep_trainer_add";
  lockstep_f_view a, b, w;
  weight = present(weight);
  lockstep_status status = lockstep_f_view_of_array(entry, "in", in, in_axes, &a);
  if (status == LOCKSTEP_OK) {
    status = lockstep_f_view_of_array(entry, "target", target, target_axes, &b);
  }
  if (status == LOCKSTEP_OK && weight != NULL) {
    status = lockstep_f_view_of_array(entry, "weight", weight, weight_axes, &w);
  }
  if (status != LOCKSTEP_OK) {
    lockstep_f_finish(&status, stat, errmsg);
    return;
  }
  lockstep_f_trainer_add_view(trainer, &a, &b, weight != NULL ? &w : NULL, stream, stat, errmsg);
}

/* Calls lockstep_parameter_read or lockstep_parameter_write. */
static void parameter(lockstep_status (*function)(lockstep_model, const char*, size_t, const lockstep_view*),
                      const char* entry, lockstep_model model, const CFI_cdesc_t* name, const CFI_cdesc_t* values,
                      int32_t* stat, CFI_cdesc_t* errmsg) {
  lockstep_f_view view;
  const size_t length = trimmed(name);
  lockstep_status status = lockstep_f_view_of_array(entry, "values", values, NULL, &view);
  if (status == LOCKSTEP_OK) {
    const lockstep_view value = borrowed(&view);
    status = function(model, length != 0 ? (const char*)name->base_addr : "", length, &value);
  }
  lockstep_f_finish(&status, stat, errmsg);
}

void lockstep_f_parameter_read(const lockstep_model* model, const CFI_cdesc_t* name, const CFI_cdesc_t* values,
                               int32_t* stat, CFI_cdesc_t* errmsg) {
  parameter(lockstep_parameter_read, "lockstep_parameter_read", *model, name, values, stat, errmsg);
}

void lockstep_f_parameter_write(const lockstep_model* model, const CFI_cdesc_t* name, const CFI_cdesc_t* values,
                                int32_t* stat, CFI_cdesc_t* errmsg) {
  parameter(lockstep_parameter_write, "lockstep_parameter_write", *model, name, values, stat, errmsg);
}

/* Calls lockstep_parameters_read or lockstep_parameters_write. */
static void parameters(lockstep_status (*function)(lockstep_model, int32_t, const lockstep_view*), const char* entry,
                       lockstep_model model, const int32_t* statistics, const CFI_cdesc_t* values, int32_t* stat,
                       CFI_cdesc_t* errmsg) {
  lockstep_f_view view;
  lockstep_status status = lockstep_f_view_of_array(entry, "values", values, NULL, &view);
  if (status == LOCKSTEP_OK) {
    const lockstep_view value = borrowed(&view);
    status = function(model, statistics != NULL ? *statistics : LOCKSTEP_WITHOUT_STATISTICS, &value);
  }
  lockstep_f_finish(&status, stat, errmsg);
}

void lockstep_f_parameters_read(const lockstep_model* model, const CFI_cdesc_t* values, const int32_t* statistics,
                                int32_t* stat, CFI_cdesc_t* errmsg) {
  parameters(lockstep_parameters_read, "lockstep_parameters_read", *model, statistics, values, stat, errmsg);
}

void lockstep_f_parameters_write(const lockstep_model* model, const CFI_cdesc_t* values, const int32_t* statistics,
                                 int32_t* stat, CFI_cdesc_t* errmsg) {
  parameters(lockstep_parameters_write, "lockstep_parameters_write", *model, statistics, values, stat, errmsg);
}

/* Calls lockstep_gradients_read or lockstep_gradients_write. */
static void gradients(lockstep_status (*function)(lockstep_trainer, const lockstep_view*), const char* entry,
                      lockstep_trainer trainer, const CFI_cdesc_t* values, int32_t* stat, CFI_cdesc_t* errmsg) {
  lockstep_f_view view;
  lockstep_status status = lockstep_f_view_of_array(entry, "values", values, NULL, &view);
  if (status == LOCKSTEP_OK) {
    const lockstep_view value = borrowed(&view);
    status = function(trainer, &value);
  }
  lockstep_f_finish(&status, stat, errmsg);
}

void lockstep_f_gradients_read(const lockstep_trainer* trainer, const CFI_cdesc_t* values, int32_t* stat,
                               CFI_cdesc_t* errmsg) {
  gradients(lockstep_gradients_read, "lockstep_gradients_read", *trainer, values, stat, errmsg);
}

void lockstep_f_gradients_write(const lockstep_trainer* trainer, const CFI_cdesc_t* values, int32_t* stat,
                                CFI_cdesc_t* errmsg) {
  gradients(lockstep_gradients_write, "lockstep_gradients_write", *trainer, values, stat, errmsg);
}

/* An array argument of Fortran with its axes and its name; `array` may be NULL. */
typedef struct {
  const CFI_cdesc_t* array;
  const CFI_cdesc_t* axes;
  const char* name;
} array_argument;

/* The two views of a call of a tape, and the memory that they refer to. */
typedef struct {
  lockstep_f_view memory[2];
  lockstep_view views[2];
} two_views;

static lockstep_status views_of(const char* entry, array_argument first, array_argument second, two_views* made) {
  const array_argument both[2] = {first, second};
  lockstep_status status = LOCKSTEP_OK;
  for (int i = 0; i < 2 && status == LOCKSTEP_OK; ++i) {
    if (both[i].array != NULL) {
      status = lockstep_f_view_of_array(entry, both[i].name, both[i].array, both[i].axes, &made->memory[i]);
      made->views[i] = borrowed(&made->memory[i]);
    }
  }
  return status;
}

void lockstep_f_tape_forward(const lockstep_tape* tape, const CFI_cdesc_t* in, const CFI_cdesc_t* out, int64_t* pass,
                             const CFI_cdesc_t* in_axes, const CFI_cdesc_t* out_axes, const lockstep_stream* stream,
                             int32_t* stat, CFI_cdesc_t* errmsg) {
  two_views of;
  out = present(out);
  lockstep_status status = views_of("lockstep_tape_forward", (array_argument){in, in_axes, "in"},
                                    (array_argument){out, out_axes, "out"}, &of);
  if (status == LOCKSTEP_OK) {
    status = lockstep_tape_forward(*tape, &of.views[0], out != NULL ? &of.views[1] : NULL, pass, stream_of(stream));
  }
  lockstep_f_finish(&status, stat, errmsg);
}

static void tape_gradient(lockstep_status (*function)(lockstep_tape, int64_t, const lockstep_view*,
                                                      const lockstep_view*, lockstep_stream),
                          const char* entry, const lockstep_tape* tape, const int64_t* pass, array_argument from,
                          array_argument to, const lockstep_stream* stream, int32_t* stat, CFI_cdesc_t* errmsg) {
  two_views of;
  lockstep_status status = views_of(entry, from, to, &of);
  if (status == LOCKSTEP_OK) {
    status = function(*tape, *pass, &of.views[0], to.array != NULL ? &of.views[1] : NULL, stream_of(stream));
  }
  lockstep_f_finish(&status, stat, errmsg);
}

void lockstep_f_tape_backward(const lockstep_tape* tape, const int64_t* pass, const CFI_cdesc_t* out_gradient,
                              const CFI_cdesc_t* in_gradient, const CFI_cdesc_t* out_axes, const CFI_cdesc_t* in_axes,
                              const lockstep_stream* stream, int32_t* stat, CFI_cdesc_t* errmsg) {
  tape_gradient(lockstep_tape_backward, "lockstep_tape_backward", tape, pass,
                (array_argument){out_gradient, out_axes, "out_gradient"},
                (array_argument){present(in_gradient), in_axes, "in_gradient"}, stream, stat, errmsg);
}

void lockstep_f_tape_vjp(const lockstep_tape* tape, const int64_t* pass, const CFI_cdesc_t* out_gradient,
                         const CFI_cdesc_t* in_gradient, const CFI_cdesc_t* out_axes, const CFI_cdesc_t* in_axes,
                         const lockstep_stream* stream, int32_t* stat, CFI_cdesc_t* errmsg) {
  tape_gradient(lockstep_tape_vjp, "lockstep_tape_vjp", tape, pass,
                (array_argument){out_gradient, out_axes, "out_gradient"},
                (array_argument){in_gradient, in_axes, "in_gradient"}, stream, stat, errmsg);
}

void lockstep_f_tape_jvp(const lockstep_tape* tape, const int64_t* pass, const CFI_cdesc_t* in_tangent,
                         const CFI_cdesc_t* out_tangent, const CFI_cdesc_t* in_axes, const CFI_cdesc_t* out_axes,
                         const lockstep_stream* stream, int32_t* stat, CFI_cdesc_t* errmsg) {
  tape_gradient(lockstep_tape_jvp, "lockstep_tape_jvp", tape, pass, (array_argument){in_tangent, in_axes, "in_tangent"},
                (array_argument){out_tangent, out_axes, "out_tangent"}, stream, stat, errmsg);
}
