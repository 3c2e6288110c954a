"""`python -m shmloader`: the command line."""

from shmloader.cli import main

# Workers started by spawn import this file too; only the program itself may run the command.
if __name__ == "__main__":
    raise SystemExit(main())
