"""Samples out of indexed shards: open, slice, prefetch, and continue after damage."""
