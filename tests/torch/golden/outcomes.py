"""What a user sees of a loader step by step, errors included, in a form that two loaders share."""

import re
from pathlib import Path
from typing import NamedTuple

import torch.utils.data

import shmloader

from .describe import describe, qualified_name

LOADERS = {"torch": torch.utils.data.DataLoader, "ours": shmloader.DataLoader}

TESTS = Path(__file__).parents[2]

# A frame of a traceback: its line with the file, then the indented source lines.
FRAME = re.compile(r'^  File "(?P<file>[^"]+)".*\n(?:    .*\n)*', re.MULTILINE)
# One of C++, in errors of torch: the interpreter's own are among them.
NATIVE_FRAME = re.compile(r"^frame #\d+: .*\n?", re.MULTILINE)
PIDS = re.compile(r"(?<=pid\(s\) )[\d, ]+|(?<=pid )\d+")


class Failure(NamedTuple):
    """An exception: its type, its text and its causes."""

    kind: str
    text: str
    cause: "Failure | None" = None


def failure_of(error):
    """
    Describe an exception without what must differ: process ids and frames of the loader itself.
    """
    cause = error.__cause__ and failure_of(error.__cause__)
    return Failure(qualified_name(type(error)), neutral(str(error)), cause)


def neutral(text):
    text = FRAME.sub(lambda frame: frame[0] if is_ours_to_see(frame["file"]) else "", text)
    text = NATIVE_FRAME.sub("", text)
    return PIDS.sub(lambda pids: re.sub(r"\d+", "N", pids[0]), text)


def is_ours_to_see(file):
    # Frames of the test's dataset belong to the message; frames of torch and of the loader do not.
    return TESTS in Path(file).parents


def attempt(action):
    """Return what an action gave, as a description or a failure."""
    try:
        return describe(action())
    except Exception as error:
        return failure_of(forget_frames(error))


def forget_frames(error):
    # torch re-raises from a local variable, a cycle that keeps the iterator: later workers inherit
    # it, and the collector closes its queues first, so each worker is waited for in vain for 5 s.
    return error.with_traceback(None)


def walk(loader, steps):
    """Return the outcome of each of `steps` calls of `next()`, or that of `iter()` if it fails."""
    try:
        iterator = iter(loader)
    except Exception as error:
        return [failure_of(forget_frames(error))]
    return [attempt(lambda: next(iterator)) for _ in range(steps)]


def in_both(scenario):
    """Return the results of a scenario with torch's class and with ours."""
    return scenario(LOADERS["torch"]), scenario(LOADERS["ours"])


def alike(scenario):
    """Return what a scenario gives with torch's class, which is what it gives with ours."""
    expected, actual = in_both(scenario)
    assert expected == actual, f"{expected} is not {actual}"
    return expected
