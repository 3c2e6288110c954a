"""Where there is no Linux, or no compiled core, a program runs all the same, by torch's loader."""

import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch

import shmloader
from shmloader.options.options import OPTIONS
from tests.helpers.programs import ROOT
from tests.helpers.stage import run_file
from tests.helpers.wheel import install_alone
from tests.helpers.wheel import run as run_command

WHY = "this is darwin, and shared-memory slots need Linux"
BEGIN = """
import sys, warnings
sys.path.insert(0, {root!r})
from tests.helpers import elsewhere
if __name__ == "__main__":
    elsewhere.pretend({platform!r})
    warnings.simplefilter("ignore")
import json, pickle, torch
from torch.utils.data import DataLoader as Torchs, Dataset, IterableDataset, TensorDataset
import shmloader
from shmloader import DataLoader
"""


@pytest.fixture
def there(torch_alone, tmp_path):
    """Give what runs the lines of a main function there, and returns what they print as JSON."""

    def run_there(lines, before="", platform="darwin"):
        body = "\n".join(f"    {line}" for line in lines.strip().splitlines())
        begin = BEGIN.format(root=str(ROOT), platform=platform)
        script = f'{begin}{before}\ndef main():\n{body}\n\nif __name__ == "__main__":\n    main()\n'
        status, printed, said = run_file(torch_alone, tmp_path, script)
        assert 0 == status, said
        return [json.loads(line) for line in printed]

    return run_there


@pytest.mark.thorough
def test_every_name_is_there_or_says_why_not(there):
    """The public names are those of Linux, but for some that need the core."""
    names, absent = there(
        """
print(json.dumps(shmloader.__all__))
said = {}
for name in ("Pool", "SharedDict", "SharedList", "publish", "subscribe"):
    try:
        getattr(shmloader, name)
    except ImportError as error:
        said[name] = str(error)
print(json.dumps(said))
"""
    )

    assert {*shmloader.__all__} - {*names} == absent.keys()
    assert f"shmloader.SharedList is not available: {WHY}" == absent["SharedList"]


@pytest.mark.thorough
def test_windows_has_them_too(there):
    """All names are imported there; `downloaded()`, which needs flock, says so."""
    count, batches, state, said = there(
        """
print(json.dumps(len([getattr(shmloader, name) for name in shmloader.__all__])))
loader = DataLoader(range(5), 2, slot_bytes=100, seed_by="batch")
print(json.dumps([batch.tolist() for batch in loader]))
print(json.dumps(loader.state_dict()["at"]))
try:
    shmloader.downloaded(len, "folder", 10)
except OSError as error:
    print(json.dumps(str(error)))
""",
        platform="win32",
    )

    assert len(shmloader.__all__) - 5 == count
    assert ([[0, 1], [2, 3], [4]], "start") == (batches, state)
    assert "downloaded() shares its folder by flock, which Windows lacks" == said


@pytest.mark.thorough
def test_one_warning_says_so(there):
    """It is given for the first loader, at its line, and names all that cannot be had."""
    (said,) = there(
        """
with warnings.catch_warnings(record=True, action="always") as caught:
    DataLoader(range(4), num_workers=1, restarts=2)
    DataLoader(range(4), num_workers=1)
    shmloader.wrap(Torchs(range(4)))
    shmloader.install()
print(json.dumps([[str(each.message), each.filename == __file__] for each in caught]))
"""
    )

    ((text, is_here),) = said
    assert is_here
    assert text.startswith(f"torch's own loader runs here: {WHY}. The batches are the same.")
    for name in (
        *OPTIONS,
        "stats()",
        "state_dict()",
        "cached()",
        "SharedList",
        "tune()",
        "trace()",
    ):
        assert name in text


LOADERS = """
class Pairs(Dataset):
    def __len__(self):
        return 11
    def __getitem__(self, index):
        return index, torch.rand(2)

class Own(Torchs):
    pass

class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return iter(range(info.id if info else 0, 9, info.num_workers if info else 1))

def bits(loader, epochs=2):
    torch.manual_seed(3)
    return [[torch.cat([each.flatten().double() for each in batch]).tolist() for batch in loader]
            if not isinstance(loader.dataset, Stream) else [batch.tolist() for batch in loader]
            for _ in range(epochs)]
"""


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_torchs(there, workers):
    """Order, draws and epochs are those of torch's class, in each way in."""
    found = there(
        f"""
options = {{"batch_size": 3, "num_workers": {workers}}}
for dataset, more in ((Pairs(), {{"shuffle": True}}), (Stream(), {{}})):
    options.update(more)
    theirs = bits(Torchs(dataset, **options))
    print(json.dumps(bits(DataLoader(dataset, **options, restarts=3)) == theirs))
    print(json.dumps(bits(shmloader.wrap(Own(dataset, **options), nice=3)) == theirs))
    print(json.dumps(isinstance(shmloader.wrap(Own(dataset, **options)), Own)))
    print(json.dumps(bits(pickle.loads(pickle.dumps(DataLoader(dataset, **options)))) == theirs))
    shmloader.install(slots=8)
    print(json.dumps(bits(Torchs(dataset, **options)) == theirs))
    shmloader.uninstall()
    options["persistent_workers"] = {workers} > 0
    with DataLoader(dataset, **options) as loader:
        print(json.dumps(bits(loader) == bits(Torchs(dataset, **options))))
    options = {{"batch_size": 2, "num_workers": {workers}}}
""",
        LOADERS,
    )

    assert [True] * 12 == found


@pytest.mark.thorough
def test_options_are_checked(there):
    """What is wrong on Linux is wrong there."""
    (said,) = there(
        """
said = []
for options in ({"restarts": -1}, {"slots": "8"}, {"nothing": 1},
                {"fetch_threads": 2, "restarts": 1, "num_workers": 1}):
    try:
        DataLoader(range(4), **options)
    except (TypeError, ValueError) as error:
        said.append(type(error).__name__)
print(json.dumps(said))
"""
    )

    assert ["ValueError", "TypeError", "TypeError", "ValueError"] == said


@pytest.mark.thorough
def test_what_is_asked_says_so(there):
    """stats() and report() name the reason; what has nothing to show is an error that does."""
    stats, printed, report, held, trace, tune, started = there(
        """
loader = DataLoader(range(4), num_workers=1)
list(loader)
for each in (loader.stats().note, str(loader.stats()), str(loader.report()), loader.held()):
    print(json.dumps(each))
for call in (lambda: loader.trace("trace.json"), lambda: shmloader.tune(lambda: loader)):
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        print(json.dumps(str(error)))
loader.start()
print(json.dumps([len(list(loader)), shmloader.stats(loader).note == loader.stats().note,
                  shmloader.stats(Torchs(range(2))).note == loader.stats().note]))
shmloader.close(loader)
"""
    )

    assert f"torch's own loader runs here: {WHY}" == stats == report
    assert printed.startswith("Stats(\n    batches=0,\n") and printed.endswith(f": {stats}")
    assert [] == held
    assert f"trace() has nothing to show: {stats}" == trace
    assert f"tune() measures slots, and {WHY}" == tune
    assert [4, True, True] == started


DRAWING = """
class Drawing(Dataset):
    def __len__(self):
        return 13
    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()).item(), shmloader.rng().random()])

def drawn():
    generator = torch.Generator().manual_seed(5)
    options = {"shuffle": True, "generator": generator, "seed_by": "batch"}
    loader = DataLoader(Drawing(), 3, **options)
    return [[batch.tolist() for batch in loader] for _ in range(2)]
"""


@pytest.mark.thorough
def test_draws_by_the_batch_are_linuxs(there):
    """Without workers; so a program draws the same in either place."""
    scope = {"torch": torch, "shmloader": shmloader, "Dataset": torch.utils.data.Dataset}
    scope["DataLoader"] = shmloader.DataLoader
    exec(DRAWING, scope)

    assert [scope["drawn"]()] == there("print(json.dumps(drawn()))", DRAWING)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 1])
def test_no_state_knows_the_place(there, workers):
    """It is of an epoch's beginning; one of a run that had begun is refused."""
    with shmloader.DataLoader(range(8), 2) as other:
        list(other)
        begun = json.dumps(other.state_dict())
    (found,) = there(
        f"""
loader = DataLoader(range(8), 2, num_workers={workers})
batches = iter(loader)
next(batches)
state = loader.state_dict()
loader.load_state_dict(state)
epoch = len(list(loader))
try:
    loader.load_state_dict(json.loads({begun!r}))
except ValueError as error:
    print(json.dumps([state["at"], epoch, str(error)]))
"""
    )
    at, epoch, refused = found

    assert ("start", 4) == (at, epoch)
    assert "load the state on Linux" in refused and WHY in refused


@pytest.mark.thorough
def test_datasets_around_datasets_work(there, tmp_path):
    """tolerant() leaves out, cached() fetches each time, share() changes nothing."""
    left, counted, kept, shared, fetched = there(
        f"""
from tests.helpers.faults import Faulty, numbers
loader = DataLoader(shmloader.tolerant(Faulty(5, (0, 1, 3))), 2, num_workers=0)
print(json.dumps(numbers(loader)))
print(json.dumps(loader.stats().left_out))
dataset = shmloader.cached(list(range(4)), 1000, transform=lambda sample: 2 * sample)
batches = [batch.tolist() for batch in DataLoader(dataset, 2)]
print(json.dumps([*batches, dataset.cache_stats().hits]))
holder = Faulty(3, ())
holder.samples = [1, 2]
print(json.dumps([len(shmloader.share(holder, "samples").replaced), holder.samples]))
fetch = shmloader.downloaded(lambda name: name.encode(), {str(tmp_path / "files")!r}, 10_000)
print(json.dumps([fetch("a").decode(), shmloader.empty((2, 3)).shape]))
"""
    )

    assert [[2], [4]] == left
    assert 3 == counted
    assert [[0, 2], [4, 6], 0] == kept
    assert [0, [1, 2]] == shared
    assert ["a", [2, 3]] == fetched


COMMAND = """
import sys
sys.path.insert(0, {root!r})
from tests.helpers import elsewhere
elsewhere.pretend()
from shmloader.cli import main
raise SystemExit(main({arguments!r}))
"""


def test_run_runs_the_program(torch_alone, tmp_path):
    """`shmloader run` says that loaders are torch's, and becomes the program."""
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\nraise SystemExit(5)")
    script = COMMAND.format(root=str(ROOT), arguments=["run", "--slots", "8", "train.py", "--x"])
    status, printed, errors = run_file(torch_alone, tmp_path, script)

    assert (5, ["['--x']"]) == (status, printed)
    assert f"shmloader run: torch's own loader runs here: {WHY}\n" == errors


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["doctor", "top", "trace", "tune"])
def test_other_commands_say_why_not(torch_alone, tmp_path, command):
    """They look at slots, so they end with the reason, and without a traceback."""
    script = COMMAND.format(root=str(ROOT), arguments=[command])
    status, printed, errors = run_file(torch_alone, tmp_path, script)

    assert (1, []) == (status, printed)
    assert f"shmloader {command}: needs slots of shared memory: {WHY}\n" == errors


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_wheel_without_the_core(tmp_path):
    """It is of any system, small, and runs a loader where nothing else of ours is found."""
    raw, environment = tmp_path / "raw", tmp_path / "environment"
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(raw), str(ROOT)]
    run_command(["env", "SHMLOADER_NO_CORE=1", *build])
    (wheel,) = raw.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    python = install_alone(wheel, environment)
    program = "import shmloader as s; print(list(s.DataLoader(range(3))), s.__file__)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=clean, check=True
    )

    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in names if name.endswith(".so")]
    assert str(environment) in done.stdout
    assert "[tensor([0]), tensor([1]), tensor([2])]" in done.stdout
    assert "installed without its compiled module" in done.stderr
