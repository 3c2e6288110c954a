"""The sources of csrc/ under relacy, a race detector for C++."""
