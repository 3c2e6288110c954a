# One word each. Every target first sets up what it needs, in .venv: a C compiler, pip and Python
# 3.11 or later are all that has to be there. Arguments pass through, `make test ARGS='-k ring'`, and
# so do the build switches that setup.py lists, `make test SHMLOADER_PORTABLE=1`. Another Python is
# named once, `make test PYTHON=python3.13`: .venv is made anew with it, and keeps it from then on.

PYTHON ?= $(or $(shell for python in $$(readlink -f .venv/bin/python) python3.11 python3; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo $$python && break; done),$(error Python 3.11 or later is needed: set PYTHON to one))
ARGS ?=

# Most tests wait for processes, so three run at once, also on two cores: each process has a part of
# the files, and who is done takes from the others' ends.
at_once := -n 3 --dist worksteal --benchmark-disable

venv := .venv/bin
# Warnings are of indexes that lack a package; errors are shown.
install := $(venv)/python -m pip install --quiet --quiet --constraint constraints.txt
core_sources := setup.py $(wildcard csrc/*.[ch] csrc/debug/*.[ch]) \
  $(wildcard shmloader/core/*.pyx shmloader/core/*.pxd)
switches := $(SHMLOADER_SANITIZE),$(SHMLOADER_ASSERT),$(SHMLOADER_PORTABLE),$(SHMLOADER_WERROR)
switches := $(switches),$(SHMLOADER_KILL_POINTS)

# For csrc/ alone, stricter than any build; optimised, because some warnings come only then.
strict_cc := $(CC) -std=c11 -D_GNU_SOURCE -Icsrc -O2 -c -o /dev/null -Werror -Wall -Wextra -Wpedantic \
  -Wcast-align -Wcast-qual -Wconversion -Wformat=2 -Wmissing-prototypes -Wpointer-arith -Wshadow \
  -Wsign-conversion -Wstrict-prototypes -Wundef -Wvla -Wwrite-strings

# Jobs start hundreds of interpreters: what one has compiled serves the others.
export PYTHONDONTWRITEBYTECODE :=

MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.PHONY: build demo test rest check frameworks example-ray docs bench bench-device bench-peers bench-real gpu kept
.PHONY: verdicts workloads soak lives simulate lint sanitize fuzz package wheel clean always

build: .venv/built

demo: .venv/demo
	$(venv)/python -m examples.demo $(ARGS)

# The core of every kind of test, a few minutes; `rest` runs all others, `check` both.
test: .venv/test
	$(venv)/python -m pytest $(at_once) $(ARGS)

rest: .venv/test
	$(venv)/python -m pytest $(at_once) --rest $(ARGS)

check: test rest .venv/trainers
	$(venv)/python -m pytest tests/frameworks/test_lightning.py tests/frameworks/test_accelerate.py \
	  tests/frameworks/test_packing.py tests/frameworks/test_token_budget.py \
	  tests/frameworks/test_preempted.py tests/frameworks/test_replay.py \
	  tests/frameworks/test_video.py

# Other projects' trainers and loaders, each to the same losses as with torch's, in one process.
frameworks: .venv/test .venv/frameworks
	$(venv)/python -m pytest tests/frameworks $(ARGS)

# More machines by Ray, all of them here: a loader in an actor, Ray Data as the source, and samples of
# another node.
example-ray: .venv/scale
	$(venv)/python examples/scale/ray_train.py
	$(venv)/python examples/scale/ray_data_source.py
	$(venv)/python examples/scale/ray_fetch.py

# The site in build/docs, whole each time: a page that has not changed would not warn again.
docs: .venv/docs
	rm -rf build/docs
	$(venv)/python -m sphinx -q -W --keep-going -E -c docs -d build/doctrees . build/docs $(ARGS)
	@echo 'the start page: build/docs/index.html'

bench: .venv/bench
	$(venv)/python -m bench $(ARGS)

bench-peers: .venv/peers
	$(venv)/python -m bench --peers $(ARGS)

# Five real trainings with torch's loader and with ours: fails unless every loss is the same.
bench-real: .venv/real
	$(venv)/python -m bench real $(ARGS)

# What may be in a batch, and at what price: kinds of values and of batches. Fails if a batch differs
# from torch's, or does not lie where it should.
kept: .venv/bench .venv/leaves
	$(venv)/python -m bench kinds
	$(venv)/python -m bench leaves

# Does report() name the cause of loads whose cause is known, and does its advice help? For a quiet
# machine: fails if fewer than 95 % of either are right.
verdicts: .venv/bench
	$(venv)/python -m bench verdicts $(ARGS)

# Loads that others described in public: samples behind a network, one slow sample in many, memory
# that grows with the workers; torch beside ours in the same run.
workloads: .venv/bench
	$(venv)/python -m bench streaming
	$(venv)/python -m bench caching
	$(venv)/python -m bench stalls
	$(venv)/python -m bench deep
	$(venv)/python -m bench lists
	$(venv)/python -m bench memory

# Ways of batches to a GPU, which it needs: copy rate, the training thread's time, idle gaps as a
# picture; then with slow samples.
bench-device: .venv/bench
	$(venv)/python -m bench device --picture bench/results/device.png $(ARGS)
	$(venv)/python -m bench device --megabytes 38.5 --tail $(ARGS)

# What only a GPU can show, in some minutes: with the Python that is there, its torch and its installed
# shmloader, because such machines have no network and torch's CUDA build lies there.
gpu:
	@$(PYTHON) tests/device/needs.py
	$(PYTHON) -m pytest tests/device $(ARGS)
	$(PYTHON) -m tests.lives --gpu --seconds 60
	$(PYTHON) -m bench device --picture build/device.png

# Ten thousand batches while workers are killed: the same bits, and nothing grows. Then trainings that
# are killed whole, 200 times, and go on: the same bits again.
soak: .venv/test
	$(venv)/python -m tests.deaths.soak $(ARGS)
	$(venv)/python -m tests.resume.soak

# Loaders with random options in random lives, beside undisturbed ones: a minute of it, or as long as
# `make lives ARGS='--seconds 7200'` says.
lives: .venv/test
	$(venv)/python -m tests.lives $(ARGS)

# One process at a time, chosen by a seed: two minutes of it, or as long as
# `make simulate ARGS='--seconds 7200'` says. ARGS='--planted' finds mistakes made on purpose.
simulate: .venv/test
	$(venv)/python -m tests.simulation --seconds 120 $(ARGS)

# Two halves, which may run side by side: `make -j 2 lint`.
lint: lint-python lint-c

lint-python: .venv/lint always
	$(venv)/ruff check .
	$(venv)/ruff format --check .
	PATH="$(CURDIR)/$(venv):$$PATH" cython-lint shmloader
	$(venv)/codespell
	$(venv)/mypy

lint-c: .venv/lint always
	SHMLOADER_WERROR=1 $(venv)/python setup.py --quiet build_ext \
	  --build-lib build/strict --build-temp build/strict
	@for file in csrc/*.c csrc/debug/*.c; do \
	  echo "strictly: $$file"; \
	  $(strict_cc) $$file && $(strict_cc) -DSHMLOADER_PORTABLE $$file && \
	  $(strict_cc) -DSHMLOADER_KILL_POINTS $$file || exit 1; \
	done
	@for file in tests/simulation/c/*.c; do \
	  echo "strictly: $$file"; $(strict_cc) -DSHMLOADER_KILL_POINTS $$file || exit 1; \
	done

# The C tests under each set of sanitizers that can share a process, with both ways of waiting; then
# a minute of each fuzzer, the C tests as aarch64 where qemu is installed, the protocol's models where
# SPIN is.
sanitize:
	@tests/protocol/sanitize.sh

# What a worker can write, made up by libFuzzer; says what to install where there is no clang.
fuzz: .venv/test
	$(venv)/python -m tests.protocol.fuzz.run $(ARGS)

# What would be published: the sdist, the wheel built from it alone, and that wheel imported.
package: .venv/wheel
	rm -rf dist build/package
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(venv)/python -m build --outdir dist
	$(venv)/python -m pip install --quiet --no-deps --target build/package dist/*.whl
	cd build/package && ../../$(venv)/python -c \
	  'import os, shmloader.core._core as core; assert core.__file__.startswith(os.getcwd()), core'

# One wheel as cibuildwheel makes them, but for this machine's glibc and Python, in dist/.
wheel: .venv/wheel
	$(venv)/python -m tests.helpers.wheel dist

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	rm -f shmloader/core/_core*.so
	find shmloader tests bench -name __pycache__ -prune -exec rm -rf {} +

# The last that venv makes. What was installed for one Python is never mixed with another's.
.venv/bin/pip: always
	@asked="$$($(PYTHON) -VV)" || exit 1; \
	  test -f $@ && test "$$asked" = "$$($(venv)/python -VV)" || \
	  { rm -rf .venv && $(PYTHON) -m venv .venv; }

# What a build needs, at the versions of constraints.txt.
.venv/ready: .venv/bin/pip constraints.txt
	$(install) setuptools cython numpy
	touch $@

# An editable install, so that what runs is this folder and only the extension can fall behind its
# sources; tests/conftest.py refuses to start when it did. Without build isolation: what was just
# installed builds it, and torch comes once, at its pinned version.
.venv/built: .venv/ready pyproject.toml build/switches $(core_sources)
	$(install) --no-build-isolation --editable .
	touch $@

# What one job needs besides, an extra of pyproject.toml: the package is there, so nothing is built.
.venv/demo .venv/bench .venv/test .venv/lint .venv/wheel .venv/docs .venv/trainers \
  .venv/frameworks .venv/real .venv/scale .venv/leaves: .venv/ready pyproject.toml | .venv/built
	$(install) 'shmloader[$(notdir $@)]'
	touch $@

# Other projects' loaders, for bench-peers alone, which runs without those that are not here.
.venv/peers: .venv/bench
	$(install) 'shmloader[peers]' && touch $@ || echo 'the peers do not install here'

# Holds the switches of the last build: a change of them is a reason to build again.
build/switches: always
	@mkdir -p build
	@echo '$(switches)' | cmp -s - $@ || echo '$(switches)' > $@
