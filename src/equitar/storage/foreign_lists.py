"""Shard lists of other tools (wids, open_clip, open_lm, Energon): URLs, and numbers of samples where given.

    wids              the JSON index of webdataset's `widsindex`: `shardlist` with `url`, `nsamples` and `filesize`
    open_clip         sizes.json: file names of shards and numbers
    open_lm           manifest.jsonl: `shard` (without .tar) and `num_sequences` a line
    Megatron Energon  .nv-meta/.info.json or .info.yaml: `shard_counts`; split.yaml: `split_parts`, which gives no numbers

The kind of a list is recognised by its contents. Paths are relative to the folder of the list, or of its folder `.nv-meta`.
"""

from __future__ import annotations

import codecs
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
        url: Its URL.
        samples: How many samples it holds according to the list; None if not given.
        size: Its length in bytes; None if not given.
    """

    url: str
    samples: int | None
    size: int | None


def read_entries(raw: bytes, path: str, *, part: str | None = None) -> list[Entry] | None:
    """Return the shards on a list of another tool, None if it is not one of the kinds above.

    Args:
        raw: The contents of the file.
        path: Its path or URL.
        part: Which of the `split_parts` of a split.yaml.

    Raises:
        SourceError: If it is one of these kinds, but malformed.
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
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # ValueError also for braces that are not closed
        raise SourceError(f"{shown(path)} must list shards as its tool does; got {error!r}; write it again") from error


def folder_of(path: str) -> str:
    """Return the folder that paths in a list are relative to.

    >>> folder_of("wids.json"), folder_of("s3://bucket/a/.nv-meta/split.yaml")
    ('.', 's3://bucket/a')
    """
    folder = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    return (folder.removesuffix(".nv-meta").rstrip("/") or ".") if folder.endswith(".nv-meta") else folder


def resolved(url: str, folder: str) -> str:
    """Return the URL of a shard that may be given relative to a folder."""
    is_whole = url.startswith(("/", "pipe:")) or "://" in url
    return url if is_whole or folder == "." else f"{folder.rstrip('/')}/{url}"


def _parsed(raw: bytes, path: str) -> Any:
    """Return the contents of a JSON object, a YAML file or JSON lines; None for any other text."""
    if path.endswith((".yaml", ".yml")):
        import yaml  # noqa: PLC0415  (rarely needed)

        try:
            return yaml.load(raw, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (both are safe, one is fast)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise SourceError(
                f"{shown(path)} is not valid YAML ({str(error).splitlines()[0]}); write it again"
            ) from error
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if not _OBJECT.match(raw):  # a list of patterns may begin with a brace, too
        return None
    lines = [line for line in raw.split(b"\n") if line.strip()]
    try:  # one object a line, or one over all lines
        parsed = [json.loads(line) for line in lines] if _is_json(lines[0]) else json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{shown(path)} is not valid JSON ({error}); write it again") from error
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
            problem = f"{where} refers to the list {component['source_url']!r}, which is not followed"
            raise SourceError(f"{problem}; pass that list as well")
        base = resolved(component["base"], folder) if component.get("base") else folder
        for shard in component.get("shardlist", ()):
            size = None if shard.get("filesize") is None else _number(shard["filesize"], where)
            yield Entry(resolved(shard["url"], base), _number(shard["nsamples"], where), size)


def _counted(counts: Mapping[str, Any], folder: str, where: str) -> Iterator[Entry]:
    for name, samples in counts.items():
        yield Entry(resolved(name, folder), _number(samples, where), None)


def _sizes(parsed: Any, folder: str, where: str, _: str | None) -> Iterator[Entry]:
    yield from _counted(parsed, folder, where)


def _energon(parsed: Any, folder: str, where: str, _: str | None) -> Iterator[Entry]:
    yield from _counted(parsed["shard_counts"], folder, where)


def _open_lm(parsed: Any, folder: str, where: str, _: str | None) -> Iterator[Entry]:
    for number, line in enumerate(parsed, start=1):
        samples = line.get("num_sequences", line.get("num_chunks"))  # its name in older versions
        if not isinstance(line.get("shard"), str) or samples is None:
            raise SourceError(
                f'line {number} of {where} must be {{"shard": "...", "num_sequences": N}}; got {line!r:.80}'
            )
        yield Entry(resolved(f"{line['shard']}.tar", folder), _number(samples, f"line {number} of {where}"), None)


def _split(parsed: Any, folder: str, where: str, part: str | None) -> Iterator[Entry]:
    parts = parsed["split_parts"]
    if part not in parts:
        raise SourceError(f"{where} must have the part {part!r}; it has {', '.join(parts)}; name one of these")
    excluded = {name for pattern in parsed.get("exclude") or () for name in braceexpand.braceexpand(pattern)}
    samples = sorted(name for name in excluded if not name.endswith((".tar", ".tar.gz")))
    if samples:
        fix = 'write their keys into a file, and pass it as keep="!FILE" with a source of all shards'
        raise SourceError(f"{where} excludes single samples, such as {samples[0]!r}, but must list shards; {fix}")
    for pattern in parts[part]:
        for name in braceexpand.braceexpand(pattern):
            if name not in excluded:
                yield Entry(resolved(name, folder), None, None)


def _number(value: Any, where: str) -> int:
    """Return a number, which may be given as text."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal():
        raise SourceError(f"{where} must give whole numbers of samples and bytes; got {value!r}; write it again")
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
