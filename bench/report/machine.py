"""The machine, the versions and the commit that a result belongs to."""

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


def describe() -> dict:
    """Collect what a reader needs to judge or to repeat a result."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _field("/proc/cpuinfo", r"model name\s*: (.+)"),
        "cores": len(os.sched_getaffinity(0)),
        "l3_cache": _text("/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "memory_gb": round(int(_field("/proc/meminfo", r"MemTotal: +(\d+)", "0")) / 1e6, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit(),
        **{name: version(name) for name in ("shmloader", "torch", "numpy")},
    }


def about(**more: Any) -> dict:
    """Collect the same with the command, and more that a page says."""
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    return {**describe(), **more, "command": command}


def sentence(machine: dict) -> str:
    """Say in one line where the figures come from."""
    before = f" beside {machine['before']}" if "before" in machine else ""
    versions = machine.get("packages", {})
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, L3 {machine['l3_cache']}, "
        f"Linux {machine['kernel']}, Python {machine['python']}, torch {machine['torch']}, "
        f"numpy {machine['numpy']}, commit {machine['commit']}{before}, {machine['date']}, "
        f"load before the run {machine['load_before']}" + (f"; {packages}" if packages else "")
    )


def commit(checkout: Path = CHECKOUT) -> str:
    """Name the commit of a checkout, with a mark if files were changed since, but for results."""
    head = _git(checkout, "rev-parse", "--short", "HEAD")
    if not head:
        return "unknown"
    changed = _git(
        checkout, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results"
    )
    return head + ("+changes" if changed else "")


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def version(name: str) -> str:
    """Return the version of an installed distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _field(path: str, pattern: str, default: str = "unknown") -> str:
    found = re.search(pattern, _text(path))
    return found[1].strip() if found else default


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"
