"""The command that installs a missing extra fits how the package was installed."""

import json
import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from operant.density.flow import _build
from operant.extras import install_command
from operant.generate.adapters import _require

ROOT = Path(__file__).parents[1]


def installed_as(monkeypatch: pytest.MonkeyPatch, origin: str | None) -> None:
    monkeypatch.setattr("operant.extras.distribution", lambda _: SimpleNamespace(read_text=lambda _: origin))


@pytest.mark.parametrize("extra", ["triage", "flows"])
@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'operant[EXTRA]'"),
        ("not JSON", "pip install 'operant[EXTRA]'"),
        ({"url": "https://example.org/operant.whl", "archive_info": {}}, "pip install 'operant[EXTRA]'"),
        (
            {"url": "file:///home/operant", "dir_info": {"editable": True}},
            "pip install -e '/home/operant[EXTRA]'",
        ),
        ({"url": "file:///home/operant", "dir_info": {}}, "pip install '/home/operant[EXTRA]'"),
        ({"url": "file:///my%20files/it", "dir_info": {"editable": True}}, "pip install -e '/my files/it[EXTRA]'"),
    ],
)
def test_the_command_names_the_folder_that_was_installed(monkeypatch, origin, command, extra) -> None:
    installed_as(monkeypatch, origin if origin is None or isinstance(origin, str) else json.dumps(origin))
    assert install_command(extra) == command.replace("EXTRA", extra)


def test_without_an_installed_package_the_command_is_the_usual_one(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("operant.extras.distribution", missing)
    assert install_command("triage") == "pip install 'operant[triage]'"


def test_every_message_about_a_missing_extra_uses_the_command() -> None:
    sources = [file for part in ("src", "studies") for file in (ROOT / part).rglob("*.py") if file.name != "extras.py"]
    assert len(sources) > 100
    assert [file for file in sources if re.search(r"pip install\b.*operant", file.read_text(encoding="utf-8"))] == []


def test_a_missing_module_is_named_with_the_command(monkeypatch) -> None:
    for name in ("zuko", "zuko.flows", "foolbox"):
        monkeypatch.setitem(sys.modules, name, None)
    for name, use in (("zuko", lambda: _build(2, 1, 8)), ("foolbox", lambda: _require("foolbox", extra="flows"))):
        with pytest.raises(ImportError, match=re.escape(f"{name} is not installed; {install_command('flows')}")):
            use()
