"""
Fuzz what a worker or a file can hold, for a limited time, starting from the kept inputs.

    python -m tests.protocol.fuzz.run --seconds 600
    python -m tests.protocol.fuzz.run --target layout --input build/fuzz/layout-crash-...

Needs clang with libFuzzer. An input that fails is left in build/fuzz.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.protocol.fuzz import archive

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "fuzz"
PACKAGES = "clang libclang-rt-14-dev"  # of Debian 12; elsewhere compiler-rt of clang's version

# Longest input in bytes, and memory in MB: all of it, and in one piece. No honest input of these
# lengths leads to a large allocation, so one that does is a failure.
LIMITS = {
    "ledger": (512, 2048, 64),
    "layout": (2048, 4096, 128),
    "records": (2048, 4096, 128),
}
INPUT_TIMEOUT_S = 20

TOLD = re.compile(r"^(?:#\d+.*cov: .*|stat::number_of_executed_units: .*|Done .*)$", re.MULTILINE)


def has_fuzzer():
    """Returns True if clang is here and links a fuzzer."""
    if shutil.which("clang") is None:
        return False
    program = "int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n != 0; }"
    command = ["clang", "-fsanitize=fuzzer,address", "-x", "c", "-", "-o", os.devnull]
    return subprocess.run(command, input=program.encode(), capture_output=True).returncode == 0


def make(target):
    """Build a target of this folder's Makefile."""
    subprocess.run(["make", "-C", str(HERE), target, f"PYTHON={sys.executable}"], check=True)


def environment(target):
    """Give the variables under which a fuzzer runs."""
    # Objects that an interpreter keeps until its end are no leak; the target counts leases.
    leaks = "1" if target == "ledger" else "0"
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(BUILD / "package"), str(ROOT)]),
        "PYTHONMALLOC": "malloc",  # so that AddressSanitizer sees every object
        # The search for the fields of a tensor reads beyond the object on purpose.
        "SHMLOADER_TORCH_FIELDS": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        # An allocation that is too large is the MemoryError that it is without a sanitizer.
        "ASAN_OPTIONS": f"allocator_may_return_null=1:detect_leaks={leaks}",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }


def prepare(target):
    """
    Put the kept inputs and the seeds where the fuzzer adds to them.

    Returns:
        That folder.
    """
    folder = BUILD / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in archive.read(target).items():
        (folder / name).write_bytes(data)
    # By this interpreter and with the ordinary extension: the other needs a fuzzer around it.
    shutil.rmtree(BUILD / "seeds", ignore_errors=True)
    seeds = [sys.executable, "-m", "tests.protocol.fuzz.seeds", str(BUILD / "seeds")]
    subprocess.run(seeds, cwd=ROOT, check=True)
    return folder


def fuzzer(target, *arguments):
    """Give the command that runs a fuzzer."""
    longest, memory_mb, piece_mb = LIMITS[target]
    dictionary = BUILD / "seeds" / f"{target}.dict"
    return [
        str(BUILD / target),
        f"-max_len={longest}",
        f"-rss_limit_mb={memory_mb}",
        f"-malloc_limit_mb={piece_mb}",
        f"-timeout={INPUT_TIMEOUT_S}",
        "-print_final_stats=1",
        f"-artifact_prefix={BUILD}/{target}-",
        *([f"-dict={dictionary}"] if dictionary.exists() else []),
        *arguments,
    ]


def fuzz(target, seconds):
    """
    Run a fuzzer and print what it reached.

    Returns:
        True if nothing failed.
    """
    make(target)
    folder = prepare(target)
    # Long inputs from the start: libFuzzer tries short ones first, and those have no steps.
    command = fuzzer(target, f"-max_total_time={seconds}", "-len_control=0", str(folder))
    command.append(str(BUILD / "seeds" / target))
    result = subprocess.run(
        command,
        cwd=BUILD,
        env=environment(target),
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    print(f"{target}: {summary(result.stderr)}", flush=True)
    if result.returncode != 0:
        explain(target, result.stderr)
    return result.returncode == 0


def summary(log):
    """Give the fuzzer's last lines on how far a run came."""
    return "; ".join(TOLD.findall(log)[-3:])


def explain(target, log):
    """Print how a run failed and how to see it again."""
    print("\n".join(log.splitlines()[-60:]))
    for path in re.findall(r"Test unit written to (\S+)", log):
        print(
            f"replay: {sys.executable} -m tests.protocol.fuzz.run --target {target} "
            f"--input {os.path.relpath(path)}"
        )


def keep(target):
    """Replace the kept inputs by the fewest that cover as much as all that were found here."""
    folder = BUILD / "kept" / target
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sources = [BUILD / "corpus" / target, BUILD / "seeds" / target]
    command = fuzzer(target, "-merge=1", str(folder), *map(str, sources))
    subprocess.run(
        command, cwd=BUILD, env=environment(target), stderr=subprocess.DEVNULL, check=True
    )
    archive.write(target, {path.name: path.read_bytes() for path in folder.iterdir()})
    print(f"{target}: {len(archive.read(target))} inputs kept")


def replay(target, path):
    """
    Run one input under the fuzzer's sanitizers.

    Returns:
        True if it did not fail.
    """
    make(target)
    command = fuzzer(target, str(Path(path).resolve()))
    return subprocess.run(command, cwd=BUILD, env=environment(target)).returncode == 0


def parse():
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each fuzzer (%(default)s)")
    parser.add_argument("--target", choices=archive.NAMES, help="one of the fuzzers; all else")
    parser.add_argument("--input", metavar="FILE", help="run one input of the target instead")
    parser.add_argument("--keep", action="store_true", help="keep what was found, minimised")
    arguments = parser.parse_args()
    if arguments.input and not arguments.target:
        parser.error("--input needs --target")
    return arguments


def main():
    """Run what the arguments ask for; exit with 1 if anything failed."""
    arguments = parse()
    if not has_fuzzer():
        print(f"not fuzzed: no clang with libFuzzer here; apt-get install {PACKAGES}")
        return
    if arguments.input:
        sys.exit(not replay(arguments.target, arguments.input))
    targets = [arguments.target] if arguments.target else archive.NAMES
    passed = [fuzz(target, arguments.seconds) for target in targets]
    if arguments.keep and all(passed):
        for target in targets:
            keep(target)
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
