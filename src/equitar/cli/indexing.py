"""The commands `index`, `summarize` and `check`, and how their reports look on a terminal and in JSON."""

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
from equitar.indexing.index import IndexReport, compare, index, summarize
from equitar.ranks import detect_array_part
from equitar.sources import Source
from equitar.text import counted, duration, listed, megabytes, table

if TYPE_CHECKING:
    from distributed import Client


def report_text(report: IndexReport, *, as_json: bool) -> str:
    """Return what indexing did, as a table or as JSON."""
    if as_json:
        return json.dumps({"sources": [asdict(source) for source in report.sources]}, indent=2)
    rows = [("source", "written", "up to date", "samples", "MB")]
    rows += [
        (source.name, f"{source.written:,}", f"{source.skipped:,}", f"{source.samples:,}", megabytes(source.bytes))
        for source in report.sources
    ]
    lines = [table(rows)]
    for source in report.sources:
        changes = {"changed": source.changed, "gone": source.gone, "missing, left out": source.missing}
        if len(source.added) < source.written + source.skipped:  # otherwise all is new
            changes = {"added": source.added, **changes}
        changes |= {"missing from the numbering": source.holes, "left by killed writes, removed": source.swept}
        lines += [
            f"{source.name}: {len(paths):,} {what}: {listed(paths, 10, quote=True)}"
            for what, paths in changes.items()
            if paths
        ]
        lines += [f"{source.name}: {note}" for note in source.notes]
    return "\n".join(lines)


def estimates_text(
    sources: Sequence[Source], labels: str | None, jobs: int | None, *, force: bool, as_json: bool
) -> str:
    """Return what indexing would cost, as tables or as JSON."""
    estimates = dry_run(sources, labels=labels, jobs=jobs or num_cores(), force=force)
    if as_json:
        return json.dumps({"sources": [asdict(estimate) for estimate in estimates]}, indent=2)
    rows = [("source", "shards", "to read", "walked", "samples", "MB")]
    rows += [
        (
            estimate.name,
            f"{estimate.shards:,}",
            f"{estimate.to_read:,}",
            f"{estimate.walked:,}",
            f"{estimate.samples:,}",
            megabytes(estimate.bytes),
        )
        for estimate in estimates
    ]
    ways = [("way of reading", "requests", "MB read", f"time, {estimates[0].jobs} processes")]
    ways += [
        (f"{estimate.name}: {way.how}", f"{way.requests:,}", megabytes(way.bytes), duration(way.seconds))
        for estimate in estimates
        for way in estimate.ways
    ]
    remark = "nothing was written; samples, MB and times are estimated from the shards walked"
    return "\n\n".join([table(rows), table(ways) if len(ways) > 1 else "nothing to read", remark])


_PART = re.compile(r"([0-9]+)/([0-9]+)")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
jobs_option = click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), help="Number of processes (default: one per core)."
)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress bar.")
missing_shards_option = click.option(
    "--missing-shards",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="What to do about shards that do not exist: fail, or report them and leave them out of training.",
)
scheduler_option = click.option(
    "--scheduler", metavar="ADDRESS", help="Read shards on the workers of this dask scheduler, such as tcp://host:8786."
)


@click.command("index", short_help="Write sidecars and summaries, which all other commands need.")
@click.option(
    "--labels", metavar="SPEC", help="Where labels are in the shards: cls, json:PATH, npy or package.module:function."
)
@click.option(
    "--labels-from",
    metavar="FILE[:COLUMN]",
    help="A file of labels by key: .tsv, .csv, .jsonl, .parquet, or the .json annotations of COCO or LVIS.",
)
@click.option("--no-labels", is_flag=True, help="Drop the labels of a source that was indexed with labels.")
@click.option(
    "--offsets-from",
    metavar="FILE",
    help="Index of DALI or Energon, to fetch the headers of remote shards concurrently.",
)
@click.option("--classes", metavar="FILE", help="The class names: one per line (ids from 0), or id<TAB>name.")
@click.option(
    "--missing",
    type=click.Choice(["error", "empty"]),
    default="error",
    show_default=True,
    help="What to do about samples without a label: fail, or give them no labels.",
)
@click.option("--without-crowd", is_flag=True, help="Ignore the crowd annotations of COCO.")
@missing_shards_option
@jobs_option
@scheduler_option
@click.option(
    "--part",
    metavar="I/N",
    help="Read only part I of N, 0 <= I < N, and write no summary. Use slurm in a SLURM array: its task is the part.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing: read three shards, and estimate what all would cost.")
@click.option(
    "--force",
    is_flag=True,
    help="Read all shards again, even if their sidecars are up to date. Labels are kept.",
)
@click.option("--regroup", is_flag=True, help="Join the members of one sample where they are not next to each other.")
@json_option
@quiet_option
@source_options
def index_command(
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    labels: str | None,
    labels_from: str | None,
    no_labels: bool,
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
    """Write a sidecar for each shard and a summary for each source: what planning needs to know of them.

    Only headers and labels are read, and only of shards that are new or changed. You can interrupt it at any time, and run it
    again to continue. Later runs need no --labels: shards are labelled as before.

    \b
      equitar index cc3m=/data/cc3m-{000000..000331}.tar                     without labels: enough for `debiased`
      equitar index train='/data/train-*.tar' --labels cls --classes names.txt
      equitar index lvis=/data/lvis-{000..099}.tar --labels 'json:annotations[].category_id'
      equitar index coco=@shards.txt --labels-from instances_train2017.json --jobs 8
      equitar index laion='/data/*.tar' --labels-from '/data/*.parquet:class'
      equitar index far=@s3://bucket/wids.json --offsets-from '/index/*.idx' --sidecars /index
      equitar index far='s3://bucket/*.tar' --labels cls --dry-run
      equitar index big=@shards.txt --part slurm                             then: equitar summarize big=@shards.txt
    """
    if no_labels and (labels or labels_from):
        raise click.UsageError("give either `--no-labels` or labels")
    if without_crowd and not labels_from:
        raise click.UsageError("`--without-crowd` needs `--labels-from`")
    if (classes or missing != "error") and not (labels or labels_from):
        option = "--classes" if classes else "--missing"
        raise click.UsageError(f"`{option}` needs `--labels` or `--labels-from`")
    if dry_run and part:
        raise click.UsageError("`--dry-run` estimates the cost of all parts together; omit `--part`")
    sources = parse_sources(words, root=root, sidecars=sidecars)
    if dry_run:
        click.echo(estimates_text(sources, labels, jobs, force=force, as_json=as_json))
        return
    with _client(scheduler) as executor:
        report = index(
            sources,
            labels=False if no_labels else labels,
            labels_from=labels_from,
            offsets_from=offsets_from,
            classes=classes,
            missing=missing,
            crowd=not without_crowd,
            missing_shards=missing_shards,
            jobs=jobs,
            executor=executor,
            part=parse_part(part),
            progress=not quiet,
            force=force,
            regroup=regroup,
        )
    click.echo(report_text(report, as_json=as_json))


@click.command("summarize", short_help="Write summaries from existing sidecars.")
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
    """Write the summary of each source from its sidecars, after `index --part`. No tar is read.

    \b
      equitar summarize cc3m=/data/cc3m-{000000..000331}.tar
    """
    sources = parse_sources(words, root=root, sidecars=sidecars)
    with _client(scheduler) as executor:
        report = summarize(sources, missing_shards=missing_shards, jobs=jobs, executor=executor, progress=not quiet)
    click.echo(report_text(report, as_json=as_json))


@click.command("check", short_help="Check that sidecars match their shards.")
@click.option(
    "--against", metavar="FILE", multiple=True, help="Index file of another tool to compare with; can be repeated."
)
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
    """Check that sidecars match their shards, by sizes and by digests of all headers and labels.

    With --against, the index files of another tool are compared too: of wids, DALI (*.idx) and Energon (.nv-meta, *.tar.idx),
    sizes.json of open_clip, manifest.jsonl of open_lm, *_stats.json and *.parquet of img2dataset.

    \b
      equitar check cc3m=/data/cc3m-{000000..000331}.tar
      equitar check cc3m=/data/cc3m-{000000..000331}.tar --against /data/sizes.json --against '/data/*.idx'
    """
    sources = parse_sources(words, root=root, sidecars=sidecars)
    num_shards, problems = compare(sources, jobs=jobs, progress=not quiet, against=against)
    if problems:
        raise click.ClickException("\n".join([counted(len(problems), "problem"), *problems]))
    matches = f"{num_shards:,} sidecars match their shards" if num_shards != 1 else "1 sidecar matches its shard"
    click.echo(f"OK: {matches}" + (f", and {', '.join(against)}" if against else ""))


def parse_part(text: str | None) -> tuple[int, int] | None:
    """Return the part named by ``I/N``, or that of this task of a SLURM array.

    >>> parse_part("0/5"), parse_part(None)
    ((0, 5), None)
    """
    if text is None:
        return None
    if text == "slurm":
        return detect_array_part()
    part = _PART.fullmatch(text)
    if part is None or not int(part[1]) < int(part[2]):
        raise click.UsageError(f"`--part` must be I/N with 0 <= I < N, such as 0/5, or slurm; got {text!r}")
    return int(part[1]), int(part[2])


@contextmanager
def _client(scheduler: str | None) -> Iterator[Client | None]:
    """Connect to a dask scheduler, if one is given."""
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise click.ClickException("`--scheduler` needs dask.distributed: pip install 'equitar[dask]'") from error
    logging.getLogger("distributed.client").setLevel(
        logging.CRITICAL
    )  # what it loses is read again, or becomes our error
    try:
        connected = Client(scheduler)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise click.ClickException(f"no dask scheduler answers at {scheduler}: {error}; is it running?") from error
    with connected as client:
        yield client
