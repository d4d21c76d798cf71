"""An extension of griffe: what it cannot know of our code, so that pages show it as a reader needs it."""

from __future__ import annotations

from collections.abc import Iterator

import griffe


class Readable(griffe.Extension):
    """Fences doctests, which Markdown would take for quotations; shows defaults as numbers, not as private names."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Change an object that was loaded, before its docstring is parsed."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = "\n".join(
                _fenced(obj.docstring.value.splitlines())
            )
        if isinstance(obj, griffe.Function):
            for parameter in obj.parameters:
                constant = obj.module.members.get(str(parameter.default))
                if isinstance(constant, griffe.Attribute):
                    parameter.default = constant.value


def _fenced(lines: list[str]) -> Iterator[str]:
    """Yield lines, those from a prompt to the next empty one between fences."""
    is_open = False
    for line in [*lines, ""]:
        if line.startswith(">>> ") and not is_open:
            yield "```pycon"
            is_open = True
        elif is_open and not line.strip():
            yield "```"
            is_open = False
        yield line
