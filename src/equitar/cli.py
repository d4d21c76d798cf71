"""The command line: words in, one function of the package called, a table or a one-line error out.

SOURCE is ``name=urls``. A shell expands braces before we see them, so that equal names on one line are one source:
``cc3m=/data/cc3m-{000..331}.tar`` arrives as 332 words, and quoted as one; both mean the same.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from equitar.cli_export import export_command
from equitar.cli_plan import plan_command, stats_command
from equitar.cli_report import report_command
from equitar.cli_words import Commands, debug_option, parse_sources, source_options, table
from equitar.indexing import IndexReport, check, index
from equitar.outside import read_classes, read_labels

__all__ = ["Commands", "debug_option", "main", "parse_sources", "source_options"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@debug_option
def main() -> None:
    """Debiased batches and repeated samples from WebDataset shards, planned before a tar is opened.

    Shards are indexed once; all else reads what `index` wrote. SOURCE is name=urls, where urls is a path, a brace
    pattern, a glob or @FILE with one a line (or of wids, open_clip, open_lm, Energon); equal names on one line are one source.

    \b
      equitar index cc3m=/data/cc3m-{000000..000331}.tar --labels cls
      equitar check cc3m=/data/cc3m-{000000..000331}.tar
      equitar stats lvis=/data/lvis-{000..099}.tar --repeat 1e-3 --plot stats.png
      equitar plan cc3m=/data/cc3m-{000000..000331}.tar --batch-size 256 --world-size 8 --num-workers 4
      equitar report cc3m=/data/cc3m-{000000..000331}.tar --batch-size 256 --world-size 8 -o report.html
    """
    if "" not in sys.path:  # `package.module:function` may be a file of the user's, here
        sys.path.insert(0, "")


@main.command("index")
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
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Processes (default: one for each core).")
@click.option("--force", is_flag=True, help="Read shards again whose sidecars are up to date.")
@click.option("--regroup", is_flag=True, help="Join members of one sample that lie apart in a shard.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
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
    jobs: int | None,
    force: bool,
    regroup: bool,
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
    """
    vocabulary = read_classes(classes) if classes else None
    table = read_labels(labels_from, classes=vocabulary, crowd=not without_crowd) if labels_from else None
    report = index(
        parse_sources(words, root=root, sidecars=sidecars),
        labels=labels,
        labels_from=table,
        offsets_from=offsets_from,
        classes=vocabulary,
        missing=missing,
        jobs=jobs,
        progress=not quiet,
        force=force,
        regroup=regroup,
    )
    click.echo(_table(report))


@main.command("check")
@click.option("--against", metavar="FILE", multiple=True, help="Counts or offsets of another tool; may be given again.")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Processes (default: one for each core).")
@click.option("--quiet", is_flag=True, help="No progress bar.")
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
        what = f"difference{s} from shards or other tools" if against else "shards differ from their sidecars"
        raise click.ClickException("\n".join([f"{len(problems)} {what}", *problems]))
    click.echo("all sidecars are those of their shards" + (f", and as {', '.join(against)} say" if against else ""))


def _table(report: IndexReport) -> str:
    rows = [("source", "written", "up to date", "samples", "MB")]
    rows += [
        (one.name, f"{one.written:,}", f"{one.skipped:,}", f"{one.samples:,}", f"{one.bytes / 1e6:,.1f}")
        for one in report.sources
    ]
    return "\n".join([table(rows), *(f"{one.name}: {note}" for one in report.sources for note in one.notes)])


main.add_command(export_command)
main.add_command(stats_command)
main.add_command(plan_command)
main.add_command(report_command)

if __name__ == "__main__":
    main()
