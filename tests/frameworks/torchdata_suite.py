"""
Run torchdata's own tests of its StatefulDataLoader over our loader: `... CHECKOUT [PYTEST ARGS]`.

They import torchdata by name, and find our loader there, with `resumable=True`, because torchdata's
workers send their states too. Tests that cannot pass are listed here with the reason; one that
fails and is not listed is a failure, and so is one that is listed and passes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = Path(__file__).with_name("torchdata_names")
FILES = ["test_state_dict.py", "test_sampler.py", "test_dataloader.py", "test_hugging_face.py"]
LONGEST_S = 600  # of one test

_FROZEN = "torch's own loader fails it: its WorkerInfo has been a frozen dataclass since"
_DICTIONARY = "looks into its private dictionary, and ours has other keys"
DIFFER = {
    "TestDataLoader::test_get_worker_info": _FROZEN,
    "TestDataLoaderPersistentWorkers::test_get_worker_info": _FROZEN,
    "TestInitialState_shard0::test_initial_state": _DICTIONARY,
    "TestInitialState_shard0::test_load_state_after_initial_state_dict": _DICTIONARY,
    "TestDynamicStateIterableDataset_shard0::test": _DICTIONARY,
    "TestDatasetIteratorStateDuplication_shard0::test": _DICTIONARY,
    "TestSingleIterCalled_shard0::test_inline": _DICTIONARY,
    "TestSingleIterCalled_shard0::test_inline_iter": _DICTIONARY,
    "TestSingleIterCalled_shard0::test_mp": _DICTIONARY,
    "TestSingleIterCalled_shard0::test_mp_iter": _DICTIONARY,
    "TestOutOfOrderWithCheckpointing::test_out_of_order_iterable_ds_no_completed_workers": (
        _DICTIONARY
    ),
    "TestOutOfOrderWithCheckpointing::test_out_of_order_iterable_ds_one_completed_worker": (
        _DICTIONARY
    ),
    # docs/resume.md names these two as differences.
    "TestNumWorkersMismatch_shard3::test_num_workers_mismatch": (
        "wants an AssertionError; ours goes on with another number of workers"
    ),
    "TestInitialState_shard0::test_init_error": (
        "wants an error of worker_init_fn from iter(); ours comes with the first batch, as torch's"
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.split("::", 1)[-1]
        if name in DIFFER:
            item.add_marker(pytest.mark.xfail(reason=DIFFER[name], strict=True))


def main(checkout: str, *options: str) -> None:
    folder = Path(checkout).resolve() / "test" / "stateful_dataloader"
    if not folder.is_dir():
        print(f"skipped: torchdata's tests are not in {folder}")
        return
    paths = [str(NAMES), str(ROOT), os.environ.get("PYTHONPATH", "")]
    surrounding = {
        **os.environ,
        "TORCHDATA": str(Path(checkout).resolve()),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-rxX", "--rootdir", str(folder)]
    command += ["-p", "tests.frameworks.torchdata_suite", "-p", "no:cacheprovider"]
    wanted = [each for each in options if each in FILES] or FILES
    command += ["--timeout", str(LONGEST_S), *wanted]
    command += [each for each in options if each not in FILES]
    os.chdir(folder)
    os.execve(sys.executable, command, surrounding)


if __name__ == "__main__":
    main(*sys.argv[1:])
