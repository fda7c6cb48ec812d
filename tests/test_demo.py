"""The demo: what it writes, what it says, and that it can be run again and never harms anybody's files."""

import base64
import contextlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from operant import Classifier, Finding, Suite, cli, load_digits
from operant.demo import ATTACKS, Attack, Demo, run_demo, snippet
from operant.generate import FGSM, PGD, CarliniWagner, DeepFool
from operant.networks import LeNet5, load_weights
from operant.results import TEMPORARY, load

QUICK = (
    *ATTACKS[:4],
    Attack(name="carlini-wagner-l2", about="A hasty search", fuzzer=CarliniWagner(steps=10, binary_search_steps=2)),
)
ONE = ATTACKS[:1]
FINDINGS = (Finding(name="a name", problem="a problem", advice="Some [advice]", severity="warning"),)


class Images(HTMLParser):
    """The images of a page, decoded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[Image.Image] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            kind, _, data = (dict(attrs)["src"] or "").partition(",")
            assert kind == "data:image/png;base64"
            self.found.append(Image.open(io.BytesIO(base64.b64decode(data))))


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, Demo, str]:
    """A small demo: its folder, its result, and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    text = io.StringIO()
    result = run_demo(out, epochs=2, seeds=20, attacks=QUICK, console=Console(file=text, width=100, highlight=False))
    return out, result, text.getvalue()


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def quiet() -> Console:
    return Console(file=io.StringIO())


# What it writes


def test_the_folder_holds_what_its_readme_says(ran):
    out, _, _ = ran
    assert sorted(file.name for file in out.iterdir()) == [
        "README.txt",
        "demo.json",
        "index.html",
        "model.safetensors",
        "suites",
    ]
    readme = (out / "README.txt").read_text()
    assert all(file.name in readme for file in out.iterdir() if file.name != "README.txt")


def test_suites_tell_what_the_saved_model_says(ran):
    out, result, _ = ran
    model = Classifier(load_weights(LeNet5(), out / "model.safetensors"))
    test = load_digits(size=28).test
    assert result.right == int((model.predict(test.x) == test.labels).sum())
    assert result.tested == len(test)
    for outcome in result.outcomes:
        suite = Suite.open(out / "suites" / outcome.attack)
        assert set(suite.method) == {outcome.attack}
        assert (len(suite), len(suite.failures())) == (outcome.cases, outcome.failures) == (20, outcome.failures)
        assert torch.equal(model.predict(suite.x0), suite.label)
        assert torch.equal(model.predict(suite.x), suite.prediction)
        if outcome.failures:
            assert outcome.l2 == pytest.approx(float(suite.failures().distances("l2").mean()))
            assert outcome.linf == pytest.approx(float(suite.failures().distances("linf").mean()))
    assert {outcome.attack: outcome.failures for outcome in result.outcomes}["deepfool-l2"] == 20


def test_the_result_comes_back_from_disk(ran):
    out, result, _ = ran
    assert repr(load(out / "demo.json", Demo)) == repr(result)  # means over no failures are NaN


def test_the_page_shows_every_case_and_asks_for_nothing(ran):
    out, _, _ = ran
    page = (out / "index.html").read_text()
    assert re.search("https?:", page) is None
    images = Images(page).found
    assert len(images) == 3 * 20 * len(QUICK)
    assert {image.size for image in images} == {(28, 28)}
    assert all(f">{attack.name}</h2>" in page and attack.about in page for attack in QUICK)


# What it says


def test_it_tells_the_steps_the_table_and_where_to_look(ran):
    out, result, text = ran
    assert [line.split()[0] for line in text.splitlines()[:3]] == ["data", "model", "doctor"]
    assert "healthy" in text
    assert f"right on {result.right} of {result.tested} test digits" in text
    for outcome in result.outcomes:
        row = next(line for line in text.splitlines() if line.strip().startswith(outcome.attack))
        assert f"{outcome.failures} of {outcome.cases}" in row
        assert row.split()[-1] == f"{outcome.cpu_seconds:.2f}"
    assert f"folder {out}\n" in text
    assert f"open {out / 'index.html'} in a browser" in text


def test_output_is_plain_where_there_is_no_terminal(ran):
    assert "\x1b" not in ran[2]


def test_what_it_says_to_try_next_works(ran):
    out, result, text = ran
    code = snippet(out, ATTACKS[0].name)
    assert "\n".join(f"  {line}" for line in code.splitlines()) in text
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    assert f"{result.outcomes[0].failures} failures" in said.getvalue()


def test_findings_of_the_doctor_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr("operant.demo.Classifier.doctor", lambda self, samples: FINDINGS)
    text = io.StringIO()
    result = run_demo(tmp_path, epochs=1, seeds=2, attacks=ONE, console=Console(file=text, width=200))
    assert result.findings == FINDINGS
    assert "healthy" not in text.getvalue()
    assert "warning: a name: a problem. Some [advice]." in text.getvalue()


# Again, and in other people's folders


def test_the_same_seed_gives_the_same_files_in_the_same_folder(tmp_path):
    def run(seed: int) -> tuple[list[str], bytes, bytes, list[str]]:
        run_demo(tmp_path, seed=seed, epochs=1, seeds=3, attacks=ATTACKS[:2], console=quiet())
        suites = [Suite.open(tmp_path / "suites" / attack.name).digest() for attack in ATTACKS[:2]]
        kept = files(tmp_path)
        return sorted(kept.keys() - {"notes.txt"}), kept["index.html"], kept["model.safetensors"], suites

    first = run(0)
    (tmp_path / "suites.new").mkdir()  # what a run that was killed leaves
    (tmp_path / "suites.new" / "half.safetensors").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    other = run(1)
    assert first[0] == other[0]
    assert all(a != b for a, b in zip(first[1:], other[1:], strict=True))
    assert run(0) == first
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_interrupted_run_can_be_repeated(tmp_path):
    def interrupted(model, seeds, *, generator):
        raise KeyboardInterrupt

    bad = Attack(name="fgsm-linf", about="", fuzzer=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path / "out", epochs=1, seeds=2, attacks=[bad], console=quiet())
    (tmp_path / "out" / f".x{TEMPORARY}").write_bytes(b"")
    run_demo(tmp_path / "out", epochs=1, seeds=2, attacks=ONE, console=quiet())
    assert (tmp_path / "out" / "index.html").exists()


@pytest.mark.parametrize("name", ["index.html", "README.txt", "notes.txt"])
def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="must be new, empty or made by a demo"):
        run_demo(tmp_path, console=quiet())
    assert files(tmp_path) == {name: b"mine"}


def test_what_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="must be a folder, and is a file"):
        run_demo(tmp_path / "file", console=quiet())
    with pytest.raises(ValueError, match="cannot be made"):
        run_demo(tmp_path / "file" / "below", console=quiet())


def test_no_digits_to_attack_is_refused(tmp_path):
    with pytest.raises(ValueError, match="train it longer"):
        run_demo(tmp_path, epochs=1, seeds=0, attacks=ONE, console=quiet())


@pytest.mark.parametrize(("named", "expected"), [(None, 1), ("3", 3)])
def test_one_thread_is_used_unless_the_environment_names_a_number(tmp_path, monkeypatch, named, expected):
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if named:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    seen = []

    def counting(model, seeds, *, generator):
        seen.append(torch.get_num_threads())
        return FGSM(radius=0.1)(model, seeds, generator=generator)

    torch.set_num_threads(3)
    try:
        attack = Attack(name="fgsm-linf", about="", fuzzer=counting)
        run_demo(tmp_path, epochs=1, seeds=2, attacks=[attack], console=quiet())
        assert seen == [expected]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


# The command


def test_the_command_passes_its_options_on(monkeypatch):
    called = []
    monkeypatch.setattr(cli, "run_demo", lambda out, *, seed: called.append((out, seed)))
    for arguments in (["demo"], ["demo", "--out", "there", "--seed", "7"]):
        assert CliRunner().invoke(cli.app, arguments).exit_code == 0
    assert called == [(Path("operant-demo"), 0), (Path("there"), 7)]


def test_the_command_tells_in_a_sentence_why_it_cannot_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "choose another with --out" in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_the_attacks_are_named_as_their_cases(ran):
    out, _, _ = ran
    assert [type(attack.fuzzer) for attack in ATTACKS] == [FGSM, PGD, PGD, DeepFool, CarliniWagner]
    assert [attack.name for attack in ATTACKS] == [attack.name for attack in QUICK]
    assert sorted(folder.name for folder in (out / "suites").iterdir()) == sorted(attack.name for attack in ATTACKS)


@pytest.mark.slow
def test_the_whole_demo_runs(tmp_path):
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    demo = load(tmp_path / "out" / "demo.json", Demo)
    assert demo.findings == ()
    assert demo.right >= 0.9 * demo.tested
    failures = {outcome.attack: outcome.failures for outcome in demo.outcomes}
    assert failures["deepfool-l2"] == failures["carlini-wagner-l2"] == 100
    assert 20 <= failures["fgsm-linf"] <= failures["pgd-linf"] < 100
    assert (tmp_path / "out" / "index.html").stat().st_size < 1_000_000
