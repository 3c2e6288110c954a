"""
MB per second of samples that another node makes, beside raw TCP and Ray's own batches.

    python -m bench scale
    python -m bench scale --side 64 --actors 4 --workers 4 --repeats 9

examples/scale/ray_makers.py starts both nodes, each with an object store of its own; between them
is loopback. The clock starts some batches after the first, and stops with the last: neither the
start of workers counts nor their end. Rows are checked against their labels, whole in the first
batches and a part of the bytes in the others; and each label comes once.
"""

import contextlib
import multiprocessing
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch

from bench.driver import children, middles
from bench.loaders import LOADERS
from bench.question import Options, Question, number
from bench.report import machine

EXAMPLES = machine.CHECKOUT / "examples" / "scale"
sys.path.insert(0, str(EXAMPLES))

from ray_fetch import Fetched, collate, makers  # noqa: E402
from ray_makers import NAMESPACE, Maker, names_of  # noqa: E402

_WARM = 8  # batches before the clock starts
_AHEAD = 2  # batches that each stream, and Ray Data, may be ahead
_STRIDE = 9973  # a byte of so many is compared while the clock runs
_FIGURES = {
    "MB/s": "mb_per_s",
    "trainer CPU ms per batch": "trainer_cpu_ms",
    "s to end": "end_s",
}

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One run of a contender: pictures of (3, side, side) uint8, and who makes and fetches them."""

    address: str
    side: int
    batch_size: int
    batches: int
    actors: int
    workers: int

    @property
    def count(self) -> int:
        """How many samples."""
        return (_WARM + self.batches) * self.batch_size

    @property
    def numbers(self) -> range:
        """The numbers of the batches."""
        return range(_WARM + self.batches)

    @property
    def streams(self) -> int:
        """How many requests are in flight."""
        return self.workers * self.actors


def _records(options: Options) -> Iterator[dict]:
    """Yield a row per contender; it is right if every batch was."""
    names = ("side", "batch_size", "batches", "actors", "workers")
    sizes = {name: getattr(options, name) for name in names}
    with makers(options) as (address, _):
        rows = {name: partial(run, name, address=address, **sizes) for name in CONTENDERS}
        runs = children(rows, options.repeats)
    for name, own in runs.items():
        rates = [run["mb_per_s"] for run in own]
        figures = middles(own, _FIGURES)
        yield {"contender": name, **figures, "slowest": min(rates), "fastest": max(rates)}


def run(contender: str, **given: Any) -> dict:
    """Take all batches of one contender, and check them."""
    row = Row(**given)
    base = Maker(row.side).base.reshape(1, -1)
    labels, right, bytes_ = [], True, 0
    with contextlib.closing(CONTENDERS[contender](row)) as batches:
        for number, (pictures, marks) in zip(row.numbers, batches, strict=False):
            if number == _WARM:  # it has been waited for, so the time of the others follows
                begin, cpu = time.perf_counter(), time.process_time()
            elif number > _WARM:
                bytes_ += pictures.nbytes
            part = slice(None, None, 1 if number < _WARM else _STRIDE)
            rows = base[:, part] + marks.numpy().astype(numpy.uint8)[:, None]
            right = right and numpy.array_equal(rows, pictures.flatten(1).numpy()[:, part])
            labels += marks.tolist()
        ended, cpu_s = time.perf_counter(), time.process_time() - cpu
        # Only now the workers end, which takes as long as Ray's exit functions in them do.
        right = right and next(batches, None) is None
        end_s = time.perf_counter() - ended
    return {
        "mb_per_s": bytes_ / 1e6 / (ended - begin),
        "end_s": end_s,
        "trainer_cpu_ms": 1e3 * cpu_s / (row.batches - 1),
        "correct": right and sorted(labels) == [*range(row.count)],
    }


def _by_workers(loader: str, row: Row) -> Iterator[Batch]:
    """The example, whose workers receive from actors, with one of both loaders."""
    fetched = Fetched(row.address, names_of(row.actors), row.count)
    kind = LOADERS[loader]
    yield from kind(fetched, row.batch_size, collate_fn=collate, num_workers=row.workers)


def _ray_data(row: Row) -> Iterator[Batch]:
    """The same samples made by tasks of Ray Data, and its batches in this process."""
    import ray
    import ray.data

    ray.init(row.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    base = Maker(row.side).base

    # Sent by value, with no module that Ray's processes would have to find.
    def make(rows: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        labels = rows["id"]
        pictures = base + labels.astype(numpy.uint8)[:, None, None, None]
        return {"picture": pictures, "label": labels}

    # A block is a batch, so that none is put together from parts.
    rows = ray.data.range(row.count, override_num_blocks=row.count // row.batch_size)
    batches = rows.map_batches(make, batch_size=None).iter_torch_batches(
        batch_size=row.batch_size, device="cpu", prefetch_batches=_AHEAD * row.workers
    )
    for batch in batches:
        yield batch["picture"], batch["label"]
    ray.shutdown()


def _tcp(row: Row) -> Iterator[Batch]:
    """The same bytes by as many sockets as there are requests in flight, and nothing of Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = (row, server.getsockname()[1])
        fork = multiprocessing.get_context("fork")
        sender = fork.Process(target=_send_all, args=arguments, daemon=True)
        sender.start()
        received = [queue.Queue(maxsize=1) for _ in range(row.streams)]
        for _ in received:
            connection, _ = server.accept()
            threading.Thread(target=_receive, args=(connection, received, row), daemon=True).start()
        for number in row.numbers:
            yield received[number % row.streams].get()
        sender.join()


def _send_all(row: Row, port: int) -> None:
    """Make the same batches as the actors, and send them: batch n on stream n modulo streams."""
    with ThreadPoolExecutor(row.streams) as threads:
        list(threads.map(partial(_send, row, Maker(row.side), port), range(row.streams)))


def _send(row: Row, maker: Maker, port: int, stream: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(bytes([stream]))
        for number in row.numbers[stream :: row.streams]:
            for array in maker.make(range(number * row.batch_size, (number + 1) * row.batch_size)):
                connection.sendall(memoryview(array).cast("B"))


def _receive(connection: socket.socket, received: list[queue.Queue], row: Row) -> None:
    """Receive every batch of one stream, into buffers that are used in turn."""
    shape = (row.batch_size, 3, row.side, row.side)
    buffers = [
        (numpy.empty(shape, numpy.uint8), numpy.empty(row.batch_size, numpy.int64))
        # One is filled, one waits, one is in use.
        for _ in range(3)
    ]
    with connection.makefile("rb") as sent:
        stream = sent.read(1)[0]
        for number, _ in enumerate(row.numbers[stream :: row.streams]):
            pair = buffers[number % len(buffers)]
            for array in pair:
                sent.readinto(memoryview(array).cast("B"))
            received[stream].put(tuple(map(torch.from_numpy, pair)))


CONTENDERS = {
    "raw TCP": _tcp,
    "fetched by our workers": partial(_by_workers, "ours"),
    "fetched by torch's workers": partial(_by_workers, "torch"),
    "iter_torch_batches": _ray_data,
}


QUESTION = Question(
    _records,
    {
        "side": number(224, "of a picture, (3, side, side) uint8"),
        "batch_size": number(64),
        "batches": number(96, "that are timed"),
        "nodes": number(1, "for the actors"),
        "actors": number(2),
        "workers": number(2),
        "repeats": number(5, "processes of each contender"),
    },
)
