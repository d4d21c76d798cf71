"""The commands that look before anything is trained: `stats` at classes and sources, `plan` at what is emitted when."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from equitar.class_stats import stats
from equitar.cli_text import plan_json, plan_text, stats_json, stats_text
from equitar.cli_words import parse_sources, source_options
from equitar.errors import PlanError
from equitar.repeat import RepeatFactor
from equitar.sources import Source
from equitar.weights import Temperature, Weights

if TYPE_CHECKING:
    from equitar.pipeline import Batches

_TRAINING = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")

repeat_option = click.option("--repeat", metavar="T", help="Threshold of the repeat factors (LVIS: 1e-3), or median.")
cap_option = click.option("--cap", metavar="R", type=float, help="Largest repeat factor.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
world_option = click.option(
    "--world-size", metavar="R", type=click.IntRange(min=1), help="Ranks (default: 1, or those of a training)."
)


@click.command("stats")
@repeat_option
@cap_option
@click.option("--plot", metavar="FILE.png", help="Draw classes and sources before and after.")
@world_option
@json_option
@source_options
def stats_command(
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    repeat: str | None,
    cap: float | None,
    plot: str | None,
    world_size: int | None,
    as_json: bool,
) -> None:
    """Show sources and classes, and what repeats make of them.

    SOURCE may be one package.module:name: a training's own pipeline, or a function that returns it.

    \b
      equitar stats lvis=/data/lvis-{000..099}.tar --repeat 1e-3 --plot stats.png
      equitar stats my_training:batches --world-size 8 --json
    """
    from equitar import plots

    if plot:
        plots.require_matplotlib()  # before minutes are spent on counting
    sources = _sources_or_training(words, root, sidecars)
    if not isinstance(sources, Sequence):
        from equitar.training import adjusted

        sources = adjusted(sources, world_size=world_size, repeat=parse_factor(repeat, cap))
    found = stats(sources, repeat=parse_factor(repeat, cap))
    if plot:
        plots.plot_stats(found, plot)
    click.echo(json.dumps(stats_json(found), indent=2) if as_json else stats_text(found, plot))


@click.command("plan")
@click.option("--batch-size", metavar="B", type=click.IntRange(min=1), help="Samples per rank and step.")
@world_option
@click.option("--num-workers", metavar="W", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--seed", metavar="S", type=click.IntRange(min=0))
@click.option("--epoch", metavar="E", type=click.IntRange(min=0), default=0, show_default=True)
@repeat_option
@cap_option
@click.option("--steps", metavar="N", type=click.IntRange(min=1), help="Steps of an epoch (default: one pass in all).")
@click.option("--weights", metavar="a=0.7,b=0.3", help="Share of the steps of each source.")
@click.option("--temperature", metavar="T", type=float, help="Shares by size ** (1 / T).")
@click.option("--mixed", is_flag=True, help="Batches of all sources by share, not of one each.")
@click.option("--shuffle", metavar="N", type=click.IntRange(min=0), help="Samples that each rank shuffles together.")
@json_option
@click.option("--samples", is_flag=True, help="With --json: a line for every sample of every step, after the plan's.")
@source_options
def plan_command(
    words: tuple[str, ...],
    root: str | None,
    sidecars: str | None,
    batch_size: int | None,
    world_size: int | None,
    num_workers: int,
    seed: int | None,
    epoch: int,
    repeat: str | None,
    cap: float | None,
    steps: int | None,
    weights: str | None,
    temperature: float | None,
    mixed: bool,
    shuffle: int | None,
    as_json: bool,
    samples: bool,
) -> None:
    """Show what training will read: steps, sources, and what each worker of each rank reads. No tar is opened.

    SOURCE may be one package.module:name: a training's own pipeline, or a function that returns it.

    \b
      equitar plan cc3m=/data/cc3m-{000000..000331}.tar --batch-size 256 --world-size 8 --num-workers 4
      equitar plan a=a.tar b=b.tar --batch-size 64 --weights a=0.7,b=0.3 --steps 1000
      equitar plan my_training:batches --world-size 8 --num-workers 4 --json --samples
    """
    from equitar.build import debiased
    from equitar.build import mixed as mixed_batches
    from equitar.plan_preview import emissions, preview
    from equitar.training import adjusted

    if samples and not as_json:
        raise click.UsageError("`--samples` goes with `--json`")
    if weights and temperature:
        raise click.UsageError("`--weights` and `--temperature` exclude each other")
    batches = _sources_or_training(words, root, sidecars)
    if isinstance(batches, Sequence):
        if batch_size is None:
            raise click.UsageError("`--batch-size` is needed with SOURCEs")
        batches = (mixed_batches if mixed else debiased)(batches, batch_size=batch_size, rank=0, world_size=1)
    elif mixed:
        raise click.UsageError(f"`--mixed` is for SOURCEs; {words[0]!r} says itself what its batches are")
    batches = adjusted(
        batches,
        batch_size=batch_size,
        world_size=world_size,
        seed=seed,
        shuffle=shuffle,
        repeat=parse_factor(repeat, cap),
        steps=steps,
        weights=Temperature(temperature) if temperature else parse_weights(weights) if weights else None,
    )
    found = preview(batches, epoch=epoch, num_workers=num_workers)
    if not as_json:
        click.echo(plan_text(found))
        return
    click.echo(json.dumps(plan_json(found), indent=None if samples else 2))
    if samples:
        for one in emissions(batches, epoch=epoch, num_workers=num_workers):
            click.echo(json.dumps(one._asdict()))


def parse_weights(text: str) -> Weights:
    """Return the shares in ``a=0.7,b=0.3``, by source.

    >>> parse_weights("a=0.7,b=0.3")
    {'a': 0.7, 'b': 0.3}
    """
    shares: dict[str, float] = {}
    for word in text.split(","):
        name, _, number = word.strip().rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not name or value < 0 or name in shares:
            raise PlanError(f"`--weights` must be name=number for each source, such as a=0.7,b=0.3; got {word!r}")
        shares[name] = value
    return shares


def _sources_or_training(words: Sequence[str], root: str | None, sidecars: str | None) -> list[Source] | Batches:
    trainings = [word for word in words if _TRAINING.fullmatch(word)]
    if not trainings:
        return parse_sources(words, root=root, sidecars=sidecars)
    from equitar.training import load_training

    if len(words) > 1 or root or sidecars:
        raise click.UsageError(f"{trainings[0]!r} is a training's own pipeline and stands alone, without other SOURCEs")
    return load_training(trainings[0])


def parse_factor(repeat: str | None, cap: float | None) -> RepeatFactor | None:
    """Return the factor that `--repeat` and `--cap` say, None for none."""
    if repeat is None and cap is not None:
        raise click.UsageError("`--cap` goes with `--repeat`")
    try:
        return None if repeat is None else RepeatFactor("median" if repeat == "median" else float(repeat), cap=cap)
    except ValueError as error:
        raise click.UsageError(f"`--repeat` must be a number in [0, 1] or median; got {repeat!r} ({error})") from error
