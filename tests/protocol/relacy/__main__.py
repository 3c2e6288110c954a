"""Explores our sources under relacy: `python -m tests.protocol.relacy [planted]`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import cases, sources

RUNS = 1_000_000
COMPILE_S = 120
RUN_S = 120
# C lets any pointer be a void *, and relacy checks its own use with RL_DO_ASSERT.
FLAGS = ("-std=c++17", "-O1", "-DRL_DO_ASSERT=1", "-fpermissive", "-w")


def explore(program: str, texts: dict[str, str], tells: bool = True) -> str:
    """
    Compile a program with these sources, run it, and return what relacy found, or "nothing".

    Args:
        program: Its name.
        texts: The sources.
        tells: Write how it came to a fault on stderr.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources.translate(texts, folder)
        source, binary = sources.HERE / f"{program}.cpp", folder / program
        compiler = os.environ.get("CXX", "g++")
        command = [
            compiler,
            *FLAGS,
            f"-I{folder}",
            f"-I{sources.HERE}",
            str(source),
            "-o",
            str(binary),
        ]
        subprocess.run(command, check=True, timeout=COMPILE_S)
        run = subprocess.run(
            [binary, str(RUNS)], capture_output=True, text=True, timeout=RUN_S, check=False
        )
    if tells and run.returncode != 0:
        sys.stderr.write(run.stderr)
    return run.stdout.strip() or f"it ended with {run.returncode}"


def planted(mistake: cases.Mistake) -> str:
    """Return what relacy finds of one mistake."""
    texts = sources.read()
    text = sources.replaced(texts[mistake.source], mistake.old, mistake.new)
    return explore(mistake.program, texts | {mistake.source: text}, tells=False)


def main() -> int:
    """Run all programs, or plant all mistakes; 1: something was found, or a mistake was not."""
    texts = sources.read()
    if sys.argv[1:] == ["planted"]:
        found = {mistake.name: (planted(mistake), mistake.fault) for mistake in cases.MISTAKES}
    else:
        found = {name: (explore(name, texts), "nothing") for name in cases.PROGRAMS}
    for name, (fault, expected) in found.items():
        print(f"{name}: {fault}" + ("" if fault == expected else f", expected: {expected}"))
    return int(any(fault != expected for fault, expected in found.values()))


if __name__ == "__main__":
    sys.exit(main())
