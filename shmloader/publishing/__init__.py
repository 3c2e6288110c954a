"""One pipeline, several trainers: a publisher lends a loader's batches, subscribers copy them."""

from shmloader.publishing.publication import publish as publish
from shmloader.publishing.subscription import subscribe as subscribe
