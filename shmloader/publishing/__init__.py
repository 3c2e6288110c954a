"""One pipeline, several trainers: a publisher hands a loader's batches on, subscribers copy them."""

from shmloader.publishing.publication import publish as publish
from shmloader.publishing.subscription import subscribe as subscribe
