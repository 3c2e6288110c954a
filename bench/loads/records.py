"""Records as a dataset has them, kept in four ways, and datasets over them."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy
import torch

from bench.loads import Made
from shmloader import SharedList

_FIGURES = 4  # of a sample


def annotations(count: int) -> Iterator[dict]:
    """Yield annotations as COCO has them: a polygon of 8 to 60 corners, a box, numbers."""
    generator = numpy.random.default_rng(0)
    for number in range(count):
        corners = int(generator.integers(8, 60))
        polygon = generator.integers(0, 64000, 2 * corners) / 100
        yield {
            "segmentation": [polygon.tolist()],
            "area": float(polygon.sum()),
            "iscrowd": 0,
            "image_id": int(generator.integers(0, 600_000)),
            "bbox": (generator.integers(0, 64000, 4) / 100).tolist(),
            "category_id": int(generator.integers(1, 91)),
            "id": number,
        }


def figures_of(record: dict) -> list[float]:
    """Sum a record up, so that a sample shows whether it is right."""
    polygon = sum(record["segmentation"][0])
    return [record["id"], record["image_id"], sum(record["bbox"]), polygon]


def paths(count: int) -> Iterator[str]:
    """Yield paths as a large folder of pictures has them."""
    for number in range(count):
        yield f"/data/train/n{number % 1000:08d}/n{number % 1000:08d}_{number:07d}.JPEG"


class NumpyPickles:
    """One array of all pickles, and one of their ends: the known cure."""

    def __init__(self, records: Iterable[object]):
        pickles = [numpy.frombuffer(pickle.dumps(each, -1), numpy.uint8) for each in records]
        self._ends = numpy.cumsum([len(each) for each in pickles])
        self._bytes = numpy.concatenate(pickles)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int):
        begin = 0 if index == 0 else self._ends[index - 1]
        return pickle.loads(memoryview(self._bytes[begin : self._ends[index]]))

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes + self._ends.nbytes


class TorchPickles(NumpyPickles):
    """The same in two tensors, which torch moves to shared memory when a process is spawned."""

    def __init__(self, records: Iterable[object]):
        super().__init__(records)
        self._ends = torch.from_numpy(self._ends)
        self._bytes = torch.from_numpy(self._bytes)

    def __getitem__(self, index: int):
        begin = 0 if index == 0 else self._ends[index - 1].item()
        return pickle.loads(memoryview(self._bytes[begin : self._ends[index].item()].numpy()))


STORES: dict[str, Callable] = {
    "list": list,
    "numpy": NumpyPickles,
    "torch": TorchPickles,
    "SharedList": SharedList,
}


def figures(store, count: int) -> Made:
    """Samples (4,) float64 of the records of a store; zeros without one."""
    return Made(count, partial(_figures, store))


def _figures(store, index: int) -> torch.Tensor:
    if store is None:
        return torch.zeros(_FIGURES, dtype=torch.float64)
    return torch.tensor(figures_of(store[index]), dtype=torch.float64)


def lengths(store, count: int) -> Made:
    """Samples are the lengths of the paths in a store; 0 without one."""
    return Made(count, partial(_length, store))


def _length(store, index: int) -> int:
    return 0 if store is None else len(store[index])
