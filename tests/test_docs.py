"""The documentation is right: its code runs, its links lead somewhere, and no public name is missing."""

import ast
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer.main

import operant
from operant.cli import app
from operant.model import doctor
from operant.model.remedies import KINDS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = [
    f"docs/how-to/{page}.md"
    for page in ("semantic", "other-libraries", "operational", "harden", "defend", "rivals", "synthesise", "measure")
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```$")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[str]:
    """Every Python block of a page, preceded by empty lines, so that a traceback has the line numbers of the page."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in BLOCK.finditer(text)]


# Code


def with_code() -> list:
    """Pages with code; those that take long are marked as slow."""
    slow = {page: [pytest.mark.slow] for page in SLOW}
    return [pytest.param(p, id=name_of(p), marks=slow.get(name_of(p), [])) for p in PAGES if blocks(p)]


@pytest.mark.parametrize("page", with_code())
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_escapes_the_test(page):
    """Every fence that is marked as Python, also indented ones, must be one of the blocks that run."""
    fences = re.findall(r"(?mi)^[ \t>]*(?:```+|~~~+)[ \t{.]*py(?!con).*$", page.read_text(encoding="utf-8"))
    assert fences == ["```python"] * len(blocks(page))


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_runs_by_itself(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_an_example_keeps_its_suite_in_the_given_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["own_model.py", str(tmp_path / "here")])
    names = runpy.run_path(str(ROOT / "examples" / "own_model.py"), run_name="__main__")
    assert operant.Suite.open(tmp_path / "here" / "suite").digest() == names["suite"].digest()


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_is_short(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40


# Links


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_pictures_of_a_page_are_there(page):
    """Web addresses are not checked; the anchor of a heading is its words with dashes between them."""
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


# Names and files

NOT_IN_PYTHON = ("operant.toml", "operant.git", "operant.studies")  # a file, a repository, a group of entry points


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module or class defines."""
    try:
        import_module(name)
    except ModuleNotFoundError:
        outer, _, last = name.rpartition(".")
        found = value_of(outer)
        declared = {**getattr(found, "__dataclass_fields__", {}), **getattr(found, "__annotations__", {})}
        return hasattr(found, last) or last in declared
    return True


def value_of(name: str) -> object:
    """The module or the value of a dotted name; None if there is no such thing."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        outer, _, last = name.rpartition(".")
        return getattr(value_of(outer), last, None) if outer else None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_a_page_exist(page):
    names = set(re.findall(r"\boperant(?:\.[A-Za-z_]\w*)+", page.read_text(encoding="utf-8"))) - set(NOT_IN_PYTHON)
    assert [name for name in sorted(names) if not exists(name)] == []


def test_the_architecture_names_each_file_once_and_all_exist():
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\|.*$", page[: page.index("## What lies below")])
    first = re.compile(r"^\|(?: [\w ]*\|)? (`[\w/.]+`(?:, `[\w/.]+`)*) \|")
    files = [file for row in rows if (cells := first.match(row)) for file in re.findall(r"`([\w/.]+)`", cells[1])]
    assert len(files) > 20
    assert sorted(set(files)) == sorted(files)
    picture = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    drawn = re.findall(r"\b[a-z_]+/(?:[a-z_]+\.py|[a-z_]+/)|(?<=>)retrain/", picture.partition("</defs>")[2])
    assert set(drawn) - {"src/operant/"} <= set(files)
    assert [file for file in files if not (ROOT / "src" / "operant" / file).exists()] == []


# Completeness


def public_modules() -> list[str]:
    """Every package and module that lists its public names in ``__all__``."""
    files = sorted((ROOT / "src" / "operant").rglob("*.py"))
    names = [
        ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        for file in files
        if "__all__" in file.read_text()
    ]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("name", [name for name in public_modules() if name != "operant.cli"])
def test_the_reference_lists_every_public_name(name):
    """Building the documentation fails if one of these links has no target."""
    fill_tables = runpy.run_path(str(ROOT / "docs" / "_reference.py"))["fill_tables"]
    index = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    section = fill_tables(re.findall(rf"(?m)^<!-- names of {re.escape(name)} -->$", index)[0])
    rows = dict(re.findall(r"(?m)^\| \[`(\w+)`\]\[operant\.[\w.]+\.\1\] \| \S(.*) \|$", section))
    assert sorted(rows) == sorted(import_module(name).__all__)


def test_every_table_of_the_reference_names_a_module():
    index = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^##.* `(operant[\w.]*)`\n\n<!-- names of (operant[\w.]*) -->$", index)
    assert len(headings) == index.count("<!--")
    assert [heading for heading, name in headings if heading != name or import_module(name).__doc__ is None] == []


def test_the_reference_lists_every_command_and_option():
    text = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"(?ms)^## operant ([\w-]+)\n(.*?)(?=^## |\Z)", text))
    commands = typer.main.get_command(app).commands
    assert list(sections) == list(commands)  # in the order of the help
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
    """The names of findings in the doctor's source: the first argument of _error and _warning."""
    tree = ast.parse(Path(doctor.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if {"_error", "_warning"} & {getattr(n, "id", "") for n in ast.walk(call.func)}]
    names = [call.args[0] for call in made]
    fixed = {ast.literal_eval(name) for name in names if not isinstance(name, ast.JoinedStr)}
    return fixed | {f"{kind} may be wrong" for kind in KINDS}


def test_the_changelog_has_the_current_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"(?m)^## \[{re.escape(operant.__version__)}\]", text)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{operant.__version__}"' in project


def test_the_readme_opens_with_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"(?ms)^```\w*\n(.*?)^```", readme)
    assert first is not None
    assert first[1].split("\n")[:2] == ["make demo", "make test"]
