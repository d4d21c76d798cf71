"""Look before training: statistics, previews, findings, the report, exports."""
