"""The shared-memory object: how it is made and kept, and what may touch it."""
