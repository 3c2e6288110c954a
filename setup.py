"""
Build the one extension module, on Linux; pyproject.toml says everything else.

Switches, read from the environment:
    SHMLOADER_SANITIZE: What gcc's -fsanitize takes: "address,undefined" or "thread".
    SHMLOADER_ASSERT: 1 turns optimisation off and assertions on.
    SHMLOADER_PORTABLE: 1 waits as on systems without a futex.
    SHMLOADER_KILL_POINTS: 1 lets a test kill a process at each step of the protocol, or choose
        at each step which process goes on.
    SHMLOADER_NO_CORE: 1 builds no extension, as on other systems: torch's loader runs then.
    SHMLOADER_WERROR: 1 makes a warning an error: for this project's lint, not for users.
"""

import os
import sys
from glob import glob

import numpy
from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup

sanitize = os.environ.get("SHMLOADER_SANITIZE", "")
assertions = os.environ.get("SHMLOADER_ASSERT") == "1"
portable = os.environ.get("SHMLOADER_PORTABLE") == "1"
kill_points = os.environ.get("SHMLOADER_KILL_POINTS") == "1"
has_core = sys.platform == "linux" and os.environ.get("SHMLOADER_NO_CORE") != "1"
warnings_are_errors = os.environ.get("SHMLOADER_WERROR") == "1"

compile_flags = ["-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"]
link_flags = []

# Python's own flags come first: their -O and their -DNDEBUG have to be taken back.
compile_flags += ["-O0", "-g", "-UNDEBUG"] if assertions else ["-O3"]
if sanitize:
    compile_flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g"]
    link_flags += [f"-fsanitize={sanitize}"]
if warnings_are_errors:
    compile_flags += ["-Werror"]

macros = [
    ("_GNU_SOURCE", "1"),  # -std=c11 hides fallocate, syscall and madvise without it
    ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
]
if portable:
    macros += [("SHMLOADER_PORTABLE", "1")]
c_sources = sorted([*glob("csrc/*.c"), *glob("csrc/debug/*.c")])
if kill_points:
    macros += [("SHMLOADER_KILL_POINTS", "1")]
    c_sources += sorted(glob("tests/simulation/c/*.c"))

core = Extension(
    "shmloader.core._core",
    sources=["shmloader/core/_core.pyx", *c_sources],
    depends=[
        *glob("csrc/*.h"),
        *glob("csrc/debug/*.h"),
        *glob("tests/simulation/c/*.h"),
        *glob("shmloader/core/*.p[xy][xd]"),
    ],
    include_dirs=["csrc", numpy.get_include()],
    define_macros=macros,
    extra_compile_args=compile_flags,
    extra_link_args=link_flags,
)

# Of the core nothing is public: its docstrings are for those who read it.
Options.docstrings = False

# The generated C goes to build/, so that the package's folder holds only what people wrote.
options = {
    "build_dir": "build/cython",
    "language_level": 3,
    # What pickles classes of the core, which nobody may pickle, would be an eighth of the module.
    "compiler_directives": {"auto_pickle": False},
}
setup(ext_modules=cythonize(core, **options) if has_core else [])
