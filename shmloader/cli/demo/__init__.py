"""`shmloader demo`: training on photographs, then large batches, torch's loader beside ours."""

from shmloader.cli.demo.command import SUMMARY, add_arguments, run

__all__ = ["SUMMARY", "add_arguments", "run"]
