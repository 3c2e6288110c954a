"""
The inputs that the fuzzers kept, replayed without a fuzzer, and the seeds that fuzzing starts from.
"""

import ast
import os
import re
import shutil

import pytest

from tests.helpers.stage import run_file
from tests.protocol import test_c
from tests.protocol.fuzz import archive, layouts, seeds
from tests.protocol.test_layout import TAG, begin, named_node, number

REPLAY = """
import collections, pathlib
from tests.protocol.fuzz import MODULE
reader = MODULE.Reader()
paths = sorted(pathlib.Path("inputs").iterdir())
print(dict(collections.Counter(reader.run(path.read_bytes()) for path in paths)))
"""

CHANGED = """
import collections, random, resource, struct
from tests.protocol.fuzz import MODULE, archive, seeds

resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))  # a memory bomb is an error here
chance = random.Random(SEED)
inputs = [*archive.read("NAME").values(), *seeds.real_MODULE()]
edges = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def changed(data):
    data = bytearray(data if chance.random() < 0.9 else data[: chance.randrange(len(data))])
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(max(len(data) - 8, 1))
        if chance.random() < 0.7:
            data[at : at + 1] = bytes([chance.randrange(256)])
        else:
            edge = chance.choice(edges) + chance.randrange(9)
            data[at : at + 8] = struct.pack("<Q", edge % 2**64)
    return bytes(data)


reader = MODULE.Reader()
print(dict(collections.Counter(reader.run(changed(chance.choice(inputs))) for _ in range(STEPS))))
"""


def write(folder, inputs):
    """Write inputs to files that are named after them."""
    folder.mkdir(parents=True)
    for name, data in inputs.items():
        (folder / name).write_bytes(data)


def numbered(inputs):
    """Name seeds by their numbers."""
    return {f"seed-{number:03}": data for number, data in enumerate(inputs)}


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
@pytest.mark.timeout(test_c.BUILD_TIMEOUT_S + 120)
def test_kept_plays_end_well(tmp_path):
    """No play among hostile workers that was ever kept breaks the ledger, under ASan and UBSan."""
    inputs = archive.read("ledger") | numbered(seeds.plays())
    write(tmp_path / "inputs", inputs)
    program = test_c.built(test_c.CORE, "ladder_plays")

    printed = test_c.run([program, "--seconds", "0.1", "--inputs", tmp_path / "inputs"], 60)

    assert set(inputs) <= set(printed.splitlines())


def outcomes_of(libraries, folder, inputs, module="layouts"):
    """Replay layouts or records in a process of their own and count what came of them."""
    write(folder / "inputs", inputs)
    status, lines, errors = run_file(libraries, folder, REPLAY.replace("MODULE", module))

    assert (0, "") == (status, errors)
    return ast.literal_eval(lines[0])


NAMES = {"layouts": "layout", "records": "records"}  # modules, and where their inputs are kept


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "among"),
    [("layouts", {"batch", "WorkerBroken"}), ("records", {"record", "damaged", "DamagedRecord"})],
)
def test_kept_inputs_end_well(libraries, tmp_path, module, among):
    """Each gives a batch or an object that lies within its bounds, or an error that is allowed."""
    inputs = archive.read(NAMES[module])

    outcomes = outcomes_of(libraries, tmp_path, inputs, module)

    assert len(inputs) == sum(outcomes.values())
    assert {*among, "builder's error"} <= set(outcomes)


@pytest.mark.thorough
@pytest.mark.parametrize(("module", "name"), NAMES.items())
def test_changed_inputs_end_well(run_program, seeded, record_property, module, name):
    """Any bytes that a worker or a file can hold give an error, or what lies within its bounds."""
    values = {"MODULE": module, "NAME": name, "SEED": str(seeded), "STEPS": "4000"}
    script = re.sub("|".join(values), lambda match: values[match[0]], CHANGED)

    status, lines, errors = run_program(script)

    assert (0, "") == (status, errors), seeded
    record_property("outcomes", lines[0])
    most = sorted(ast.literal_eval(lines[0]).values())
    assert 4000 == sum(most) and most[-2] > 100


@pytest.mark.thorough
def test_fuzzing_starts_from_records(libraries, tmp_path):
    """The seeds that were written are read, from files and buffers; nearly all others are not."""
    real, broken = list(seeds.real_records()), list(seeds.broken_records())

    outcomes = outcomes_of(libraries, tmp_path / "real", numbered(real), "records")
    refused = outcomes_of(libraries, tmp_path / "broken", numbered(broken), "records")

    assert {"record": len(real)} == outcomes
    assert refused["damaged"] > len(broken) / 2


@pytest.mark.thorough
def test_fuzzing_starts_from_batches(libraries, tmp_path):
    """The seeds that a worker wrote are delivered, the others are refused."""
    real = list(seeds.real_layouts())
    broken = list(seeds.broken_layouts())

    outcomes = outcomes_of(libraries, tmp_path, numbered(real + broken))

    assert {"batch": len(real), "WorkerBroken": len(broken)} == outcomes


@pytest.mark.thorough
def test_fuzzers_execute_nothing_but_their_names(run_program, tmp_path):
    """A name that does harm is not looked up, even with the right checksum."""
    name = f"{os.mkdir.__module__}\n{os.mkdir.__name__}".encode()
    call = begin("reduced") + named_node(name, ordinal=1)
    argument = begin("tuple", 2) + number(1) + TAG["str"] + number(1) + b"x"
    rest = TAG["none"] + begin("list", 3) + number(0) + begin("dict", 4) + number(0)
    write(tmp_path / "inputs", {"call": layouts.pack(b"", call + argument + rest)})

    status, _, errors = run_program(REPLAY.replace("MODULE", "layouts"))

    assert 1 == status
    assert "is none of the fuzzer's names" in errors
    assert not (tmp_path / "x").exists()
