"""The commands that look before anything is trained: `stats` at classes and sources, `plan` at what is emitted when."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from equitar.class_stats import stats
from equitar.cli_batches import PlanOptions, batches_of, plan_options, sources_or_training, stats_options
from equitar.cli_text import plan_json, plan_text, stats_json, stats_text
from equitar.cli_words import Output, source_options

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("stats", short_help="Show sources and classes, and what repeats make of them.")
@stats_options
@click.option("--plot", metavar="FILE.png", type=Output(), help="Draw classes and sources before and after.")
@click.option(
    "--captions", metavar="FIELD", help="Read a sample of captions (txt, say): how well do their words tell the source?"
)
@_json_option
@source_options
def stats_command(
    asked: PlanOptions,
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    plot: str | None,
    captions: str | None,
    as_json: bool,
) -> None:
    """Show sources and classes, and what repeats make of them.

    SOURCE may be one package.module:name: a training's own pipeline, or a function that returns it.

    \b
      equitar stats lvis=/data/lvis-{000..099}.tar --repeat 1e-3 --plot stats.png
      equitar stats cc3m=@shards.txt --keep 'cc3m=!bad_keys.txt'
      equitar stats my_training:batches --world-size 8 --json
      equitar stats cc3m=@cc3m.txt sbu=@sbu.txt --captions txt
    """
    from equitar import plots, probing

    if plot:
        plots.require_matplotlib()  # before minutes are spent on counting
    if captions:
        probing.require_sklearn()  # as above
    sources = sources_or_training(words, root, sidecars, asked.keep)
    if not isinstance(sources, Sequence):
        from equitar.training import adjusted

        sources = adjusted(sources, world_size=asked.world_size, repeat=asked.factor())
    found = stats(sources, repeat=asked.factor())
    if plot:
        plots.plot_stats(found, plot)
    probe = probing.caption_probe(sources, field=captions) if captions else None
    if as_json:
        click.echo(json.dumps(stats_json(found) | ({"captions": probe.as_json()} if probe else {}), indent=2))
        return
    click.echo(stats_text(found, plot))
    if probe:
        click.echo(f"\ncaptions\n{probe}")


@click.command("plan", short_help="Show what each rank and worker will read.")
@plan_options
@_json_option
@click.option("--samples", is_flag=True, help="With --json: a line for every sample of every step, after the plan's.")
@source_options
def plan_command(
    asked: PlanOptions,
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
    from equitar.plan_preview import emissions, preview

    if samples and not as_json:
        raise click.UsageError("`--samples` goes with `--json`")
    batches = batches_of(asked, words, sources_or_training(words, root, sidecars, asked.keep))
    found = preview(batches, epoch=asked.epoch, num_workers=asked.num_workers)
    if not as_json:
        click.echo(plan_text(found))
        return
    click.echo(json.dumps(plan_json(found), indent=None if samples else 2))
    if samples:
        for one in emissions(batches, epoch=asked.epoch, num_workers=asked.num_workers):
            click.echo(json.dumps(one._asdict()))
