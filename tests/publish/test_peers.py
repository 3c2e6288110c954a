"""Peers of one training, of which one reads for all, and trials of a search."""

import runpy

import pytest
import torch.distributed as dist

from tests.helpers.programs import ROOT
from tests.publish.actors import NAME

PEERS = ROOT / "examples" / "tensor_parallel.py"
RANKS = 2


def test_tensor_parallel_peers_train_as_one_process(play, tmp_path):
    """Each holds a part of a layer, over gloo, and the losses of all are those of the whole one."""
    example = runpy.run_path(str(PEERS))

    def trains(say, hear, *, rank):
        store = dist.FileStore(str(tmp_path / "store"), RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        try:
            return example["train"](NAME)
        finally:
            dist.destroy_process_group()

    peers = [play(trains, rank=rank) for rank in range(RANKS)]
    losses = [peer.hear() for peer in peers]

    assert losses[0] == losses[1]
    assert pytest.approx(example["losses_alone"](), rel=1e-5) == losses[0]


@pytest.mark.thorough
def test_trials_find_what_they_would_find_alone(play):
    """Each of four has the losses of its learning rate with a loader of its own, to the bit."""
    example = runpy.run_path(str(ROOT / "examples" / "trials.py"))

    def searches(say, hear):
        return example["search"](NAME)

    def trains_alone(say, hear):
        loader = example["loader_of_rows"]
        rates = example["LEARNING_RATES"]
        return {rate: example["losses_of"](loader(), rate) for rate in rates}

    found, alone = play(searches).hear(), play(trains_alone).hear()

    assert 4 == len(found) == len({tuple(losses) for losses in found.values()})
    assert alone == found
