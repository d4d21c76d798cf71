"""equitar: source-homogeneous batches and repeat factors for WebDataset tar shards.

Build batches with `debiased`, `mixed` or `exact` from a list of `Source`, and load them with `Loader`. Everything that is
emitted is decided before a tar is opened, from sidecars that ``equitar index`` writes; `equitar.plan` is where to start reading.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equitar.benching import bench
    from equitar.build import debiased, exact, mixed
    from equitar.catalog import catalog_of
    from equitar.class_stats import stats
    from equitar.damage import write_exclusions
    from equitar.errors import (
        LabelError,
        MissingShardError,
        PlanError,
        ReadOnlyError,
        ShardError,
        ShardMismatchError,
        SidecarError,
        SourceError,
        StageError,
        StaleSidecarError,
        StorageError,
        WorkerError,
    )
    from equitar.estimates import dry_run
    from equitar.in_turn import check_order
    from equitar.indexing import check, index, summarize
    from equitar.label_files import labels_from_file, labels_from_sidecars
    from equitar.label_presence import LabelPresence, LabelRows
    from equitar.loader import Loader
    from equitar.parquet_export import export
    from equitar.partners import with_partners
    from equitar.pipeline import Batches
    from equitar.plan_preview import emissions, preview
    from equitar.probing import caption_probe, source_probe
    from equitar.repeat import RepeatFactor
    from equitar.report_page import report
    from equitar.samplers import DebiasedBatchSampler, RepeatFactorSampler
    from equitar.sources import Cache, Retries, Source, split
    from equitar.stages import batched_by_source, read, repeats, shuffled, slices
    from equitar.streamed import tar_samples
    from equitar.weights import BySamples, Passes, Temperature, ZeroVL
    from equitar.wrapper import DistributedSamplerWrapper

# Loaded when first used: torch and webdataset take seconds, which `equitar index` has no use for.
_HOME = {
    "Batches": "pipeline",
    "BySamples": "weights",
    "Cache": "sources",
    "DebiasedBatchSampler": "samplers",
    "DistributedSamplerWrapper": "wrapper",
    "LabelError": "errors",
    "LabelPresence": "label_presence",
    "LabelRows": "label_presence",
    "Loader": "loader",
    "MissingShardError": "errors",
    "Passes": "weights",
    "PlanError": "errors",
    "ReadOnlyError": "errors",
    "RepeatFactor": "repeat",
    "Retries": "sources",
    "RepeatFactorSampler": "samplers",
    "ShardError": "errors",
    "ShardMismatchError": "errors",
    "SidecarError": "errors",
    "Source": "sources",
    "SourceError": "errors",
    "StageError": "errors",
    "StaleSidecarError": "errors",
    "StorageError": "errors",
    "Temperature": "weights",
    "WorkerError": "errors",
    "ZeroVL": "weights",
    "batched_by_source": "stages",
    "bench": "benching",
    "caption_probe": "probing",
    "catalog_of": "catalog",
    "check": "indexing",
    "check_order": "in_turn",
    "debiased": "build",
    "dry_run": "estimates",
    "emissions": "plan_preview",
    "exact": "build",
    "export": "parquet_export",
    "index": "indexing",
    "labels_from_file": "label_files",
    "labels_from_sidecars": "label_files",
    "mixed": "build",
    "preview": "plan_preview",
    "read": "stages",
    "repeats": "stages",
    "report": "report_page",
    "shuffled": "stages",
    "slices": "stages",
    "source_probe": "probing",
    "split": "sources",
    "stats": "class_stats",
    "summarize": "indexing",
    "tar_samples": "streamed",
    "with_partners": "partners",
    "write_exclusions": "damage",
}

__all__ = [
    "Batches",
    "BySamples",
    "Cache",
    "DebiasedBatchSampler",
    "DistributedSamplerWrapper",
    "LabelError",
    "LabelPresence",
    "LabelRows",
    "Loader",
    "MissingShardError",
    "Passes",
    "PlanError",
    "ReadOnlyError",
    "RepeatFactor",
    "RepeatFactorSampler",
    "Retries",
    "ShardError",
    "ShardMismatchError",
    "SidecarError",
    "Source",
    "SourceError",
    "StageError",
    "StaleSidecarError",
    "StorageError",
    "Temperature",
    "WorkerError",
    "ZeroVL",
    "batched_by_source",
    "bench",
    "caption_probe",
    "catalog_of",
    "check",
    "check_order",
    "debiased",
    "dry_run",
    "emissions",
    "exact",
    "export",
    "index",
    "labels_from_file",
    "labels_from_sidecars",
    "mixed",
    "preview",
    "read",
    "repeats",
    "report",
    "shuffled",
    "slices",
    "source_probe",
    "split",
    "stats",
    "summarize",
    "tar_samples",
    "with_partners",
    "write_exclusions",
]

try:
    __version__ = version("equitar")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'equitar' has no attribute {name!r}")
    return getattr(import_module(f"equitar.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
