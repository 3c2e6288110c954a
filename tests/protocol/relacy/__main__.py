"""
Let relacy choose what each load of our sources sees, in four programs of two or three threads.

    python -m tests.protocol.relacy               each program, in 50,000 executions
    python -m tests.protocol.relacy --planted     that each mistake planted there is found
    python -m tests.protocol.relacy ring lease    those alone

The exit code is 0 if no program was wrong, and no mistake stayed unseen.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.protocol.relacy.programs import PROGRAMS, source_of

HERE = Path(__file__).parent
# relacy is older than C++11, and than what compilers warn of now.
_COMPILE = ("g++", "-std=gnu++11", "-O1", "-w", "-DNDEBUG")
_BUILD_S, _RUN_S = 120, 300
_HEADER = Path("/usr/include/relacy/relacy.hpp")
MISSING = "relacy or g++ is missing (apt-get install relacy-dev g++)"


def is_here() -> bool:
    """Returns True if programs can be built."""
    return _HEADER.exists() and shutil.which("g++") is not None


def run(name: str, mistake: str = "") -> str:
    """Build a program and run it. Returns what relacy found, or nothing."""
    with tempfile.TemporaryDirectory(prefix="relacy-") as folder:
        Path(folder, "sources.inc").write_text(source_of(PROGRAMS[name], mistake))
        program = Path(folder, name)
        command = [*_COMPILE, f"-I{folder}", f"-I{HERE}", HERE / f"{name}.cpp", "-o", program]
        built = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S)
        assert built.returncode == 0, built.stderr
        done = subprocess.run([program], capture_output=True, text=True, timeout=_RUN_S)
    return "" if done.returncode == 0 else done.stdout or f"it ended with {done.returncode}"


def main() -> int:
    """Do what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.protocol.relacy")
    parser.add_argument("--planted", action="store_true", help="find the planted mistakes")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}")
    options = parser.parse_args()
    wrong = 0
    for name in options.names or PROGRAMS:
        for mistake in PROGRAMS[name].mistakes if options.planted else [""]:
            found = run(name, mistake)
            wrong += bool(found) != bool(mistake)
            # The first line is the test's name, the next one what is wrong.
            said = " ".join(found.splitlines()[1:3]) or "nothing found"
            print(f"{' '.join(filter(None, (name, mistake)))}: {said}", flush=True)
            if found and not mistake:
                print(found)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
