"""What all commands share: parsing of sources, common options, errors in one line, and shell completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from equitar.sources import Source, Split, name_in_summary, split
from equitar.text import did_you_mean

_MOST = 100  # files shown
_INTERRUPTED = 130  # exit code after Ctrl-C, as in shells: 128 + SIGINT


class Shards(click.ParamType[str]):
    """A word of SOURCE, completed after ``name=`` to existing shards, lists and folders."""

    name = "source"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the completions of a word."""
        name, equals, path = incomplete.partition("=")
        before = ctx.params.get("words") or ()
        if not equals and before and before[-1] == "=":  # bash cuts words at "=", and completes the last piece
            return [CompletionItem(match) for match in _paths(incomplete)]
        return [CompletionItem(f"{name}={match}") for match in _paths(path)] if equals else []


def _paths(begin: str) -> list[str]:
    """Return the existing paths with this beginning; after ``@`` also lists."""
    sign = "@" * begin.startswith("@")
    folder, slash, start = begin.removeprefix("@").rpartition("/")
    root = Path(folder + slash)
    if not root.is_dir():
        return []
    paths = [path for path in sorted(root.iterdir()) if path.name.startswith(start) and (sign or _is_candidate(path))]
    return [f"{sign}{path}{'/' * path.is_dir()}" for path in paths[:_MOST]]


def _is_candidate(path: Path) -> bool:
    return path.is_dir() or path.name.endswith((".tar", ".tar.gz", ".tgz", ".summary.json", ".summary.npz"))


_NAMED = re.compile(r"(?P<name>[\w.+-]+)=(?P<urls>.+)", re.DOTALL)
_SPLIT = re.compile(r"split:([0-9]+)/([0-9]+)")
_DEBUG = "equitar.debug"  # in a context's `meta`, which a group shares with its commands
Command = TypeVar("Command", bound=Callable[..., Any])


def parse_sources(words: Sequence[str], *, root: str | None = None, sidecars: str | None = None) -> list[Source]:
    """Return the sources of ``name=urls`` words, in the order in which the names first occur; a summary needs no name.

    >>> [(source.name, source.urls) for source in parse_sources(["a=1.tar", "b=x-{0..9}.tar", "a=2.tar"])]
    [('a', ('1.tar', '2.tar')), ('b', 'x-{0..9}.tar')]
    >>> [source.name for source in parse_sources(["/data/cc3m.summary.json"])]
    ['cc3m']
    """
    urls_of: dict[str, list[str]] = {}
    for word in words:
        named = _NAMED.fullmatch(word)
        name, urls = (named["name"], named["urls"]) if named else (name_in_summary(word), word)
        if not name:
            begin, equals, rest = word.partition("=")
            urls = (rest if equals and "/" not in begin else word) or "shard-*.tar"
            raise click.UsageError(f"SOURCE must be name=urls; got {word!r}; write, for example, train={urls}")
        urls_of.setdefault(name, []).append(urls)
    return [
        Source(name=name, urls=urls[0] if len(urls) == 1 else tuple(urls), root=root, sidecars=sidecars)
        for name, urls in urls_of.items()
    ]


def kept(sources: Sequence[Source], words: Sequence[str]) -> list[Source]:
    """Return sources with the selections of ``--keep name=...``: a share, a split, or a file of keys.

    >>> (source,) = kept(parse_sources(["a=1.tar"]), ["a=split:0/5"])
    >>> source.keep, kept([source], ["a=0.5"])[0].keep, kept([source], ["a=!bad.txt"])[0].keep
    (Split(part=0, parts=5), 0.5, '!bad.txt')
    """
    keep_of: dict[str, float | str | Split] = {}
    names = [source.name for source in sources]
    for word in words:
        name, _, text = word.partition("=")
        is_wrong_split = text.startswith("split:") and not _SPLIT.fullmatch(text)
        if name not in names or not text.removeprefix("!") or name in keep_of or is_wrong_split:
            wanted = "name=FILE, 'name=!FILE', name=0.5 or name=split:0/5, once for each source of this line"
            guess = "" if name in names else did_you_mean(name, names)
            raise click.UsageError(f"`--keep` must be {wanted} ({', '.join(names)}); got {word!r}{guess}")
        try:
            keep_of[name] = _selection(text)
        except ValueError as error:
            raise click.UsageError(f"`--keep {word}`: {error}") from error
    return [replace(source, keep=keep_of.get(source.name, source.keep)) for source in sources]


def _selection(text: str) -> float | str | Split:
    parts = _SPLIT.fullmatch(text)
    if parts is not None:
        return split(int(parts[1]), int(parts[2]))
    try:
        return float(text)
    except ValueError:
        return text


class Commands(click.Group):
    """A group whose commands end in one line and exit code 1 if the package raises, or in its trace with --debug."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they are typically used."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that words begin with; click guesses what was meant only from its version 8.4 on."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"no such command: {args[0]!r}{did_you_mean(args[0], self.commands)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command on the line."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # from `equitar ... | head`: click ends silently
        except KeyboardInterrupt:
            click.echo("Interrupted. Resumable: rerun to continue.", err=True)
            ctx.exit(_INTERRUPTED)
        except (ValueError, RuntimeError, OSError) as error:
            # Click's own errors are RuntimeErrors, and are shown by click.
            if ctx.meta.get(_DEBUG) or isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
                raise
            raise click.ClickException(_error_line(error)) from error


def _error_line(error: Exception) -> str:
    """Return an error as one line with what to do."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"file not found: {str(error.filename)!r}; check the path"
    return str(error) or repr(error)


class Output(click.ParamType[str]):
    """A file to write; its folder is checked before minutes are spent on the content."""

    name = "file"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of a file that can be written."""
        folder = Path(value).parent
        if not folder.is_dir():
            self.fail(f"folder not found: {str(folder)!r} for {value!r}; create it, or name another", param, ctx)
        if Path(value).is_dir():
            self.fail(f"{value!r} is a folder; name a file in it", param, ctx)
        return value


def debug_option(command: Command) -> Command:
    """Give a command (or the group) the option --debug."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[_DEBUG] = ctx.meta.get(_DEBUG) or value

    text = "Show the traceback of an error."
    return click.option("--debug", is_flag=True, expose_value=False, callback=remember, help=text)(command)


def source_options(command: Command) -> Command:
    """Give a command the argument SOURCE... and the options for the folders of shards and sidecars."""
    for option in (
        debug_option,
        click.option(
            "--sidecars",
            metavar="DIR",
            help="Folder of the sidecars, with the same subfolders as the shards (default: beside each shard).",
        ),
        click.option(
            "--root",
            metavar="DIR",
            help="Folder to which the paths of shards are relative (default: their deepest common folder).",
        ),
        click.argument("words", metavar="SOURCE...", nargs=-1, required=True, type=Shards()),
    ):
        command = option(command)
    return command
