#!/usr/bin/env bash
# The C tests under every checker that is installed; a missing one is named, and left out.
set -euo pipefail
cd "$(dirname "$0")/../.."

c_tests() { make -C tests/protocol/c run "$@"; }
is_here() { command -v "$@" >/dev/null; }

# ASan finds uses of memory beyond its end or its life, UBSan what C leaves undefined. They share a
# process; TSan, which finds data races, needs one without them.
for sanitizers in address,undefined thread; do
  c_tests SAN=$sanitizers
  c_tests SAN=$sanitizers PORTABLE=1 # waits without a futex have other code
done

make fuzz # what a worker can write, a minute for each fuzzer

if is_here qemu-aarch64 && is_here aarch64-linux-gnu-gcc; then
  # Alignment and ABI of another processor. PORTABLE: a futex would be qemu's, not the kernel's.
  c_tests MACHINE=aarch64 PORTABLE=1
else
  echo 'nothing was run as aarch64: apt-get install gcc-aarch64-linux-gnu qemu-user'
fi

if is_here spin; then
  # --all: searches are no part of the core; --stress-seconds 10: those too that take longest.
  make test ARGS='--all --stress-seconds 10 tests/protocol/test_model.py'
else
  echo 'the models were not checked: spin is missing (apt-get install spin)'
fi
