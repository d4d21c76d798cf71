"""The command that makes a shell complete the others."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_EQUITAR_COMPLETE"  # click looks for it when a shell asks
_MOST = 100  # files shown


@click.command("completion", short_help="Print what makes a shell complete commands, options and files.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options, and the files in SOURCE.

    \b
      eval "$(equitar completion bash)"                                       for now
      equitar completion bash >> ~/.bashrc                                    from now on
      equitar completion fish > ~/.config/fish/completions/equitar.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click completes all of them"
    click.echo(kind(ctx.find_root().command, {}, "equitar", _VARIABLE).source())


class Shards(click.ParamType[str]):
    """A word of SOURCE, which completes after ``name=`` to the shards, lists and folders there are."""

    name = "source"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return how a word may go on."""
        name, equals, begun = incomplete.partition("=")
        before = ctx.params.get("words") or ()
        if not equals and before and before[-1] == "=":  # bash cuts words at "=", and completes the last piece
            return [CompletionItem(path) for path in _paths(incomplete)]
        return [CompletionItem(f"{name}={path}") for path in _paths(begun)] if equals else []


def _paths(begun: str) -> list[str]:
    """Return the paths that a word may stand for; after ``@`` they are lists."""
    at = "@" * begun.startswith("@")
    folder, slash, start = begun.removeprefix("@").rpartition("/")
    root = Path(folder + slash)
    if not root.is_dir():
        return []
    found = [one for one in sorted(root.iterdir()) if one.name.startswith(start) and (at or _may_be_meant(one))]
    return [f"{at}{one}{'/' * one.is_dir()}" for one in found[:_MOST]]


def _may_be_meant(path: Path) -> bool:
    return path.is_dir() or path.name.endswith((".tar", ".tar.gz", ".tgz", ".summary.json", ".summary.npz"))
