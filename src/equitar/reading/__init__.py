"""Samples out of indexed shards: open, slice, prefetch, and go on after damage."""
