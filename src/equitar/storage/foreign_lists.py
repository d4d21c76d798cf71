"""Which shards does the list of another tool name, and how many samples does it say they hold?

    wids              the JSON index of webdataset's `widsindex`: `shardlist` with `url`, `nsamples` and `filesize`
    open_clip         sizes.json: file names of shards and numbers
    open_lm           manifest.jsonl: `shard` (without .tar) and `num_sequences` a line
    Megatron Energon  .nv-meta/.info.json or .info.yaml: `shard_counts`; split.yaml: `split_parts`, which gives no numbers

A list is known by what is in it. Its shards lie where its tool takes them to lie: beside it, or beside the folder `.nv-meta`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import braceexpand

from equitar.errors import SourceError
from equitar.urls import shown

_OBJECT = re.compile(rb'\s*\{\s*["}]')


class Entry(NamedTuple):
    """A shard on a list.

    Attributes:
        url: What opens it.
        samples: How many samples it is said to hold; None if that is not said.
        size: Its length in bytes; None if that is not said.
    """

    url: str
    samples: int | None
    size: int | None


def read_entries(raw: bytes, path: str, *, part: str | None = None) -> list[Entry] | None:
    """Return the shards on a list of another tool, None if it is none of the kinds that the module names.

    Args:
        raw: The file.
        path: Where it lies.
        part: Which of the `split_parts` of a split.yaml.

    Raises:
        SourceError: If it is of one of these kinds, but not as it must be.
    """
    parsed = _parsed(raw, path)
    reader = next((reader for mark, reader in _READERS if isinstance(parsed, dict) and mark(parsed)), None)
    if isinstance(parsed, list):
        reader = _open_lm
    if reader is None:
        return None
    if (reader is _split) != (part is not None):
        wanted = "a part, as in @split.yaml:train" if reader is _split else "no part"
        raise SourceError(f"{shown(path)} must be given with {wanted}; got {part!r}")
    try:
        return list(reader(parsed, folder_of(path), shown(path), part))
    except SourceError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # also of braces that are not closed
        raise SourceError(f"{shown(path)} must list shards as its tool does; got {error!r}; make it anew") from error


def folder_of(path: str) -> str:
    """Return what the shards of a list at a path are relative to.

    >>> folder_of("wids.json"), folder_of("s3://bucket/a/.nv-meta/split.yaml")
    ('.', 's3://bucket/a')
    """
    folder = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    return (folder.removesuffix(".nv-meta").rstrip("/") or ".") if folder.endswith(".nv-meta") else folder


def resolved(url: str, folder: str) -> str:
    """Return a URL that may be relative to a folder."""
    is_whole = url.startswith(("/", "pipe:")) or "://" in url
    return url if is_whole or folder == "." else f"{folder.rstrip('/')}/{url}"


def _parsed(raw: bytes, path: str) -> Any:
    """Return what is in a file if it is an object in JSON or YAML, or lines of objects in JSON, else None."""
    if path.endswith((".yaml", ".yml")):
        import yaml  # noqa: PLC0415  (few need it)

        try:
            return yaml.load(raw, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (both are safe, one is fast)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise SourceError(f"{shown(path)} is no YAML ({str(error).splitlines()[0]}); make it anew") from error
    if not _OBJECT.match(raw):  # a list of patterns may begin with a brace too
        return None
    lines = [line for line in raw.split(b"\n") if line.strip()]
    try:  # an object on its first line alone, and more of them after it, or one that goes over all lines
        parsed = [json.loads(line) for line in lines] if _is_json(lines[0]) else json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{shown(path)} is broken JSON ({error}); make it anew") from error
    is_lines = isinstance(parsed, list) and (len(parsed) > 1 or "shard" in parsed[0])
    return parsed if is_lines or isinstance(parsed, dict) else parsed[0]


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _wids(parsed: Any, folder: str, where: str, _: str | None) -> Iterator[Entry]:
    for component in (parsed, *parsed.get("datasets", ())):
        if "shardlist" not in component and "source_url" in component:
            seen = f"{where} refers to the list {component['source_url']!r}, which is not read"
            raise SourceError(f"{seen}; give that list beside this one")
        base = resolved(component["base"], folder) if component.get("base") else folder
        for one in component.get("shardlist", ()):
            size = None if one.get("filesize") is None else _number(one["filesize"], where)
            yield Entry(resolved(one["url"], base), _number(one["nsamples"], where), size)


def _counted(counts: Mapping[str, Any], folder: str, where: str) -> Iterator[Entry]:
    for name, samples in counts.items():
        yield Entry(resolved(name, folder), _number(samples, where), None)


def _sizes(parsed: Any, folder: str, where: str, _: str | None) -> Iterator[Entry]:
    yield from _counted(parsed, folder, where)


def _energon(parsed: Any, folder: str, where: str, _: str | None) -> Iterator[Entry]:
    yield from _counted(parsed["shard_counts"], folder, where)


def _open_lm(parsed: Any, folder: str, where: str, _: str | None) -> Iterator[Entry]:
    for number, line in enumerate(parsed, start=1):
        samples = line.get("num_sequences", line.get("num_chunks"))  # as older versions call it
        if not isinstance(line.get("shard"), str) or samples is None:
            raise SourceError(
                f'line {number} of {where} must be {{"shard": "...", "num_sequences": N}}; got {line!r:.80}'
            )
        yield Entry(resolved(f"{line['shard']}.tar", folder), _number(samples, f"line {number} of {where}"), None)


def _split(parsed: Any, folder: str, where: str, part: str | None) -> Iterator[Entry]:
    parts = parsed["split_parts"]
    if part not in parts:
        raise SourceError(f"{where} must have the part {part!r}; it has {', '.join(parts)}; name one of these")
    excluded = {one for pattern in parsed.get("exclude") or () for one in braceexpand.braceexpand(pattern)}
    samples = sorted(one for one in excluded if not one.endswith((".tar", ".tar.gz")))
    if samples:
        mend = 'write their keys into a file, and give it as keep="!FILE" to a source of all shards'
        raise SourceError(f"{where} excludes single samples, such as {samples[0]!r}, but a list is of shards; {mend}")
    for pattern in parts[part]:
        for name in braceexpand.braceexpand(pattern):
            if name not in excluded:
                yield Entry(resolved(name, folder), None, None)


def _number(value: Any, where: str) -> int:
    """Return a number, which JSON may hold as text."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal():
        raise SourceError(f"{where} must give whole numbers of samples and bytes; got {value!r}; make it anew")
    return int(text)


def _are_sizes(parsed: Mapping[Any, Any]) -> bool:
    return bool(parsed) and all(str(name).endswith((".tar", ".tar.gz", ".tgz")) for name in parsed)


_READERS: tuple[
    tuple[Callable[[Mapping[Any, Any]], bool], Callable[[Any, str, str, str | None], Iterator[Entry]]], ...
] = (
    (lambda parsed: "shardlist" in parsed or "wids_version" in parsed, _wids),
    (lambda parsed: "shard_counts" in parsed, _energon),
    (lambda parsed: "split_parts" in parsed, _split),
    (_are_sizes, _sizes),
)
