"""What do shards hold? Each is walked once, in some process, and its sidecar is written when it is done.

A shard that fails stops no other. A run that is stopped goes on where it was, because a sidecar that is there and fits (the
size of its shard, and how labels are made) is not made again. When all shards of a source are done, so is its summary; where
runs index a part each, `summarize` makes it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from tqdm import tqdm

from equitar.errors import LabelError, MissingShardError, ReadOnlyError, ShardError, SidecarError
from equitar.indexing.executors import outcomes
from equitar.indexing.foreign_index import Known, differences, expecting
from equitar.indexing.label_job import LabelJob, Spooled, recipe_of, spool, spooled
from equitar.indexing.shard_task import Shard, ShardResult, check_shard, index_shard, rename_classes, sidecar_row
from equitar.indexing.source_job import SourceJob, SourceReport, check_policy, keep_part, ledgers_of, shared_options
from equitar.labels.extractors import Missing
from equitar.labels.tables import LabelTable, Vocabulary
from equitar.sidecars.summary import load_summary
from equitar.sources import Source, index_command
from equitar.storage.files import remove
from equitar.urls import local_path, place_of

if TYPE_CHECKING:
    from distributed import Client

MissingShards: TypeAlias = Literal["error", "skip"]
_LISTED = 20  # failures told in full


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
    missing_shards: MissingShards = "error",
    jobs: int | None = None,
    executor: Executor | Client | None = None,
    part: tuple[int, int] | None = None,
    progress: bool = True,
    force: bool = False,
    regroup: bool = False,
) -> IndexReport:
    """Write the sidecars of all shards and the summary of each source, and return what was done.

    Names without `classes` get ids in their sorted order; names that come later are appended, so that ids stay.
    Without `labels` and `labels_from`, sidecars keep the labels they have, unless `force`.

    Args:
        sources: What to index. Remote files given below are read with the `storage_options` of the sources.
        labels: Where labels are in the shards: ``cls``, ``json:PATH``, ``npy`` or ``package.module:function``.
        labels_from: ``FILE`` or ``FILE:COLUMN`` of labels by key, see `equitar.outside`, or a table from `read_labels`.
        offsets_from: Indexes of another tool (DALI, Energon), see `equitar.foreign`. Headers of remote shards are then fetched
            where these say, side by side; each is verified all the same.
        classes: The vocabulary: names in the order of their ids, a file for `read_classes`, or a `Vocabulary`.
        missing: Whether a sample without its label is an error or has no labels.
        missing_shards: Whether a shard that is named and not there is an error, or is left out and reported. Training then
            leaves it out too.
        jobs: Processes; 1 reads in this one (default: the cores, if there are shards enough). They are spawned, so a
            script calls this under ``if __name__ == "__main__"``. With `executor`: how many shards it reads at once.
        executor: Reads the shards in place of processes here: any of `concurrent.futures`, or a client of dask
            (``distributed.Client``). It must reach shards and sidecars by the same paths. It is not shut down.
        part: (i, n): read only the i-th of n parts of the shards, 0 <= i < n, and write no summary. Runs of all parts
            need not know of each other; `summarize` finishes what they did.
        progress: Whether a terminal shows a bar.
        force: Whether to read shards again whose sidecars are up to date.
        regroup: Whether members of one sample may lie apart in a shard; they are joined where its first one is. Else they are
            an error, since most often they come from a mistake, and other readers take them for several samples.

    Raises:
        ShardError: If shards failed; it lists them. All others have their sidecars.
        ReadOnlyError: If sidecars cannot be written where they should be.
        WorkerError: If the executor is broken, or processes are killed again and again. What is done stays done.
    """
    check_policy(missing_shards)
    ledgers = ledgers_of(sources)
    if part is not None:
        keep_part(ledgers, *part)
    if offsets_from is not None:
        for ledger in ledgers:
            ledger.shards = expecting(offsets_from, ledger.shards, options=ledger.source.storage_options)
    options = shared_options(ledgers, [one for one in (labels_from, classes) if isinstance(one, str)])
    recipe = recipe_of(labels, labels_from, classes, options=options, missing=missing, force=force, regroup=regroup)
    with _travelling(recipe, ledgers, executor) as where:
        _run(partial(index_shard, recipe=where), ledgers, jobs=jobs, executor=executor, progress=progress)
    return _finish(ledgers, missing_shards, jobs, executor, table=recipe.table, is_part=part is not None)


def summarize(
    sources: Source | Iterable[Source],
    *,
    missing_shards: MissingShards = "error",
    jobs: int | None = None,
    executor: Executor | Client | None = None,
    progress: bool = True,
) -> IndexReport:
    """Write the summary of each source from the sidecars that are there, and return what it holds; no tar is read.

    It finishes what runs of `index` with `part` did: class names that shards were read with get the same ids in all.

    Args:
        sources: What was indexed.
        missing_shards: See `index`; a shard counts as missing if its sidecar is, too.
        jobs: See `index`.
        executor: See `index`.
        progress: See `index`.

    Raises:
        ShardError: If sidecars are missing or damaged; it lists them, with the command that makes them.
    """
    check_policy(missing_shards)
    ledgers = ledgers_of(sources)
    _run(sidecar_row, ledgers, jobs=jobs, executor=executor, progress=progress)
    return _finish(ledgers, missing_shards, jobs, executor, table=None, is_part=False)


def check(
    sources: Source | Iterable[Source],
    *,
    jobs: int | None = None,
    progress: bool = True,
    against: str | Sequence[str] = (),
) -> list[str]:
    """Return what is wrong with sidecars and summaries, and what `against` says otherwise, a sentence each.

    Shards are walked again, and labels that are in them are read again.

    Args:
        sources: What to check.
        jobs: Processes, as for `index`.
        progress: Whether a terminal shows a bar.
        against: Files of other tools that say the same of these shards, see `equitar.foreign`; remote ones are read as the sources are.
    """
    ledgers, others = ledgers_of(sources), [against] if isinstance(against, str) else against
    options = shared_options(ledgers, others)
    for ledger in ledgers:
        skipped = set(ledger.before.skipped) if ledger.before else set()
        ledger.shards = [shard for shard in ledger.shards if shard.path not in skipped]
    _run(check_shard, ledgers, jobs=jobs, executor=None, progress=progress)
    problems = []
    for ledger in ledgers:
        ledger.refuse_missing()
        problems += [_told(failure) for failure in ledger.failures]
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
    known = [Known(shard, ledger.rows.get(shard.path)) for ledger in ledgers for shard in ledger.shards]
    for pattern in others:
        problems += differences(pattern, known, options=options, progress=progress)
    return problems


@contextmanager
def _travelling(
    recipe: LabelJob, ledgers: Sequence[SourceJob], executor: Executor | Client | None
) -> Iterator[Spooled]:
    """Write a recipe where all who read shards find it, and remove it at the end."""
    if executor is None:
        with tempfile.TemporaryDirectory(prefix="equitar-") as folder:
            yield spool(recipe, folder, None)
            spooled.cache_clear()  # of this process, if it read shards itself
        return
    where = spool(recipe, _absolute(ledgers[0].listed.sidecars), ledgers[0].source.storage_options)
    try:
        yield where
    finally:
        remove(where.url, where.options)


def _run(
    task: Callable[[Shard], ShardResult],
    ledgers: Sequence[SourceJob],
    *,
    jobs: int | None,
    executor: Executor | Client | None,
    progress: bool,
    shards: Sequence[Shard] | None = None,
) -> None:
    """Let processes do a task for all shards (or for some), and put what comes of it into their ledgers."""
    ledger_of = {ledger.source.name: ledger for ledger in ledgers}
    if shards is None:
        shards = [shard for ledger in ledgers for shard in ledger.shards]
    if executor is not None:  # whose working folder may be another
        shards = [replace(shard, url=_absolute(shard.url), sidecar=_absolute(shard.sidecar)) for shard in shards]
    num_bytes = 0
    with tqdm(total=len(shards), unit="shard", disable=None if progress else True) as bar:
        for shard, found in outcomes(task, shards, jobs=jobs, executor=executor):
            ledger = ledger_of[shard.source]
            if isinstance(found, ShardResult):
                ledger.take(shard, found)
                num_bytes += int(found.row.shard_sizes[0])
            elif isinstance(found, ReadOnlyError):
                raise found  # so it is for all others, and reading them would be for nothing
            elif isinstance(found, MissingShardError):
                ledger.missing.append(shard.path)
            else:
                ledger.fail(shard.where, found)
            bar.set_postfix_str(f"{num_bytes / 1e6 / max(bar.format_dict['elapsed'], 1e-3):.0f} MB/s", refresh=False)
            bar.update()


def _finish(
    ledgers: Sequence[SourceJob],
    missing_shards: MissingShards,
    jobs: int | None,
    executor: Executor | Client | None,
    *,
    table: LabelTable | None,
    is_part: bool,
) -> IndexReport:
    """Write the summaries of sources whose shards are all done, and report."""
    num_shards = sum(len(ledger.shards) for ledger in ledgers)
    for ledger in ledgers:
        if missing_shards == "skip":
            ledger.leave_out_missing()
        else:
            ledger.refuse_missing()
        ledger.note(table, is_part=is_part)
        if not is_part and not ledger.failures and ledger.has_open_names:
            _unify_names(ledger, jobs, executor)
        if not is_part and not ledger.failures:
            ledger.close()
    failures = [failure for ledger in ledgers for failure in ledger.failures]
    if failures:
        raise _failed(ledgers, num_shards) from failures[0][1]
    return IndexReport(sources=tuple(ledger.report() for ledger in ledgers))


def _unify_names(ledger: SourceJob, jobs: int | None, executor: Executor | Client | None) -> None:
    """Give all sidecars of a source the same class names; each shard was read without knowing the names of others."""
    try:
        common = ledger.common_names()
    except LabelError as error:
        ledger.fail(f"source {ledger.source.name!r}", error)
        return
    if common is not None:
        others = [shard for shard in ledger.shards if ledger.rows[shard.path].class_names != common]
        rename = partial(rename_classes, class_names=common)
        _run(rename, [ledger], jobs=jobs, executor=executor, progress=False, shards=others)


def _absolute(url: str) -> str:
    return url if local_path(url) is None else place_of(url)


def _failed(ledgers: Sequence[SourceJob], num_shards: int) -> ShardError:
    """Return the error that lists failures; the command that mends those of a source is told once."""
    told: list[str] = []
    mends: list[str] = []
    for ledger in ledgers:
        plain = f"; {index_command(ledger.source)}"
        for failure in ledger.failures:
            text = _told(failure)
            told.append(text.removesuffix(plain))
            if text.endswith(plain) and ledger.mend not in mends:
                mends.append(ledger.mend)
    shards = f"{num_shards} shard{'s' * (num_shards != 1)}"
    if len(told) == 1:
        return ShardError("; ".join([f"1 error in {shards}: {told[0]}", *mends]))
    more = [f"and {len(told) - _LISTED} more"] if len(told) > _LISTED else []
    return ShardError("\n  ".join([f"{len(told)} errors in {shards}:", *told[:_LISTED], *more, *mends]))


def _told(failure: tuple[str, BaseException]) -> str:
    where, error = failure
    text = str(error) if isinstance(error, ValueError | OSError | RuntimeError) else repr(error)
    return text if where in text else f"{where}: {text}"
