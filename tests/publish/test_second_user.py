"""A process of another user finds nothing to read, to write or to take, and is not listened to."""

import os
import socket
from pathlib import Path

import pytest

import shmloader
from shmloader.publishing import meeting
from tests.helpers.programs import wait_until
from tests.publish.actors import NAME, epochs_of, loader_of, publishes, reads, reads_by_word

OTHER = 65534  # nobody, on most systems; it need not have a name

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


def as_another(part):
    """Let an actor play its part as the other user."""

    def plays(say, hear, **arguments):
        os.setgroups([])
        os.setgid(OTHER)
        os.setuid(OTHER)
        return part(say, hear, **arguments)

    return plays


def outcome(attempt):
    """Name the class of an attempt's error; "done" if there is none."""
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "done"


@pytest.fixture(autouse=True)
def for_all_users(meeting_folder):
    """Have a folder for temporary files as usual: every user may write there, in its own files."""
    os.chmod(meeting_folder, 0o1777)


@pytest.fixture
def folder(meeting_folder):
    return Path(meeting_folder) / f"shmloader-{os.geteuid()}"


def connected(path):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(20)
    connection.connect(os.fspath(path))
    return connection


@pytest.mark.thorough
def test_nothing_is_there_for_another_user(play, folder):
    """Neither the socket, nor the files of publisher, workers and subscribers; nor the name."""

    def intrudes(say, hear, pids):
        return [
            outcome(lambda: shmloader.subscribe(NAME, timeout=0.1)),
            outcome(lambda: connected(folder / NAME)),
            outcome(lambda: (folder / NAME).unlink()),
            outcome(lambda: folder.rename(folder.with_name("taken"))),
            *(outcome(lambda pid=pid: os.listdir(f"/proc/{pid}/fd")) for pid in pids),
            *(outcome(lambda pid=pid: open(f"/proc/{pid}/fd/0")) for pid in pids),
            *(outcome(lambda pid=pid: open(f"/proc/{pid}/mem", "r+b")) for pid in pids),
        ]

    publisher = play(publishes)
    reader = play(reads_by_word)
    (own,) = epochs_of(loader_of(), 1)
    assert own[0] == reader.ask()
    workers = Path(f"/proc/{publisher.pid}/task/{publisher.pid}/children").read_text().split()
    pids = [publisher.pid, reader.pid, *map(int, workers)]
    assert len(pids) >= 4

    said = play(as_another(intrudes), pids=pids).hear()
    assert ["TimeoutError", *["PermissionError"] * (len(said) - 1)] == said
    assert own[1:] == [reader.ask() for _ in own[1:]]
    reader.tell(None)
    assert ["left", "over"] == [reader.hear(), publisher.hear()]


@pytest.mark.thorough
def test_another_user_that_gets_through_is_not_listened_to(play, folder):
    """Even if somebody has opened the folder and the socket to all."""

    def knocks(say, hear):
        meeting.path_of = lambda name: folder / name
        with connected(folder / NAME) as connection:
            answer = connection.recv(4096)
        return outcome(lambda: shmloader.subscribe(NAME, timeout=20)), answer.decode()

    publisher = play(publishes)
    assert wait_until((folder / NAME).exists)
    folder.chmod(0o777)
    (folder / NAME).chmod(0o777)

    mine, answer = play(as_another(knocks)).hear()
    assert "PermissionError" == mine  # nor does it listen to a publisher of another user
    assert '{"refused": "process ' in answer and f"is of another user, {OTHER}" in answer
    folder.chmod(0o700)
    reader = play(reads)
    assert [epochs_of(loader_of(), 1), "over"] == [reader.hear(), publisher.hear()]


@pytest.mark.parametrize("as_link", [False, True])
def test_a_folder_that_another_user_has_made_first_is_not_used(play, folder, as_link):
    """Nor a link to a folder of this user's."""

    def squats(say, hear):
        if as_link:
            return outcome(lambda: folder.symlink_to("/root"))
        return outcome(lambda: folder.mkdir(0o700))

    assert "done" == play(as_another(squats)).hear()

    for use in (
        lambda: shmloader.publish(loader_of(), NAME, subscribers=1, timeout=1),
        lambda: shmloader.subscribe(NAME, timeout=0),
    ):
        with pytest.raises(PermissionError, match="does not belong to this user alone"):
            use()
