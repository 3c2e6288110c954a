"""The kinds of run: by the client of a case, what the trainer's program is."""

from __future__ import annotations

from typing import Any

from tests.simulation.case import Case
from tests.simulation.pool_user import PoolUser
from tests.simulation.publish_user import PublishUser
from tests.simulation.seats_user import SeatsUser
from tests.simulation.user import User

_USERS: dict[str, Any] = {
    "squares": User,
    "seats": SeatsUser,
    "pool": PoolUser,
    "publisher": PublishUser,
}


def of(case: Case) -> Any:
    """Return the class of a case's user: made with case, door, waits and lines, it has `play`."""
    return _USERS[case.client]
