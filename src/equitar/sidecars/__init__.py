"""What is known of shards without opening them: sidecars, summaries, and the catalog that plans are made from."""
