"""Measure a pipeline beside plain webdataset, part by part."""
