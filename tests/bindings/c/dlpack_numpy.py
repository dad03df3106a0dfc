"""dlpack_numpy.py LIBRARY: DLPack between NumPy (2.1 or newer) and liblockstep, through capsules made with ctypes."""
import ctypes
import sys

import numpy as np

LIBRARY = ctypes.CDLL(sys.argv[1])
LIBRARY.lockstep_last_error.restype = ctypes.c_char_p
F64, F32, TANH = 2, 1, 2
OK, SHAPE, DTYPE, INVALID = 0, 2, 3, 1
NAME, USED = b"dltensor_versioned", b"used_dltensor_versioned"


class Tensor(ctypes.Structure):
    """lockstep_dlpack, of lockstep_dlpack.h."""


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Tensor))
Tensor._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("owner", ctypes.c_void_p), ("deleter", DELETER),
    ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
    ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
    ("byte_offset", ctypes.c_uint64)]


class View(ctypes.Structure):
    """lockstep_view, of lockstep.h."""
    _fields_ = [
        ("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("axes", ctypes.c_char_p)]


def python_function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


capsule_new = python_function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
capsule_pointer = python_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
capsule_rename = python_function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


def call(name, *arguments, expected=OK):
    status = getattr(LIBRARY, name)(*arguments)
    text = LIBRARY.lockstep_last_error().decode()
    assert status == expected, f"{name}: status {status}, expected {expected}: {text}"
    return text


class Array:
    """A NumPy array as lockstep takes it: consumed as the protocol says, deleter called once."""

    def __init__(self, array):
        self.capsule = array.__dlpack__(max_version=(1, 1))
        self.tensor = ctypes.cast(capsule_pointer(self.capsule, NAME), ctypes.POINTER(Tensor))
        capsule_rename(self.capsule, USED)

    def view(self, axes, written=0, expected=OK):
        view = View()
        text = call("lockstep_view_from_dlpack", self.tensor, axes, written, ctypes.byref(view), expected=expected)
        return view if expected == OK else text

    def close(self):
        if self.tensor.contents.deleter:
            self.tensor.contents.deleter(self.tensor)
        self.tensor = None


class Parameter:
    """A parameter as NumPy takes it. The deleter counts, and then does what it did."""

    def __init__(self, model, name):
        tensor = ctypes.POINTER(Tensor)()
        call("lockstep_parameter_to_dlpack", model, name, 0, ctypes.byref(tensor))
        self.deleted = 0
        self.tensor = tensor
        original = ctypes.cast(tensor.contents.deleter, ctypes.c_void_p).value

        def delete(pointer):
            self.deleted += 1
            DELETER(original)(pointer)
        self.callback = DELETER(delete)
        tensor.contents.deleter = self.callback

    def __dlpack_device__(self):
        return (self.tensor.contents.device_type, self.tensor.contents.device_id)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        assert max_version is not None and max_version[0] >= 1, max_version
        return capsule_new(ctypes.cast(self.tensor, ctypes.c_void_p), NAME, None)


def main():
    context, model = ctypes.c_void_p(), ctypes.c_void_p()
    call("lockstep_context_create", None, ctypes.byref(context))
    widths = (ctypes.c_int64 * 3)(4, 6, 2)
    call("lockstep_model_mlp", context, F64, widths, 3, TANH, ctypes.byref(model))
    call("lockstep_model_initialise", model, ctypes.c_uint64(5))

    # Export: NumPy sees the parameters at their own addresses, read-only, and calls each deleter exactly once.
    exports = {name: Parameter(model, name.encode()) for name in ("1.weight", "1.bias", "2.weight", "2.bias")}
    arrays = {name: np.from_dlpack(parameter) for name, parameter in exports.items()}
    assert arrays["1.weight"].shape == (6, 4) and arrays["2.weight"].shape == (2, 6)
    assert all(a.dtype == np.float64 and not a.flags.writeable for a in arrays.values())
    assert np.all(np.abs(arrays["1.weight"]) > 0)
    chosen = np.arange(12, dtype=np.float32).reshape(6, 2).T[:, ::-1]  # f32, transposed and reversed
    value = Array(chosen)
    view = value.view(None)
    call("lockstep_parameter_write", model, b"2.weight", 0, ctypes.byref(view))
    value.close()
    assert np.array_equal(arrays["2.weight"], chosen.astype(np.float64))

    # Import: lockstep reads a strided slice of an array and writes an output with gaps. The expected results come from
    # NumPy, computed with the exported arrays.
    field = np.random.default_rng(1).standard_normal((20, 9))
    rows, out = field[::-3, 1::2], np.full((14, 3), np.nan)
    source, target = Array(rows), Array(out[::2, ::2])
    views = source.view(b"nc"), target.view(b"nc", written=1)
    call("lockstep_infer", model, ctypes.byref(views[0]), ctypes.byref(views[1]), None)
    hidden = np.tanh(rows @ arrays["1.weight"].T + arrays["1.bias"])
    expected = hidden @ arrays["2.weight"].T + arrays["2.bias"]
    assert expected.shape == (7, 2)
    assert np.max(np.abs(out[::2, ::2] - expected)) <= 1e-13
    assert np.isnan(out[1::2]).all() and np.isnan(out[:, 1]).all()
    source.close()
    target.close()

    # lockstep must refuse these arrays.
    locked = np.zeros((2, 2))
    locked.flags.writeable = False
    array = Array(locked)
    assert "read-only" in array.view(b"nc", written=1, expected=INVALID)
    array.view(b"nc")
    array.close()
    for made, status, part in ((np.zeros(3, np.complex64), DTYPE, "complex (5) of 64 bits"),
                               (np.zeros(3, bool), DTYPE, "bool (6)"), (np.zeros(3, np.int16), DTYPE, "int (0) of 16"),
                               (np.zeros((1,) * 9), SHAPE, "ndim is 9")):
        array = Array(made)
        text = array.view(None, expected=status)
        assert part in text, text
        array.close()
    empty = Array(np.zeros((0, 4)))
    empty.view(b"nc")
    empty.close()

    # Exported parameters stay valid after the model and the context are destroyed.
    kept = arrays.pop("1.weight")
    copy = kept.copy()
    arrays.clear()
    assert [p.deleted for p in exports.values()] == [0, 1, 1, 1]
    call("lockstep_model_destroy", model)
    call("lockstep_context_destroy", context)
    assert np.array_equal(kept, copy)
    del kept
    assert [p.deleted for p in exports.values()] == [1, 1, 1, 1]
    print(f"numpy {np.__version__}: both ways")


main()
