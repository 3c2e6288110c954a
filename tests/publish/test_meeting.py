"""Publishers and subscribers find each other, and nobody else finds them."""

import os
import stat
from math import nan
from pathlib import Path

import pytest

import shmloader
from shmloader.publishing.meeting import Meeting, connect
from tests.publish.actors import NAME, epochs_of, loader_of, publishes, reads, reads_by_word

BOTH = "subscribes publishes_now"
COUNTS = ("subscribers", "epochs")


def socket_in(folder):
    return Path(folder) / f"shmloader-{os.geteuid()}" / NAME


def test_a_subscriber_waits_for_its_publisher_so_long(meeting_folder):
    """The error says what it waited for, and where."""
    with pytest.raises(TimeoutError) as caught:
        shmloader.subscribe(NAME, timeout=0.1)

    assert f"no publisher has come with the name {NAME!r} within 0.1 s" in str(caught.value)
    assert str(socket_in(meeting_folder)) in str(caught.value)


@pytest.mark.thorough
def test_one_more_than_announced_is_refused(play):
    """The others go on."""
    publisher = play(publishes, subscribers=1)
    reader = play(reads_by_word)
    reader.ask()
    late = play(reads)

    kind, text = late.hear()
    assert ("RuntimeError", True) == (kind, f"subscribers: processes {reader.pid}" in text)
    reader.tell(None)
    assert ["left", "over"] == [reader.hear(), publisher.hear()]


@pytest.mark.thorough
def test_one_that_reads_nothing_may_leave(play):
    """It closes before it has heard the answer, lives on, and the others do not wait for it."""

    def leaves(say, hear):
        batches = shmloader.subscribe(NAME)
        say("here")
        hear()
        batches.close()
        say("left")
        hear()

    publisher = play(publishes, subscribers=2, options={"slots": 4})
    other, reader = play(leaves), play(reads_by_word)
    assert other.hear() == "here"
    own = epochs_of(loader_of(), 1)
    assert own[0][0] == reader.ask()
    other.tell("leave")

    assert other.hear() == "left"
    assert own[0][1:] == [reader.ask() for _ in own[0][1:]]
    reader.tell(None)
    assert ["left", "over"] == [reader.hear(), publisher.hear()]


def test_subscribers_that_do_not_come_are_an_error():
    """With a timeout the publisher says how many came."""
    with pytest.raises(TimeoutError, match="0 of 2 subscribers of 'batches' have come"):
        shmloader.publish(loader_of(), NAME, subscribers=2, timeout=0.1)


def test_who_has_just_connected_hears_of_the_end(meeting_folder):
    """A forked child of the publisher, such as a worker, has its socket too."""
    meeting, (end, ends) = Meeting(NAME), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        os.read(end, 1)
        os._exit(0)
    peer = connect(NAME, 1.0)
    meeting.close()
    meeting.close()  # as behind an interrupt

    assert (({}, []), True) == (peer.receive(10.0), peer.has_ended)
    with pytest.raises(TimeoutError):
        connect(NAME, 0.1)
    os.close(ends)
    os.close(end)
    os.waitpid(child, 0)


@pytest.mark.thorough
def test_a_name_has_one_publisher(play):
    """A second one is told who has it."""
    publisher = play(publishes)
    reader = play(reads_by_word)
    reader.ask()

    with pytest.raises(FileExistsError, match=f"process {publisher.pid} publishes as {NAME!r}"):
        shmloader.publish(loader_of(), NAME, subscribers=1)
    reader.tell(None)
    assert publisher.hear() == "over"


@pytest.mark.thorough
def test_a_dead_publisher_s_name_is_taken_over(play, meeting_folder):
    """Its socket is left behind, and the next publisher takes it."""
    play(publishes).end()
    reader = play(reads)
    again = play(publishes)

    assert [epochs_of(loader_of(), 1), "over"] == [reader.hear(), again.hear()]
    assert not socket_in(meeting_folder).exists()


def test_other_users_are_kept_out(meeting_folder):
    """The folder is this user's alone, and one that is not is refused."""
    with shmloader.publish(loader_of(), NAME, subscribers=1, consume=True):
        folder = socket_in(meeting_folder).parent
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(0o755)

    with pytest.raises(PermissionError, match="does not belong to this user alone"):
        shmloader.subscribe(NAME, timeout=0)


def subscribes(**given):
    return shmloader.subscribe(**{"name": NAME, "timeout": 0.0, **given})


def publishes_now(**given):
    return shmloader.publish(**{"loader": loader_of(), "name": NAME, "subscribers": 1, **given})


@pytest.mark.parametrize(
    ("functions", "given", "kind", "text"),
    [
        (BOTH, {"name": 5}, TypeError, "name should be a str, such as 'trials', but got 5"),
        *(
            (BOTH, {"name": name}, ValueError, "is not a name of a")
            for name in ("", "a/b", ".hidden")
        ),
        (BOTH, {"name": "x" * 200}, ValueError, "is too long for a socket"),
        (BOTH, {"timeout": "9"}, TypeError, "timeout should be a number of seconds, or .* got '9'"),
        *((BOTH, {"timeout": s}, ValueError, "timeout should be at least 0") for s in (-1, nan)),
        ("subscribes", {"timeout": None}, TypeError, "or math.inf to wait forever, but got None"),
        ("subscribes", {"device": 5}, TypeError, "device should be a str"),
        ("publishes_now", {"loader": 5}, TypeError, r"publish\(\) takes a DataLoader, but got int"),
        ("publishes_now", {"loader": loader_of(num_workers=0)}, ValueError, "set num_workers to"),
        ("publishes_now", {"consume": 1}, TypeError, "consume should be a bool, but got 1"),
        *(
            ("publishes_now", {each: 0}, ValueError, f"{each} should be at least 1")
            for each in COUNTS
        ),
        *(
            (
                "publishes_now",
                {each: number},
                TypeError,
                f"{each} should be an int, but got {number}",
            )
            for each in COUNTS
            for number in (1.5, True)
        ),
    ],
)
def test_arguments_are_checked(functions, given, kind, text):
    """What cannot work is an error at once, which names the argument and what it takes."""
    for function in functions.split():
        with pytest.raises(kind, match=text):
            globals()[function](**given)
