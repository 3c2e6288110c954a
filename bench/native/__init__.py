"""
The bench's own C, with the copies of csrc/, compiled and loaded.

A call of copy.c's, which gets addresses, frees the GIL. gather.c is for the limit and gets objects;
a call of it keeps the GIL and may raise.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
SOURCES = [HERE / "gather.c", CSRC / "copy.c"]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O3", "-Wall", "-Wextra", "-fPIC", "-shared"]

_ADDRESS, _SIZE, _OBJECT = ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object


def missing() -> str | None:
    """Say why nothing can be compiled here, or None."""
    name = _compiler()[0]
    return None if shutil.which(name) else f"there is no C compiler {name}"


@cache
def load() -> ctypes.CDLL:
    """Compile once per process and load; workers that are forked later have it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "native.so")
        headers = [f"-I{CSRC}", f"-I{sysconfig.get_path('include')}"]
        subprocess.run([*_compiler(), *FLAGS, *headers, *SOURCES, "-o", target], check=True)
        library, with_gil = ctypes.CDLL(str(target)), ctypes.PyDLL(str(target))
    for copy in (library.copy_plain, library.copy_stream):
        copy.argtypes, copy.restype = (_ADDRESS, _ADDRESS, _SIZE), None
    library.gather = with_gil.gather
    library.gather.argtypes = (_OBJECT, _OBJECT, _ADDRESS, _SIZE)
    library.gather.restype = ctypes.c_int64
    return library


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))
