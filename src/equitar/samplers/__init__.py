"""The same plans for datasets with indices, as samplers."""
