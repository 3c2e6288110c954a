"""
Forks of the trainer, by any code: the slots that a child may read stay out of use while it lives.

csrc/children.c says how a child is known. Its functions are the hooks themselves, because an
interrupt in a hook that is written in Python would leave a fork without its marks.
"""

import os

from shmloader.core import after_fork, before_fork, in_forked_child, look_for_children


def install() -> None:
    """Have every fork from now on announced."""
    os.register_at_fork(
        before=before_fork, after_in_parent=after_fork, after_in_child=in_forked_child
    )


def poll() -> None:
    """Free the slots whose children are gone."""
    look_for_children()
