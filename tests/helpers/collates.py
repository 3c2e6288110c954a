"""
Tensor subclasses and collate functions that are written like those of well-known packages.

Most of them ask torch for a storage in shared memory and stack their samples into it, as torch's
own function for tensors does in a worker.
"""

import warnings

import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

SIZE = 4  # samples of a batch


class Picture(torch.Tensor):
    """A tensor that is one of its class only until something is computed of it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*args, **kwargs or {})
        return made.as_subclass(torch.Tensor) if isinstance(made, cls) else made


class Scan(torch.Tensor):
    """A tensor that stays one of its class, with what is known of its picture."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        made = super().__torch_function__(function, types, args, kwargs)
        if isinstance(made, cls) and args and isinstance(args[0], cls):
            made.__dict__.update(args[0].__dict__)
        return made


class Graph:
    """An object of a user's class: nodes (N, 3) float32, edges (2, E) int64."""

    def __init__(self, nodes, edges):
        self.nodes = nodes
        self.edges = edges


def numbers(index, *shape, dtype=torch.float32):
    """Make a sample whose numbers say which one it is."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) + 100 * index).reshape(shape).to(dtype)


def picture(index):
    return numbers(index, 3, 5).as_subclass(Picture)


def scan(index):
    made = numbers(index, 2, 5).as_subclass(Scan)
    made.about = {"number": index, "spacing": torch.ones(3) * index}
    return made


def labelled(index):
    return {"image": picture(index), "label": index}


def scan_of_nothing(index):
    return numbers(0, 2, 0).as_subclass(Scan)


def graph(index):
    count = 2 + index % 3
    return Graph(numbers(index, count, 3), torch.arange(2 * count).reshape(2, count))


def collate_scans(samples, *, collate_fn_map=None):
    """Collate as torch does, and then what is known of each."""
    made = collate_tensor_fn(samples)
    made.about = default_collate([sample.about for sample in samples])
    made.is_batch = True
    return made


def collate_with_entry(samples):
    """Enter a function for scans into torch's map, and leave the rest to torch."""
    default_collate_fn_map[Scan] = collate_scans
    return default_collate(samples)


def collate_untyped(samples):
    """Stack into an untyped storage."""
    first, out = samples[0], None
    if get_worker_info() is not None:
        count = sum(sample.numel() for sample in samples)
        storage = first.untyped_storage()._new_shared(
            count * first.element_size(), device=first.device
        )
        out = first.new(storage).resize_(len(samples), *first.shape)
    return torch.stack(samples, 0, out=out)


def collate_typed(samples):
    """Stack into a typed storage whose tensor torch.stack resizes, as torch did until 1.11."""
    first, out = samples[0], None
    with warnings.catch_warnings(action="ignore"):
        if get_worker_info() is not None:
            storage = first.storage()._new_shared(sum(sample.numel() for sample in samples))
            out = first.new(storage)
        return torch.stack(samples, 0, out=out)


def collate_legacy(samples):
    """Fill a storage of a class that is named by its type."""
    with warnings.catch_warnings(action="ignore"):
        storage = torch.FloatStorage._new_shared(samples[0].numel() * len(samples))
        out = torch.FloatTensor(storage).view(len(samples), *samples[0].shape)
    for row, sample in zip(out, samples, strict=True):
        row.copy_(sample)
    return out


def concatenate(samples):
    """Put tensors of several lengths one behind the other."""
    first, out = samples[0], None
    length = sum(sample.shape[-1] for sample in samples)
    if get_worker_info() is not None:
        count = sum(sample.numel() for sample in samples)
        storage = first.untyped_storage()._new_shared(
            count * first.element_size(), device=first.device
        )
        out = first.new(storage).resize_(*first.shape[:-1], length)
    return torch.cat(samples, -1, out=out)


def collate_graphs(samples):
    """Make one graph of many."""
    nodes = concatenate([sample.nodes.t() for sample in samples]).t()
    return Graph(nodes, concatenate([sample.edges for sample in samples]))


# name -> what makes sample i, and the collate function
KINDS = {
    "picture": (picture, default_collate),
    "pictures in a dict": (labelled, default_collate),
    "scan": (scan, default_collate),
    "scan, entry in the map": (scan, collate_with_entry),
    "scan, function of its own": (scan, collate_scans),
    "untyped storage": (lambda index: numbers(index, 3, 5), collate_untyped),
    "typed storage": (lambda index: numbers(index, 3, 5), collate_typed),
    "storage by class": (lambda index: numbers(index, 3, 5), collate_legacy),
    "pictures, untyped storage": (picture, collate_untyped),
    "tensors of several lengths": (lambda index: numbers(index, 2, 1 + index % 3), concatenate),
    "graphs": (graph, collate_graphs),
    "half complex": (lambda index: numbers(index, 3, dtype=torch.complex32), default_collate),
    "strided": (lambda index: numbers(index, 3, 5).t(), default_collate),
    "promoted": (
        lambda index: numbers(index, 3, dtype=(torch.float32, torch.int64)[index % 2]),
        default_collate,
    ),
    "parameter": (
        lambda index: torch.nn.Parameter(numbers(index, 3), requires_grad=False),
        default_collate,
    ),
    "no elements": (lambda index: numbers(index, 0, 3), collate_untyped),
    "no elements of a subclass": (scan_of_nothing, default_collate),
    "no dimension": (lambda index: torch.tensor(index), collate_untyped),
}
