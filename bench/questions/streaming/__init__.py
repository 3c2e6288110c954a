"""Samples behind a network: what helps is requests in flight, not batches ahead."""
