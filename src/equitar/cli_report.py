"""The command that writes a page to look at before training: `report`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from equitar.cli_batches import PlanOptions, batches_of, plan_options, sources_or_training
from equitar.cli_words import Output, source_options
from equitar.redact import shown

_OF_SOURCES = ("--repeat", "--cap")  # options that mean something without batches
_WORDS = 8  # of the sources, that are named


@click.command("report", short_help="Write one page to look at before training.")
@click.option("-o", "--output", metavar="FILE.html", type=Output(), required=True, help="Where to write the page.")
@plan_options
@source_options
def report_command(
    asked: PlanOptions, words: tuple[str, ...], root: str | None, sidecars: str | None, output: str
) -> None:
    """Write one page to look at before training: sources, classes, thresholds, schedule, readers, and what is odd.

    It is one file that loads nothing else. Without --batch-size it has what holds for any batches. No tar is opened.
    SOURCE may be one package.module:name: a training's own pipeline, or a function that returns it.

    \b
      equitar report cc3m=/data/cc3m-{000000..000331}.tar --batch-size 256 --world-size 8 --num-workers 4 -o report.html
      equitar report lvis=/data/lvis-{000..099}.tar --repeat 1e-3 -o report.html
      equitar report my_training:batches --world-size 8 --num-workers 4 -o report.html
    """
    from equitar.findings import findings_of
    from equitar.report_page import report, require_report

    require_report()  # before minutes are spent on counting
    found = sources_or_training(words, root, sidecars, asked.keep)
    only_sources = isinstance(found, Sequence) and asked.batch_size is None
    extra = [name for name in asked.given() if name not in _OF_SOURCES]
    if only_sources and extra:
        raise click.UsageError(f"`{extra[0]}` goes with `--batch-size`, or with a training's own pipeline")
    told = report(
        found if only_sources else batches_of(asked, words, found),
        output,
        repeat=asked.factor() if only_sources else None,
        epoch=asked.epoch,
        num_workers=asked.num_workers,
        command=_command(asked, words, root, sidecars, output),
    )
    for one in findings_of(told):
        click.echo(f"{one.level:8} {one.found}")
    click.echo(f"written  {output}")


def _command(asked: PlanOptions, words: Sequence[str], root: str | None, sidecars: str | None, output: str) -> str:
    """Return the command line, without what may be secret in a URL; a shell may have made one word into thousands."""
    line = ["equitar", "report", *(shown(word) for word in words[:_WORDS])]
    line += ["..."] if len(words) > _WORDS else []
    places = {"--root": root, "--sidecars": sidecars, **asked.given(), "-o": output}
    for name, value in places.items():
        for one in value if isinstance(value, tuple) else (value,):
            line += [] if one is None else [name] if one is True else [name, shown(str(one))]
    return shlex.join(line)
