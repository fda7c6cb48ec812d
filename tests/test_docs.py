"""What the documentation says is so: its code runs, its links lead somewhere, and it leaves out no public name."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import typer.main

import operant
import operant.assess
import operant.campaign
import operant.conditions
import operant.defend
import operant.density
import operant.generate
import operant.measure
import operant.networks
import operant.profile
import operant.report
import operant.retrain
import operant.seeds
from operant.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = [
    f"docs/how-to/{page}.md"
    for page in ("semantic", "other-libraries", "operational", "harden", "defend", "rivals", "synthesise", "measure")
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```$")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[str]:
    """Every Python block of a page, moved down to the line it has there, so that a traceback points at it."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in BLOCK.finditer(text)]


# Code


def with_code() -> list:
    """Pages with code; those that take long are left to the slow suite."""
    slow = {page: [pytest.mark.slow] for page in LONG}
    return [pytest.param(p, id=name_of(p), marks=slow.get(name_of(p), [])) for p in PAGES if blocks(p)]


@pytest.mark.parametrize("page", with_code())
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_escapes_the_test(page):
    """Whatever is marked as Python, indented or otherwise spelled, must be one of the blocks that run."""
    fences = re.findall(r"(?mi)^[ \t>]*(?:```+|~~~+)[ \t{.]*py(?!con).*$", page.read_text(encoding="utf-8"))
    assert fences == ["```python"] * len(blocks(page))


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_runs_by_itself(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_an_example_keeps_its_suite_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["own_model.py", str(tmp_path / "here")])
    names = runpy.run_path(str(ROOT / "examples" / "own_model.py"), run_name="__main__")
    assert operant.Suite.open(tmp_path / "here" / "suite").digest() == names["suite"].digest()


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_is_short(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40


# Links


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_pictures_of_a_page_are_there(page):
    """Web addresses are left alone; headings of a page are linked as their words with dashes between them."""
    text = page.read_text(encoding="utf-8")
    headings = {re.sub(r"\W+", "-", line.lower()).strip("-") for line in re.findall(r"(?m)^#+ (.+)$", text)}
    for target in LINK.findall(BLOCK.sub("", text)):
        if target.startswith("#"):
            assert target[1:] in headings, f"{name_of(page)} has no heading {target}"
        elif not re.match(r"[a-z]+:", target):
            assert (page.parent / target.partition("#")[0]).exists(), f"{name_of(page)} links to {target}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if ROOT / "docs" in page.parents]
    assert [page for page in pages if not re.search(rf"(?m)[ :]{re.escape(page)}$", navigation)] == []


# Nothing left out


FRONTS = [
    operant, operant.generate, operant.measure, operant.networks, operant.retrain, operant.assess, operant.density,
    operant.conditions, operant.profile, operant.seeds, operant.campaign, operant.report, operant.defend,
]  # fmt: skip


@pytest.mark.parametrize("module", FRONTS, ids=lambda m: m.__name__)
def test_the_reference_tells_every_public_name(module):
    """Links of the form [operant.module.name] are resolved, or refused, when the documentation is built."""
    index = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    links = dict(re.findall(r"\[`(\w+)`\]\[operant\.([\w.]+)\]", index))
    assert [name for name in module.__all__ if links.get(name, "").rpartition(".")[2] != name] == []


def test_the_reference_tells_every_command_and_option():
    text = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"(?ms)^## operant ([\w-]+)\n(.*?)(?=^## |\Z)", text))
    commands = typer.main.get_command(app).commands
    assert sorted(sections) == sorted(commands)
    for name, command in commands.items():
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert [option for option in options if f"`{option}`" not in sections[name]] == []


def test_every_finding_of_the_doctor_has_a_paragraph():
    page = (ROOT / "docs" / "explanation" / "findings.md").read_text(encoding="utf-8")
    paragraphs = dict(re.findall(r"(?ms)^### (.+?)\n(.*?)(?=^##|\Z)", page))
    assert sorted(paragraphs) == sorted(finding_names())
    for name, paragraph in paragraphs.items():
        assert all(part in paragraph for part in ("**Raised if**", "**Why it matters:**", "**What to do:**")), name


def finding_names() -> set[str]:
    """What the doctor's source gives its findings as names: the first argument of _error and _warning."""
    tree = ast.parse(Path(operant.model.doctor.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if {"_error", "_warning"} & {getattr(n, "id", "") for n in ast.walk(call.func)}]
    return {ast.literal_eval(call.args[0]) for call in made}


def test_the_changelog_tells_the_current_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"(?m)^## \[{re.escape(operant.__version__)}\]", text)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{operant.__version__}"' in project


def test_the_readme_opens_with_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"(?ms)^```\w*\n(.*?)^```", readme)
    assert first is not None
    assert first[1].split("\n")[:2] == ["make demo", "make test"]
