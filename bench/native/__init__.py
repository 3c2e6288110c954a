"""
The bench's own C, with the copies, the ring and the doorbell of csrc/, compiled and loaded.

hops.c is for the microbenchmarks, which give addresses; a call of it frees the GIL. gather.c is
for the limit, which gives objects; a call of it keeps the GIL and may raise.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
SOURCES = [HERE / "hops.c", HERE / "gather.c", CSRC / "copy.c"]  # hops.c has doorbell.c in it
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O3", "-Wall", "-Wextra", "-fPIC", "-shared"]

_ADDRESS, _COUNT, _NS = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64
_ARGUMENTS = {
    "hop_bytes": (),
    "hop_trips": (_ADDRESS, _COUNT, ctypes.c_bool),
    "hop_echo": (_ADDRESS, ctypes.c_bool),
    "hop_stop": (_ADDRESS,),
    "stream_send": (_ADDRESS, _COUNT, _NS),
    "stream_receive": (_ADDRESS, _NS),
    "bell_ring_often": (_ADDRESS, _COUNT, ctypes.c_bool),
    "copy_plain": (_ADDRESS, _ADDRESS, ctypes.c_size_t),
    "copy_stream": (_ADDRESS, _ADDRESS, ctypes.c_size_t),
}
_RESULTS = {"hop_bytes": ctypes.c_size_t, "hop_trips": _COUNT, "stream_send": ctypes.c_uint64}
_OBJECT = ctypes.py_object
_GATHERS = {
    "gather_tensors": (_OBJECT, _OBJECT, _ADDRESS, ctypes.c_size_t),
    "copy_buffers": (_OBJECT, _OBJECT),
}


def missing() -> str | None:
    """Say why nothing can be compiled here, or None."""
    name = _compiler()[0]
    return None if shutil.which(name) else f"there is no C compiler {name}"


def load(folder: Path) -> ctypes.CDLL:
    """
    Compile into `folder` and load; the folder may be deleted afterwards.

    Raises:
        subprocess.CalledProcessError: The compiler refused.
    """
    target = folder / "native.so"
    headers = [f"-I{CSRC}", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([*_compiler(), *FLAGS, *headers, *SOURCES, "-o", target], check=True)
    library, with_gil = ctypes.CDLL(str(target)), ctypes.PyDLL(str(target))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name)
    for name, arguments in _GATHERS.items():
        function = getattr(with_gil, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
        setattr(library, name, function)
    return library


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))
