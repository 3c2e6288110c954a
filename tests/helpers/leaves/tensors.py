"""Tensors, plain and not."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from tests.helpers.leaves.leaf import COUNT, Leaf, module


class Labelled(torch.Tensor):
    """A subclass with an attribute."""


_RAMP = torch.arange(float(COUNT))
_PIECES = [torch.full((4 * length,), float(length)) for length in range(1, 1000)]


def ramp(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return _RAMP.to(dtype, copy=True)


def labelled() -> torch.Tensor:
    made: Any = ramp().as_subclass(Labelled)
    made.label = "four"
    return made


@cache
def sparse(layout: torch.layout) -> torch.Tensor:
    block = (10, 10) if layout == torch.sparse_bsr else None
    return torch.eye(500).repeat(1, 40).to_sparse(layout=layout, blocksize=block)


@cache
def quantised() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # it is deprecated
        return torch.quantize_per_tensor(ramp(), 0.5, 1, torch.quint8)


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # the interface may change
        return torch.nested.nested_tensor(_PIECES, layout=layout)


def packed() -> Any:
    return torch.nn.utils.rnn.pack_sequence(_PIECES, enforce_sorted=False)


def fields() -> dict[str, torch.Tensor]:
    return {f"field {number}": torch.full((20_000,), float(number)) for number in range(50)}


def tensordict() -> Any:
    return module("tensordict").TensorDict(fields(), batch_size=[])


def tensorclass() -> Any:
    kind = module("tests.helpers.leaves.of_tensordict").Observation
    return kind(image=ramp(), reward=torch.ones(3), batch_size=[])


def image_tensor() -> Any:
    module("tests.frameworks.needs").stand_in_for_operators()
    return module("torchvision.tv_tensors").Image(ramp(torch.uint8).view(4, 512, 512))


def meta_tensor() -> Any:
    return module("monai.data").MetaTensor(ramp(), meta={"spacing": 2.0})


META = "it has no memory"
MADE = "to make it takes most of the time"
_LEAVES = [
    Leaf("tensor, float32", ramp),
    Leaf("tensor, bfloat16", lambda: ramp(torch.bfloat16)),
    Leaf("tensor, float8", lambda: ramp(torch.float8_e4m3fn)),
    Leaf("tensor, complex64", lambda: ramp(torch.complex64)),
    Leaf("tensor, transposed", lambda: ramp().view(1024, 1024).t()),
    Leaf(
        "tensor, conjugated", lambda: ramp(torch.complex64).conj(), torch_fails="is another number"
    ),
    Leaf("1,000 small tensors", lambda: [row.clone() for row in _RAMP[:64_000].view(1000, 64)]),
    Leaf("Parameter", lambda: torch.nn.Parameter(ramp())),
    Leaf("tensor that requires grad", lambda: ramp().requires_grad_()),
    Leaf("subclass of Tensor", labelled, torch_fails="loses its attributes"),
    Leaf("torchvision tv_tensors.Image", image_tensor, ("torchvision",)),
    Leaf("MONAI MetaTensor", meta_tensor, ("monai",)),
    Leaf("TensorDict of 50", tensordict, ("tensordict",)),
    Leaf("tensorclass", tensorclass, ("tensordict",)),
    Leaf("nested tensor, jagged", lambda: nested(torch.jagged)),
    Leaf("nested tensor, strided", lambda: nested(torch.strided), torch_fails="cannot send it"),
    Leaf("sparse COO", lambda: sparse(torch.sparse_coo).clone()),
    Leaf("20 small sparse COO", lambda: [torch.eye(9).to_sparse() for _ in range(20)]),
    Leaf("sparse CSR", lambda: sparse(torch.sparse_csr).clone()),
    Leaf("sparse BSR", lambda: sparse(torch.sparse_bsr).clone()),
    Leaf("quantised", lambda: quantised().clone(), torch_fails="cannot send it"),
    Leaf("PackedSequence", packed, why=MADE),
    Leaf("meta tensor", lambda: torch.empty(1000, 1000, device="meta"), in_slot=False, why=META),
    Leaf("storage", lambda: ramp().untyped_storage()),
]
LEAVES = [replace(leaf, holds_tensors=True) for leaf in _LEAVES]
