"""
Looking at trainings that run, from outside: for `top` and `trace`.

Key invariant: only read. A segment is opened, read with pread and closed at each look; nothing is
mapped, because a mapping would keep the memory of a training that ended, and no byte beyond the log
is read. The trainings do not notice.
"""
