"""What serves loaders on this system: workers that fill slots, or torch's own loader."""

from typing import TYPE_CHECKING

from shmloader.setup import requirements

if TYPE_CHECKING or requirements.LACKING is None:
    from shmloader.trainer.service import Service as Service
else:
    from shmloader.trainer.without_core import Service as Service
