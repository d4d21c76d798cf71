"""The commands `stats`, `plan`, `report`, `export` and `bench`: they only read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

import click

from equitar.cli.options import Output, parse_sources, source_options
from equitar.cli.plan_options import (
    PlanOptions,
    batches_of,
    bench_options,
    plan_options,
    repeat_options,
    sources_or_training,
    stats_options,
)
from equitar.reporting.stats import stats
from equitar.reporting.text import plan_json, plan_text, stats_json, stats_text
from equitar.urls import shown

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
    help="Approximate duration; slow pipelines run fewer samples.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@bench_options
@source_options
def bench_command(
    options: PlanOptions,
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    samples: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Compare these shards, or a training's pipeline, with plain webdataset, and show where the time goes.

    Both read the same shards in turn, in one run: reading, batches in one process, and batches through workers. Then follow the
    time of a sample of each source in each part, the slowest shards, and conclusions. SOURCE may be one package.module:name: a
    training's own pipeline, or a function that returns it; its stages are applied in both. Other SOURCEs get batches of 64 unless
    --batch-size is given. In the first round, the page cache is emptied of the shards.

    \b
      equitar bench cc3m=/data/cc3m-{000000..000331}.tar
      equitar bench a=a.tar b=b.tar --batch-size 256 --num-workers 4 --samples 10000 --seconds 60
      equitar bench my_training:batches --num-workers 4 --json
    """
    from equitar.benchmarking.bench import bench
    from equitar.benchmarking.text import bench_json, bench_text

    sources = sources_or_training(words, root, sidecars, options.keep)
    if isinstance(sources, Sequence) and options.batch_size is None:
        options.batch_size = _BATCH_SIZE
    result = bench(
        batches_of(options, words, sources),
        samples=samples,
        num_workers=options.num_workers,
        epoch=options.epoch,
        seconds=seconds,
    )
    click.echo(json.dumps(bench_json(result), indent=2) if as_json else bench_text(result))


@click.command("export", short_help="Write a Parquet or CSV file with a row for each sample.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output(),
    required=True,
    help="The file to write; its ending, .parquet or .csv, is its format.",
)
@repeat_options
@click.option("--binary-keys", is_flag=True, help="Write keys as they are in the tars, even if they are not UTF-8.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@source_options
def export_command(
    options: PlanOptions,
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    output: str,
    binary_keys: bool,
    quiet: bool,
) -> None:
    """Write a Parquet or CSV file with a row for each sample: key, labels, counts, sizes, and repeat factor.

    DuckDB, pandas and polars read it; lists are JSON in CSV. Only sidecars are read. Parquet needs equitar[parquet].

    \b
      equitar export lvis=/data/lvis-{000..099}.tar -o presence.parquet --repeat 1e-3
      equitar export cc3m=/data/cc3m.summary.json -o presence.csv
      duckdb -c "SELECT label, count(*) FROM (SELECT unnest(labels) AS label FROM 'presence.parquet') GROUP BY ALL"
    """
    from equitar.reporting.exporting import export

    num_samples = export(
        parse_sources(words, root=root, sidecars=sidecars),
        output,
        repeat=options.factor(),
        labels_shared=options.shared_ids,
        binary_keys=binary_keys,
        progress=not quiet,
    )
    click.echo(f"{output}: {num_samples:,} samples")


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("stats", short_help="Show sources and classes, before and after repeats.")
@stats_options
@click.option("--all", "all_classes", is_flag=True, help="List all classes, not only the rarest and commonest.")
@click.option("--plot", metavar="FILE.png", type=Output(), help="Draw classes and sources before and after.")
@click.option(
    "--captions",
    metavar="FIELD",
    help="Read a sample of captions (such as txt), and probe how well they give away the source.",
)
@_json_option
@source_options
def stats_command(
    options: PlanOptions,
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    all_classes: bool,
    plot: str | None,
    captions: str | None,
    as_json: bool,
) -> None:
    """Show sources and classes, before and after repeats.

    SOURCE may be one package.module:name: a training's own pipeline, or a function that returns it.

    \b
      equitar stats lvis=/data/lvis-{000..099}.tar --repeat 1e-3 --plot stats.png
      equitar stats lvis=/data/lvis.summary.json --all
      equitar stats cc3m=@shards.txt --keep 'cc3m=!bad_keys.txt'
      equitar stats my_training:batches --world-size 8 --json
      equitar stats cc3m=@cc3m.txt sbu=@sbu.txt --captions txt
    """
    from equitar.reporting import plots, probing

    if plot:
        plots.require_matplotlib()  # before minutes are spent on counting
    if captions:
        probing.require_sklearn()  # as above
    sources = sources_or_training(words, root, sidecars, options.keep)
    if not isinstance(sources, Sequence):
        from equitar.loading.batches import adjusted

        sources = adjusted(sources, world_size=options.world_size, repeat=options.factor())
    statistics = stats(sources, repeat=options.factor(), labels_shared=options.shared_ids)
    if plot:
        plots.plot_stats(statistics, plot)
    probe = probing.caption_probe(sources, field=captions) if captions else None
    if as_json:
        click.echo(json.dumps(stats_json(statistics) | ({"captions": probe.as_json()} if probe else {}), indent=2))
        return
    click.echo(stats_text(statistics, plot, all_classes=all_classes))
    if probe:
        click.echo(f"\ncaptions\n{probe}")


@click.command("plan", short_help="Show what each rank and worker will read.")
@plan_options
@_json_option
@click.option("--samples", is_flag=True, help="With --json: after the plan, a line for every sample of every step.")
@source_options
def plan_command(
    options: PlanOptions,
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    as_json: bool,
    samples: bool,
) -> None:
    """Show what training will read: steps, sources, and what each worker of each rank reads. No tar is opened.

    SOURCE may be one package.module:name: a training's own pipeline, or a function that returns it.

    \b
      equitar plan cc3m=/data/cc3m-{000000..000331}.tar --batch-size 256 --world-size 8 --num-workers 4
      equitar plan a=a.tar b=b.tar --batch-size 64 --weights a=0.7,b=0.3 --steps 1000
      equitar plan a=a.tar --batch-size 64 --keep a=split:0/5
      equitar plan my_training:batches --world-size 8 --num-workers 4 --json --samples
    """
    from equitar.reporting.preview import emissions
    from equitar.reporting.preview import plan as plan_of_epoch

    if samples and not as_json:
        raise click.UsageError("`--samples` needs `--json`")
    batches = batches_of(options, words, sources_or_training(words, root, sidecars, options.keep))
    preview = plan_of_epoch(batches, epoch=options.epoch, num_workers=options.num_workers)
    if not as_json:
        click.echo(plan_text(preview))
        return
    click.echo(json.dumps(plan_json(preview), indent=None if samples else 2))
    if samples:
        for emission in emissions(batches, epoch=options.epoch, num_workers=options.num_workers):
            click.echo(json.dumps(emission._asdict()))


_OF_SOURCES = ("--repeat", "--cap", "--shared-ids")  # options that need no batches
_WORDS = 8  # SOURCE words that the command on a page shows


@click.command("report", short_help="Write one page to look at before training.")
@click.option("-o", "--output", metavar="FILE.html", type=Output(), required=True, help="Where to write the page.")
@plan_options
@source_options
def report_command(
    options: PlanOptions, words: tuple[str, ...], root: str | None, sidecars: str | None, output: str
) -> None:
    """Write one page to look at before training: sources, classes, thresholds, schedule, readers, and findings.

    It is one file that loads nothing else. Without --batch-size, it has no steps and readers. No tar is opened.
    SOURCE may be one package.module:name: a training's own pipeline, or a function that returns it.

    \b
      equitar report cc3m=/data/cc3m-{000000..000331}.tar --batch-size 256 --world-size 8 --num-workers 4 -o report.html
      equitar report lvis=/data/lvis-{000..099}.tar --repeat 1e-3 -o report.html
      equitar report my_training:batches --world-size 8 --num-workers 4 -o report.html
    """
    from equitar.reporting.findings import findings_of
    from equitar.reporting.page import report, require_report

    require_report()  # before minutes are spent on counting
    sources = sources_or_training(words, root, sidecars, options.keep)
    only_sources = isinstance(sources, Sequence) and options.batch_size is None
    extra = [name for name in options.given() if name not in _OF_SOURCES]
    if only_sources and extra:
        raise click.UsageError(f"`{extra[0]}` needs `--batch-size`, or a training's own pipeline")
    numbers = report(
        sources if only_sources else batches_of(options, words, sources),
        output,
        repeat=options.factor() if only_sources else None,
        labels_shared=options.shared_ids,
        epoch=options.epoch,
        num_workers=options.num_workers,
        command=_command(options, words, root, sidecars, output),
    )
    for finding in findings_of(numbers):
        click.echo(f"{finding.level:8} {finding.text}")
    click.echo(f"written  {output}")


def _command(options: PlanOptions, words: Sequence[str], root: str | None, sidecars: str | None, output: str) -> str:
    """Return the command line, without secrets in URLs; a shell may have expanded one word to thousands."""
    line = ["equitar", "report", *(shown(word) for word in words[:_WORDS])]
    line += ["..."] if len(words) > _WORDS else []
    places = {"--root": root, "--sidecars": sidecars, **options.given(), "-o": output}
    for name, value in places.items():
        for each in value if isinstance(value, tuple) else (value,):
            line += [] if each is None else [name] if each is True else [name, shown(str(each))]
    return shlex.join(line)
