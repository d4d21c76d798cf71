"""`index`, `summarize` and `check`: write sidecars and summaries, and compare them with the shards.

Each shard is walked once, in some process, and its sidecar is written when that is done. A shard that fails does not stop the
others. A run that was stopped can be repeated: a sidecar that is up to date (the size of its shard, and how labels are made) is
not made again. When all shards of a source are done, its summary is written; where runs index one part each, `summarize` does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from tqdm import tqdm

from equitar.errors import LabelError, MissingShardError, ReadOnlyError, ShardError, SidecarError
from equitar.indexing.executors import outcomes
from equitar.indexing.foreign_index import Known, differences, expecting
from equitar.indexing.label_job import LabelJob, SpooledJob, label_job_of, read_spooled, spool
from equitar.indexing.shard_task import (
    NoSuchLabelError,
    Shard,
    ShardResult,
    check_shard,
    index_shard,
    rename_classes,
    sidecar_row,
)
from equitar.indexing.source_job import (
    SourceJob,
    SourceReport,
    check_policy,
    jobs_of_sources,
    keep_part,
    shared_options,
)
from equitar.labels.extractors import Missing
from equitar.labels.tables import LabelTable, Vocabulary
from equitar.sidecars.summary import load_summary
from equitar.sources import Source
from equitar.storage.files import remove
from equitar.text import counted, megabytes
from equitar.urls import local_path, place_of

if TYPE_CHECKING:
    from distributed import Client

MissingShards: TypeAlias = Literal["error", "skip"]
_LISTED = 20  # failures shown in full


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """What indexing did, with a report for each source."""

    sources: tuple[SourceReport, ...]


def index(
    sources: Source | Iterable[Source],
    *,
    labels: str | Literal[False] | None = None,
    labels_from: str | LabelTable | None = None,
    offsets_from: str | None = None,
    classes: str | Sequence[str] | Vocabulary | None = None,
    missing: Missing = "error",
    crowd: bool = True,
    missing_shards: MissingShards = "error",
    jobs: int | None = None,
    executor: Executor | Client | None = None,
    part: tuple[int, int] | None = None,
    progress: bool = True,
    force: bool = False,
    regroup: bool = False,
) -> IndexReport:
    """Write the sidecars of all shards and the summary of each source, and return what was done.

    Without `labels` and `labels_from`, labels stay as they are: shards that changed or joined are labelled as the source was
    before. Names without `classes` get ids in their sorted order; names that come later are appended, so ids never change.

    Args:
        sources: What to index. Remote files given below are read with the `storage_options` of the sources.
        labels: Where labels are in the shards: ``cls``, ``json:PATH``, ``npy`` or ``package.module:function``. False drops the
            labels of a source that has some.
        labels_from: ``FILE`` or ``FILE:COLUMN`` of labels by key, see `equitar.labels.tables`, or a table from `read_labels`.
        offsets_from: Index files of DALI or Energon. Headers of remote shards are then fetched concurrently from these offsets;
            each is verified all the same.
        classes: The vocabulary: names in the order of their ids, a file for `read_classes`, or a `Vocabulary`.
        missing: Whether a sample without its label is an error or has no labels.
        crowd: Whether the crowd annotations in a `labels_from` of COCO count as labels.
        missing_shards: Whether a listed shard that does not exist is an error, or is left out and reported. Training then
            leaves it out too.
        jobs: Processes; 1 reads in this one (default: the cores, if there are enough shards). They do not import the caller's
            ``__main__``, so a plain script, a notebook or ``python -`` may call this. With `executor`: how many shards it
            reads at once.
        executor: Reads the shards instead of processes here: any executor of `concurrent.futures`, or a client of dask
            (``distributed.Client``). It must reach shards and sidecars by the same paths. It is not shut down.
        part: (i, n): read only the i-th of n parts of the shards, 0 <= i < n, and write no summary. Runs of the parts are
            independent of each other; `summarize` finishes their work.
        progress: Whether a terminal shows a bar.
        force: Whether to read shards again whose sidecars are up to date.
        regroup: Whether members of one sample may lie apart in a shard; they are joined where the first one is. Otherwise they
            are an error: most often they come from a mistake, and other readers see several samples.

    Raises:
        ShardError: If shards failed; it lists them. All others have their sidecars.
        LabelError: If the first shards have no label where labels are read from; other shards are not read.
        ReadOnlyError: If sidecars cannot be written to their folder.
        WorkerError: If the executor is broken, or processes are killed again and again. Finished sidecars stay.
    """
    check_policy(missing_shards)
    source_jobs = jobs_of_sources(sources)
    if part is not None:
        keep_part(source_jobs, *part)
    if offsets_from is not None:
        for source_job in source_jobs:
            shards = expecting(offsets_from, source_job.shards, options=source_job.source.storage_options)
            source_job.shards = shards
    options = shared_options(source_jobs, [file for file in (labels_from, classes) if isinstance(file, str)])
    label_job = label_job_of(
        labels,
        labels_from,
        classes,
        options=options,
        missing=missing,
        crowd=crowd,
        force=force,
        regroup=regroup,
    )
    if label_job.keeps:
        known = {job.source.name: before for job in source_jobs if (before := job.known_labels()) is not None}
        label_job = replace(label_job, known=known)
    if label_job.spec.labels.startswith("__main__:") and executor is None:
        jobs = 1  # other processes cannot import a function of the script itself
    with _spooled(label_job, source_jobs, executor) as spooled:
        _run(partial(index_shard, job=spooled), source_jobs, jobs=jobs, executor=executor, progress=progress)
    return _finish(source_jobs, missing_shards, jobs, executor, table=label_job.table, is_part=part is not None)


def summarize(
    sources: Source | Iterable[Source],
    *,
    missing_shards: MissingShards = "error",
    jobs: int | None = None,
    executor: Executor | Client | None = None,
    progress: bool = True,
) -> IndexReport:
    """Write the summary of each source from the existing sidecars, and return what is in it; no tar is read.

    It finishes the work of `index` with `part`: class names get the same ids in all shards.

    Args:
        sources: What was indexed.
        missing_shards: See `index`; a shard counts as missing if its sidecar is missing as well.
        jobs: See `index`.
        executor: See `index`.
        progress: See `index`.

    Raises:
        ShardError: If sidecars are missing or damaged; it lists them, with the command that makes them.
    """
    check_policy(missing_shards)
    source_jobs = jobs_of_sources(sources)
    _run(sidecar_row, source_jobs, jobs=jobs, executor=executor, progress=progress)
    return _finish(source_jobs, missing_shards, jobs, executor, table=None, is_part=False)


def check(
    sources: Source | Iterable[Source],
    *,
    jobs: int | None = None,
    progress: bool = True,
    against: str | Sequence[str] = (),
) -> list[str]:
    """Return the problems of sidecars and summaries, and the differences from `against`, a sentence each.

    Shards are walked again, and the labels in them are read again.

    Args:
        sources: What to check.
        jobs: Processes, as for `index`.
        progress: Whether a terminal shows a bar.
        against: Files of other tools about these shards, see `equitar.indexing.foreign_index`; remote ones are read as the sources
            are.
    """
    return compare(sources, jobs=jobs, progress=progress, against=against)[1]


def compare(
    sources: Source | Iterable[Source], *, jobs: int | None, progress: bool, against: str | Sequence[str]
) -> tuple[int, list[str]]:
    """Return the number of shards that were compared, and the problems; see `check`."""
    source_jobs, others = jobs_of_sources(sources), [against] if isinstance(against, str) else against
    options = shared_options(source_jobs, others)
    for job in source_jobs:
        skipped = set(job.before.skipped) if job.before else set()
        job.shards = [shard for shard in job.shards if shard.path not in skipped]
    _run(check_shard, source_jobs, jobs=jobs, executor=None, progress=progress)
    problems = []
    for job in source_jobs:
        job.refuse_missing()
        problems += [_failure_text(failure) for failure in job.failures]
        if job.failures:
            continue
        try:
            summary = load_summary(job.source)
        except SidecarError as error:
            problems.append(str(error))
            continue
        if {path: row.digests[0] for path, row in job.rows.items()} != dict(
            zip(summary.paths, summary.digests, strict=True)
        ):
            problems.append(
                f"the summary of source {job.source.name!r} was made from other sidecars; {job.source.index_command()}"
            )
    known = [Known(shard, job.rows.get(shard.path)) for job in source_jobs for shard in job.shards]
    for pattern in others:
        problems += differences(pattern, known, options=options, progress=progress)
    return len(known), problems


@contextmanager
def _spooled(
    label_job: LabelJob, source_jobs: Sequence[SourceJob], executor: Executor | Client | None
) -> Iterator[SpooledJob]:
    """Write a label job where all readers of shards find it, and remove it at the end."""
    if executor is None:
        with tempfile.TemporaryDirectory(prefix="equitar-") as folder:
            yield spool(label_job, folder, None)
            read_spooled.cache_clear()  # of this process, if it read shards itself
        return
    spooled = spool(label_job, _absolute(source_jobs[0].listed.sidecars), source_jobs[0].source.storage_options)
    try:
        yield spooled
    finally:
        remove(spooled.url, spooled.options)


def _run(
    task: Callable[[Shard], ShardResult],
    source_jobs: Sequence[SourceJob],
    *,
    jobs: int | None,
    executor: Executor | Client | None,
    progress: bool,
    shards: Sequence[Shard] | None = None,
) -> None:
    """Run a task for all shards (or for some), and hand the results to the jobs of their sources."""
    job_of = {job.source.name: job for job in source_jobs}
    if shards is None:
        shards = [shard for job in source_jobs for shard in job.shards]
    if executor is not None:  # its working folder may be different
        shards = [replace(shard, url=_absolute(shard.url), sidecar=_absolute(shard.sidecar)) for shard in shards]
    num_bytes = 0
    with (
        tqdm(total=len(shards), unit="shard", disable=None if progress else True) as bar,
        closing(
            outcomes(task, shards, jobs=jobs, executor=executor)
        ) as results,  # ends processes after an error at once
    ):
        for shard, result in results:
            job = job_of[shard.source]
            if isinstance(result, ShardResult):
                job.take(shard, result)
                num_bytes += int(result.row.shard_sizes[0])
            elif isinstance(result, ReadOnlyError) or (isinstance(result, NoSuchLabelError) and not job.has_labels):
                raise result  # the same holds for all other shards: reading them is useless
            elif isinstance(result, MissingShardError):
                job.missing.append(shard.path)
            else:
                job.fail(shard.where, result)
            bar.set_postfix_str(f"{megabytes(num_bytes / max(bar.format_dict['elapsed'], 1e-3))} MB/s", refresh=False)
            bar.update()


def _finish(
    source_jobs: Sequence[SourceJob],
    missing_shards: MissingShards,
    jobs: int | None,
    executor: Executor | Client | None,
    *,
    table: LabelTable | None,
    is_part: bool,
) -> IndexReport:
    """Write the summaries of sources whose shards are all done, and return the report."""
    num_shards = sum(len(job.shards) for job in source_jobs)
    for job in source_jobs:
        if missing_shards == "skip":
            job.leave_out_missing()
        else:
            job.refuse_missing()
        job.note(table, is_part=is_part)
        if not is_part and not job.failures and job.has_open_names:
            _unify_names(job, jobs, executor)
        if not is_part and not job.failures:
            job.close()
    failures = [failure for job in source_jobs for failure in job.failures]
    if failures:
        raise _failed(source_jobs, num_shards) from failures[0][1]
    return IndexReport(sources=tuple(job.report() for job in source_jobs))


def _unify_names(job: SourceJob, jobs: int | None, executor: Executor | Client | None) -> None:
    """Give all sidecars of a source the same class names; each shard was read without knowing those of others."""
    try:
        common = job.common_names()
    except LabelError as error:
        job.fail(f"source {job.source.name!r}", error)
        return
    if common is not None:
        others = [shard for shard in job.shards if job.rows[shard.path].class_names != common]
        rename = partial(rename_classes, class_names=common)
        _run(rename, [job], jobs=jobs, executor=executor, progress=False, shards=others)


def _absolute(url: str) -> str:
    return url if local_path(url) is None else place_of(url)


def _failed(source_jobs: Sequence[SourceJob], num_shards: int) -> ShardError:
    """Return the error that lists failures; the command that fixes those of a source is given once."""
    texts: list[str] = []
    fixes: list[str] = []
    for job in source_jobs:
        advice = f"; {job.source.index_command()}"
        for failure in job.failures:
            text = _failure_text(failure)
            texts.append(text.removesuffix(advice))
            if text.endswith(advice) and job.fix not in fixes:
                fixes.append(job.fix)
    shards = counted(num_shards, "shard")
    if len(texts) == 1:
        return ShardError("; ".join([f"1 error in {shards}: {texts[0]}", *fixes]))
    more = [f"and {len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return ShardError("\n  ".join([f"{len(texts)} errors in {shards}:", *texts[:_LISTED], *more, *fixes]))


def _failure_text(failure: tuple[str, BaseException]) -> str:
    where, error = failure
    text = str(error) if isinstance(error, ValueError | OSError | RuntimeError) else repr(error)
    return text if where in text else f"{where}: {text}"
