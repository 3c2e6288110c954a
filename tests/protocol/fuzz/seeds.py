"""Where fuzzing starts: batches and records of every kind as they are written, and short plays."""

import argparse
import collections
import itertools
import re
import struct
from pathlib import Path

import numpy
import torch

from tests.helpers.forgery import Forger
from tests.memory.test_stretches import BROKEN as BROKEN_STRETCHES
from tests.memory.test_stretches import stretches
from tests.protocol.fuzz import layouts, names, records
from tests.protocol.fuzz.names import Fixed, Odd, Slotted
from tests.protocol.test_layout import (
    BATCHES,
    BROKEN_LAYOUTS,
    ENDLESS,
    TAGS,
    array_node,
    begin,
    dtype_node,
    endless,
    named_node,
    scalar_node,
    tensor_node,
)

# The steps of fuzz_ledger.c, numbered by their places in its table.
SOURCE = Path(__file__).with_name("fuzz_ledger.c").read_text()
TABLE = SOURCE.partition("steps[] = {")[2].partition("}")[0]
STEPS = re.findall(r"\b(?:trainer|worker)_\w+", TABLE)

# Each: steps with the bytes that they read.
PLAYS = {
    "a batch": "trainer_place 0 4, worker_take 0, worker_answer 0 3, trainer_drain, "
    "trainer_lease 0 1, trainer_drop 0 1",
    "freed": "trainer_place 0 4, worker_answer 0 2, trainer_receive, trainer_free 0",
    "kept": "trainer_place 0 4, worker_answer 0 226, trainer_drain, trainer_lease 0 1, "
    "trainer_drop 0 1, trainer_place 0 4",
    "granted": "trainer_place 0 4, worker_want 0 20 1, trainer_drain, trainer_settle, "
    "worker_answer 0 7, trainer_drain, trainer_free 0",
    "refused": "trainer_place 0 4, worker_want 0 200 0, trainer_drain, trainer_settle, "
    "worker_answer 0 1, trainer_drain",
    "reclaimed": "trainer_place 0 4, trainer_place 1 4, worker_want 0 9 1, trainer_reclaim 0, "
    "trainer_reclaim 1, trainer_restart",
    "forked": "trainer_place 0 4, worker_answer 0 1, trainer_drain, trainer_lease 0 0, "
    "trainer_fork 0, trainer_take 0, trainer_drop 0 1, trainer_unfork 0",
    "stopped": "trainer_tell 0, trainer_stop 1, trainer_look 0, trainer_stop 0, trainer_place 0 0, "
    "trainer_room 0 140",
    "forged": "trainer_place 0 4, worker_forge 0 3 2 1 9, trainer_drain, worker_push 0 4 3, "
    "trainer_drain, worker_scribble 9 1 3 255 255 0 0, trainer_drain",
    "room for any want": "trainer_place 0 4, trainer_place 0 4, worker_answer 0 7, trainer_drain, "
    "trainer_free 0, trainer_room 1 250",
    "stale want": "trainer_place 0 4, worker_answer 0 1, trainer_drain, trainer_free 0, "
    "trainer_place 0 4, worker_push 0 5 0, trainer_drain",
    # The ring's writer says that it wrote 2^31 cells, each of which means something.
    "endless news": "worker_fill 0 2 0, worker_write 0 0 0 1 0 0 0 128, trainer_drain",
}


def forgeries():
    """Give plays in which one word of an answer is not true: by little, by pages, by much."""
    values = ("0 77", "1 9", "2 9", "3 9", "0 191", "0 200")
    for word, value in itertools.product(range(8), values):
        forged = f"worker_forge 0 3 {word} {value}"
        yield f"trainer_place 0 4, {forged}, trainer_drain, trainer_lease 0 0"


def plays():
    """Write the plays as inputs of the ledger's fuzzer, each for three sizes of segment."""
    sizes = [(0, 0, 0, 7, 0), (1, 1, 2, 7, 0), (1, 4, 0, 20, 1)]
    for size, play in itertools.product(sizes, [*PLAYS.values(), *forgeries()]):
        steps = [step.split() for step in play.split(", ")]
        numbers = [[STEPS.index(name), *map(int, rest)] for name, *rest in steps]
        yield bytes([*size, *itertools.chain.from_iterable(numbers)])


def batches():
    """Give batches that lead to every tag and to every kind of leaf."""
    yield from BATCHES.values()
    yield from (numpy.zeros(2, dtype) for dtype in names.DTYPES if dtype.subdtype is None)
    yield from names.NAMED
    yield [numpy.zeros(2, dtype)[0] for dtype in names.DTYPES if dtype.itemsize]
    yield [made(torch.zeros(2, 2), 7) for made in (Slotted, Fixed)]
    yield collections.Counter("aab")
    yield [torch.Size([1, 2]), collections.deque([torch.ones(1)], 3)]
    yield [Odd(numpy.arange(4)), torch.nn.Parameter(torch.ones(1))]
    twice = [torch.ones(2), {}]
    yield [twice, twice, *twice]


def written():
    """Write the batches as a worker does: (payload, layout) each."""
    forger = Forger()
    try:
        for batch in batches():
            slot = forger.write(batch)
            start = forger.geometry.slot(slot)
            payload = forger.memory[start : start + forger.answer(slot)["payload_bytes"]]
            yield payload, forger.layout(slot)
            forger.read()
    finally:
        forger.close()


# Fields of an answer that say that its payload is of 200,000 bytes, which the input need not have.
LARGE = [(4, 200_000), (7, 1 << 18)]
SMALL_BEHIND_LARGE = (
    stretches(0, 180_000, 180_032, 180_100)
    + begin("list")
    + struct.pack("<q", 3)
    + tensor_node([100, 300], [450, 1], ordinal=1)
    + tensor_node([17], [1], offset=180_032, ordinal=2)
    + tensor_node([3, 2], [2, 3], offset=180_040, ordinal=3)
)


def real_layouts():
    """
    Write the batches as inputs: delivered from the slot, spilled, and with a slot that is kept.
    """
    for payload, layout in written():
        yield layouts.pack(payload, layout)
        yield layouts.pack(payload, layout, mode=layouts.SPILL)
        yield layouts.pack(payload, layout, fields=[(2, 1), (8, len(payload))])
    for mode in (0, layouts.SPILL):
        yield layouts.pack(b"", SMALL_BEHIND_LARGE, mode, LARGE)
    for dtype in names.DTYPES:
        yield layouts.pack(bytes(64), array_node([2], dtype_node(dtype)))
    yield layouts.pack(b"", scalar_node(dtype_node(numpy.dtype("V0")), b""))


def broken_layouts():
    """Write layouts that are refused."""
    for layout in BROKEN_LAYOUTS.values():
        yield layouts.pack(bytes(400), layout)
    for layout, mode in itertools.product(BROKEN_STRETCHES.values(), (0, layouts.SPILL)):
        yield layouts.pack(b"", layout, mode, LARGE)
    for what in ENDLESS:
        yield layouts.pack(b"", endless(what, 100))


# What records have and batches do not: keys by number, and lists of numbers.
RECORDS = [
    {"a": 1, "b": [1.5, 2.5], "c": (3.5,), "d": [1, -300, 1 << 40], "e": (7, 8)},
    {"path": "p", "deep": {"path": ["q"], "at": None}},
    {"bytes": bytes(200_000)[:1500], "array": numpy.arange(12.0).reshape(3, 4)},
    [],
]


def real_records():
    """Write records as inputs: read from a file, and copied from a buffer."""
    for record in [*batches(), *RECORDS]:
        yield layouts.pack(*records.written(record))
        yield layouts.pack(b"", records.alone(record), records.ALONE)


def broken_records():
    """Write inputs in which one field of the file is not true: by little, and by much."""
    packed_names, record = records.written(RECORDS[0])
    for number in range(len(records.FIELDS)):
        for value in (0, 8, 120, 2**32, 2**63 - 8, 2**64 - 8):
            yield layouts.pack(packed_names, record, fields=[(number, value)])
    yield layouts.pack(records.written(7)[1], record)
    yield layouts.pack(b"", b"")


def words():
    """Give what a mutation may insert: tags with their numbers, names, and numbers at the edges."""
    for tag in range(len(TAGS)):
        yield bytes([tag])
        yield bytes([tag]) + struct.pack("<q", 1)
        yield bytes([tag]) + struct.pack("<I", 1)
        yield bytes([tag]) + struct.pack("<Iq", 1, 1)
    for number in (0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), -1):
        yield struct.pack("<q", number)
    for value in names.NAMED:
        yield named_node(f"{names.module_of(value)}\n{names.name_of(value)}".encode())


def write_dictionary(path):
    """Write the words as the fuzzer reads them."""
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in words()]
    path.write_text("\n".join(lines) + "\n")


def write_seeds(folder, inputs):
    """Write inputs to files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / f"seed-{number:03}").write_bytes(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the seeds of each fuzzer go")
    folder = parser.parse_args().folder
    write_seeds(folder / "ledger", plays())
    write_seeds(folder / "layout", [*real_layouts(), *broken_layouts()])
    write_seeds(folder / "records", [*real_records(), *broken_records()])
    write_dictionary(folder / "layout.dict")
    write_dictionary(folder / "records.dict")
