"""Programs and pipelines of others that take a pool: an asyncio server, an ordered stage, SPDL."""

import subprocess
import sys

import numpy
import pytest

from shmloader import Pool
from tests.helpers.programs import ROOT
from tests.pool import functions


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["page_server.py", "ordered_stage.py"])
def test_an_example_runs(name):
    """It checks what it gets, and says so."""
    command = [sys.executable, f"examples/{name}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert (0, "") == (ended.returncode, ended.stderr)
    assert ended.stdout.endswith("all right\n")


def test_a_stage_of_spdl_calls_through_a_pool():
    """Its pipeline hands the calls of a stage to the executor, and yields what comes back."""
    pipeline = pytest.importorskip("spdl.pipeline", reason="spdl is not installed")
    with Pool(2, "fork") as pool:
        pool.submit(functions.square, 2).result()  # forked before the pipeline has threads
        builder = pipeline.PipelineBuilder().add_source(range(1, 20))
        builder.pipe(functions.ones, executor=pool, concurrency=2).add_sink(4)
        built = builder.build(num_threads=1)
        with built.auto_stop():
            found = [(len(each), int(each.sum())) for each in built]

    assert [(number, number) for number in range(1, 20)] == sorted(found)


def test_a_processor_of_transformers_is_called_in_the_workers():
    """What it makes is what it makes here, and is not pickled."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    processor = transformers.CLIPImageProcessor()
    page = numpy.arange(64 * 48 * 3, dtype=numpy.uint8).reshape(64, 48, 3)
    with Pool(1) as pool:
        found = pool.submit(processor, page, return_tensors="np").result(timeout=120)
    wanted = processor(page, return_tensors="np")
    assert numpy.array_equal(wanted["pixel_values"], found["pixel_values"])
