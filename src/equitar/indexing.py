"""What do shards hold? Each is walked once, in some process, and its sidecar is written when it is done.

A shard that fails stops no other. A run that is stopped goes on where it was, because a sidecar that is there and fits (the
size of its shard, and how labels are made) is not made again. When all shards of a source are done, so is its summary.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass
from functools import partial
from itertools import islice

from tqdm import tqdm

from equitar.cross_check import Known, differences, expecting
from equitar.errors import LabelError, ShardError, SidecarError, SourceError
from equitar.labels import Missing, labels_from_spec
from equitar.ledger import Ledger, SourceReport
from equitar.outside import LabelTable, Vocabulary, read_classes, read_labels
from equitar.redact import shown
from equitar.shard_index import Outcome, Recipe, Shard, check_shard, index_shard, rename_classes, spool, spooled
from equitar.sidecar import index_command
from equitar.sources import Source
from equitar.storage import expand, sidecar_url
from equitar.summary import load_summary

__all__ = ["IndexReport", "SourceReport", "check", "index"]

_LISTED = 20  # failures told in full
_IN_FLIGHT = 4  # shards waiting for each process: enough to keep it busy, few enough to hold
_SHARDS_A_JOB = 8  # fewer are read sooner than a process starts


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """What indexing did, a report for each source."""

    sources: tuple[SourceReport, ...]


def index(
    sources: Source | Iterable[Source],
    *,
    labels: str | None = None,
    labels_from: str | LabelTable | None = None,
    offsets_from: str | None = None,
    classes: str | Sequence[str] | Vocabulary | None = None,
    missing: Missing = "error",
    jobs: int | None = None,
    progress: bool = True,
    force: bool = False,
    regroup: bool = False,
) -> IndexReport:
    """Write the sidecars of all shards and the summary of each source, and return what was done.

    Names without `classes` get ids in their sorted order; names that come later are appended, so that ids stay.
    Without `labels` and `labels_from`, sidecars keep the labels they have, unless `force`.

    Args:
        sources: What to index.
        labels: Where labels are in the shards: ``cls``, ``json:PATH``, ``npy`` or ``package.module:function``.
        labels_from: ``FILE`` or ``FILE:COLUMN`` of labels by key, see `equitar.outside`, or a table from `read_labels`.
        offsets_from: Indexes of another tool (DALI, Energon), see `equitar.foreign`. Headers of remote shards are then fetched
            where these say, side by side; each is verified all the same.
        classes: The vocabulary: names in the order of their ids, a file for `read_classes`, or a `Vocabulary`.
        missing: Whether a sample without its label is an error or has no labels.
        jobs: Processes; 1 reads in this one (default: the cores, if there are shards enough). They are spawned, so a
            script calls this under ``if __name__ == "__main__"``.
        progress: Whether a terminal shows a bar.
        force: Whether to read shards again whose sidecars are up to date.
        regroup: Whether members of one sample may lie apart in a shard; they are joined where its first one is. Else they are
            an error, since most often they come from a mistake, and other readers take them for several samples.

    Raises:
        ShardError: If shards failed; it lists them. All others have their sidecars.
    """
    ledgers = _ledgers(sources)
    if offsets_from is not None:
        for ledger in ledgers:
            ledger.shards = expecting(offsets_from, ledger.shards)
    recipe = _recipe(labels, labels_from, classes, missing=missing, force=force, regroup=regroup)
    with tempfile.TemporaryDirectory(prefix="equitar-") as folder:
        task = partial(index_shard, recipe_path=spool(recipe, folder))
        _run(task, [(ledger, shard) for ledger in ledgers for shard in ledger.shards], jobs=jobs, progress=progress)
        spooled.cache_clear()  # of this process, if it read shards itself
    for ledger in ledgers:
        if recipe.extract is not None and recipe.vocabulary is None and not ledger.failures:
            _unify_names(ledger, jobs=jobs)
        if not ledger.failures:
            ledger.close(recipe.table)
    failures = [failure for ledger in ledgers for failure in ledger.failures]
    if failures:
        raise _failed(failures, sum(len(ledger.shards) for ledger in ledgers)) from failures[0][1]
    return IndexReport(sources=tuple(ledger.report() for ledger in ledgers))


def check(
    sources: Source | Iterable[Source],
    *,
    jobs: int | None = None,
    progress: bool = True,
    against: Sequence[str] = (),
) -> list[str]:
    """Return what is wrong with sidecars and summaries, a sentence each.

    Shards are walked again, and labels that are in them are read again.

    Args:
        sources: What to check.
        jobs: Processes, as for `index`.
        progress: Whether a terminal shows a bar.
        against: Files of other tools that say the same of these shards, see `equitar.foreign`: what they say otherwise is told too.
    """
    ledgers = _ledgers(sources)
    shards = [(ledger, shard) for ledger in ledgers for shard in ledger.shards]
    _run(check_shard, shards, jobs=jobs, progress=progress)
    problems = [_told(failure) for ledger in ledgers for failure in ledger.failures]
    for ledger in ledgers:
        if ledger.failures:
            continue
        try:
            summary = load_summary(ledger.source)
        except SidecarError as error:
            problems.append(str(error))
            continue
        if {path: row.digests[0] for path, row in ledger.rows.items()} != dict(
            zip(summary.paths, summary.digests, strict=True)
        ):
            mend = index_command(ledger.source)
            problems.append(f"the summary of source {ledger.source.name!r} is of other sidecars than there are; {mend}")
    known = [Known(shard, ledger.rows.get(shard.path)) for ledger, shard in shards]
    return problems + [problem for pattern in against for problem in differences(pattern, known)]


def _ledgers(sources: Source | Iterable[Source]) -> list[Ledger]:
    """Return the sources with their shards; two shards must not have one sidecar."""
    ledgers = []
    owner: dict[str, str] = {}
    for source in [sources] if isinstance(sources, Source) else sources:
        listed = expand(source)
        shards = [
            Shard(
                path=path,
                url=url,
                sidecar=sidecar_url(listed, path, source.sidecars),
                options=source.storage_options,
                mend=index_command(source),
                retries=source.retries,
            )
            for path, url in zip(listed.paths, listed.urls, strict=True)
        ]
        for shard in shards:
            first = owner.setdefault(shard.sidecar, shard.url)
            if first != shard.url:
                mend = "give each source a folder of its own as `sidecars`"
                raise SourceError(
                    f"{shown(first)} and {shard.where} would share the sidecar {shown(shard.sidecar)}; {mend}"
                )
        ledgers.append(Ledger(source=source, shards=shards))
    twice = [name for name, times in Counter(ledger.source.name for ledger in ledgers).items() if times > 1]
    if twice:
        raise SourceError(
            f"source {twice[0]!r} is given twice but a name stands for one source; list all its urls in one"
        )
    return ledgers


def _recipe(
    labels: str | None,
    labels_from: str | LabelTable | None,
    classes: str | Sequence[str] | Vocabulary | None,
    *,
    missing: Missing,
    force: bool,
    regroup: bool,
) -> Recipe:
    if labels is not None and labels_from is not None:
        raise ValueError(f"`labels` or `labels_from` must be given; got both, {labels!r} and {labels_from!r:.80}")
    if classes is not None and isinstance(labels_from, LabelTable):
        raise ValueError(f"`classes` must be given to `read_labels`; got {classes!r:.80} with a table read before")
    vocabulary = read_classes(classes) if isinstance(classes, str) else classes
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        vocabulary = Vocabulary(ids=tuple(range(len(vocabulary))), names=tuple(vocabulary))
    table = read_labels(labels_from, classes=vocabulary) if isinstance(labels_from, str) else labels_from
    extract = labels_from_spec(labels, missing=missing) if labels is not None else None
    lines = [labels] if labels is not None else []
    if table is not None:
        lines = [table.path.rpartition("/")[2], f"from={table.digest}"]
    if lines:
        lines += ["missing=empty"] if missing == "empty" else []
        lines += [f"classes={vocabulary.digest}"] if vocabulary else []
    return Recipe(
        spec="\n".join(lines),
        extract=extract,
        table=table,
        vocabulary=vocabulary,
        missing=missing,
        force=force,
        regroup=regroup,
    )


def _run(
    task: Callable[[Shard], Outcome], shards: Sequence[tuple[Ledger, Shard]], *, jobs: int | None, progress: bool
) -> None:
    """Let processes do a task for all shards, and put what comes of it into their ledgers."""
    if not shards:
        return
    num_jobs = min(jobs or _num_cores(), len(shards) if jobs else math.ceil(len(shards) / _SHARDS_A_JOB))
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads (torch's, say) can hang
    pool: Executor = ThreadPoolExecutor(1) if num_jobs == 1 else ProcessPoolExecutor(num_jobs, mp_context=spawn)
    with pool, tqdm(total=len(shards), unit="shard", disable=None if progress else True) as bar:
        num_bytes = 0
        for (ledger, shard), future in _futures(pool, task, shards, limit=num_jobs * _IN_FLIGHT):
            error = future.exception()
            if isinstance(error, BrokenExecutor):
                raise error
            if error is not None:
                ledger.fail(shard.where, error)
            else:
                ledger.take(shard, future.result())
                num_bytes += int(future.result().row.shard_sizes[0])
            bar.set_postfix_str(f"{num_bytes / 1e6 / max(bar.format_dict['elapsed'], 1e-3):.0f} MB/s", refresh=False)
            bar.update()


def _futures(
    pool: Executor, task: Callable[[Shard], Outcome], shards: Sequence[tuple[Ledger, Shard]], *, limit: int
) -> Iterator[tuple[tuple[Ledger, Shard], Future[Outcome]]]:
    """Yield futures as they are done; never more than `limit` are under way, so that 100,000 shards take no memory."""
    coming = iter(shards)
    pending: dict[Future[Outcome], tuple[Ledger, Shard]] = {}
    try:
        while True:
            pending |= {
                pool.submit(task, shard): (ledger, shard) for ledger, shard in islice(coming, limit - len(pending))
            }
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _unify_names(ledger: Ledger, *, jobs: int | None) -> None:
    """Give all sidecars of a source the same class names; each shard was read without knowing the names of others."""
    try:
        common = ledger.common_names()
    except LabelError as error:
        ledger.fail(f"source {ledger.source.name!r}", error)
        return
    if common is not None:
        others = [(ledger, shard) for shard in ledger.shards if ledger.rows[shard.path].class_names != common]
        _run(partial(rename_classes, class_names=common), others, jobs=jobs, progress=False)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _failed(failures: Sequence[tuple[str, BaseException]], num_shards: int) -> ShardError:
    told = [_told(failure) for failure in failures[:_LISTED]]
    if len(failures) > _LISTED:
        told.append(f"and {len(failures) - _LISTED} more")
    break_ = " " if len(told) == 1 else "\n  "
    return ShardError(break_.join([f"{len(failures)} error{'s' * (len(failures) > 1)} in {num_shards} shards:", *told]))


def _told(failure: tuple[str, BaseException]) -> str:
    where, error = failure
    text = str(error) if isinstance(error, ValueError | OSError) else repr(error)
    return text if where in text else f"{where}: {text}"
