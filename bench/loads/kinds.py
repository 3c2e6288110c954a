"""Thirty-six kinds of batches that people have, which cost nothing to fetch."""

import collections
import dataclasses
import datetime
import decimal
import importlib
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from bench.loads import Made, as_columns, as_it_is


class Kind(NamedTuple):
    """
    A kind of batch.

    Attributes:
        make: Makes a sample of a number; the first `count` are made, and given again and again.
        batch_size, batches: Of an epoch.
        collate: What makes the batch; None: torch's default.
        needs: A module without which there is none.
    """

    make: Callable[[int], Any]
    count: int
    batch_size: int
    collate: Callable[[list], Any] | None = None
    batches: int = 200
    needs: str = "torch"

    def load(self) -> dict[str, Any]:
        """Make the dataset, and what else a loader needs of it."""
        torch.manual_seed(0)
        samples = [self.make(number) for number in range(self.count)]
        dataset = Made(self.batch_size * self.batches, lambda at: samples[at % len(samples)])
        return {"dataset": dataset, "batch_size": self.batch_size, "collate_fn": self.collate}


@dataclasses.dataclass
class Item:
    """A sample as some write it."""

    image: torch.Tensor | None
    label: int
    name: str


Point = collections.namedtuple("Point", "x y z")


class Mixed:
    """An object with a tensor, an array and what describes them."""

    def __init__(self, number: int) -> None:
        self.x, self.y = torch.rand(16, 16), np.arange(20)
        self.meta = {"id": number, "tags": ["a", "b"], "when": datetime.date(2020, 1, 1)}


_WORDS = ["alpha", "beta", "gamma", "delta"] * 50
_GENERATOR = np.random.default_rng(0)


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _text(length: int) -> str:
    return " ".join(_WORDS[:length])


def _boxes(number: int) -> dict[str, Any]:
    count = 1 + number % 20
    return {"boxes": torch.rand(count, 4), "labels": torch.randint(0, 9, (count,)), "id": number}


def _encoding(number: int) -> dict[str, Any]:
    ids, mask = torch.randint(0, 30_000, (128,)), torch.ones(128, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": mask, "labels": number % 3}


def _token_lists(number: int) -> dict[str, list[int]]:
    length = 100 + number % 50
    return {"input_ids": list(range(length)), "mask": [1] * length}


def _nested(number: int) -> dict[str, Any]:
    inner = {"b": {"c": torch.rand(5), "d": [1.0, 2.0]}}
    return {"a": inner, "e": (torch.rand(3), np.float32(number))}


def _frame(_: int) -> Any:
    texts = [f"x{row % 7}" for row in range(100)]
    columns = {"a": np.arange(100), "b": _GENERATOR.random(100), "c": texts}
    return _module("pandas").DataFrame(columns)


def _arrow(_: int) -> Any:
    texts = [f"t{row}" for row in range(1000)]
    return _module("pyarrow").table({"a": np.arange(1000), "s": texts})


def _tensordict(_: int) -> Any:
    parts = {"o": torch.rand(64), "a": torch.rand(4), "n": {"r": torch.rand(1)}}
    return _module("tensordict").TensorDict(parts, [])


def _graph(number: int) -> Any:
    return _module("torch_geometric.data").Data(
        x=torch.rand(20 + number % 30, 16),
        edge_index=torch.randint(0, 20, (2, 60)),
        y=torch.tensor([number]),
    )


def _one_graph(graphs: list) -> Any:
    return _module("torch_geometric.data").Batch.from_data_list(graphs)


def _picture(_: int) -> Image.Image:
    return Image.fromarray(_GENERATOR.integers(0, 255, (96, 96, 3), dtype=np.uint8))


def _with_a_set(number: int) -> tuple:
    return {1, 2, 3, number}, collections.Counter("hello"), frozenset((number,))


def _date(number: int) -> datetime.datetime:
    return datetime.datetime(2020, 1, 1) + datetime.timedelta(number)


KINDS = {
    "strings": Kind(lambda n: _text(50 + n % 100), 500, 64, None, 300),
    "dict_str_int": Kind(
        lambda n: {"text": _text(60), "label": n % 5, "id": f"row{n}"}, 500, 64, None, 300
    ),
    "lists_of_ints": Kind(_token_lists, 300, 32, as_it_is),
    "ragged_tensors": Kind(
        lambda n: torch.randint(0, 100, (50 + n % 200,)), 500, 64, as_it_is, 300
    ),
    "ragged_numpy": Kind(lambda n: _GENERATOR.random(50 + n % 200), 500, 64, as_it_is, 300),
    "detection": Kind(lambda n: (torch.rand(3, 128, 128), _boxes(n)), 100, 16, as_columns, 100),
    "pil": Kind(_picture, 100, 32, as_it_is, 100),
    "bytes_blobs": Kind(lambda n: _GENERATOR.bytes(20_000 + n), 200, 32, as_it_is, 300),
    "dataclass_tensor": Kind(lambda n: Item(torch.rand(3, 32, 32), n, "x"), 300, 64, as_it_is, 300),
    "namedtuple_floats": Kind(lambda n: Point(torch.rand(10), float(n), n), 300, 128, None, 300),
    "floats_only": Kind(lambda _: tuple(map(float, range(30))), 300, 256, None, 100),
    "nested_dict": Kind(_nested, 300, 64),
    "small_ints": Kind(int, 1000, 1024, None, 300),
    "np_scalars": Kind(np.float64, 1000, 512, None, 300),
    "py_objects": Kind(_date, 500, 128, as_it_is, 300),
    "mixed_objects": Kind(Mixed, 300, 64, as_it_is),
    "pandas_frames": Kind(_frame, 50, 8, as_it_is, 200, "pandas"),
    "pandas_row_dicts": Kind(
        lambda _: {"a": 1.5, "b": 2, "c": "text", "d": np.int64(4), "e": True}, 300, 256
    ),
    "sparse": Kind(lambda _: torch.eye(64).to_sparse(), 100, 32, as_it_is),
    "arrow": Kind(_arrow, 20, 4, as_it_is, 200, "pyarrow"),
    "tensordict_": Kind(_tensordict, 300, 64, torch.stack, 100, "tensordict"),
    "pyg": Kind(_graph, 300, 64, _one_graph, 100, "torch_geometric"),
    "many_small_tensors_list": Kind(
        lambda _: [torch.rand(4) for _ in range(20)], 200, 32, as_it_is, 150
    ),
    "bool_masks": Kind(lambda _: torch.rand(64, 64) > 0.5, 200, 64),
    "one_scalar_tensor": Kind(lambda n: torch.tensor(float(n)), 500, 32, None, 1000),
    "big_dict_of_scalars": Kind(
        lambda n: {f"f{each}": float(each * n) for each in range(60)}, 200, 128, None, 60
    ),
    "hf_encoding": Kind(_encoding, 500, 32, None, 400),
    "tuple_of_lists_str": Kind(
        lambda _: ([f"tok{each}" for each in range(40)], list(range(40))), 200, 32, as_it_is
    ),
    "sets_and_counters": Kind(_with_a_set, 300, 64, as_it_is),
    "decimals_uuid": Kind(lambda n: (uuid.UUID(int=n), decimal.Decimal(n)), 300, 64, as_it_is),
    "complex_numbers": Kind(lambda n: complex(n, 1), 300, 64, as_it_is),
    "half_and_bf16": Kind(lambda _: (torch.rand(256).half(), torch.rand(256).bfloat16()), 300, 64),
    "channels_last": Kind(
        lambda _: torch.rand(1, 3, 64, 64).to(memory_format=torch.channels_last)[0],
        100, 32, None, 100,
    ),
    "noncontig": Kind(lambda _: torch.rand(64, 64).t(), 200, 32),
    "fortran_np": Kind(lambda _: np.asfortranarray(_GENERATOR.random((64, 64))), 200, 32),
    "structured_np": Kind(
        lambda _: np.zeros(50, dtype=[("a", "f4"), ("b", "i8")]), 100, 32, as_it_is
    ),
}  # fmt: skip
