"""The generators of a loader whose states belong to its own: noted as text, and set again."""

import binascii
from dataclasses import dataclass
from typing import Any, Self

import torch

from shmloader.order import samplers
from shmloader.worker.generator_states import pack_torch, unpack_torch

DEFAULT, SAMPLER, LOADER = "default", "sampler", "loader"
NONE = {DEFAULT: "", SAMPLER: "", LOADER: ""}

_default: Any = torch.default_generator


def _is_here(generator: Any) -> bool:
    return bool(generator.device.type == "cpu")


def note(generator: Any) -> str:
    """The state of a generator as text; "" if that cannot be had, as of another device's."""
    try:
        if not _is_here(generator):
            return ""
        return binascii.b2a_base64(pack_torch(generator), newline=False).decode()
    except Exception:
        return ""


def read(name: str, noted: str) -> torch.Tensor | None:
    """The state that was noted."""
    if not noted:
        return None
    try:
        state = unpack_torch(binascii.a2b_base64(noted))
        torch.Generator().set_state(state)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"the state of the {name} generator is damaged: {error}") from error
    return state


@dataclass(frozen=True)
class Generators:
    """
    Those of one loader.

    Attributes:
        draws_by_default: The sampler may draw from torch's default generator.
        own: Those that the sampler and the loader were given, by name; each once.
        seeds: Draws the base seed.
    """

    draws_by_default: bool
    own: dict[str, torch.Generator]
    seeds: torch.Generator

    def states(self) -> list[tuple[torch.Generator, torch.Tensor]]:
        """Return those that an iterator may draw from when it is made, each with its state."""
        all_own = self.own.values()
        return [(each, each.get_state()) for each in (_default, *all_own) if _is_here(each)]

    def at_begin(self) -> dict[str, str]:
        """Note what an epoch's indices are drawn from, before any is."""
        return self._note(self.draws_by_default)

    def between(self, is_seeded: bool) -> dict[str, str]:
        """Note what the next epoch is drawn from; is_seeded: it keeps the base seed."""
        return self._note(self.draws_by_default or (self.seeds is _default and not is_seeded))

    def now(self) -> dict[str, torch.Tensor | None]:
        """Return the states of the loader's own."""
        return {name: generator.get_state() for name, generator in self.own.items()}

    def _note(self, by_default: bool) -> dict[str, str]:
        drawn = {DEFAULT: _default, **self.own} if by_default else self.own
        return NONE | {name: note(generator) for name, generator in drawn.items()}


def of_loader(loader: Any) -> Generators:
    sampler = loader._index_sampler
    is_iterable = samplers.is_endless(sampler)
    own, given = samplers.generator_of(sampler), loader.generator
    found = {} if own is None else {SAMPLER: own}
    if isinstance(given, torch.Generator) and given is not own:
        found[LOADER] = given
    by_default = not is_iterable and samplers.draws_by_default(sampler)
    return Generators(by_default, found, _default if given is None else given)


class Pinned:
    """
    Generators as they were noted, while an iterator is made; the default one is put back after it.

    If the default one is where it was noted, as where a training has put it back by itself, it is
    not put back: it advances as it does without us.
    """

    def __init__(
        self, generators: Generators, noted: dict[str, torch.Tensor | None], keeps_draws: bool
    ) -> None:
        """Set nothing yet; keeps_draws: what is drawn meanwhile is the training's own."""
        self._generators = generators
        self._noted = noted
        self._keeps_draws = keeps_draws

    def __enter__(self) -> Self:
        """Set all to what was noted."""
        self._outside = _default.get_state()
        self.rewind()
        return self

    @property
    def is_apart(self) -> bool:
        """True if the default generator was noted elsewhere than where it is outside."""
        noted = self._noted.get(DEFAULT)
        return noted is not None and not torch.equal(noted, self._outside)

    def rewind(self) -> None:
        """Set all to what was noted, and the default one, if that was not, to where it was."""
        default = self._noted.get(DEFAULT)
        _default.set_state(self._outside if default is None else default)
        for name, generator in self._generators.own.items():
            state = self._noted.get(name)
            if state is not None:
                generator.set_state(state)

    def __exit__(self, *_: object) -> None:
        if not self._keeps_draws or self.is_apart:
            _default.set_state(self._outside)
