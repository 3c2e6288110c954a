"""`tolerant()`: a sample that raises is left out of its batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

from torch.utils.data import Dataset, IterableDataset, IterDataPipe, MapDataPipe

from shmloader.errors import LeftOutWarning, add_note, warn
from shmloader.samples import random_state
from shmloader.samples.skip_errors import (
    Tolerance,
    Tolerating,
    is_of_a_sample,
    takes_indices_in_turn,
)
from shmloader.setup.arguments import check_count

Sample = TypeVar("Sample")


class _Outside(Tolerating):
    """What has not what is asked for, such as `classes`, and takes it from the dataset inside."""

    def __init__(self, dataset: Any, tolerance: Tolerance) -> None:
        """Leave out what raises in a dataset."""
        self.dataset = dataset
        self.tolerance = tolerance

    def __getattr__(self, name: str) -> Any:
        inner = vars(self).get("dataset")  # none while it is copied or unpickled
        if inner is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name)
        return getattr(inner, name)

    @property
    def left_out(self) -> int:
        """Samples that were left out in this process."""
        return self.tolerance.count


class Tolerant(_Outside, Dataset):  # type: ignore[type-arg]
    """A map-style dataset whose samples may raise. Made by `tolerant`."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        # Here is nothing to leave it out of; a loader asks for the samples of a batch.
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples of a batch that do not raise."""
        if takes_indices_in_turn(self.dataset):
            return self.tolerance.collect(random_state.in_turn(indices), self.__getitem__)
        put_back = random_state.saved()
        try:
            samples = self.dataset.__getitems__(indices)
        except Exception as error:
            if not is_of_a_sample(error):
                raise
            failure = error
        else:
            self.tolerance.kept()
            return cast("list[Any]", samples)
        put_back()
        return self._one_by_one(indices, failure)

    def _one_by_one(self, indices: Sequence[Any], failure: Exception) -> list[Any]:
        found = self.tolerance.collect(indices, lambda index: self.dataset.__getitems__([index]))
        for each in found:
            if not isinstance(each, list | tuple) or len(each) != 1:
                raise TypeError(
                    "tolerant() skips samples one by one, but "
                    f"{type(self.dataset).__name__}.__getitems__ returned a {type(each).__name__} "
                    "for 1 index: return a list with a sample for each"
                ) from failure
        return [sample for (sample,) in found]


class TolerantStream(_Outside, IterableDataset):  # type: ignore[type-arg]
    """An iterable dataset whose samples may raise. Made by `tolerant`."""

    def __iter__(self) -> Iterator[Any]:
        return _Samples(iter(self.dataset), self.tolerance)


class SizedStream(TolerantStream):
    """The same of a dataset that says how many samples it has."""

    def __len__(self) -> int:
        return len(self.dataset)


class _Samples:
    """
    The samples of an iterator that do not raise.

    What it has not itself, such as a `state_dict()`, is the iterator's.
    """

    def __init__(self, iterator: Iterator[Any], tolerance: Tolerance) -> None:
        self._iterator = iterator
        self._tolerance = tolerance
        self._asked = 0
        self._raised: Exception | None = None  # by the sample before

    def __iter__(self) -> Iterator[Any]:
        return self

    def __getattr__(self, name: str) -> Any:
        iterator = vars(self).get("_iterator")
        if iterator is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name)
        return getattr(iterator, name)

    def __next__(self) -> Any:
        while True:
            number, self._asked = self._asked, self._asked + 1
            try:
                sample = next(self._iterator)
            except StopIteration:
                self._look_back()
                raise
            except Exception as error:
                if self._has_ended(error) or not self._tolerance.leaves_out(number, error):
                    raise
                self._raised = error
            else:
                self._raised = None
                self._tolerance.kept()
                return sample

    def _has_ended(self, error: Exception) -> bool:
        """Returns True for a generator, whose first error is its last word."""
        if getattr(self._iterator, "gi_frame", self) is not None:
            return False
        add_note(
            error,
            "tolerant() cannot skip this sample: a generator ends with its first error, and the "
            "samples after it would be lost. Catch the error inside the generator, or have "
            "__iter__ return an object with __next__",
        )
        return True

    def _look_back(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            warn(
                f"the iterator of {self._tolerance.label} ended after a sample that was skipped "
                f"({type(raised).__name__}). If that was not its last sample, the iterator is "
                "made from a generator, which ends with its first error: catch the error inside "
                "the generator",
                LeftOutWarning,
            )


def tolerant(dataset: Dataset[Sample], most_in_a_row: int = 100) -> Tolerant | TolerantStream:
    """
    Skip samples that raise, such as files that cannot be decoded, instead of ending the run.

    The batch becomes smaller; in an iterable dataset the failed sample is replaced by the next one.
    A batch without samples is skipped too; torch's own loader cannot skip it, and raises an
    `EmptyBatch`. The order, the other samples and their random numbers do not change, also in a
    resumed run. A `LeftOutWarning` names the sample, the error and the count, at most once a second
    in each process; `stats().left_out` counts all.

    Wrap all other datasets in it, such as a `ConcatDataset`, `cached()` or a `Subset`: a dataset
    around it that reads single samples gets their errors. A sample that is read by its index raises
    what the dataset raises. Only subclasses of `Exception` are skipped, and no errors of shmloader.

    Args:
        dataset: A dataset of any kind but torch's data pipes. Its `__getitems__` is called for a
            batch; if that raises, it is called for each index alone, with the random state
            restored.
        most_in_a_row: How many samples in a row may raise in one worker, from 0. The error of the
            next one is raised, because something else is wrong then, such as a missing disk.

    Returns:
        A dataset whose other attributes are those of the given one, with `left_out`, the count of
        this process.

    Raises:
        TypeError: The dataset is a data pipe, or has neither an index nor an iterator.
        ValueError: most_in_a_row is negative.
    """
    kind = type(dataset).__name__
    is_stream = isinstance(dataset, IterableDataset)
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        raise TypeError(
            f"tolerant() would hide {kind} from torch, which divides and seeds data pipes: catch "
            "the errors inside the data pipe"
        )
    if not is_stream and not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"tolerant() takes a dataset, but {kind} has no __getitem__ and is not an "
            "IterableDataset"
        )
    most = check_count("most_in_a_row", most_in_a_row, least=0)
    made = SizedStream if hasattr(type(dataset), "__len__") else TolerantStream
    return (made if is_stream else Tolerant)(dataset, Tolerance(kind, most))
