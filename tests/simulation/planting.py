"""Plant mistakes in copies of the package, and count the runs until each is found."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

from tests.helpers.kill_client import BUILD
from tests.helpers.kill_steps import ROOT
from tests.simulation.case import draw
from tests.simulation.mistakes import MISTAKES, Edit, Mistake
from tests.simulation.stage import Stage

MOST_RUNS = 500
_CORE = "shmloader/core/_core"
_MACROS = ("-D_GNU_SOURCE=1", "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION")
_FLAGS = ("-std=c11", "-fvisibility=hidden", "-fPIC", "-O0", "-UNDEBUG", "-w")


def plant(mistake: Mistake) -> Path:
    """Make a copy of the built package with a mistake in it. Returns the library's folder."""
    folder = BUILD / "planted" / mistake.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(BUILD / "lib", folder / "lib")
    edits = {edit.path: [e for e in mistake.edits if e.path == edit.path] for edit in mistake.edits}
    changed = []
    for path, listed in edits.items():
        text = edited((ROOT / path).read_text(), listed)
        if path.startswith("shmloader/"):
            (folder / "lib" / path).write_text(text)
        else:
            changed.append(path)
            _compile(folder, path, text)
    if changed:
        _link(folder, changed)
    return folder / "lib"


def edited(text: str, edits: list[Edit]) -> str:
    """Make the edits in a source; each piece must stand there once."""
    for edit in edits:
        assert text.count(edit.old) == 1, f"{edit.path} has not once: {edit.old}"
        text = text.replace(edit.old, edit.new)
    return text


def _compile(folder: Path, path: str, text: str) -> None:
    """Compile a changed source of csrc/."""
    source = folder / Path(path).name
    source.write_text(text)
    includes = [f"-I{ROOT / 'csrc'}", f"-I{numpy.get_include()}"]
    includes.append(f"-I{sysconfig.get_path('include')}")
    _call("cc", *_FLAGS, *_MACROS, "-DSHMLOADER_KILL_POINTS=1", *includes, "-c", source,
          "-o", source.with_suffix(".o"))  # fmt: skip


def _link(folder: Path, changed: list[str]) -> None:
    """Link the extension anew, with the changed objects in the places of those that were built."""
    ours = tuple(path.removesuffix(".c") + ".o" for path in changed)
    objects = [each for each in _objects() if not str(each).endswith(ours)]
    objects += [folder / Path(path).name for path in ours]
    (extension,) = (folder / "lib" / _CORE).parent.glob("_core*.so")
    _call("cc", "-shared", "-pthread", *objects, "-o", extension)


def _objects() -> list[Path]:
    return sorted((BUILD / "temp").rglob("*.o"))


def _call(*command: object) -> None:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def runs_until_found(
    mistake: Mistake, library: Path, core: int, seed: int, starts: int
) -> list[int]:
    """
    Play from several starting seeds on.

    Returns:
        How many runs it took from each; MOST_RUNS + 1 if it was not found.
    """
    stage = Stage(library, core)
    try:
        counts = []
        for start in range(starts):
            first = seed + start * 1_000_003
            runs = 1
            while runs <= MOST_RUNS and not stage.play(draw(first + runs))["failure"]:
                runs += 1
            counts.append(runs)
            if min(counts) > MOST_RUNS and start >= (0 if mistake.unseen else 1):
                break  # nothing is to be found, as far as one sees
        return counts
    finally:
        stage.close()


def tell(wanted: list[str], seed: int, starts: int, jobs: int) -> int:
    """Print a table of the mistakes; the exit code is 0 if those that must be found are."""
    listed = [each for each in MISTAKES if not wanted or each.name in wanted]
    print(f"from seed {seed} on, {starts} starts, at most {MOST_RUNS} runs each")
    print("| mistake | from | median | worst | what it is |\n| --- | --- | --- | --- | --- |")
    with ThreadPoolExecutor(jobs) as pool:
        rows = [
            pool.submit(_row, each, place % jobs, seed, starts) for place, each in enumerate(listed)
        ]
        missed = sum(each.result() for each in rows)
    return int(missed > 0)


def _row(mistake: Mistake, core: int, seed: int, starts: int) -> bool:
    """Print a mistake's row. Returns True if it should have been found and was not."""
    cores = sorted(os.sched_getaffinity(0))
    counts = runs_until_found(mistake, plant(mistake), cores[core % len(cores)], seed, starts)
    found = [count for count in counts if count <= MOST_RUNS]
    median = statistics.median(counts)
    worst: object = max(counts) if len(found) == len(counts) else f"{len(found)} of {len(counts)}"
    middle: object = f"{median:g}" if median <= MOST_RUNS else "not found"
    says = f"{mistake.says}; {mistake.unseen}" if mistake.unseen else mistake.says
    print(f"| {mistake.name} | {mistake.origin} | {middle} | {worst} | {says} |")
    sys.stdout.flush()
    return not mistake.unseen and len(found) < len(counts)
