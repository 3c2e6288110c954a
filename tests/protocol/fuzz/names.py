"""
The names that a fuzzed batch may use. A worker's bytes can call all they can name; these are safe.
"""

import collections
import copyreg
import dataclasses

import numpy
import torch

Point = collections.namedtuple("Point", "x y")
SEQUENCES = (list, tuple, collections.deque)


@dataclasses.dataclass
class Sample:
    """A batch's own type that travels as its parts."""

    picture: object
    label: int


@dataclasses.dataclass(slots=True)
class Slotted:
    """One without a dictionary: its state is a pair."""

    picture: object
    label: int


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    """One that takes its state itself."""

    picture: object
    label: int


class Odd:
    """A type that can travel only as a pickle."""

    def __init__(self, value):
        self.value = value


NAMED = [
    Point,
    Sample,
    Slotted,
    Fixed,
    collections.OrderedDict,
    collections.deque,
    collections.Counter,
    copyreg.__newobj__,
    torch.Size,
    int,
    torch.float32,
]
DTYPES = [
    numpy.dtype("S3"),
    numpy.dtype("S0"),
    numpy.dtype("U2"),
    numpy.dtype("V5"),
    numpy.dtype("M8[D]"),
    numpy.dtype(">i4"),
    numpy.dtype([("a", "i4"), ("b", "f8")]),
    numpy.dtype([]),
    numpy.dtype(("i2", (3, 2))),
]

# Beyond those above, what their pickles and those of tensors and arrays are made of.
PARTS = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("torch", "device"),
    ("torch", "int64"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch", "Tensor"),
    ("shmloader.core.pickling", "_typed_storage"),
    ("shmloader.core.pickling", "leaf"),
    ("shmloader.core.pickling", "typed"),
}

# Kept inputs name modules as they were called when the inputs were found.
MOVED = {"fuzz.names": __name__, "shmloader.pickling": "shmloader.core.pickling"}


def is_harmless(module, name):
    """Returns True if a pickle may look a name up."""
    if (module, name) in PARTS:
        return True
    named = [*NAMED, Odd]
    return any((module, name) == (module_of(value), name_of(value)) for value in named)


def module_of(value):
    """Give the module in which a pickle finds a value; torch's dtypes do not have it."""
    return getattr(value, "__module__", "torch")


def name_of(value):
    """Give the name by which a pickle finds a value there."""
    return getattr(value, "__qualname__", str(value).rpartition(".")[2])


def restrict(pickle, pickling):
    """Let each way of looking a name up find only names that do no harm."""
    import io

    class Restricted(pickling.Unpickler):
        def find_class(self, module, name):
            module = MOVED.get(module, module)
            refuse_harm(pickle, module, name)
            return super().find_class(module, name)

        @staticmethod
        def find_global(module, name):
            refuse_harm(pickle, module, name)
            return original.find_global(module, name)

    class RestrictedType(pickle.Unpickler):
        def find_class(self, module, name):
            refuse_harm(pickle, module, name)
            return super().find_class(module, name)

    original = pickling.Unpickler
    pickling.Unpickler = Restricted
    pickle.loads = lambda data: RestrictedType(io.BytesIO(data)).load()


def refuse_harm(pickle, module, name):
    """Raise an error for any other name."""
    if not is_harmless(module, name):
        raise pickle.UnpicklingError(f"{module}.{name} is none of the fuzzer's names")
