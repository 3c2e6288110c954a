"""Checks of processor time: cores, waiting."""

from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.machine import Machine
from shmloader.processes import scheduling


def cores(machine: Machine) -> Finding:
    """Compare the cores that this process may use with those that programs count."""
    there, allowed = machine.cores(), machine.affinity()
    quota = scheduling.least_share(machine.folders("cpu"), machine.read)
    usable = min(allowed, quota)
    fact = f"{usable:g} of {there} may be used"
    bound_by = scheduling.bound_by(allowed, there)
    if allowed < there:
        fact += f"; affinity: {allowed}" + (f", by {bound_by}" if bound_by else "")
    if quota < allowed:
        fact += f"; the control group's quota: the time of {quota:g}"
    if bound_by:
        return Finding("cores", "note", fact, f"workers inherit it: {scheduling.UNBIND}")
    if usable < there:
        remedy = (
            f"choose num_workers for what is usable ({usable:g}), not for os.cpu_count(), which "
            f"returns {there}"
        )
        return Finding("cores", "note", fact, remedy)
    if there == 1:
        remedy = "workers and training step take turns: num_workers=1, or more only if they wait"
        return Finding("cores", "note", fact, remedy)
    return Finding("cores", "ok", fact)


def parking(parks_by: str) -> Finding:
    """Look how processes wait for each other, by what `core.parking()` says."""
    if parks_by == "futex":
        return Finding("futex", "ok", "processes wake each other by futex")
    remedy = (
        "a wake-up may take 1 ms: build without SHMLOADER_PORTABLE, or let the sandbox or its "
        "seccomp profile allow futex"
    )
    return Finding("futex", "note", f"processes wait by {parks_by}", remedy)
