"""Control groups and mounts that a test makes, if it may."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.programs import LONGEST_WAIT_S, search_path


@contextlib.contextmanager
def memory_group(limit_bytes):
    """A control group with a limit, of either version; skips if none can be made here."""
    roots = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    names = ["memory.limit_in_bytes", "memory.max"]
    for root, name in zip(roots, names, strict=True):
        group = root / f"shmloader-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(limit_bytes))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    pytest.skip("no memory control group can be made here")


def run_with_dev_shm(option, script):
    """Run a script with a /dev/shm of its own. Returns its lines; skips if that is not allowed."""
    mount = f"mount -t tmpfs -o {option} tmpfs /dev/shm"
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        prefix = [*command, "sh", "-c", f'{mount} && exec "$@"', "sh"]
        if (
            shutil.which("unshare")
            and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
        ):
            break
    else:
        pytest.skip("no file system can be mounted here")
    done = subprocess.run(
        [*prefix, sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": search_path(), "SHMLOADER_BACKING": "posix"},
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
