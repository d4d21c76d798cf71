"""Write and check sidecars: one task for each shard, in any number of processes."""
