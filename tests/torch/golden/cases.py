"""The matrix of golden cases."""

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
START_METHODS = ("fork", "forkserver")

# Beside the matrix: what it leaves out, each with the one setting that shows it.
EXTRA_CASES = (
    Case("bulk", "shuffle"),
    Case("bulk", "sequential", persistent=True),
    Case("pipe", "sequential"),
    Case("pipe", "sequential", persistent=True),
    Case("map", "shuffle", workers=1, prefetch=1),
    Case("map", "eager", persistent=True, workers=3, prefetch=1),
    Case("sharded", "sequential", persistent=True, workers=3, prefetch=3),
    Case("map", "batch_sampler", start="spawn", persistent=True),  # a start takes seconds
)


def all_cases():
    """Return the combinations of the matrix that torch allows, and the extra cases."""
    axes = (MATRIX_DATASETS, SAMPLINGS, (False, True), (True, False), START_METHODS)
    matrix = filter(is_taken, itertools.starmap(Case, itertools.product(*axes)))
    return [*filter(Case.is_valid, matrix), *EXTRA_CASES]


def is_taken(case):
    """
    Returns True for all forked cases in order, and for some of the others.

    Out of order any two settings meet, and from a fork server comes each way to ask a dataset,
    once: it matters for the start alone.
    """
    place = MATRIX_DATASETS.index(case.dataset) + list(SAMPLINGS).index(case.sampling)
    if case.start == "fork":
        return case.in_order or case.dataset == "map" or case.persistent == bool(place % 2)
    return place % 4 == 2 * case.in_order + case.persistent
