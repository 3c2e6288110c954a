"""
JAX: a batch's leaves as arrays over the same memory, safe when the loader goes on.

Each test runs in a process of its own: JAX starts threads and warns at every later fork.
"""

from __future__ import annotations

import json

from tests.helpers import programs

from . import jax_programs
from .needs import needs
from .training import COUNT

needs("jax")

LONGEST_S = 100.0  # imports and the starts of workers included; only a hang reaches it


def apart(tmp_path, function):
    """Run a function of jax_programs.py in a process of its own. Returns what it said."""
    script = (
        "if __name__ == '__main__':\n"
        f"    from {function.__module__} import {function.__name__}\n"
        f"    {function.__name__}()\n"
    )
    with programs.Program(tmp_path, script, JAX_PLATFORMS="cpu") as program:
        programs.wait_until(lambda: not programs.members(program.pid), LONGEST_S)
        assert 0 == program.wait(), program.errors
        return json.loads(program.lines()[-1])


def test_leaves_are_shared(tmp_path):
    """Every leaf of every batch becomes a jax.Array at the leaf's own address."""
    shared, spilled = apart(tmp_path, jax_programs.convert_each_leaf)

    assert [[True, "float32"], [True, "int64"]] * (COUNT // 8) == shared
    assert 0 == spilled


def test_labels_without_x64(tmp_path):
    """JAX as it is by default has no int64: labels become an int32 copy with the same values."""
    assert ["int32", list(range(8))] == apart(tmp_path, jax_programs.convert_without_x64)


def test_kept_array_keeps_its_slot(tmp_path):
    """An array alone holds its batch's slot, and its values stay, even beyond close()."""
    tickets, after_epochs, after_close, moved = apart(tmp_path, jax_programs.keep_one_array)

    assert [0] == tickets
    assert list(range(8)) == after_epochs == after_close
    assert not moved


def test_training(tmp_path):
    """A training in JAX has the losses that it has over torch's loader."""
    theirs, ours = apart(tmp_path, jax_programs.train_both)

    assert 2 * COUNT // 8 == len(theirs[0])
    assert theirs[0] == ours[0]
    assert (0, 1) == (theirs[1], theirs[2])
    assert (1, 0) == (ours[1], ours[2])
