"""The matrix of golden cases, and which of them are in the core."""

import itertools
from dataclasses import dataclass, replace

import torch

from .datasets import DATASETS
from .samplers import SAMPLINGS


@dataclass(frozen=True)
class Case:
    """One way to set up a loader."""

    dataset: str
    sampling: str
    persistent: bool = False
    in_order: bool = True
    start: str = "fork"
    workers: int = 2
    prefetch: int = 2

    def __str__(self):
        words = [self.dataset, self.sampling, self.start]
        words += ["persistent"] * self.persistent + ["unordered"] * (not self.in_order)
        words += [f"{self.workers}x{self.prefetch}"] * (self != self.with_usual_workers())
        return "-".join(words)

    def with_usual_workers(self):
        return replace(self, workers=Case.workers, prefetch=Case.prefetch)

    def build(self, loader_class, generator):
        """Return a new loader of this class over a new dataset and a new sampler."""
        dataset = DATASETS[self.dataset]()
        chosen = SAMPLINGS[self.sampling](dataset, generator)
        return loader_class(dataset, **chosen, **self.options())

    def options(self):
        return {
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch,
            "persistent_workers": self.persistent,
            "in_order": self.in_order,
            "multiprocessing_context": self.start,
        }

    def is_valid(self):
        """Returns True if torch's own rules allow this combination."""
        try:
            self.build(torch.utils.data.DataLoader, torch.Generator())
        except ValueError:
            return False
        return True


MATRIX_DATASETS = ("map", "iterable", "sharded")
START_METHODS = ("fork", "forkserver", "spawn")

# Beside the matrix: what it leaves out, each with the one setting that shows it.
EXTRA_CASES = (
    Case("bulk", "shuffle"),
    Case("bulk", "sequential", persistent=True),
    Case("pipe", "sequential"),
    Case("pipe", "sequential", persistent=True),
    Case("map", "shuffle", workers=1, prefetch=1),
    Case("map", "eager", persistent=True, workers=3, prefetch=1),
    Case("sharded", "sequential", persistent=True, workers=3, prefetch=3),
)


def all_cases():
    """Return every combination that torch allows, and the extra cases."""
    axes = (MATRIX_DATASETS, SAMPLINGS, (False, True), (True, False), START_METHODS)
    matrix = itertools.starmap(Case, itertools.product(*axes))
    return [*filter(Case.is_valid, matrix), *EXTRA_CASES]


# New processes that import torch take seconds: these few, and one in the core, stand for the start
# methods.
SAMPLED_STARTS = {
    Case("sharded", "generator", start="forkserver", persistent=True),
    Case("iterable", "unbatched", start="forkserver", in_order=False),
    Case("map", "batch_sampler", start="spawn", persistent=True),
}

IN_THE_CORE = Case("map", "eager", start="forkserver")

SAMPLED_OUT_OF_ORDER = {("map", "shuffle"), ("iterable", "unbatched"), ("sharded", "drop_last")}


def usual_cases():
    """
    Return the cases that the core and the rest share: few are spawned, each of which takes seconds.
    """
    usual = (is_sampled, is_usual, SAMPLED_STARTS.__contains__)
    return [case for case in all_cases() if any(tells(case) for tells in usual)]


def is_usual(case):
    """
    Returns True for what the core and the rest share beside the core's own choice.

    That is all forked cases in order. Out of order any two settings meet, and from a fork server
    comes each way to ask a dataset, once: it matters for the start alone.
    """
    place = place_of(case)
    if case.start == "fork":
        return case.in_order or case.dataset == "map" or case.persistent == bool(place % 2)
    return case.start == "forkserver" and place % 4 == 2 * case.in_order + case.persistent


def is_sampled(case):
    if case == IN_THE_CORE or case in EXTRA_CASES:
        return True
    if case.start != "fork":
        return False
    return meets_others(case) if case.in_order else is_sampled_out_of_order(case)


def meets_others(case):
    # Of three settings, any two meet: every other field of a chessboard.
    return case.persistent == bool(place_of(case) % 2)


def place_of(case):
    return MATRIX_DATASETS.index(case.dataset) + list(SAMPLINGS).index(case.sampling)


def is_sampled_out_of_order(case):
    return (case.dataset, case.sampling) in SAMPLED_OUT_OF_ORDER
