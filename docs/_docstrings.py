"""Makes our docstrings Markdown: doctests become code blocks, and each line of a reference stands by itself."""

import re
from typing import Any

import griffe


class Markdown(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    text = re.sub(r"(?m)^>>> .*(?:\n.+)*", r"```pycon\n\g<0>\n```", text)
    text = re.sub(r"(?m)^( +)\| (https?://\S+)$", r"\1<\2>", text)
    return re.sub(r"(?m)^( +)\| (.+)$", r"\1\2<br>", text)
