# Forked children of this process, and which copy of a process this is.
#
# What a fork's hooks do is done in C: no bytecode runs in them, so no signal's handler and no other
# thread can come between a fork and its marks.


def generation():
    """Return this process's number: none of the processes that it was forked from has the same."""
    return generation_now()


def before_fork():
    """Mark the slots that the child will be able to read; called before every fork."""
    children_before_fork()


def after_fork():
    """Note that a fork is over; called in the parent."""
    children_after_fork()


def in_forked_child():
    """Forget what the parent watched; called in the child."""
    children_in_child()


def look_for_children():
    """Free the slots whose children are gone, and forget these children."""
    children_look_now()
