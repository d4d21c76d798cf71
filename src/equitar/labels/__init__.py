"""Which labels a sample has: extractors for members of a tar, tables beside the shards."""
