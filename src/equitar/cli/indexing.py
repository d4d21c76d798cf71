"""The commands that write and check what planning needs: `index`, `summarize` and `check`.

How does the work of `index` look on a terminal, and in JSON: what it did, and what it would do?
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from equitar.cli.options import parse_sources, source_options
from equitar.indexing.estimate import dry_run
from equitar.indexing.executors import num_cores
from equitar.indexing.index import IndexReport, check, index, summarize
from equitar.labels.tables import read_classes, read_labels
from equitar.ranks import detect_array_part
from equitar.sources import Source
from equitar.text import duration, listed, megabytes, table

if TYPE_CHECKING:
    from distributed import Client


def report_shown(report: IndexReport, *, as_json: bool) -> str:
    """Return what indexing did, as tables or as JSON."""
    if as_json:
        return json.dumps({"sources": [asdict(one) for one in report.sources]}, indent=2)
    rows = [("source", "written", "up to date", "samples", "MB")]
    rows += [
        (one.name, f"{one.written:,}", f"{one.skipped:,}", f"{one.samples:,}", megabytes(one.bytes))
        for one in report.sources
    ]
    lines = [table(rows)]
    for one in report.sources:
        told = {"changed": one.changed, "gone": one.gone, "missing, left out": one.missing}
        if len(one.added) < one.written + one.skipped:  # else it is all new
            told = {"added": one.added, **told}
        lines += [
            f"{one.name}: {len(paths):,} {what}: {listed(paths, 10, quote=True)}"
            for what, paths in told.items()
            if paths
        ]
        if one.holes:
            lines.append(f"{one.name}: its numbers jump over {len(one.holes):,}: {listed(one.holes, 10, quote=True)}")
        if one.swept:
            lines.append(
                f"{one.name}: {len(one.swept):,} left by killed writes, removed: {listed(one.swept, 10, quote=True)}"
            )
        lines += [f"{one.name}: {note}" for note in one.notes]
    return "\n".join(lines)


def estimates_shown(
    sources: Sequence[Source], labels: str | None, jobs: int | None, *, force: bool, as_json: bool
) -> str:
    """Return what indexing would cost, as tables or as JSON."""
    found = dry_run(sources, labels=labels, jobs=jobs or num_cores(), force=force)
    if as_json:
        return json.dumps({"sources": [asdict(one) for one in found]}, indent=2)
    rows = [("source", "shards", "to read", "walked", "samples", "MB")]
    rows += [
        (
            one.name,
            f"{one.shards:,}",
            f"{one.to_read:,}",
            f"{one.walked:,}",
            f"{one.samples:,}",
            megabytes(one.bytes),
        )
        for one in found
    ]
    ways = [("way of reading", "requests", "MB read", f"time, {found[0].jobs} processes")]
    ways += [
        (f"{one.name}: {way.how}", f"{way.requests:,}", megabytes(way.bytes), duration(way.seconds))
        for one in found
        for way in one.ways
    ]
    told = "nothing was written; samples, MB and times are reckoned from the shards walked"
    return "\n\n".join([table(rows), table(ways) if len(ways) > 1 else "nothing is to be read", told])


_PART = re.compile(r"([0-9]+)/([0-9]+)")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
jobs_option = click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), help="Processes (default: one for each core)."
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress bar.")
missing_shards_option = click.option(
    "--missing-shards",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Shards that are named and not there; those skipped are named, and training goes on without them.",
)
scheduler_option = click.option(
    "--scheduler", metavar="ADDRESS", help="Read on the workers of this dask scheduler (tcp://host:8786)."
)


@click.command("index", short_help="Write sidecars and summaries: what all else reads.")
@click.option("--labels", metavar="SPEC", help="Labels in the shards: cls, json:PATH, npy or package.module:function.")
@click.option(
    "--labels-from",
    metavar="FILE[:COLUMN]",
    help="Labels by key from .tsv, .csv, .jsonl, .parquet, or COCO's or LVIS's .json.",
)
@click.option(
    "--offsets-from", metavar="FILE", help="DALI's or Energon's index: remote headers are fetched side by side."
)
@click.option("--classes", metavar="FILE", help="Vocabulary: a name a line (ids from 0), or id<TAB>name.")
@click.option(
    "--missing",
    type=click.Choice(["error", "empty"]),
    default="error",
    show_default=True,
    help="Samples without a label.",
)
@click.option("--without-crowd", is_flag=True, help="Leave out COCO's crowd annotations.")
@missing_shards_option
@jobs_option
@scheduler_option
@click.option(
    "--part",
    metavar="I/N",
    help="Read only part I of N, 0 <= I < N, and write no summary; slurm is the task of a SLURM array.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing: walk three shards, and say what all would cost.")
@click.option(
    "--force",
    is_flag=True,
    help="Read shards again whose sidecars are up to date; labels are those asked for now, or none.",
)
@click.option("--regroup", is_flag=True, help="Join members of one sample that lie apart in a shard.")
@json_option
@quiet_option
@source_options
def index_command(
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    labels: str | None,
    labels_from: str | None,
    offsets_from: str | None,
    classes: str | None,
    missing: Any,
    without_crowd: bool,
    missing_shards: Any,
    jobs: int | None,
    scheduler: str | None,
    part: str | None,
    dry_run: bool,
    force: bool,
    regroup: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write what planning needs: a sidecar for each shard, a summary for each source.

    Only headers and labels are read, only of shards that are new or changed. Stopped, it goes on where it was.

    \b
      equitar index cc3m=/data/cc3m-{000000..000331}.tar                     no labels: serves `debiased`
      equitar index train='/data/train-*.tar' --labels cls --classes names.txt
      equitar index lvis=/data/lvis-{000..099}.tar --labels 'json:annotations[].category_id'
      equitar index coco=@shards.txt --labels-from instances_train2017.json --jobs 8
      equitar index laion='/data/*.tar' --labels-from '/data/*.parquet:class'
      equitar index far=@s3://bucket/wids.json --offsets-from '/index/*.idx' --sidecars /index
      equitar index far='s3://bucket/*.tar' --labels cls --dry-run
      equitar index big=@shards.txt --part slurm                             then: equitar summarize big=@shards.txt
    """
    if without_crowd and not labels_from:
        raise click.UsageError("`--without-crowd` goes with `--labels-from`")
    if (classes or missing != "error") and not (labels or labels_from):
        option = "--classes" if classes else "--missing"
        raise click.UsageError(f"`{option}` goes with `--labels` or `--labels-from`")
    if dry_run and part:
        raise click.UsageError("`--dry-run` reckons what all parts cost together; leave out `--part`")
    sources = parse_sources(words, root=root, sidecars=sidecars)
    if dry_run:
        click.echo(estimates_shown(sources, labels, jobs, force=force, as_json=as_json))
        return
    vocabulary = read_classes(classes) if classes else None
    labelled = read_labels(labels_from, classes=vocabulary, crowd=not without_crowd) if labels_from else None
    with _client(scheduler) as executor:
        report = index(
            sources,
            labels=labels,
            labels_from=labelled,
            offsets_from=offsets_from,
            classes=vocabulary,
            missing=missing,
            missing_shards=missing_shards,
            jobs=jobs,
            executor=executor,
            part=parse_part(part),
            progress=not quiet,
            force=force,
            regroup=regroup,
        )
    click.echo(report_shown(report, as_json=as_json))


@click.command("summarize", short_help="Write summaries from sidecars that are there.")
@missing_shards_option
@jobs_option
@scheduler_option
@json_option
@quiet_option
@source_options
def summarize_command(
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    missing_shards: Any,
    jobs: int | None,
    scheduler: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the summary of each source from its sidecars, which `index --part` left without one. No tar is read.

    \b
      equitar summarize cc3m=/data/cc3m-{000000..000331}.tar
    """
    sources = parse_sources(words, root=root, sidecars=sidecars)
    with _client(scheduler) as executor:
        report = summarize(sources, missing_shards=missing_shards, jobs=jobs, executor=executor, progress=not quiet)
    click.echo(report_shown(report, as_json=as_json))


@click.command("check", short_help="Compare sidecars with shards.")
@click.option("--against", metavar="FILE", multiple=True, help="Counts or offsets of another tool; may be given again.")
@jobs_option
@quiet_option
@source_options
def check_command(
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    jobs: int | None,
    quiet: bool,
    against: tuple[str, ...],
) -> None:
    """Compare sidecars with shards: sizes, and digests of all headers and label bytes.

    With --against also with what another tool says: indexes of wids, DALI (*.idx) and Energon (.nv-meta, *.tar.idx),
    open_clip's sizes.json, open_lm's manifest.jsonl, img2dataset's *_stats.json and *.parquet.

    \b
      equitar check cc3m=/data/cc3m-{000000..000331}.tar
      equitar check cc3m=/data/cc3m-{000000..000331}.tar --against /data/sizes.json --against '/data/*.idx'
    """
    problems = check(parse_sources(words, root=root, sidecars=sidecars), jobs=jobs, progress=not quiet, against=against)
    if problems:
        s = "s" * (len(problems) > 1)
        ours = "shards differ from their sidecars" if s else "shard differs from its sidecar"
        what = f"difference{s} from shards or other tools" if against else ours
        raise click.ClickException("\n".join([f"{len(problems)} {what}", *problems]))
    click.echo("all sidecars are those of their shards" + (f", and as {', '.join(against)} say" if against else ""))


def parse_part(text: str | None) -> tuple[int, int] | None:
    """Return the part that ``I/N`` names, or that of this task of a SLURM array.

    >>> parse_part("0/5"), parse_part(None)
    ((0, 5), None)
    """
    if text is None:
        return None
    if text == "slurm":
        return detect_array_part()
    found = _PART.fullmatch(text)
    if found is None or not int(found[1]) < int(found[2]):
        raise click.UsageError(f"`--part` must be I/N with 0 <= I < N, such as 0/5, or slurm; got {text!r}")
    return int(found[1]), int(found[2])


@contextmanager
def _client(scheduler: str | None) -> Iterator[Client | None]:
    """Connect to a scheduler of dask, if one is given."""
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise click.ClickException("`--scheduler` needs dask.distributed: pip install 'equitar[dask]'") from error
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what it lost is read again, or is our error
    try:
        connected = Client(scheduler)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise click.ClickException(f"no scheduler of dask answers at {scheduler}: {error}; is it running?") from error
    with connected as client:
        yield client
