"""The tests of shmloader; README.md is the map."""
