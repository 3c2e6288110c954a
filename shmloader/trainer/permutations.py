"""
Permutations as torch draws them, in a third of the time: a shuffled epoch begins with one.

Of 10^8 samples torch's takes seconds, most of which it waits for memory. Whether this torch still
draws as is done here is looked at once in each process; if not, it draws them itself.
"""

import functools
import sys

import numpy
import torch
from numpy.typing import NDArray

from shmloader.core import draw_permutation, skip_draws

# From here on torch draws 64 bits for each number, by another rule.
_COUNT_END = (2**32 - 1) // 20


def permutation(
    count: int, generator: torch.Generator, is_own: bool = False
) -> NDArray[numpy.int64]:
    """
    Draw `torch.randperm(count, generator=generator)`.

    Args:
        is_own: Nobody else knows the generator; then other threads go on meanwhile.
    """
    if not _is_drawn_here(count, generator, is_own):
        return torch.randperm(count, generator=generator).numpy()
    state = generator.get_state()
    drawn = draw_permutation(state, count, not is_own)
    generator.set_state(state)
    return drawn


def skip_permutation(count: int, generator: torch.Generator) -> None:
    """Leave the generator as if a permutation had been drawn."""
    if not _is_drawn_here(count, generator, is_own=False):
        torch.randperm(count, generator=generator)
        return
    state = generator.get_state()
    skip_draws(state, max(0, count - 1))
    generator.set_state(state)


def _is_drawn_here(count: int, generator: torch.Generator, is_own: bool) -> bool:
    is_plain = type(generator) is torch.Generator and generator.device.type == "cpu"
    is_safe = is_own or (generator is not torch.default_generator and _is_alone())
    return is_plain and is_safe and 0 <= count < _COUNT_END and _is_like_torch()


def _is_alone() -> bool:
    """
    Returns True if no other thread of Python's can draw from a generator meanwhile.

    Others draw without Python's lock. What they drew between the two states would be drawn twice,
    and only torch locks them out. From torch's default generator threads of others draw too.
    """
    return len(sys._current_frames()) == 1


@functools.cache
def _is_like_torch() -> bool:
    theirs, own = torch.Generator(), torch.Generator()
    for count in (700, 1, 0, 2000):
        expected = torch.randperm(count, generator=theirs.manual_seed(count))
        state = own.manual_seed(count).get_state()
        try:
            drawn = draw_permutation(state, count, False)
            if theirs.get_state().tolist() != state.tolist():
                return False
            skip_draws(state, max(0, count - 1))
        except ValueError:
            return False
        torch.randperm(count, generator=theirs)
        is_same = torch.equal(theirs.get_state(), state)
        if not is_same or expected.tolist() != drawn.tolist():
            return False
    return True
