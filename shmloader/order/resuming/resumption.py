"""
A state that was loaded: checked against its loader, and what the next iterator goes on from.

All that can be refused without drawing is refused when a state is loaded, before anything changes.
What is less exact than a user may expect is a warning there.
"""

import pickle
from hashlib import blake2b
from typing import Any

import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.graph_settings import apply_random_seed

from shmloader.core import Delivered, Past
from shmloader.errors import warn
from shmloader.options.options import BY_BATCH, Options, most_workers
from shmloader.order import samplers
from shmloader.order.resuming import generators, merging
from shmloader.order.resuming.checkpoint import SAME, facts_of
from shmloader.order.resuming.drawing import (
    Drawn,
    check_epoch,
    check_owner,
    draw_again,
    is_drawn_out,
)
from shmloader.order.resuming.stateful import Stateful
from shmloader.order.resuming.states import END, EPOCH, OF_SAMPLER, START, State
from shmloader.stats.setting import DYNAMIC
from shmloader.worker import snapshot
from shmloader.worker.restoring import has_to_replay
from shmloader.worker.snapshot import Position, is_stateful


class Resumption:
    """
    A state on its way into an iterator.

    Attributes:
        state: What was loaded.
        keeps_base_seed: True if no base seed is to be drawn.
        replays: How many batches each worker fetches again before its first one.
        shared_seed: That of data pipes in the epoch that goes on or begins; None without one.
    """

    def __init__(self, loader: Any, options: Options, state: State) -> None:
        """Check a state against a loader, and warn of what it cannot keep."""
        self.state = state
        self.shared_seed = int(state.shared_seed) if state.shared_seed >= 0 else None
        self._options = options
        self._workers = most_workers(loader, options)
        self._is_iterable = samplers.is_endless(loader._index_sampler)
        size = loader.batch_size if self._is_iterable else None
        self._index = None if size is None else [None] * size
        self._is_own = _check(state, loader, options, self._is_iterable)
        self._checksum, self._drawn = int(state.checksum), int(state.drawn)
        self._sum_then = 0
        self._epoch_here = samplers.epoch_of(loader._index_sampler)
        self._lives_on = self._do_workers_live_on(loader)
        # In an epoch, and while workers live on.
        self.keeps_base_seed = self.is_in_epoch or (state.is_finished and self._lives_on)
        self._generators = generators.of_loader(loader)
        self._noted = self._noted_generators()
        self._check_takers(loader)
        self._pasts = self._pasts_of_workers()
        self.replays = [self._replays_of(number) for number in range(len(self._pasts))]
        has_rest = self.is_in_epoch and not is_drawn_out(loader._index_sampler, state)
        # Workers have drawn of what goes on here: the rest of an epoch, or they live on.
        self._has_drawn = bool(state.drawn) and (has_rest or self._lives_on)
        self._advise(loader.dataset)
        self._advise_sampler(loader._index_sampler)

    def _do_workers_live_on(self, loader: Any) -> bool:
        """Returns True if the state's workers lived on from one epoch to the next, and these do."""
        state = self.state
        is_persistent = bool(loader.persistent_workers) and bool(state.persistent)
        return is_persistent and bool(state.base_seed >= 0) and self._workers > 0

    def _pasts_of_workers(self) -> list[Past]:
        count = max(self._workers, 1)
        if self._has_same_workers and self._is_own:
            return [self.state.worker(number, self._index) for number in range(count)]
        return [Past()] * count

    @property
    def _has_same_workers(self) -> bool:
        return bool(self._workers == self.state.workers)

    @property
    def seeds_stay_drawn(self) -> bool:
        """True if no index is drawn again, of an iterator that draws its seed before them."""
        return self._is_iterable and bool(self.state.seeds_later)

    @property
    def is_in_epoch(self) -> bool:
        """True if the rest of an epoch comes; otherwise a whole one."""
        return bool(self.state.at == EPOCH) and not self.state.is_finished

    # Warnings

    def _advise(self, dataset: Any) -> None:
        state, name = self.state, type(dataset).__name__
        if state.trouble:
            warn(f"this state of a loader is not whole: {state.trouble}")
        if not self._is_own:
            warn(
                f"this state was saved by rank {state.rank} of {state.ranks} and is loaded by "
                "another one: its epoch, position and base seed are loaded, and its checksum is "
                "ignored, because each rank has its own indices. Random numbers are those of an "
                "undisturbed run if all ranks have the same base seed"
            )
        if self._loses_epochs(dataset):
            warn(
                f"{name} has state_dict(), which this state does not contain: what its workers "
                "retained from one epoch to the next begins again. Save states with resumable=True"
            )
        if self._has_drawn or (state.is_merged and state.at != START):
            self._advise_of_draws(dataset)

    def _advise_of_draws(self, dataset: Any) -> None:
        """Warn of what is fetched or drawn again."""
        if any(self.replays):
            come_before, name = sum(self.state.by_worker), type(dataset).__name__
            lacks = f"give {name}, or its iterator, state_dict() and load_state_dict(), and "
            warn(
                f"no state of {name} was saved, so up to {max(self.replays)} batches are fetched "
                f"again in each worker before batch {come_before} is delivered, which takes about "
                f"as long as it took the first time: {'' if is_stateful(dataset) else lacks}"
                "pass resumable=True"
            )
        elif self._loses_draws:
            warn(
                "the batches and their order continue as they were, but the random numbers of the "
                f"dataset begin again: {self._why_draws_are_lost()}; with as many ranks they "
                'continue with seed_by="batch", or with resumable=True, as many workers and '
                'assignment="cycle"'
            )

    def _why_draws_are_lost(self) -> str:
        state = self.state
        if self._has_same_workers and not state.is_merged and not any(state.worker_states):
            return "this state does not contain the random states of workers"
        of = f"{state.ranks} ranks" if state.is_merged else f"num_workers={state.workers}"
        return f"this state is of {of}, and here num_workers={self._workers}"

    def _advise_sampler(self, sampler: Any) -> None:
        """Warn of an order that depends on what no state has, where no checksum will tell."""
        state = self.state
        is_at_begin = state.at == EPOCH and state.epoch > 0 and not state.drawn
        if not (state.at == END or state.is_finished or is_at_begin):
            return
        unknown = samplers.unknown_generators(sampler)
        if unknown and not self._has_sampler_state:
            warn(
                "the sampler has generators that this state does not contain "
                f"({', '.join(unknown)}): an order that is drawn from them begins again. Give the "
                "sampler state_dict() and load_state_dict(), or have it draw from a "
                "torch.Generator that is its attribute `generator`"
            )

    def _loses_epochs(self, dataset: Any) -> bool:
        """Returns True if workers lived on with a state of which nothing was saved."""
        is_later = self.state.epoch > 0 or self.state.is_finished
        has_state = self._is_iterable and callable(getattr(dataset, "state_dict", None))
        is_told = any(self.replays) or any(self.state.worker_states)
        return self._lives_on and is_later and has_state and not is_told

    @property
    def _loses_draws(self) -> bool:
        if self.state.is_merged:
            # Otherwise they are the training's own.
            return self._options.seed_by == BY_BATCH or self._workers > 0
        if self._options.seed_by == BY_BATCH or self._workers == self.state.workers == 0:
            return False
        is_kept = any(self.state.worker_states) and self._has_same_workers
        if self._is_iterable:
            # Fetched again from its beginning, it draws again too, if that is known.
            is_kept = is_kept or self.state.epoch == 0
        return not is_kept or self._options.assignment == DYNAMIC

    # What an iterator begins with

    def tell_epoch(self, sampler: Any) -> None:
        """
        Tell a sampler its epoch, unless it was told one.

        Lightning tells it after the first iter() of a run, when the order of that was drawn.
        """
        epoch = self.sampler_epoch
        is_known = epoch is not None and self.state.sampler_epoch > 0
        if is_known and samplers.epoch_of(sampler) == 0:
            samplers.tell_epoch(sampler, int(epoch or 0))

    def pinned(self, *, keeps_draws: bool) -> generators.Pinned:
        """The generators as they were noted, for as long as an iterator is made."""
        # Of a whole epoch the loader's own were set by `give`, and perhaps by the user since.
        noted = self._noted if self.is_in_epoch else {**self._noted, **self._generators.now()}
        return generators.Pinned(self._generators, noted, keeps_draws)

    def _noted_generators(self) -> dict[str, torch.Tensor | None]:
        noted = dict(self.state.generators)
        if self.state.is_finished and self.state.at == EPOCH:
            noted = {}  # they are those of its beginning, and the next epoch is to come
        elif self.state.is_late:
            noted[generators.DEFAULT] = None  # the step has drawn since; what saved it restores it
        return noted

    def _check_takers(self, loader: Any) -> None:
        """Refuse a state whose next epoch is drawn from a state or a generator that is not here."""
        if self.is_in_epoch:
            return
        if self._has_sampler_state:
            check_owner(loader._index_sampler, Stateful(loader._index_sampler))
        lacks = {
            generators.SAMPLER: samplers.lacks_generator(loader._index_sampler),
            generators.LOADER: loader.generator is None,
        }
        for name, is_missing in lacks.items():
            if is_missing and self._noted.get(name) is not None:
                raise ValueError(
                    f"this state contains the state of the {name}'s generator, from which the "
                    f"next epoch is drawn, and this loader's {name} has no generator: give it "
                    "generator=torch.Generator()"
                )

    @property
    def _has_sampler_state(self) -> bool:
        return self.state.at == END and self.state.sampler_state is not None

    def give(self, loader: Any) -> None:
        """
        Bring sampler, generators and dataset to the beginning of the epoch that comes, if one does.

        Not at iter(): what is set on them until then, such as their epoch, stands. The rest of an
        epoch is given there, because set_epoch() of many begins that epoch anew.
        """
        if self.is_in_epoch:
            return
        sampler, stateful = loader._index_sampler, Stateful(loader._index_sampler)
        pinned = generators.Pinned(self._generators, self._noted, keeps_draws=False)
        with pinned:
            if self._has_sampler_state:
                draw_again(sampler, self.state, stateful, loader.generator, checks=self._is_own)
            pinned.rewind()
        if self._workers == 0 and (known := self.position_here().dataset) is not None:
            loader.dataset.load_state_dict(known)

    @property
    def sampler_epoch(self) -> int | None:
        """The epoch of the sampler in what comes; None if it has none, or none was begun."""
        epoch = int(self.state.sampler_epoch)
        if epoch < 0:
            return None
        return epoch + 1 if self.state.is_finished else epoch

    def base_seed(self, drawn: int) -> int:
        """The base seed, in place of the one torch drew; another if draws cannot go on."""
        seed, state = int(self.state.base_seed), self.state
        if state.is_merged:
            # Ranks draw alike if they are seeded alike, as in a run that begins.
            return _mixed(seed, state.epoch, state.drawn, drawn)
        if self._is_iterable or not (self.is_in_epoch and self._has_drawn and self._loses_draws):
            return seed
        # The seed itself would have workers repeat the draws of the epoch's beginning.
        return _mixed(seed, state.epoch, state.drawn)

    @property
    def epoch_before(self) -> int:
        """The number of the epoch before the one that begins."""
        if not self.keeps_base_seed:
            return -1
        return int(self.state.epoch) - (1 if self.is_in_epoch else 0)

    def draw(self, sampler: Any, stateful: Stateful, generator: Any) -> Drawn | None:
        """Bring the sampler to its place; None if a whole epoch comes, which it draws by itself."""
        if self._is_iterable or not self.is_in_epoch:
            return None
        if self.state.is_merged:
            drawn, self._checksum, self._drawn = merging.draw_again(sampler, self.state)
            return drawn
        self._check_epoch(sampler)
        drawn = draw_again(sampler, self.state, stateful, generator, checks=self._is_own)
        self._sum_then = drawn.sum_then
        return drawn

    def _check_epoch(self, sampler: Any) -> None:
        """Refuse the rest of an epoch if the sampler has been told another one since."""
        epoch = samplers.epoch_of(sampler)
        if self.state.has_sampler and epoch not in (0, self._epoch_here):
            check_epoch(sampler, self.state)

    def delivered(self, workers: int) -> Delivered:
        """What was delivered of the epoch, to which the iterator's own batches are added."""
        state, is_numbered = self.state, not self._is_iterable
        if not self.is_in_epoch:
            return Delivered(workers, is_numbered)
        by_worker = state.by_worker if self._is_iterable else None
        made = Delivered(
            workers,
            is_numbered,
            gaps=state.missing,
            base=self._drawn,
            by_worker=by_worker,
            last_worker=state.last_worker,
        )
        if self.state.has_sampler:
            known = pickle.dumps([state.raw[name] for name in OF_SAMPLER], protocol=5)
            made.start(known, state.sampler_at, self._sum_then)
        made.trust(self._checksum)
        for worker, past in enumerate(self._pasts[:workers]):
            made.snapshots[worker] = past.latest
        return made

    @property
    def first_worker(self) -> int:
        if not self.is_in_epoch or self._workers == 0:
            return 0
        if self._is_iterable:
            return (int(self.state.last_worker) + 1) % self._workers
        return int(self.state.low) % self._workers

    def begun(self) -> list[bytes | None]:
        """By worker, the snapshot with which its epoch began."""
        return [past.begun for past in self._pasts]

    def latest(self) -> list[bytes | None]:
        """By worker, its last snapshot."""
        return [past.latest or past.begun for past in self._pasts]

    def pasts(self) -> list[Past]:
        """By worker, where it goes on."""
        return [self._past_of(number) for number in range(self._workers)]

    def _past_of(self, number: int) -> Past:
        begun, latest = self._pasts[number].begun, self._pasts[number].latest
        if latest is None and self.replays[number]:
            latest = snapshot.make(self._position_of(number), None)
        seeds = () if begun is None else (self.shared_seed,)
        return Past(begun, seeds, latest, has_answered=latest is not None)

    def _replays_of(self, number: int) -> int:
        if not self._is_iterable or not self.is_in_epoch:
            return 0
        latest = self._pasts[number].latest
        if latest is None:
            return self._batches_of(number)
        position = snapshot.position_of(latest)
        return position.attempts if has_to_replay(position) else 0

    def _batches_of(self, number: int) -> int:
        counted = self.state.by_worker
        return int(counted[number]) if number < len(counted) else 0

    def _position_of(self, number: int) -> Position:
        return Position(
            has_begun=True,
            attempts=self._batches_of(number),
            epoch=int(self.state.epoch),
            index=self._index,
        )

    def position_here(self) -> Position:
        """Where the dataset of an iterator without workers was."""
        latest = self._pasts[0].latest
        if latest is None:
            return self._position_of(0) if self.replays[0] else Position()
        position = snapshot.position_of(latest)
        if self._is_iterable and self.is_in_epoch:
            position.attempts, position.index = self._batches_of(0), self._index
        return position


def share_seed(iterator: Any, seed: int | None) -> None:
    """Give the data pipes of one of torch's iterators the seed that they share, if there is one."""
    if seed is not None and isinstance(iterator._dataset, IterDataPipe):
        iterator._shared_seed = seed
        shared_rng = torch.Generator().manual_seed(seed)
        iterator._dataset = apply_random_seed(iterator._dataset, shared_rng)


def _mixed(*numbers: int) -> int:
    """Make a base seed of numbers, each of which counts."""
    text = " ".join(map(str, numbers)).encode()
    digest = blake2b(text, digest_size=8, person=b"shmloader resume").digest()
    return int.from_bytes(digest, "little") >> 1


_AUTO = ' (num_workers="auto" implies seed_by="batch")'
_MERGE = ": merge the states of all ranks with shmloader.merge_states(), and load what it returns"


def _check(state: State, loader: Any, options: Options, is_iterable: bool) -> bool:
    """Refuse another loader's state. Returns True if it is this rank's, or of all ranks."""
    facts = facts_of(loader, options)
    if not state.is_merged and state.ranks != facts["ranks"]:
        advice = "" if is_iterable else _MERGE
        raise ValueError(
            f"this state was saved by one of {state.ranks} ranks, and this run has "
            f"{facts['ranks']}{advice}"
        )
    for name, words in SAME.items():
        if state.is_merged and name in merging.MAY_DIFFER:
            continue
        if state.raw[name] != facts[name]:
            raise ValueError(
                f"this state was saved with {words} {state.raw[name]!r}, and here it is "
                f"{facts[name]!r}: load it into a loader like the one that it was saved from"
                f"{_AUTO if name == 'seed_by' else ''}"
            )
    if is_iterable and state.at == EPOCH and state.workers != facts["workers"]:
        raise ValueError(
            f"this state was saved with num_workers={state.workers}, and here it is "
            f"{facts['workers']}: what an iterable dataset yields depends on the number of workers"
        )
    if state.is_merged:
        merging.check(state, facts)
        return True
    return bool(state.rank == facts["rank"]) or state.at == START
