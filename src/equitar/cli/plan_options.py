"""Options of a plan, and the batches that a command line describes.

The options arrive together, as one `PlanOptions`: the first argument of the command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from equitar.cli.options import kept, parse_sources
from equitar.planning.plan import Composition, SmallSources
from equitar.planning.repeat_factors import RepeatFactor
from equitar.planning.weights import Temperature, Weights
from equitar.sources import Source, name_in_summary

if TYPE_CHECKING:
    from equitar.loading.batches import Batches

_TRAINING = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")


@dataclass(slots=True)
class PlanOptions:
    """The options of a plan as they were given; None was not given."""

    batch_size: int | None = None
    world_size: int | None = None
    num_workers: int = 0
    seed: int | None = None
    epoch: int = 0
    repeat: str | None = None
    cap: float | None = None
    steps: int | None = None
    weights: str | None = None
    temperature: float | None = None
    small_sources: SmallSources | None = None
    mixed: bool = False
    composition: Composition | None = None
    shuffle: int | None = None
    keep: tuple[str, ...] = ()
    shared_ids: bool = False

    def factor(self) -> RepeatFactor | None:
        """Return how samples are repeated."""
        if self.repeat is None and self.cap is not None:
            raise click.UsageError("`--cap` needs `--repeat`")
        if self.repeat is None:
            return None
        try:
            factor = RepeatFactor("median" if self.repeat == "median" else float(self.repeat))
        except ValueError as error:
            message = f"`--repeat` must be a number in [0, 1] or median; got {self.repeat!r}"
            raise click.UsageError(message) from error
        try:
            return replace(factor, cap=self.cap)
        except ValueError as error:
            raise click.UsageError(f"`--cap` must be a finite number >= 1; got {self.cap}") from error

    def shares(self) -> Weights | None:
        """Return the share of each source."""
        if self.weights is not None and self.temperature is not None:
            raise click.UsageError("`--weights` and `--temperature` cannot be combined")
        if self.temperature is None:
            return None if self.weights is None else parse_weights(self.weights)
        try:
            return Temperature(self.temperature)
        except ValueError as error:
            raise click.UsageError(f"`--temperature` must be a finite number >= 1; got {self.temperature}") from error

    def given(self) -> dict[str, Any]:
        """Return the options that are not defaults, as they are written, with their values; a flag has True."""
        defaults = PlanOptions()
        return {
            f"--{option.name.replace('_', '-')}": value
            for option in fields(self)
            if (value := getattr(self, option.name)) != getattr(defaults, option.name)
        }


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    assert param.name is not None, "options have names"
    setattr(ctx.ensure_object(PlanOptions), param.name, value)


def _option(name: str, metavar: str | None, kind: Any, text: str, default: int | None = None) -> Callable[[Any], Any]:
    return click.option(
        name,
        metavar=metavar,
        type=kind,
        default=default,
        show_default=default is not None,
        expose_value=False,
        callback=_remember,
        help=text,
    )


_KEEP = click.option(
    "--keep",
    metavar="name=WHAT",
    multiple=True,
    expose_value=False,
    callback=_remember,
    help="Samples of a source to use: FILE of keys, !FILE for all others, a share such as 0.5, or split:0/5; repeatable.",
)
_SHARED_IDS = click.option(
    "--shared-ids",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Ids without class names mean the same classes in all sources.",
)
_POSITIVE, _FROM_ZERO = click.IntRange(min=1), click.IntRange(min=0)
_WORLD = _option("--world-size", "R", _POSITIVE, "Ranks (default: 1, or those of the training).")
_REPEAT = _option("--repeat", "T", str, "Threshold of the repeat factors (LVIS: 1e-3), or median.")
_CAP = _option("--cap", "R", float, "Largest repeat factor.")


def _all(num_workers: int) -> tuple[Callable[[Any], Any], ...]:
    """Return all options of a plan, with so many workers by default."""
    return (
        _option("--batch-size", "B", _POSITIVE, "Samples per rank and step."),
        _WORLD,
        _option("--num-workers", "W", _FROM_ZERO, "DataLoader workers of each rank.", default=num_workers),
        _option("--seed", "S", _FROM_ZERO, "Random seed (default: 0, or that of the training)."),
        _option("--epoch", "E", _FROM_ZERO, "Which epoch.", default=0),
        _REPEAT,
        _CAP,
        _SHARED_IDS,
        _option("--steps", "N", _POSITIVE, "Steps of an epoch (default: one pass through all sources)."),
        _option("--weights", "a=0.7,b=0.3", str, "Share of the steps of each source."),
        _option("--temperature", "T", float, "Shares by size ** (1 / T)."),
        _option(
            "--small-sources",
            None,
            click.Choice(["error", "leave_out"]),
            "Sources with fewer samples than a global batch (default: error).",
        ),
        click.option(
            "--mixed",
            is_flag=True,
            expose_value=False,
            callback=_remember,
            help="Mix all sources in every batch, instead of one source per batch.",
        ),
        _option(
            "--composition",
            None,
            click.Choice(["stratified", "independent"]),
            "With --mixed: the exact share of each source in every batch, or shares that vary as in one shuffle "
            "(default: stratified).",
        ),
        _option("--shuffle", "N", _FROM_ZERO, "Shuffle buffer: samples that each rank shuffles together."),
        _KEEP,
    )


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of a plan."""
    return _with(_all(0), command)


def bench_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of a plan, with two workers by default."""
    return _with(_all(2), command)


def stats_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a plan that change what a training emits of each class."""
    return _with((_REPEAT, _CAP, _SHARED_IDS, _WORLD, _KEEP), command)


def repeat_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a plan that repeat samples."""
    return _with((_REPEAT, _CAP, _SHARED_IDS), command)


def _with(options: Sequence[Callable[[Any], Any]], command: Callable[..., None]) -> Callable[..., None]:
    result: Callable[..., None] = click.pass_obj(command)
    for option in reversed(options):
        result = option(result)
    return result


def sources_or_training(
    words: Sequence[str], root: str | None, sidecars: str | None, keep: Sequence[str]
) -> list[Source] | Batches:
    """Return the sources of name=urls words, or the batches that package.module:name makes."""
    trainings = [word for word in words if _TRAINING.fullmatch(word)]
    if not trainings and len(words) == 1 and "=" not in words[0] and not name_in_summary(words[0]):
        raise click.UsageError(f"SOURCE must be name=urls or package.module:name; got {words[0]!r}")
    if not trainings:
        return kept(parse_sources(words, root=root, sidecars=sidecars), keep)
    from equitar.loading.batches import load_training

    if len(words) > 1 or root or sidecars or keep:
        raise click.UsageError(
            f"{trainings[0]!r} is a training's own pipeline; give no other SOURCEs, --root, --sidecars or --keep with it"
        )
    return load_training(trainings[0])


def batches_of(options: PlanOptions, words: Sequence[str], sources: list[Source] | Batches) -> Batches:
    """Return the batches that a command line describes; `sources` is what its words name."""
    from equitar.loading.batches import adjusted
    from equitar.loading.builders import debiased, mixed

    if isinstance(sources, Sequence):
        if options.batch_size is None:
            raise click.UsageError("SOURCEs need `--batch-size`")
        build = mixed if options.mixed else debiased
        batches = build(sources, batch_size=options.batch_size, rank=0, world_size=1)
        if options.mixed and options.small_sources is not None:
            raise click.UsageError(
                "`--small-sources` is for batches of one source each; `--mixed` takes sources of any size"
            )
        if not options.mixed and options.composition is not None:
            raise click.UsageError("`--composition` needs `--mixed`")
    elif options.mixed:
        raise click.UsageError(f"`--mixed` is for SOURCEs; {words[0]!r} defines its own batches")
    else:
        batches = sources
    return adjusted(
        batches,
        batch_size=options.batch_size,
        world_size=options.world_size,
        seed=options.seed,
        shuffle=options.shuffle,
        repeat=options.factor(),
        labels_shared=options.shared_ids or None,
        steps=options.steps,
        weights=options.shares(),
        small_sources=options.small_sources,
        composition=options.composition,
    )


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
            wanted = "name=number for each source, each number >= 0, such as a=0.7,b=0.3"
            raise click.UsageError(f"`--weights` must be {wanted}; got {word!r}")
        shares[name] = value
    return shares
