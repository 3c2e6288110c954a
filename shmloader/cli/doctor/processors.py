"""Checks of processor time: cores, clock, waiting."""

from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.machine import Machine
from shmloader.processes import scheduling

# The kernel answers from the process's own memory with all others: no system call, some 20 ns.
_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}
_SLOW_CLOCK_NS = 400  # with Python's own 30 ns; a system call takes some 200


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


def clock(machine: Machine) -> Finding:
    """Look if reading the clock, which is done several times for each batch, is a system call."""
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    source = machine.read(path)
    ns = machine.clock_ns()
    fact = f"{source or 'unknown source'}, {ns:.0f} ns for a reading of the monotonic clock"
    if source in _SLOW_CLOCKS or ns > _SLOW_CLOCK_NS:
        remedy = (
            "each reading asks the kernel, here and in every profiler: `dmesg | grep clocksource` "
            "reports why the kernel left tsc; on a virtual machine choose kvm-clock or tsc"
        )
        return Finding("clock", "note", fact, remedy)
    return Finding("clock", "ok", fact)


def parking(parks_by: str) -> Finding:
    """Look how processes wait for each other, by what `core.parking()` says."""
    if parks_by == "futex":
        return Finding("futex", "ok", "processes wake each other by futex")
    remedy = (
        "a wake-up may take 1 ms: build without SHMLOADER_PORTABLE, or let the sandbox or its "
        "seccomp profile allow futex"
    )
    return Finding("futex", "note", f"processes wait by {parks_by}", remedy)
