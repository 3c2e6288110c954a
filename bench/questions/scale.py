"""
MB per second of samples that another node makes, beside raw TCP and Ray's own batches.

    python -m bench scale
    python -m bench scale --side 64 --actors 4 --workers 4 --repeats 9

The other node is on this machine: examples/scale/ray_makers.py starts two, each with an object
store of its own, and between them is loopback. So the rates are those of processors, not of a
network. One process per run; contenders take turns, another one first each time. The clock starts
some batches after the first. Every batch is checked: rows against their labels, whole in the first
batches and a part of the bytes in the others; and each label comes once.
"""

import argparse
import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from statistics import median

import numpy
import torch
import torch.utils.data

from bench.options import parser_of
from bench.report import machine
from bench.report.rows import Rows, add_json_option
from shmloader import DataLoader

EXAMPLES = machine.CHECKOUT / "examples" / "scale"
sys.path.insert(0, str(EXAMPLES))

from ray_fetch import Fetched, collate, makers  # noqa: E402
from ray_makers import NAMESPACE, Maker, names_of  # noqa: E402

_WARM = 8  # batches before the clock starts
_AHEAD = 2  # batches that each stream, and Ray Data, may be ahead
_RUN_S = 300.0  # a run that takes longer has failed
_STRIDE = 9973  # a byte of so many is compared while the clock runs

_COLUMNS = {
    "contender": "contender",
    "MB/s": "mb_per_s",
    "slowest": "slowest",
    "fastest": "fastest",
    "trainer CPU ms per batch": "trainer_cpu_ms",
    "correct": "correct",
}

Batch = tuple[torch.Tensor, torch.Tensor]


def main(arguments: list[str]) -> int:
    """Print a row per contender; the exit code is 0 if every batch was right."""
    options = _options(arguments)
    if options.run:
        print(json.dumps(_measured(options)))
        return 0
    rows = Rows(_COLUMNS, options.json)
    runs: dict[str, list[dict]] = {name: [] for name in CONTENDERS}
    with makers(options) as (address, _):
        for turn in range(options.repeats):
            names = list(CONTENDERS)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                runs[name].append(_run(name, address, arguments))
    for name, own in runs.items():
        rows.add({"contender": name, **_summary(own)})
    return 0 if all(run["correct"] for own in runs.values() for run in own) else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("scale", __doc__)
    parser.add_argument("--side", type=int, default=224, help="of a picture, (3, side, side) uint8")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=96, help="that are timed")
    parser.add_argument("--nodes", type=int, default=1, help="for the actors")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="processes of each contender")
    parser.add_argument("--run", choices=CONTENDERS, help="in this process, once")
    parser.add_argument("--address", help="of the nodes, for --run")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    options.count = (_WARM + options.batches) * options.batch_size
    return options


def _run(name: str, address: str, arguments: list[str]) -> dict:
    command = [sys.executable, "-m", "bench", "scale", *arguments]
    done = subprocess.run(
        [*command, "--run", name, "--address", address],
        cwd=machine.CHECKOUT,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
    )
    try:
        return json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except json.JSONDecodeError:
        print(f"WRONG: {name}: {done.stderr[-600:]}", file=sys.stderr)
        return {"correct": False}


def _summary(runs: list[dict]) -> dict:
    rates = [run["mb_per_s"] for run in runs if "mb_per_s" in run]
    cpu_ms = [run["trainer_cpu_ms"] for run in runs if "mb_per_s" in run]
    return {
        "mb_per_s": median(rates) if rates else None,
        "slowest": min(rates, default=None),
        "fastest": max(rates, default=None),
        "trainer_cpu_ms": median(cpu_ms) if cpu_ms else None,
        "correct": all(run["correct"] for run in runs),
        "runs": runs,
    }


def _measured(options: argparse.Namespace) -> dict:
    """Take all batches of one contender, and check them."""
    base = Maker(options.side).base.reshape(1, -1)
    labels, right, bytes_ = [], True, 0
    with contextlib.closing(CONTENDERS[options.run](options)) as batches:
        for number, (pictures, marks) in enumerate(batches):
            if number == _WARM:  # it has been waited for, so the time of the others follows
                begin, cpu = time.perf_counter(), time.process_time()
            elif number > _WARM:
                bytes_ += pictures.nbytes
            part = slice(None, None, 1 if number < _WARM else _STRIDE)
            rows = base[:, part] + marks.numpy().astype(numpy.uint8)[:, None]
            right = right and numpy.array_equal(rows, pictures.flatten(1).numpy()[:, part])
            labels += marks.tolist()
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "mb_per_s": bytes_ / 1e6 / wall_s,
        "trainer_cpu_ms": 1e3 * cpu_s / (options.batches - 1),
        "correct": right and sorted(labels) == [*range(options.count)],
    }


def _by_workers(options: argparse.Namespace, kind: type) -> Iterator[Batch]:
    fetched = Fetched(options.address, names_of(options.actors), options.count)
    yield from kind(fetched, options.batch_size, collate_fn=collate, num_workers=options.workers)


def _ours(options: argparse.Namespace) -> Iterator[Batch]:
    """The example, whose workers receive from actors."""
    return _by_workers(options, DataLoader)


def _torchs(options: argparse.Namespace) -> Iterator[Batch]:
    """The same dataset and workers, with torch's loader."""
    return _by_workers(options, torch.utils.data.DataLoader)


def _ray_data(options: argparse.Namespace) -> Iterator[Batch]:
    """The same samples made by tasks of Ray Data, and its batches in this process."""
    import ray
    import ray.data

    ray.init(options.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    base = Maker(options.side).base

    # Sent by value, with no module that Ray's processes would have to find.
    def make(rows: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        labels = rows["id"]
        pictures = base + labels.astype(numpy.uint8)[:, None, None, None]
        return {"picture": pictures, "label": labels}

    # A block is a batch, so that none is put together from parts.
    rows = ray.data.range(options.count, override_num_blocks=options.count // options.batch_size)
    batches = rows.map_batches(make, batch_size=None).iter_torch_batches(
        batch_size=options.batch_size, device="cpu", prefetch_batches=_AHEAD * options.workers
    )
    for batch in batches:
        yield batch["picture"], batch["label"]
    ray.shutdown()


def _tcp(options: argparse.Namespace) -> Iterator[Batch]:
    """The same bytes by as many sockets as there are requests in flight, and nothing of Ray."""
    streams = options.workers * options.actors
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(
            [sys.executable, "-m", "bench.questions.scale_sender", str(server.getsockname()[1])]
            + [str(each) for each in (streams, options.side, options.batch_size, options.count)],
            cwd=machine.CHECKOUT,
        ),
    ):
        received = [queue.Queue(maxsize=1) for _ in range(streams)]
        for _ in range(streams):
            connection, _ = server.accept()
            threading.Thread(
                target=_receive, args=(connection, received, options), daemon=True
            ).start()
        for number in range(options.count // options.batch_size):
            yield received[number % streams].get()


def _receive(
    connection: socket.socket, received: list[queue.Queue], options: argparse.Namespace
) -> None:
    """Receive every batch of one stream, into buffers that are used in turn."""
    shape = (options.batch_size, 3, options.side, options.side)
    buffers = [
        (numpy.empty(shape, numpy.uint8), numpy.empty(options.batch_size, numpy.int64))
        # One is filled, one waits, one is in use.
        for _ in range(3)
    ]
    with connection:
        stream = connection.recv(1)[0]
        for number in range(options.count):
            pair = buffers[number % len(buffers)]
            for array in pair:
                view = memoryview(array).cast("B")
                while view:
                    got = connection.recv_into(view, flags=socket.MSG_WAITALL)
                    if not got:
                        return
                    view = view[got:]
            received[stream].put(tuple(map(torch.from_numpy, pair)))


CONTENDERS = {
    "raw TCP": _tcp,
    "fetched by our workers": _ours,
    "fetched by torch's workers": _torchs,
    "iter_torch_batches": _ray_data,
}
