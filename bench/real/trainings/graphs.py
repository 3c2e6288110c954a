"""Graphs by PyTorch Geometric's loader, and two graph convolutions."""

from pathlib import Path

import torch
from torch.nn import functional
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, Sequential, global_mean_pool

from bench.real.training import WORKERS, Training, draws

_BATCH = 64
_GRAPHS = 1000
_FEATURES = 16
_CLASSES = 4


def make(_: Path, steps: int) -> Training:
    """Make the training: graphs of 20 to 60 nodes."""
    sizes = torch.randint(20, 61, (_GRAPHS,)).tolist()
    dataset = [_graph(index, nodes) for index, nodes in enumerate(sizes)]
    loader = DataLoader(dataset, _BATCH, sampler=draws(dataset, steps * _BATCH), **WORKERS)
    return Training(loader, _net(), _loss)


def _graph(index: int, nodes: int) -> Data:
    """Draw a graph with four edges for each node."""
    edges = torch.randint(nodes, (2, 4 * nodes))
    return Data(torch.rand(nodes, _FEATURES), edges, y=torch.tensor([index % _CLASSES]))


def _net() -> torch.nn.Module:
    return Sequential(
        "x, edges, graph",
        [
            (GCNConv(_FEATURES, 32), "x, edges -> x"),
            torch.nn.ReLU(),
            (GCNConv(32, 32), "x, edges -> x"),
            torch.nn.ReLU(),
            (global_mean_pool, "x, graph -> x"),
            torch.nn.Linear(32, _CLASSES),
        ],
    )


def _loss(net: torch.nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(net(batch.x, batch.edge_index, batch.batch), batch.y)
