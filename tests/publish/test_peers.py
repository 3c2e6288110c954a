"""Peers of one training, of which one reads for all."""

import runpy

import pytest

from tests.helpers.programs import ROOT

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "tensor_parallel.py"))


def test_tensor_parallel_peers_train_as_one_process(play, tmp_path):
    """Each holds a part of a layer, over gloo, and the losses of all are those of the whole one."""

    def trains(say, hear, *, rank):
        return EXAMPLE["train"](rank, str(tmp_path))

    peers = [play(trains, rank=rank) for rank in range(EXAMPLE["RANKS"])]
    losses = [peer.hear() for peer in peers]

    assert losses[0] == losses[1]
    assert pytest.approx(EXAMPLE["losses_alone"](), rel=1e-5) == losses[0]
