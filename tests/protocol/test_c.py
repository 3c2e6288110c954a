"""
The C programs of tests/protocol/c, each under every variant of the build that may tell of it.

A build takes longer than its programs, so a variant leaves out what another shows as well. All are
run by `make run` there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.programs import one_at_a_time

HERE = Path(__file__).resolve().parent / "c"
PROGRAMS = sorted(
    path.stem for kind in ("ladder", "threads", "forks") for path in HERE.glob(f"{kind}_*.c")
)
VARIANTS = {
    "plain": [],
    "portable": ["PORTABLE=1"],
    "address-undefined": ["SAN=address,undefined"],
    "thread": ["SAN=thread"],
}
# In folders of their own, which stay: `make rest` finds what `make test` has built.
BUILDS = HERE.parents[2] / "build" / "test-c"
BUILD_TIMEOUT_S = 300


# What a run of the core builds: one set of sanitizers for every program, for each build takes long.
CORE = "address-undefined"

# Ladders that are not under that alone. Those of the first row are about the pages that a sanitizer
# manages itself; those of the second wait, or look for forks: there the portable build differs.
LADDERS = {
    "plain": ("guard", "mapped", "pages", "plays"),
    "portable": ("demand", "doorbell", "endings", "platform", "plays"),
}


def tells(variant, program):
    """Returns True if a program may end otherwise under a variant than under the others."""
    kind, _, subject = program.partition("_")
    if variant == CORE:
        return True
    if variant == "thread":  # which follows threads, not processes
        return kind == "threads"
    return kind != "ladder" or subject in LADDERS[variant]


CASES = [
    pytest.param(
        variant,
        program,
        id=f"{program}-{variant}",
        marks=() if variant == CORE else pytest.mark.thorough,
    )
    for variant in VARIANTS
    for program in PROGRAMS
    if tells(variant, program)
]

pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="make is missing"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 120),  # the first test of a variant builds csrc/
]


def built(variant, program):
    """
    Build what of a program is older than its sources.

    Returns:
        Its path.
    """
    folder = BUILDS / variant
    targets = ["all", f"build={folder}", f"PROGRAMS={program}"]
    with one_at_a_time(folder):
        run(["make", f"-j{os.cpu_count()}", *targets, *VARIANTS[variant]], BUILD_TIMEOUT_S)
    return folder / program


def run(command, timeout_s):
    """
    Run a command in tests/protocol/c; its output is the assertion's message.

    Returns:
        What it printed.
    """
    # A jobserver of a make that runs these tests is not ours to use.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    environment["TSAN_OPTIONS"] = "halt_on_error=1"
    result = subprocess.run(
        command,
        cwd=HERE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
    )
    assert result.returncode == 0, f"{command} exited with {result.returncode}:\n{result.stdout}"
    return result.stdout


def test_programs_are_found():
    """The cases below cover programs of all three kinds, and the ladders that are named."""
    ladders = {f"ladder_{subject}" for subjects in LADDERS.values() for subject in subjects}

    assert {program.split("_")[0] for program in PROGRAMS} == {"ladder", "threads", "forks"}
    assert ladders < {*PROGRAMS}


@pytest.mark.core(first=1)
@pytest.mark.parametrize(("variant", "program"), CASES)
def test_program(seeded, stress_seconds, variant, program):
    """A program's checks hold under a variant; the variants share the seconds of force."""
    seconds = stress_seconds / len(VARIANTS)
    command = [built(variant, program), "--seconds", str(seconds), "--seed", str(seeded)]

    output = run(list(map(str, command)), timeout_s=60 + 11 * seconds)

    assert "ok " in output
