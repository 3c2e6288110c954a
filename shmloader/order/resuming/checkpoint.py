"""
What a loader keeps so that its place can be saved at any time.

A record is made by each iterator and belongs to the loader, which keeps that of the last one. What
changes with each batch stands in `Delivered`; all else is noted when an epoch begins.
"""

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import torch

from shmloader.core import Delivered
from shmloader.errors import attempt, said, warn
from shmloader.options.options import Options, most_workers
from shmloader.order import samplers
from shmloader.order.resuming import generators, states
from shmloader.order.resuming.stateful import Stateful
from shmloader.worker import seeds

_UNTOLD = pickle.dumps(None)  # stands for a sampler's state that is not known

# Facts that have to be the same where a state is loaded, and how an error calls them.
SAME = {
    "seed_by": "seed_by",
    "recipe": "the version of the recipe for seeds",
    "length": "the length of the dataset",
    "batch_size": "batch_size",
    "drop_last": "drop_last",
    "sampler": "the sampler",
}


def facts_of(loader: Any, options: Options) -> dict[str, Any]:
    """Say what of a loader must be the same where its state is loaded, or may differ."""
    sampler = loader._index_sampler
    is_iterable = samplers.is_endless(sampler)
    rank, ranks = _rank_of(sampler)
    return {
        "recipe": seeds.RECIPE,
        "seed_by": options.seed_by,
        "rank": rank,
        "ranks": ranks,
        "workers": most_workers(loader, options),
        "persistent": int(bool(loader.persistent_workers)),
        "length": -1 if is_iterable else samplers.length_of(loader.dataset),
        "batch_size": _batch_size_of(loader, sampler),
        "drop_last": int(bool(getattr(sampler, "drop_last", loader.drop_last))),
        "sampler": "" if is_iterable else samplers.kind_of(sampler),
        "order": samplers.divided_order(sampler, ranks),
    }


def _rank_of(sampler: Any) -> tuple[int, int]:
    divided = samplers.distributed(sampler)
    if divided is not None:
        return int(divided.rank), int(divided.num_replicas)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _batch_size_of(loader: Any, sampler: Any) -> int:
    size = loader.batch_size
    if size is None:
        size = getattr(sampler, "batch_size", 0)
    return size if isinstance(size, int) else 0


_UNASKED = (
    "{inner} has a state_dict(), which is not saved because {outer} draws from it in its own way, "
    "so the next epoch may have another order: give {outer} state_dict() and load_state_dict()"
)


_LOST = (
    "the last response of worker {} did not contain its position, because its dataset's "
    "state_dict() failed there or left no room, so that worker begins again"
)

# Of a worker: the snapshots that came with its last batch of the epoch, and before the epoch.
_Place = tuple[bytes | None, bytes | None]


class Record:
    """
    The place of one iterator in its epoch, or of a loader that was not iterated.

    Attributes:
        delivered: The batches of this epoch.
        stateful: What of the sampler has a state of its own.
        base_seed: The iterator's.
        shared_seed: Of data pipes in this epoch; -1 without.
        epoch: The epoch's number in the iterator's life.
        is_over: True once the loop was told so; with the last batch it is not yet.
        begun: By worker, the snapshot of where it was when the epoch began.
        published: By worker, the snapshot of its last answer, even of one not delivered.
    """

    def __init__(self, loader: Any, options: Options) -> None:
        self._facts = facts_of(loader, options)
        self.generators = generators.of_loader(loader)
        self.stateful = Stateful(loader._index_sampler)
        self._sampler = loader._index_sampler
        self._is_iterable = samplers.is_endless(loader._index_sampler)
        self._dataset = type(loader.dataset).__name__
        self._told: set[str] = set()
        self.base_seed = self.shared_seed = -1
        self.delivered: Delivered | None = None
        self._known = {**states.UNSET, **self._facts}
        self.published: list[bytes | None] = []
        self.epoch: int
        self.is_over: bool
        self.begun: list[bytes | None]
        self._noted: dict[str, str]
        self._seeds_later: int
        self._sampler_epoch: int
        self._given: tuple[int, list[Any]] | None  # batches before, and states of workers
        # Asks the dataset of an iterator without workers: (dataset's state, its iterator's, ended).
        self.ask: Callable[[], tuple[Any, Any, bool]] | None = None
        self._set(0)

    def _set(self, epoch: int, **known: Any) -> None:
        usual = {
            "is_over": False,
            "begun": list(self.published),
            "_noted": generators.NONE,
            "_seeds_later": 0,
            "_sampler_epoch": samplers.epoch_of(self._sampler),
            "_given": None,
        }
        # In one call: an interrupt must not leave half an epoch.
        vars(self).update({"epoch": epoch, **usual, **known})

    def begin(self, delivered: Delivered, epoch: int, *, seeds_later: bool = False) -> None:
        """
        Begin an epoch before its sampler is iterated.

        Args:
            epoch: Its number in the iterator's life.
            seeds_later: The base seed will be drawn when the sampler was iterated.
        """
        noted = self.generators.at_begin()
        self._set(epoch, delivered=delivered, _noted=noted, _seeds_later=int(seeds_later))

    def go_on(self, state: states.State, delivered: Delivered) -> None:
        """Go on in the epoch of a state, of which this is the rest."""
        noted = state.raw["generators"]
        is_given = all(state.raw[name] == self._facts[name] for name in ("workers", "rank"))
        self._set(
            state.epoch,
            delivered=delivered,
            # A merged state has none: the next epoch's seeds will be drawn from what is here.
            _noted=self.generators.at_begin() if state.is_merged else dict(noted),
            _seeds_later=int(state.seeds_later),
            _sampler_epoch=state.sampler_epoch,
            _given=(delivered.count, state.worker_states) if is_given else None,
        )

    def state_dict(self, counted: int | None = None) -> dict[str, Any]:
        """
        Say where the loader is: of batches that were delivered, not of those on their way.

        Args:
            counted: How many batches the loop takes, if it never asks for the end of an epoch.
        """
        delivered = self.delivered
        is_over = counted is not None and delivered is not None and delivered.count >= counted
        return self._state_of(delivered, self.is_over or is_over)

    def state_before(self) -> dict[str, Any]:
        """
        Say where the loader was one batch before; at the epoch's end, where it is.

        Raises:
            ValueError: The dataset is asked for its state, and has gone on since.
        """
        delivered = self.delivered
        if delivered is None or self.is_over:
            return self._state_of(delivered, self.is_over)
        before = delivered.before()
        if before is not delivered and self.ask is not None:
            raise ValueError(
                "a prefetched batch has advanced the dataset, whose state_dict() is called in "
                "this process with num_workers=0, so its state after the loop's last batch is "
                "lost: use num_workers=1"
            )
        return self._state_of(before, is_over=False)

    def _state_of(self, delivered: Delivered | None, is_over: bool) -> dict[str, Any]:
        state = self._known.copy()
        if delivered is None:
            state["generators"] = self.generators.between(is_seeded=False)
            return state
        if is_over:
            self._tell_end(state)
        else:
            state["at"] = states.EPOCH
            state["generators"] = self._noted.copy()
        state["epoch"] = self.epoch
        state["base_seed"], state["shared_seed"] = self.base_seed, self.shared_seed
        state["seeds_later"] = self._seeds_later
        state["last_worker"] = delivered.last_worker
        state["sampler_epoch"] = self._sampler_epoch
        self._tell_delivered(state, delivered)
        self._tell_sampler(state, delivered)
        self._tell_dataset(state, delivered, is_over)
        return state

    def _tell_end(self, state: dict[str, Any]) -> None:
        is_seeded = bool(self._facts["persistent"])
        state["at"], state[states.FINISHED] = states.END, 1
        state["generators"] = self.generators.between(is_seeded)
        if self.stateful.unasked and self.stateful.iterator is None:
            outer = type(self._sampler).__name__
            state["trouble"] = _UNASKED.format(inner=self.stateful.unasked, outer=outer)

    def _tell_delivered(self, state: dict[str, Any], delivered: Delivered) -> None:
        if self._is_iterable:
            state["drawn"] = state["low"] = delivered.count
            state["by_worker"] = list(delivered.by_worker)
            return
        state["low"], state["drawn"] = low, high = delivered.low, delivered.high
        state["checksum"] = delivered.checksum
        if low != high:
            state["missing"] = states.pack_numbers(delivered.missing(), low, high)

    def _tell_dataset(self, state: dict[str, Any], delivered: Delivered, is_over: bool) -> None:
        """Say where the dataset is: the one that is here, or those of the workers."""
        if self.ask is None:
            if self.published:
                self._tell_workers(state, self._places(is_over, delivered))
        elif not is_over and self._given is not None and self._given[0] == delivered.count:
            # A generator function does not run before its first sample, so cannot say this.
            state["worker_states"] = copy.deepcopy(self._given[1])
        else:
            self._ask_dataset(state, self.ask)

    def _places(self, is_over: bool, delivered: Delivered) -> list[_Place]:
        """Where the workers were; between two epochs, where those are that live on."""
        if not is_over:
            return list(zip(delivered.snapshots, self.begun, strict=False))
        return [(None, latest) for latest in self.published if self._facts["persistent"]]

    def _tell_workers(self, state: dict[str, Any], places: list[_Place]) -> None:
        described = [states.pack_worker(*place, self._is_iterable) for place in places]
        state["worker_states"] = described if any(described) else []
        lost = [n for n, place in enumerate(places) if states.is_lost(*place, self._is_iterable)]
        if lost:
            _add_trouble(state, _LOST.format(", ".join(map(str, lost))))

    def _tell_sampler(self, state: dict[str, Any], delivered: Delivered) -> None:
        known, place = delivered.sampler, (delivered.sampler_at, delivered.sampler_sum)
        if self.is_over:
            # It has run to its end, and may have been told since what comes.
            now = self.stateful.state(is_at_end=True)
            known, place = (known, place) if now is None else (now, (state["drawn"], -1))
        told, error = attempt(functools.partial(pickle.loads, known or _UNTOLD))
        if told is not None:
            state.update(zip(states.OF_SAMPLER, told, strict=True))
            state["sampler_at"], state["sampler_sum"] = place
        if error is not None:
            self._warn(state, f"the sampler's state cannot be read: {said(error)}")
        if self.stateful.failure:
            self._warn(
                state,
                f"{self.stateful.failure}, so batches of the sampler are counted, and a resumed "
                "run draws again those since its last state",
            )

    def _warn(self, state: dict[str, Any], trouble: str) -> None:
        """Say what this state lacks: once here, and where it is loaded."""
        _add_trouble(state, trouble)
        if trouble not in self._told:
            self._told.add(trouble)
            warn(f"the loader's state is not whole: {trouble}")

    def _ask_dataset(self, state: dict[str, Any], ask: Callable[[], tuple[Any, Any, bool]]) -> None:
        def described() -> list[Any]:
            dataset, iterator, has_ended = ask()
            if dataset is None and iterator is None and not has_ended:
                return []
            return [copy.deepcopy(states.pack_here(dataset, iterator, has_ended))]

        described_states, error = attempt(described)
        if error is None:
            state["worker_states"] = described_states
        else:
            self._warn(
                state,
                f"state_dict() of {self._dataset} failed: {said(error)}, so a resumed run begins "
                "that dataset again, or fetches again the batches of its epoch",
            )


def _add_trouble(state: dict[str, Any], trouble: str) -> None:
    state["trouble"] = "; ".join(filter(None, [state["trouble"], trouble]))
