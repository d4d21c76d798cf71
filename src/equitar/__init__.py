"""equitar: source-homogeneous batches and repeat factors for WebDataset tar shards.

Build batches with `debiased`, `mixed` or `exact` from a list of `Source`, and load them with `Loader`. Everything that is
emitted is decided before a tar is opened, from sidecars that ``equitar index`` writes; `equitar.plan` is where to start reading.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equitar.benchmarking.bench import bench
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
    from equitar.indexing.estimate import dry_run
    from equitar.indexing.index import check, index, summarize
    from equitar.loading.batches import Batches
    from equitar.loading.builders import debiased, exact, mixed
    from equitar.loading.collate import with_partners
    from equitar.loading.loader import Loader
    from equitar.loading.stages import batched_by_source, check_order, read, repeats, shuffled, slices
    from equitar.planning.repeat_factors import RepeatFactor
    from equitar.planning.weights import BySamples, Passes, Temperature, ZeroVL
    from equitar.reporting.page import report
    from equitar.reporting.parquet import export
    from equitar.reporting.preview import emissions, preview
    from equitar.reporting.stats import stats
    from equitar.samplers.distributed import DistributedSamplerWrapper
    from equitar.samplers.label_files import labels_from_file, labels_from_sidecars
    from equitar.samplers.label_rows import LabelPresence, LabelRows
    from equitar.samplers.samplers import DebiasedBatchSampler, RepeatFactorSampler
    from equitar.sidecars.catalog import catalog_of
    from equitar.sidecars.selection import write_exclusions
    from equitar.sources import Cache, Retries, Source, split
    from equitar.tar.stream import tar_samples

# Loaded when first used: torch and webdataset take seconds, which `equitar index` has no use for.
_HOME = {
    "Batches": "loading.batches",
    "BySamples": "planning.weights",
    "Cache": "sources",
    "DebiasedBatchSampler": "samplers.samplers",
    "DistributedSamplerWrapper": "samplers.distributed",
    "LabelError": "errors",
    "LabelPresence": "samplers.label_rows",
    "LabelRows": "samplers.label_rows",
    "Loader": "loading.loader",
    "MissingShardError": "errors",
    "Passes": "planning.weights",
    "PlanError": "errors",
    "ReadOnlyError": "errors",
    "RepeatFactor": "planning.repeat_factors",
    "Retries": "sources",
    "RepeatFactorSampler": "samplers.samplers",
    "ShardError": "errors",
    "ShardMismatchError": "errors",
    "SidecarError": "errors",
    "Source": "sources",
    "SourceError": "errors",
    "StageError": "errors",
    "StaleSidecarError": "errors",
    "StorageError": "errors",
    "Temperature": "planning.weights",
    "WorkerError": "errors",
    "ZeroVL": "planning.weights",
    "batched_by_source": "loading.stages",
    "bench": "benchmarking.bench",
    "catalog_of": "sidecars.catalog",
    "check": "indexing.index",
    "check_order": "loading.stages",
    "debiased": "loading.builders",
    "dry_run": "indexing.estimate",
    "emissions": "reporting.preview",
    "exact": "loading.builders",
    "export": "reporting.parquet",
    "index": "indexing.index",
    "labels_from_file": "samplers.label_files",
    "labels_from_sidecars": "samplers.label_files",
    "mixed": "loading.builders",
    "preview": "reporting.preview",
    "read": "loading.stages",
    "repeats": "loading.stages",
    "report": "reporting.page",
    "shuffled": "loading.stages",
    "slices": "loading.stages",
    "split": "sources",
    "stats": "reporting.stats",
    "summarize": "indexing.index",
    "tar_samples": "tar.stream",
    "with_partners": "loading.collate",
    "write_exclusions": "sidecars.selection",
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
