"""The programs of examples/scale, each run as its user runs it: what they count and compare."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .needs import needs
from .ranks import LONGEST_S
from .ray_sessions import ray_folder  # noqa: F401

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "scale"
LIMIT_S = LONGEST_S - 30.0

pytestmark = [pytest.mark.timeout(LONGEST_S), pytest.mark.usefixtures("ray_folder")]


def ran(name, *arguments, launcher=()):
    """Run a program to its end. Returns the lines of its two outputs."""
    done = subprocess.run(
        [sys.executable, *launcher, FOLDER / f"{name}.py", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout.splitlines(), done.stderr.splitlines()


def torchrun(ranks):
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"]
    return [*launcher, "--local-addr=127.0.0.1", "--max-restarts=0"]


def test_torchrun():
    """Each sample is seen once, and two ranks keep half as much each as one alone."""
    alone, of_one = ran("torchrun_ranks", launcher=torchrun(1))
    both, of_two = ran("torchrun_ranks", launcher=torchrun(2))

    assert ["2 epochs of 256 samples, each once; by rank: 512"] == alone
    assert ["2 epochs of 256 samples, each once; by rank: 256, 256"] == both
    (whole,), (first, second) = bounds(of_one), bounds(of_two)
    assert first == second
    assert abs(2 * first - whole) <= 0.1  # they are shown with one digit


def bounds(lines):
    """List what the slots of each rank may keep, in MB."""
    found = [re.search(r"^rank \d: .* at most ([\d.]+) MB in all$", line) for line in lines]
    return [float(each[1]) for each in found if each]


@pytest.mark.parametrize("arguments", [[], ["--install"]], ids=["own", "install"])
def test_ray_train(arguments):
    """Every batch of every rank came through a slot, and each sample once."""
    needs("ray.train.torch")
    lines, _ = ran("ray_train", *arguments)

    assert [f"rank {rank}: 256 samples in 16 batches from slots" for rank in (0, 1)] == lines[-3:-1]
    assert "2 epochs of 256 samples, each once" == lines[-1]


def test_ray_data_joined():
    """Ranks of different lengths end together, and all samples came once in each epoch."""
    needs("ray.train.torch", "ray.data")
    lines, _ = ran("ray_data_source", "--end", "join")

    epochs = shares(lines)
    assert 2 == len(epochs)
    for samples, by_rank in epochs:
        assert 280 == samples == sum(by_rank)
        assert by_rank[0] != by_rank[1]
    assert "no sample came twice, and none is missing" == lines[-1]


def test_ray_data_stopped():
    """Ranks that stop with the shortest have made the same number of steps."""
    needs("ray.train.torch", "ray.data")
    # One row is one batch, so samples count the steps.
    lines, _ = ran("ray_data_source", "--end", "shortest", "--batch-size", "1", "--samples", "70")

    epochs = shares(lines)
    assert 2 == len(epochs)
    for samples, by_rank in epochs:
        assert 0 < by_rank[0] == by_rank[1]
        assert samples < 70
    assert "no sample came twice" == lines[-1]


def shares(lines):
    """List the samples of each epoch: of all ranks, and of each."""
    found = [re.search(r"^epoch \d: (\d+) of \d+ samples; by rank: (.*)$", line) for line in lines]
    return [(int(each[1]), [int(n) for n in each[2].split(", ")]) for each in found if each]


@pytest.mark.parametrize("lost", ["actor", "process"])
def test_ray_fetch(lost):
    """Batches from another node are a local loader's, though an actor is lost on the way."""
    needs("ray")
    lines, _ = ran("ray_fetch", "--lose", lost)

    assert {"actor": "maker-0 is lost for good", "process": "maker-0 crashed"}[lost] == lines[0]
    assert "16 batches of 512 samples are equal to a local loader's" == lines[1]
    assert "the training process has imported Ray: no" == lines[2]
    made = samples_made(lines[3])
    assert ["maker-0", "maker-1", "maker-2"] == sorted(made)
    # Ray starts the process again, with a count that begins again.
    assert ("lost" == made["maker-0"]) == (lost == "actor")
    # Of each batch the actors are asked for 11, 11 and 10 samples.
    assert int(made["maker-1"]) >= 16 * 11
    assert int(made["maker-2"]) >= 16 * 10


def test_ray_fetch_without_a_node():
    """Batches are a local loader's, though one of two nodes is lost, with its object store."""
    needs("ray")
    nodes = ["--nodes", "2", "--actors", "4", "--side", "256", "--samples", "1024"]
    lines, _ = ran("ray_fetch", "--lose", "node", *nodes)
    told = [line for line in lines if re.match("a node|samples|\\d+ batches", line)]

    assert "a node left" == told[0]
    assert "32 batches of 1024 samples are equal to a local loader's" == told[1]
    assert 2 == list(samples_made(told[2]).values()).count("lost")


def samples_made(line):
    """Read how many samples each actor has made, or that it is lost."""
    return dict(re.findall(r"(maker-\d) (\w+)", line))
