"""The command that measures: `bench`, on the user's own shards."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from equitar.cli_batches import PlanOptions, batches_of, bench_options, sources_or_training
from equitar.cli_words import source_options

_BATCH_SIZE = 64


@click.command("bench", short_help="Measure speed beside plain webdataset, and where time goes.")
@click.option(
    "--samples", metavar="N", type=click.IntRange(min=1), default=2000, show_default=True, help="Samples of each run."
)
@click.option(
    "--seconds",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="About how long it may take; slow pipelines run fewer samples.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@bench_options
@source_options
def bench_command(
    asked: PlanOptions,
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    samples: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Compare these shards, or a training's pipeline, with plain webdataset, and say where the time goes.

    Both read the same shards in turn, in one run: reading, batches in one process, and batches through workers. Then what a
    sample of each source costs in each part, the slowest shards, and what follows. SOURCE may be one package.module:name: a
    training's own pipeline, or a function that returns it; its stages are applied in both. Other SOURCEs come in batches of 64
    unless --batch-size says otherwise. The page cache is emptied of the shards that are read, for the first time of each.

    \b
      equitar bench cc3m=/data/cc3m-{000000..000331}.tar
      equitar bench a=a.tar b=b.tar --batch-size 256 --num-workers 4 --samples 10000 --seconds 60
      equitar bench my_training:batches --num-workers 4 --json
    """
    from equitar.bench_text import bench_json, bench_text
    from equitar.benching import bench

    found = sources_or_training(words, root, sidecars, asked.keep)
    if isinstance(found, Sequence) and asked.batch_size is None:
        asked.batch_size = _BATCH_SIZE
    told = bench(
        batches_of(asked, words, found),
        samples=samples,
        num_workers=asked.num_workers,
        epoch=asked.epoch,
        seconds=seconds,
    )
    click.echo(json.dumps(bench_json(told), indent=2) if as_json else bench_text(told))
