"""What sources are asked for: functions that are found by their names in every process."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import signal
import subprocess
import time
import warnings
from typing import Any

import numpy
import torch

from tests.helpers.leaves import LEAVES


class Odd(BaseException):
    """An error that is no Exception."""


class Wordless(Exception):
    """An error that cannot be said."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def number() -> int:
    return 0


def leaf(name: str) -> Any:
    """Make a leaf of the table."""
    return LEAVES[name].make()


def numbered(index: int, length: int = 5000) -> dict[str, Any]:
    """A value of some parts, each full of a number."""
    return {
        "tensor": torch.full((length,), index, dtype=torch.int32),
        "array": numpy.full(length, index),
        "texts": [f"text {index}", index, Node(number=index)],
    }


def is_numbered(value: Any, index: int, length: int = 5000) -> bool:
    """Returns True if it is the value of that number."""
    tensor, array, (text, number, node) = value.values()
    return (
        (len(tensor), bool((tensor == index).all())) == (length, True)
        and (len(array), bool((array == index).all())) == (length, True)
        and (text, number, node.number) == (f"text {index}", index, index)
    )


def in_a_moment(index: int) -> dict[str, Any]:
    time.sleep(0.01)
    return numbered(index)


class Node:
    """An object of no library."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    """An object that travels as its parts."""

    value: Any
    other: Any = None


# What shares memory, or is one object.


def array_twice() -> Any:
    array = numpy.arange(5000)
    return [array, array, Node(array=array)]


def windows() -> Any:
    series = numpy.arange(6000.0)
    return [series[:4000], series[2000:], series[1000:3000]]


def windows_of_a_tensor() -> Any:
    series = torch.arange(6000.0)
    return [series[:4000], series[2000:], series[::2]]


def tensor_and_its_array() -> Any:
    tensor = torch.arange(5000)
    return {"tensor": tensor, "array": tensor.numpy()}


def array_and_its_tensor() -> Any:
    array = numpy.arange(5000)
    one, other = torch.from_numpy(array), torch.from_numpy(array)
    return {"array": array, "tensors": [one[1:], other[:50], one, other, one.numpy()]}


def collated_twice() -> Any:
    batch = torch.utils.data.default_collate([torch.arange(2000.0) + each for each in range(4)])
    rows, nodes = batch.numpy(), [Node(tensor=batch), Node(array=batch[1:].numpy())]
    return {"batch": batch, "array": rows, "row": batch[1], "rows": [rows[1:], rows[:2], nodes]}


def masks() -> Any:
    data = numpy.arange(5000.0)
    mask = data > 7
    return [numpy.ma.masked_array(data, mask), data, numpy.ma.masked_array(-data, mask), mask]


def in_and_beside_an_object() -> Any:
    tensor = torch.arange(5000)
    return [Node(tensor=tensor), tensor, Node(view=tensor[10:])]


def parameters() -> Any:
    whole = torch.arange(6000.0)
    return [torch.nn.Parameter(whole[:4000]), torch.nn.Parameter(whole[2000:]), whole.detach()]


def views_and_their_storage() -> Any:
    whole = torch.arange(5000.0)
    return [whole[2000:], Node(tensor=whole[:3000]), whole.untyped_storage()]


def rows_and_columns() -> Any:
    matrix = torch.arange(1_000_000.0).reshape(1000, 1000)
    return [matrix[3:5], matrix[:, 4], matrix[4]]


def view_of_a_large_array() -> Any:
    return numpy.arange(1_000_000.0).reshape(1000, 1000)[:, 4]


SHARING = [
    array_twice, windows, windows_of_a_tensor, tensor_and_its_array, array_and_its_tensor,
    collated_twice, masks, in_and_beside_an_object, parameters, views_and_their_storage,
    rows_and_columns, view_of_a_large_array,
]  # fmt: skip


# What raises, and where.

MOMENTS = ("made", "reduced", "pickled", "unpickled", "hashed")
ERRORS = (ValueError, OSError, Wordless, Odd, SystemExit, KeyboardInterrupt)


def fail(error: type[BaseException]) -> None:
    raise error("on purpose")


class Raises:
    """
    An object that raises when it is asked how it is pickled, pickled, unpickled, or hashed then.

    Args:
        moment: One of MOMENTS.
        error: What it raises.
    """

    was_sent = False

    def __init__(self, moment: str, error: type[BaseException]) -> None:
        self.moment, self.error = moment, error

    def raise_when(self, moment: str) -> None:
        if self.moment == moment:
            fail(self.error)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.raise_when("reduced")
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> Any:
        self.raise_when("pickled")
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, was_sent=True)
        self.raise_when("unpickled")

    def __hash__(self) -> int:
        if self.was_sent:
            self.raise_when("hashed")
        return 1


def raising(moment: str, error: type[BaseException]) -> Any:
    """Raise now, or make what does so later."""
    if moment == "made":
        fail(error)
    it = Raises(moment, error)
    return {"tensor": torch.arange(5000), (it if moment == "hashed" else "object"): it}


class Touchy:
    """An object of which no method may be called but those of pickle: the others raise."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def _fail(self, *_: Any) -> Any:
        fail(self.__dict__["error"])

    __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __bool__ = __len__ = __iter__ = _fail  # type: ignore[assignment]
    __getitem__ = __contains__ = __call__ = __format__ = __int__ = __float__ = __index__ = _fail  # type: ignore[assignment]
    __add__ = __radd__ = __lt__ = __enter__ = __exit__ = _fail


def touchy(error: type[BaseException]) -> Any:
    return [Touchy(error), torch.arange(5000), {"key": Touchy(error)}]


class Dying:
    """An object that raises when it is deleted."""

    def __del__(self) -> None:
        raise ValueError("as it is deleted")


def dying() -> Any:
    return [Dying(), torch.arange(5000)]


# Errors.


class Two(Exception):
    """An error with two arguments, of which pickle knows one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An error to which nothing can be set."""

    code: int


class NoError(Exception):
    """An error that unpickles as something else."""

    def __reduce__(self) -> Any:
        return dict, ()


class Unreadable(Exception):
    """An error that raises when it is unpickled."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(error)

    def __reduce__(self) -> Any:
        return fail, self.args


class Unwritable(Exception):
    """An error that raises when it is pickled."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(error)

    def __reduce__(self) -> Any:
        raise self.args[0]("as it is pickled")


class Closed(Exception):
    """An error to which nothing can be set."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise Odd("nothing is set")


class Silent(Exception):
    """An error that raises when it is asked for what every error has."""

    @property
    def __cause__(self) -> Any:
        raise Odd("nothing is told")

    __traceback__ = __notes__ = __cause__  # type: ignore[assignment]


def raise_it(kind: type[BaseException], *arguments: Any, **named: Any) -> None:
    raise kind(*arguments, **named)


def raise_two_deep() -> None:
    try:
        raise LookupError("the cause")
    except LookupError as error:
        raise ValueError("what came of it") from error


SHAPES_OF_ERRORS = {
    "plain": functools.partial(raise_it, LookupError, "why"),
    "two arguments": functools.partial(raise_it, Two, "one", "two"),
    "frozen": functools.partial(raise_it, Frozen, 3),
    "is none later": functools.partial(raise_it, NoError),
    "unreadable": functools.partial(raise_it, Unreadable, ValueError),
    "unreadable, exits": functools.partial(raise_it, Unreadable, SystemExit),
    "unwritable": functools.partial(raise_it, Unwritable, ValueError),
    "unwritable, exits": functools.partial(raise_it, Unwritable, SystemExit),
    "closed": functools.partial(raise_it, Closed, "x"),
    "silent": functools.partial(raise_it, Silent, "x"),
    "wordless": functools.partial(raise_it, Wordless, "x"),
    "with a cause": raise_two_deep,
    "a group": functools.partial(raise_it, ExceptionGroup, "several", [ValueError(1), KeyError(2)]),
    "StopIteration": functools.partial(raise_it, StopIteration, 5),
    "MemoryError": functools.partial(raise_it, MemoryError),
    "no Exception": functools.partial(raise_it, Odd, "odd"),
    "SystemExit": functools.partial(raise_it, SystemExit, 3),
    "KeyboardInterrupt": functools.partial(raise_it, KeyboardInterrupt),
}


# Sizes.


def nested(levels: int) -> Any:
    value: Any = torch.arange(3)
    for _ in range(levels):
        value = [value]
    return value


def many_tensors(count: int) -> Any:
    return [torch.full((3,), each) for each in range(count)]


def zeros(megabytes: int) -> Any:
    return torch.zeros(megabytes << 18)


# Lives.


def end_this_process(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def meet(number: int) -> list[bool]:
    """Get a signal; say if a program and a child that are started then are ended by SIGTERM."""
    os.kill(os.getpid(), number)
    program = subprocess.Popen(["sleep", "60"])
    program.terminate()
    with warnings.catch_warnings(action="ignore"):  # of threads beside a fork
        child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(3)
    os.kill(child, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [program.wait() == -signal.SIGTERM, code != 3]  # torch's handler ends it with 0


ENDS_OF_A_CHILD = (0, 1, 3)


def end_of_a_child(end: int) -> int:
    """Return the exit code of a child that returns, raises, or exits with this code."""
    with warnings.catch_warnings(action="ignore"):  # of threads beside a fork
        pid = os.fork()
    if pid == 0:
        if end:
            raise SystemExit(end) if end > 1 else Odd("in the child")
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end_this_process_once(marker: str) -> str:
    """Be killed if there is no such file yet, which is made before."""
    if not os.path.exists(marker):
        os.close(os.open(marker, os.O_CREAT))
        end_this_process(signal.SIGKILL)
    return marker
