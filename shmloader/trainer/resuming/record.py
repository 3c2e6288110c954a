"""
What a loader keeps so that its place can be saved at any time.

A record is made by each iterator and belongs to the loader, which keeps that of the last one. What
changes with each batch stands in `Delivered`; all else is noted when an epoch begins.
"""

import copy
import pickle
import time
from collections.abc import Callable
from typing import Any

import torch

from shmloader.core import Delivered
from shmloader.trainer.options import Options
from shmloader.trainer.resuming import generators, samplers, states
from shmloader.worker import seeds

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
        "workers": int(loader.num_workers),
        "persistent": int(loader.persistent_workers),
        "length": -1 if is_iterable else _length_of(loader.dataset),
        "batch_size": _batch_size_of(loader, sampler),
        "drop_last": int(bool(getattr(sampler, "drop_last", loader.drop_last))),
        "sampler": "" if is_iterable else samplers.kind_of(sampler),
    }


def _rank_of(sampler: Any) -> tuple[int, int]:
    divided = samplers.distributed(sampler)
    if divided is not None:
        return int(divided.rank), int(divided.num_replicas)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _length_of(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception:
        return -1  # it has none, and need not have one


def _batch_size_of(loader: Any, sampler: Any) -> int:
    size = loader.batch_size if loader.batch_size is not None else _own_size(sampler)
    return size if isinstance(size, int) else 0


def _own_size(sampler: Any) -> Any:
    return getattr(sampler, "batch_size", 0)


def batches_of(iterator: Any) -> int | None:
    """How many batches an iterable dataset is said to have; None unless len(loader) was called."""
    samples = iterator._IterableDataset_len_called
    size = getattr(iterator._index_sampler, "batch_size", None)
    if samples is None or size is None:
        return samples if samples is None else int(samples)
    return int(samples // size if iterator._drop_last else -(-samples // size))


_UNASKED = (
    "{inner} has a state_dict(), which is not saved because {outer} draws from it in a way of its "
    "own, so the next epoch may have another order: give {outer} state_dict() and load_state_dict()"
)


class Record:
    """
    The place of one iterator in its epoch, or of a loader that was not iterated.

    Attributes:
        delivered: The batches of this epoch.
        stateful: What of the sampler has a state of its own.
        base_seed: The iterator's.
        shared_seed: Of data pipes in this epoch; -1 without.
        epoch: The epoch's number in the iterator's life.
        total: How many batches the epoch has, once the sampler is drawn out; None before.
        is_over: True once torch has said so.
        published: By worker, the snapshot of its last answer, even of one not delivered.
    """

    def __init__(self, loader: Any, options: Options) -> None:
        """Keep nothing of an epoch yet."""
        self._facts = facts_of(loader, options)
        self.generators = generators.of_loader(loader)
        self.stateful = samplers.Stateful(loader._index_sampler)
        self._sampler = loader._index_sampler
        self._is_iterable = samplers.is_endless(loader._index_sampler)
        self.base_seed = self.shared_seed = -1
        self.delivered: Delivered | None = None
        self._known = {**states.unset(), **self._facts}
        self.published: list[bytes | None] = []
        # Asks the dataset of an iterator without workers: (dataset's state, its iterator's, ended).
        self.ask: Callable[[], tuple[Any, Any, bool]] | None = None
        self.length: Callable[[], int | None] = lambda: None
        self._set(0)

    def _set(self, epoch: int) -> None:
        self.epoch = epoch
        self.total: int | None = None
        self.is_over = False
        self._begun: list[bytes | None] = []
        self._noted = generators.NONE
        self._seeds_later = 0
        self._began_ns = time.monotonic_ns()
        self._before_ms = 0
        self._sampler_epoch = samplers.epoch_of(self._sampler)

    def begin(self, delivered: Delivered, epoch: int, *, seeds_later: bool = False) -> None:
        """
        Begin an epoch before its sampler is iterated.

        Args:
            epoch: Its number in the iterator's life.
            seeds_later: The base seed will be drawn when the sampler was iterated.
        """
        self._set(epoch)
        self.delivered = delivered
        self._noted = self.generators.at_begin()
        self._seeds_later = int(seeds_later)

    def go_on(self, state: states.State, delivered: Delivered) -> None:
        """Go on in the epoch of a state, of which this is the rest."""
        self._set(state.epoch)
        self.delivered = delivered
        noted = state.raw["generators"]
        # A merged state has none: the next epoch's seeds will be drawn from what is here.
        self._noted = self.generators.at_begin() if state.is_merged else dict(noted)
        self._seeds_later = int(state.seeds_later)
        self._before_ms = state.elapsed_ms
        self._sampler_epoch = state.sampler_epoch

    def enter(self, begun: list[bytes | None]) -> None:
        """Note where each worker was when its epoch began."""
        self._begun = begun

    def _is_finished(self, delivered: Delivered) -> bool:
        """Returns True if all batches of the epoch were delivered."""
        if self.is_over:
            return True
        total = self.length() if self.total is None else self.total
        if self._is_iterable:
            return total is not None and delivered.count >= total
        return total is not None and delivered.low == delivered.high == total

    @property
    def _ends_later(self) -> bool:
        """
        True if the sampler has given all its batches, but may draw once more, or have more.

        Without workers it is asked for one batch at a time, as torch does. One that was told an
        epoch draws by that alone, and may have been told the next one where the state is loaded.
        """
        if self._is_iterable or self.is_over or self.total is not None or self._sampler_epoch >= 0:
            return False
        return samplers.may_draw_at_end(self._sampler)

    def state_dict(self) -> dict[str, Any]:
        """Say where the loader is: of batches that were delivered, not of those on their way."""
        return self._state_of(self.delivered)

    def state_before(self) -> dict[str, Any]:
        """
        Say where the loader was one batch before; at the epoch's end, where it is.

        Raises:
            ValueError: The dataset is asked for its state, and has gone on since.
        """
        delivered = self.delivered
        if delivered is None or self.is_over:
            return self._state_of(delivered)
        before = delivered.before()
        if before is not delivered and self.ask is not None:
            raise ValueError(
                "the batch that was fetched ahead has moved the dataset, whose state_dict() is "
                "asked with num_workers=0, so its state behind the loop's batch is gone: use "
                "num_workers=1"
            )
        return self._state_of(before)

    def _state_of(self, delivered: Delivered | None) -> dict[str, Any]:
        state = self._known.copy()
        if delivered is None:
            state["generators"] = self.generators.between(is_seeded=False)
            return state
        is_finished = self._is_finished(delivered)
        if is_finished:
            is_seeded = bool(self._facts["persistent"])
            state["at"], state[states.FINISHED] = states.END, 1
            state["generators"] = self.generators.between(is_seeded)
            if self._ends_later:
                state["begun"] = self._noted.copy()
            if self.stateful.unasked and self.stateful.iterator is None:
                state["trouble"] = _UNASKED.format(
                    inner=self.stateful.unasked, outer=type(self._sampler).__name__
                )
        else:
            state["at"] = states.EPOCH
            state["generators"] = self._noted.copy()
        state["epoch"] = self.epoch
        state["base_seed"], state["shared_seed"] = self.base_seed, self.shared_seed
        state["seeds_later"] = self._seeds_later
        state["last_worker"] = delivered.last_worker
        state["sampler_epoch"] = self._sampler_epoch
        state["elapsed_ms"] = self._before_ms + delivered.elapsed_ms(self._began_ns)
        if self._is_iterable:
            state["drawn"] = state["low"] = delivered.count
            state["by_worker"] = list(delivered.by_worker)
        else:
            state["low"], state["drawn"] = low, high = delivered.low, delivered.high
            state["checksum"] = delivered.checksum
            if low != high:
                state["missing"] = states.pack_numbers(delivered.missing(), low, high)
        if delivered.sampler is not None:
            self._tell_sampler(state, delivered.sampler, delivered.sampler_at)
        if self.ask is not None:
            self._ask_dataset(state, self.ask)
        elif self.published:
            state["worker_states"] = self._workers(is_finished, delivered)
        return state

    def _workers(self, is_finished: bool, delivered: Delivered) -> list[Any]:
        """Where the workers were; between two epochs, where those are that live on."""
        pack, is_iterable = states.pack_worker, self._is_iterable
        if is_finished:
            if not self._facts["persistent"]:
                return []
            return [pack(None, published, is_iterable) for published in self.published]
        both = zip(delivered.snapshots, self._begun, strict=False)
        described = [pack(latest, begun, is_iterable) for latest, begun in both]
        return described if any(described) else []

    def _tell_sampler(self, state: dict[str, Any], pickled: bytes, drawn: int) -> None:
        try:
            state["sampler_state"], state["sampler_iterator"] = pickle.loads(pickled)
            state["sampler_at"] = drawn
        except Exception as error:
            state["trouble"] = f"the sampler's state cannot be read: {error!r}"

    def _ask_dataset(self, state: dict[str, Any], ask: Callable[[], tuple[Any, Any, bool]]) -> None:
        try:
            dataset, iterator, has_ended = ask()
            if dataset is None and iterator is None and not has_ended:
                return
            described = states.pack_here(dataset, iterator, has_ended)
            state["worker_states"] = [copy.deepcopy(described)]
        except Exception as error:
            state["trouble"] = f"the dataset's state_dict() failed: {error!r}"
