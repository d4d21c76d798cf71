"""Execute a plan: builders, stages, workers, the loader, and resuming."""
