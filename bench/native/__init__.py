"""
`native.c` and the copies of csrc/, compiled and loaded; their arguments are addresses.
"""

import ctypes
import os
import shlex
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
SOURCES = [HERE / "native.c", CSRC / "copy.c"]  # native.c has doorbell.c in it
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


def load(folder: Path) -> ctypes.CDLL:
    """
    Compile into `folder` and load; a call frees the interpreter's lock.

    Raises:
        subprocess.CalledProcessError: The compiler refused.
    """
    target = folder / "native.so"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*compiler, *FLAGS, f"-I{CSRC}", *SOURCES, "-o", target], check=True)
    library = ctypes.CDLL(str(target))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name)
    return library
