"""Records of the log as columns: what they say of batches, and what half a record does not."""

import numpy

from shmloader.core import view_layout
from shmloader.stats.layout import Layout
from shmloader.stats.timeline import timeline_over

LAYOUT = Layout(view_layout())
MS = 1_000_000


def records(count=3, **changed):
    """Make the records of an epoch whose batches follow each other every 10 ms."""
    made = numpy.zeros(count, LAYOUT.dtype("log_record"))
    start = 100 * MS + 10 * MS * numpy.arange(count, dtype=numpy.int64)
    made["sequence"] = 2 * numpy.arange(count) + 2
    made["ticket"] = numpy.arange(count)
    made["epoch"] = 1
    for name, at_ms in {
        "taken": -30, "fetched": -15, "written": -5, "asked": 0, "returned": 2, "released": 9,
    }.items():  # fmt: skip
        made[f"{name}_ns"] = start + at_ms * MS
    made["longest_position"] = LAYOUT.no_position
    made["longest_index"] = LAYOUT.no_index
    for name, value in changed.items():
        made[name] = value
    return made


def read(made, epoch=1):
    return timeline_over(LAYOUT.records(made.tobytes()), LAYOUT, epoch)


def test_durations_are_differences():
    """Each column is the difference of two moves, in seconds."""
    found = read(records(blocked_ns=4 * MS, blocked_fetching_ns=1 * MS, parked_ns=MS))

    assert 3 == len(found)
    for name, expected in {
        "fetching": 0.014, "collating": 0.007, "blocked": 0.004,
        "making": 0.021, "next": 0.002, "parked": 0.001, "held": 0.007,
    }.items():  # fmt: skip
        numpy.testing.assert_allclose(getattr(found, name), expected, atol=1e-12)
    numpy.testing.assert_allclose(found.step, [0.008, 0.008, 0.0], atol=1e-12)
    numpy.testing.assert_allclose(found.asked, [0.0, 0.01, 0.02], atol=1e-12)


def test_batches_come_in_their_order():
    """The log is a ring: its records are put in the order of their numbers."""
    made = records(5)
    turned = numpy.roll(made, 2)

    assert list(read(made).asked) == list(read(turned).asked)


def test_other_epochs_and_half_records_are_left_out():
    """A record that is being written, was never written, or is another epoch's is not there."""
    made = records(6)
    made["sequence"][[1, 2]] = [3, 0]
    made["epoch"][3] = 2

    assert 3 == len(read(made))
    assert 1 == len(read(made, epoch=2))
    assert 0 == len(read(made, epoch=3))


def test_samples_may_be_unknown():
    """Where samples were not seen one by one there is no longest one."""
    unseen = read(records())
    seen = read(records(longest_position=2, longest_index=41, longest_ns=7 * MS))

    assert numpy.isnan(unseen.longest).all()
    assert {-1} == set(unseen.longest_index)
    assert {41} == set(seen.longest_index)
    numpy.testing.assert_allclose(seen.longest, 0.007)


def test_nonsense_is_no_crash():
    """Whatever stands there, there are columns of one length."""
    draw = numpy.random.default_rng(7)
    for _ in range(50):
        made = numpy.frombuffer(
            draw.bytes(64 * LAYOUT.dtype("log_record").itemsize), LAYOUT.dtype("log_record")
        ).copy()
        made["epoch"] = 1
        found = read(made)
        assert len(found) == len(found.step) == len(found.longest)
