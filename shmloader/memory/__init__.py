"""The shared-memory object: make it, keep it, and know who may touch it."""
