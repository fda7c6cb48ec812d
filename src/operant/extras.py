"""Optional dependencies: which command installs the ones that are missing."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command(extra: str) -> str:
    """The command that installs an extra, for instance ``triage``.

    If the package was installed from a folder, such as a clone of the repository, the command names this folder,
    because the package index may have another version or none.
    """
    try:
        origin = json.loads(distribution("operant").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    if "dir_info" not in origin:
        return f"pip install 'operant[{extra}]'"
    option = "-e " if origin["dir_info"].get("editable") else ""
    return f"pip install {option}{shlex.quote(url2pathname(urlsplit(origin['url']).path) + f'[{extra}]')}"
