"""Ray for one test: in a folder of its own, and nothing of it is left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from tests.helpers.programs import wait_until

ENDED_WITHIN_S = 30.0  # Ray's processes end one after the other; only a hang takes longer
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns that this is going to be the default
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}


def start() -> None:
    """Start Ray for a program: two CPUs, little memory, and nothing printed."""
    import ray

    options = {"object_store_memory": 100_000_000, "log_to_driver": False}
    ray.init(num_cpus=2, include_dashboard=False, **options)


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """
    A folder for sockets and logs of the Ray that a program starts.

    Ray names it in the commands of all its processes, which tells them from those of any other.
    """
    # Not tmp_path, because the path of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    # A token of its own: without one, Ray would make a file of it in the user's home.
    own = {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    for name, value in {**QUIET, **own}.items():
        monkeypatch.setenv(name, value)
    yield folder
    wait_until(lambda: not processes_of(folder), ENDED_WITHIN_S)
    assert {} == processes_of(folder)
    shutil.rmtree(folder)


def processes_of(folder: Path) -> dict[int, str]:
    """Returns the commands of the living processes that name a folder, by pid."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if str(folder) in command:
            commands[int(path.parent.name)] = command
    return commands
