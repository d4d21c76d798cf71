"""Bytes of files wherever they lie: whole files, ranges, commands, copies; and lists of shards."""
