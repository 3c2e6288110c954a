"""Pinned batches: slots that devices read where they lie, and deliveries into host memory."""
