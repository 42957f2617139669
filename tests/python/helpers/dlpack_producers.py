"""Array types that expose their memory through a single protocol, for tests of each protocol."""

import ctypes

import numpy as np


class Capsules:
    """Has __dlpack__ and nothing else. Counts the requests, and records when the tensor is released."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned, self.calls = array, versioned, []

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **arguments):
        self.calls.append(arguments)
        if self.versioned:
            return self.array.__dlpack__(max_version=arguments["max_version"])
        if "max_version" in arguments:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.array.__dlpack__()


class Elsewhere(Capsules):
    """Claims to be on another device than it is; its memory must not be touched."""

    def __init__(self, array, device):
        super().__init__(array)
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        self.calls.append(arguments)
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = Tensor.from_address(pointer(capsule, b"dltensor"))
        tensor.device_type, tensor.device_id = self.device
        return capsule


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


TensorOf = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))


class ExchangeApi(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_tensor_of", ctypes.c_void_p),
        ("object_of", ctypes.c_void_p),
        ("tensor_of", TensorOf),
        ("current_stream", ctypes.c_void_p),
    ]


class Exchanged:
    """Its type offers the C functions of DLPack 1.3 and nothing else, as PyTorch does since 2.10."""

    def __init__(self, array, offset=0, with_strides=True):
        self.array, self.offset, self.with_strides = array, offset, with_strides
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))


@TensorOf
def _tensor_of(exchanged, out):
    array, tensor = exchanged.array, out[0]
    tensor.data, tensor.device_type, tensor.device_id, tensor.rank = array.ctypes.data - exchanged.offset, 1, 0, array.ndim
    tensor.code, tensor.bits, tensor.lanes = {"f": 2, "i": 0, "b": 6}[array.dtype.kind], 8 * array.itemsize, 1
    tensor.shape = ctypes.cast(exchanged.shape, ctypes.POINTER(ctypes.c_int64))
    if exchanged.with_strides:
        tensor.strides = ctypes.cast(exchanged.strides, ctypes.POINTER(ctypes.c_int64))
    tensor.byte_offset = exchanged.offset
    return 0


_API = ExchangeApi(major=1, minor=3, tensor_of=_tensor_of)
_NAME = ctypes.create_string_buffer(b"dlpack_exchange_api")  # a capsule does not copy its name
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
Exchanged.__dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_API), ctypes.addressof(_NAME), None)


def unaligned(array: np.ndarray) -> np.ndarray:
    """A copy of the array at an address that is shifted by one byte."""
    memory = np.empty(array.nbytes + 1, np.uint8)[1:]
    view = memory.view(array.dtype).reshape(array.shape)
    view[...] = array
    return view
