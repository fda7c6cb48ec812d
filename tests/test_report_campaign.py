"""Laws of a campaign's report: it tells what the folder tells, in every form, and nothing else gets in or out."""

import base64
import json
import math
import re
import shutil
from dataclasses import replace
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from operant import Classifier, Samples, Suite, results, spawn
from operant.campaign import Decision, Round, SequentialAssessment
from operant.campaign.observers.defences import LEVEL, TRIED, DefenceTrial, DefenceTrials, guards_of
from operant.campaign.records import (
    LOOKED_AT,
    About,
    Certainty,
    FieldIds,
    FieldMap,
    Insight,
    StopRecord,
    about_of,
    certainty_of,
    insight_of,
    map_of,
)
from operant.cli import app
from operant.defend.evaluate import interval
from operant.execution.rounds import LabelBatch
from operant.execution.run_folder import RunFolder
from operant.formatting import percent
from operant.measure import mc_dropout, pattern, prediction_confidence, variation_ratio_original, with_dropout
from operant.model.doctor import Finding
from operant.networks import fit_pca, save_weights
from operant.profile import Profile, fit_profile
from operant.report import Evidence, gather, load_evidence, write_report
from operant.report.charts import scale
from operant.report.evidence import VERSION
from operant.report.failures import LARGEST, Found, Gallery, gallery_of
from operant.report.junit import junit_xml
from operant.report.markdown import markdown
from operant.report.page import matrix, render_page
from operant.retrain import FinetuneEpoch, FinetuneRecord
from operant.suite.verdicts import log_files
from operant.triage import open_desk
from operant.triage.asking import Asked

NASTY = """</style></script><script src='//a.org/x.js'>alert("1")</script><img src=x onerror=alert(1)>|`&lt;\x01"""
SETTINGS = {
    "requirement": "0.05", "confidence": "0.95", "max_drop": "0.01", "level": "0.05", "mass_quantile": "0.1",
    "feedback": "True", "seed": "0", "model": "aa", "train": "bb", "clean": "cc",
}  # fmt: skip
SECTIONS = [
    "cost",
    "field",
    "sources",
    "failures",
    "certainty",
    "defences",
    "retraining",
    "feedback",
    "drift",
    "checks",
    "settings",
]
VOID = {"meta", "img", "link", "br", "input", "line", "circle", "path", "polyline", "rect"}
CLASSES = 4


# A campaign's folder, without a campaign


def inputs(n: int, shape: tuple[int, ...], name: str) -> Samples:
    g = spawn(0, name, n)
    return Samples(torch.rand((n, *shape), generator=g), torch.arange(n) % CLASSES)


@cache
def profile(shape: tuple[int, ...]) -> Profile:
    return fit_profile(inputs(80, shape, "field"), encoder=partial(fit_pca, dimensions=3), generator=spawn(0))


def classifier(shape: tuple[int, ...], seed: int = 0) -> Classifier:
    torch.random.manual_seed(seed)
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), CLASSES)))


def dropping(shape: tuple[int, ...]) -> Classifier:
    """The same model with dropout, which makes all four patterns likely."""
    return with_dropout(classifier(shape), before=["1"], rate=0.5)


def failures(n: int, shape: tuple[int, ...] = (1, 8, 8), *, move: str = "gradient", wrong: bool = True) -> Suite:
    """Cases of which the first half is operational, if they fail."""
    seeds, rows = inputs(12, shape, "seeds"), torch.arange(n) % 12
    x = (seeds.x[rows] + 0.1 * torch.rand((n, *shape), generator=spawn(1, "cases"))).clamp(0, 1)
    natural = torch.linspace(1.0, 0.001, n, dtype=torch.float64)
    columns = {"naturalness": natural, "mass": natural / 100, "quantile": (natural > 0.5).double()}
    label = seeds.labels[rows]
    return Suite.of(
        x,
        seeds=seeds,
        origin=rows,
        prediction=(label + 1) % CLASSES if wrong else label,
        method="gradient-l2",
        columns={**columns, "move": [move] * n},
    )


def assessed(upper: float = 0.2, failing: int = 3) -> SequentialAssessment:
    return SequentialAssessment(labels=20, failures=failing, upper=upper, confidence=0.99, reason="enough")


def record(best: int = 1) -> FinetuneRecord:
    epochs = [FinetuneEpoch(epoch=i, loss=0.5, accuracy=0.9, monitor=0.2 / i, kept=True, why="") for i in (1, 2)]
    return FinetuneRecord(
        best_epoch=best, reason="epoch 1 was best", n_train=80, n_cases=5, accuracy_before=0.9, history=tuple(epochs),
        monitor_before=0.3, train_rows=80, case_rows=20, effective_cases=5.0, stopped_early=False,
    )  # fmt: skip


def begin(run: RunFolder, shape: tuple[int, ...], upper: float) -> None:
    run.step("round-000/field", FieldIds, lambda: FieldIds(ids=torch.arange(80)))
    run.kept("round-000/profile.json", lambda: profile(shape), save=Profile.save, load=Path)
    run.step(
        "round-000/labels-000", LabelBatch, lambda: LabelBatch(ids=torch.arange(20), labels=torch.arange(20) % CLASSES)
    )
    first = Round(number=0, arrived=80, clean=0.9, assessment=assessed(upper))
    run.step("round-000/round", Round, lambda: first)


def go_on(run: RunFolder, found: Suite, upper: float, *, drifted: str = "") -> None:
    model = classifier(tuple(found.rows.shape))
    run.suite("round-001/suite/chunk-0000", lambda: found)
    run.suite("round-001/cases", lambda: found[: min(5, len(found))])
    run.kept("round-001/weights.safetensors", lambda: model.unwrap(), save=save_weights, load=Path)
    run.step(
        "round-001/labels-000", LabelBatch, lambda: LabelBatch(ids=torch.arange(20, 40), labels=torch.arange(20) % 3)
    )
    decision = Decision(what="seeds by class", before="1 25%, 2 25%", after="2 40%, 1 20%, …", why="3 of 20 fail")
    second = Round(
        number=1, arrived=80, drifted=drifted, decisions=(decision,), attempted=12, found=len(found),
        operational=len(found) // 2, chosen=5, cases=5, retraining=record(), clean=0.895, assessment=assessed(upper, 1),
    )  # fmt: skip
    run.step("round-001/round", Round, lambda: second)


def tell_more(run: RunFolder, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    train, clean, labelled = (inputs(n, shape, name) for n, name in ((60, "train"), (40, "clean"), (20, "labelled")))
    old, new, of = classifier(shape), classifier(shape, 1), profile(shape)
    finding = Finding(name="zero gradients", problem="some vanish", advice="look", severity="warning")
    about = replace(about_of(old, train, clean, names=names), findings=(finding,))
    run.step("about", About, lambda: about)
    run.step("round-000/map", FieldMap, lambda: map_of(of, train))
    for number in (0, 1):
        kept = insight_of(old, new, labelled, clean, profile=of, centres=of.codes[:5].double())
        run.step(f"round-{number:03d}/insight", Insight, lambda kept=kept: kept)
    run.step(
        "round-001/patterns", Certainty, lambda: certainty_of(dropping(shape), failures(20, shape), generator=spawn(0))
    )


def campaign_folder(
    path: Path,
    *,
    shape: tuple[int, ...] = (1, 8, 8),
    n: int = 40,
    upper: float = 0.12,
    names: tuple[str, ...] = (),
    found: Suite | None = None,
    more: bool = True,
    drifted: str = "",
) -> Path:
    """A folder as a campaign of two rounds leaves it."""
    with RunFolder(path, signature=SETTINGS) as run:
        begin(run, shape, 0.2)
        go_on(run, failures(n, shape) if found is None else found, upper, drifted=drifted)
        if more:
            tell_more(run, shape, names)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return campaign_folder(tmp_path_factory.mktemp("campaign") / "run")


@pytest.fixture(scope="module")
def evidence(folder: Path) -> Evidence:
    return gather(folder)


class Page(HTMLParser):
    """A page taken apart: its tags with their attributes, its text, and whether every tag is closed in turn."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(folder: Path) -> Page:
    return Page(render_page(gather(folder)))


# What is gathered


def test_the_evidence_round_trips(evidence, tmp_path):
    results.save(evidence, tmp_path / "report.json")
    assert load_evidence(tmp_path / "report.json") == evidence


def test_the_folder_stays_as_it_was_and_may_be_in_use(folder):
    with RunFolder(folder, signature=SETTINGS) as run:
        before = run.digest()
        gather(folder)
        assert run.digest() == before


def test_what_is_gathered_is_what_the_folder_tells(evidence):
    assert [done.number for done in evidence.rounds] == [0, 1]
    assert evidence.labels == 40
    assert evidence.cases == 5
    assert [prior.labels for prior in evidence.priors] == [12, 12, 11, 5]
    assert sum(prior.share for prior in evidence.priors) == pytest.approx(1)
    assert all(prior.lower <= prior.share <= prior.upper for prior in evidence.priors)
    assert (len(evidence.map.train), evidence.map.sampled) == (60, True)
    assert len(evidence.map.field) == len(profile((1, 8, 8)).codes)
    assert {name for name, _ in evidence.hashes} >= {"model as it came", "weights after round 1"}
    assert ("model", "zero gradients") in [(where, finding.name) for where, finding in evidence.findings]


def test_without_what_only_reports_need_there_is_a_report(tmp_path):
    evidence = gather(campaign_folder(tmp_path, more=False))
    assert (evidence.about, evidence.changes, evidence.map.sampled) == (None, (), False)
    assert "insight.json" in Page(render_page(evidence)).text


def test_time_is_told_by_kind_and_a_line_that_was_cut_off_is_left_out(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    lines = [{"round-000/profile.json": 2.0}, {"round-001/suite": 3.0}, {"round-001/round.json": 4.5}]
    (place / "timing.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"round-001/ro']))
    evidence = gather(place)
    assert evidence.seconds == {"profile": 2.0, "suite": 3.0, "round": 4.5}
    assert evidence.time == 6.5


# Only what people called valid


@pytest.fixture
def judged(folder: Path, tmp_path: Path) -> Path:
    """A campaign that has ended: 20 operational failures, of which 5 were chosen, and nobody has judged any."""
    place = shutil.copytree(folder, tmp_path / "a run")
    with RunFolder(place, signature=SETTINGS) as run:
        run.suite("cases", lambda: failures(40)[:5])
    return place


def mark(place: Path, **verdicts: str) -> None:
    desk = open_desk(place, by="ann")
    for row, verdict in verdicts.items():
        desk.mark(Asked({"row": int(row[1:]), "verdict": verdict}))


def test_only_valid_failures_are_shown_of_all_and_the_page_says_so(judged):
    mark(judged, r0="valid", r2="valid", r3="invalid")
    evidence = gather(judged, valid=True)
    assert evidence.valid
    assert (len(evidence.gallery.failures), evidence.gallery.total) == (2, 20)
    text = Page(render_page(evidence)).text
    assert "2 of 20 are shown, only those that people called valid" in text
    assert "The others were called otherwise, nobody has judged them (people are shown only failures that were" in text
    every = gather(judged)
    assert not every.valid
    assert every.gallery.total == len(every.gallery.failures) == 20
    assert "no room for them here. Differences are" in text
    text = Page(render_page(every)).text
    assert "20 of 20 are shown; 5" in text
    assert "the model of its round. Differences are" in text
    results.save(evidence, judged / "report.json")
    assert load_evidence(judged / "report.json") == evidence


def test_where_none_is_valid_the_page_does_not_say_that_none_was_found(judged):
    mark(judged, r0="invalid")
    evidence = gather(judged, valid=True)
    assert (evidence.gallery.failures, evidence.gallery.total) == ((), 20)
    text = Page(render_page(evidence)).text
    assert "None of 20 operational failures was called valid" in text
    assert "No operational failure was found" not in text
    assert "There are no failures to look at" not in Page(render_page(replace(evidence, certainties=None))).text


def test_without_verdicts_there_is_nothing_to_choose_by(folder, judged):
    with pytest.raises(ValueError, match=r"has no cases to judge yet.*then run `operant triage .*run` first"):
        gather(folder, valid=True)
    with pytest.raises(ValueError, match=r"nobody has judged the cases of .*; run `operant triage '.*a run'` first"):
        gather(judged, valid=True)
    mark(judged, r0="valid")
    open_desk(judged, by="ann").undo(Asked({}))
    with pytest.raises(ValueError, match="nobody has judged the cases"):
        write_report(judged, valid=True)
    done = CliRunner().invoke(app, ["report", str(judged), "--valid"])
    assert done.exit_code == 2
    assert "run `operant triage" in done.stderr.replace("\n", " ")


def test_the_page_names_the_folder_as_it_was_given(judged, monkeypatch):
    monkeypatch.chdir(judged.parent.parent)
    place = f"{judged.parent.name}/a run"
    assert f"operant triage '{place}' opens a page" in Page(render_page(gather(place))).text


def test_verdicts_that_cannot_be_read_are_findings(judged):
    mark(judged, r0="valid", r1="valid")
    (log,) = log_files(judged / "cases")
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b'"valid"', b'"vaLid"', 1))
    evidence = gather(judged, valid=True)
    assert (evidence.triage.verdicts, len(evidence.gallery.failures)) == (1, 1)
    (problem,) = [finding.problem for where, finding in evidence.findings if where == "verdicts"]
    assert re.search(r"line 2 of .*verdicts-000000.jsonl is damaged", problem)
    assert problem in Page(render_page(evidence)).text
    shard = next((judged / "cases").glob("shard-*"))
    shard.write_bytes(b"gone")
    evidence = gather(judged)
    assert evidence.triage is None
    assert "has no readable shard" in next(f.problem for where, f in evidence.findings if where == "verdicts")
    with pytest.raises(ValueError, match=r"nobody has judged .*has no readable shard"):
        gather(judged, valid=True)


# The verdict


@given(upper=st.floats(0, 1), requirement=st.floats(0.001, 0.999))
def test_every_form_agrees_with_the_bound(upper, requirement):
    rounds = (Round(number=0, arrived=80, clean=0.9, assessment=assessed(upper)),)
    told = bare(rounds=rounds, requirement=requirement)
    assert told.met == (upper <= requirement)
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit_xml(told)).iter("testcase")}
    assert (cases["requirement"].find("failure") is None) == told.met
    assert markdown(told).startswith("## ✅" if told.met else "## ❌")
    assert told.verdict.startswith("Met:" if told.met else "Not met:")
    shown = re.findall(r"[\d.e-]+(?= %)", told.verdict)
    assert len(shown) == 2
    assert told.met or shown[0] != shown[1] or math.isclose(upper, requirement, rel_tol=1e-3)


def test_a_changed_field_that_was_not_assessed_takes_the_verdict_back():
    rounds = (
        Round(number=0, arrived=80, clean=0.9, assessment=assessed(0.01)),
        Round(number=1, arrived=90, clean=0.9, drifted="Drift (p = 0.001)\n  more"),
    )
    told = bare(rounds=rounds)
    assert (told.status, told.met) == ("not known", False)
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit_xml(told)).iter("testcase")}
    assert cases["drift"].find("failure").get("message") == "Round 1: Drift (p = 0.001)"
    assert cases["requirement"].find("skipped") is not None
    Page(render_page(told))


def bare(**changes: Any) -> Evidence:
    """Evidence of nothing but what is given."""
    empty = Evidence(
        name="run", settings=SETTINGS, requirement=0.05, confidence=0.95, max_drop=0.01, rounds=(), under_way="",
        labels=0, seconds={}, about=None, priors=(), map=None, changes=(), gallery=Gallery(), compared=(),
        findings=(), hashes=(),
    )  # fmt: skip
    return replace(empty, **changes)


def test_lost_accuracy_fails_in_ci():
    rounds = tuple(Round(number=i, arrived=80, clean=c, assessment=assessed()) for i, c in enumerate((0.9, 0.85)))
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit_xml(bare(rounds=rounds))).iter("testcase")}
    assert "85" in cases["clean accuracy"].find("failure").get("message")
    assert set(cases) == {"requirement", "clean accuracy", "drift", "round 0", "round 1"}


def test_junit_counts_its_cases(evidence):
    suite = ElementTree.fromstring(junit_xml(evidence)).find("testsuite")
    assert int(suite.get("tests")) == len(suite.findall("testcase")) == 5
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) == 1


@pytest.mark.parametrize("rounds", [1, 4, 30])
def test_any_number_of_rounds_is_drawn_also_without_labels(rounds):
    nothing = SequentialAssessment(labels=0, failures=0, upper=1.0, confidence=0.99, reason="no label is left")
    told = tuple(
        Round(number=i, arrived=80, clean=0.9, assessment=(assessed(0.5 / (i + 1)), None, nothing)[i % 3])
        for i in range(rounds)
    )
    page = Page(render_page(bare(rounds=told)))
    assert not any("nan" in (value or "") for _, attributes in page.tags for value in attributes.values())


# Rounds that left the model as it was


def unchanged(place: Path, *, failing: int = 4, best: int = 0, bought: int = 5) -> Path:
    """One more round, which, unless told otherwise, retrained in vain, and bought more labels."""
    with RunFolder(place, signature=SETTINGS) as run:
        labelled, clean = inputs(bought, (1, 8, 8), "more"), inputs(40, (1, 8, 8), "clean")
        old, parts = classifier((1, 8, 8), 1), profile((1, 8, 8))
        known = LabelBatch(ids=torch.arange(40, 40 + bought), labels=labelled.labels)
        kept = insight_of(old, old, labelled, clean, profile=parts, centres=parts.codes[:5].double())
        all_of_them = replace(assessed(0.1, failing), labels=20 + bought, before=20)
        done = Round(
            number=2, arrived=80, attempted=12, found=9, operational=8, chosen=7, cases=12, retraining=record(best),
            clean=0.895, assessment=all_of_them,
        )  # fmt: skip
        run.suite("round-002/suite/chunk-0000", lambda: failures(16))
        run.suite("round-002/cases", lambda: failures(16)[:7])
        run.step("round-002/labels-000", LabelBatch, lambda: known)
        run.step("round-002/round", Round, lambda: done)
        run.step("round-002/insight", Insight, lambda: kept)
    return place


@pytest.fixture(scope="module")
def quiet(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return gather(unchanged(shutil.copytree(folder, tmp_path_factory.mktemp("quiet") / "run")))


def test_a_round_that_changed_nothing_is_marked_and_its_labels_add_up(quiet):
    row = next(line for line in markdown(quiet).splitlines() if line.startswith("| 2"))
    assert "| 2 (unchanged) |" in row
    assert "4 of 25, 5 new" in row
    text = Page(render_page(quiet)).text
    assert "2 unchanged" in text
    assert "4 of 25, 5 new" in text
    assert "Round 2: the model stayed as it was; 4 of 25, 5 new wrong" in text
    case = next(c for c in ElementTree.fromstring(junit_xml(quiet)).iter("testcase") if c.get("name") == "round 2")
    assert "5 of the 25 labels are new" in case.find("system-out").text


def test_only_what_was_kept_is_learned_from(quiet, folder, tmp_path):
    assert (quiet.cases, quiet.learned) == (12, 5)
    assert sum(f.learned for f in quiet.gallery.failures) == 5
    text = Page(render_page(quiet)).text
    assert "Cases chosen 12 5 learned from" in text
    assert "Cases tried, not kept" in text
    assert "12 cases chosen, 5 learned from" in markdown(quiet)
    kept = gather(unchanged(shutil.copytree(folder, tmp_path / "run"), best=1))
    assert (kept.learned, sum(f.learned for f in kept.gallery.failures)) == (12, 12)


def test_sources_are_those_of_all_labels_of_the_present_model(quiet, evidence, folder, tmp_path):
    first, second = quiet.changes[-2:]
    assert quiet.sources.rounds == (1, 2)
    assert quiet.sources.labels == 25 == sum(region.labels for region in quiet.sources.regions)
    assert quiet.sources.counts[0][0] == first.after[0][0] + second.after[0][0]
    failing = sum(k for k, _ in quiet.sources.by_class)
    assert failing == sum(region.failures for region in quiet.sources.regions)
    assert "25 field inputs labelled for this model in rounds 1, 2" in Page(render_page(quiet)).text
    assert evidence.sources.rounds == (1,)
    assert gather(unchanged(shutil.copytree(folder, tmp_path / "run"), best=1)).sources.rounds == (2,)
    moved = tuple(replace(done, drifted="Drift" if done.number == 2 else "") for done in quiet.rounds)
    assert replace(quiet, rounds=moved).sources.rounds == (2,)


def test_confusion_before_is_told_where_the_model_changed(quiet, evidence):
    assert Page(render_page(evidence)).text.count("Before: field inputs") == 1
    assert Page(render_page(quiet)).text.count("Before: field inputs") == 1
    assert Page(render_page(quiet)).text.count("Clean inputs") == 2


# How it ended, and what the verdict is about


ENDED = StopRecord(
    met=False,
    why="All labels are spent after round 1.",
    advice="To meet it: more labels. The last one was not kept.",
    last=1,
    rounds=3,
    cases=100,
    labels=40,
)


def end(place: Path) -> Path:
    with RunFolder(place, signature=SETTINGS) as run:
        run.renew("ended", ENDED)
        run.deliver(classifier((1, 8, 8)), None)
    return place


def test_the_end_is_told_once_and_the_weights_by_name(folder, tmp_path):
    told = gather(end(shutil.copytree(folder, tmp_path / "run")))
    assert told.why == "All labels are spent after round 1."
    assert told.advice == "To meet it: more labels. The last one was not kept."
    name, weights = told.judged
    assert name == "weights after round 1"
    assert dict(told.hashes)["model.safetensors"] == weights
    text = Page(render_page(told)).text
    lead = text.partition("The model got ")[2].partition(" To meet it")[0]
    assert lead.startswith("1 of 20 labelled inputs wrong, 5 %. The bound holds")
    assert lead.endswith("All labels are spent after round 1.")
    assert text.count("required 5") == 0
    for form in (text, markdown(told), junit_xml(told).decode()):
        assert weights in form
        assert form.count("All labels are spent") == 1


def test_an_end_that_was_gone_on_from_is_none(folder, tmp_path):
    place = end(shutil.copytree(folder, tmp_path / "run"))
    assert gather(place).ended is not None
    with RunFolder(place, signature=SETTINGS) as run:
        run.step("round-002/field", FieldIds, lambda: FieldIds(ids=torch.arange(80)))
    assert gather(place).ended is None
    further = gather(unchanged(place))
    assert (further.under_way, further.ended, further.why) == ("", None, "")
    assert further.advice.startswith("To meet it: ")


def test_a_model_that_never_changed_is_judged_as_it_came():
    told = bare(
        rounds=(Round(number=0, arrived=80, clean=0.9, assessment=assessed()),), hashes=(("model as it came", "aa"),)
    )
    assert told.judged == ("model as it came", "aa")
    assert "model as it came, hash `aa`" in markdown(told)


# The page


def test_the_page_is_whole_and_has_everything_in_order(evidence):
    page = Page(render_page(evidence))
    assert [section["id"] for section in page.all("section")] == SECTIONS
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in page.all("a")]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert len(page.all("svg")) == len(page.all("desc")) == 9
    assert len(page.all("title")) == 10
    assert " ".join(evidence.verdict.split()) in page.text
    assert len(page.all("li")) >= len(evidence.gallery.failures) == 20
    assert all(picture["alt"] for picture in page.all("img"))


def test_the_page_asks_for_nothing(evidence):
    source = render_page(evidence)
    page = Page(source)
    assert all(picture["src"].startswith("data:image/png;base64,") for picture in page.all("img"))
    assert not page.all("link")
    assert "@import" not in source
    assert "url(" not in source
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


def test_names_with_markup_are_words(tmp_path):
    names = (NASTY, "two", "three", "four")
    found = failures(40, move=NASTY.replace("\x01", ""))
    place = campaign_folder(tmp_path / "run", names=names, found=found, drifted=NASTY)
    page, evidence = page_of(place), gather(place)
    assert len(page.all("script")) == 1
    assert "src" not in page.all("script")[0]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<img src=x onerror=alert(1)>" in page.text
    ElementTree.fromstring(junit_xml(evidence))
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", markdown(evidence))


def test_classes_of_decisions_have_their_names(tmp_path):
    names = ("cat", "dog", "cow", "hen")
    text = page_of(campaign_folder(tmp_path, names=names)).text
    assert "dog 25%, cow 25%" in text
    assert "cow 40%, dog 20%, …" in text


def test_many_classes_get_the_pairs_that_are_most_confused(evidence):
    counts = tuple(tuple(50 if t == p else int(t == 7 and p == 9) * 4 for p in range(30)) for t in range(30))
    shown = matrix(evidence, counts, "clean")
    assert (shown.rows, shown.pairs) == ((), (("7", "9", 4),))
    assert (shown.right, shown.total) == (1500, 1504)
    small = matrix(evidence, ((3, 1), (0, 4)), "clean")
    assert [[cell.share for cell in row] for row in small.rows] == [[0.75, 0.25], [0.0, 1.0]]


@given(most=st.floats(1e-6, 1.0))
def test_a_scale_reaches_as_far_as_it_must_and_not_much_further(most):
    ticks = scale(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-6)
    assert len(ticks) <= 6
    assert ticks == sorted(set(ticks))


@given(share=st.floats(0, 1))
def test_percentages_are_near_what_they_tell(share):
    assert float(percent(share).removesuffix(" %")) == pytest.approx(100 * share, abs=0.051)


# Failures


def found_in(suite: Suite, number: int = 1) -> Found:
    return Found(round=number, suite=suite, learned=torch.arange(len(suite)) < 3)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 5), (1, 1, 12)])
def test_pictures_of_any_shape_are_drawn(shape, tmp_path):
    shown = gather(campaign_folder(tmp_path, shape=shape)).gallery
    assert len(shown.failures) == shown.total == 20
    assert all(len(f.pictures) == 3 and not f.changes for f in shown.failures)


@pytest.mark.parametrize("shape", [(6,), (2, 4, 4), (4, 4)])
def test_other_inputs_are_told_by_what_changed(shape, tmp_path):
    place = campaign_folder(tmp_path, shape=shape)
    shown = gather(place).gallery
    assert all(f.changes and not f.pictures for f in shown.failures)
    assert "value 3" in page_of(place).text


def test_large_pictures_are_made_smaller_and_distances_are_not():
    suite = failures(3, (1, 300, 100))
    shown = gallery_of([found_in(suite)], (0.0, 1.0))
    width, height = (int.from_bytes(decoded(shown.failures[0].pictures[1])[i : i + 4]) for i in (16, 20))
    assert (height, width) == (LARGEST, LARGEST // 3)
    assert shown.failures[0].l2 == pytest.approx(float(suite.distances("l2")[0]))


def decoded(uri: str) -> bytes:
    return base64.b64decode(uri.removeprefix("data:image/png;base64,"))


def test_rounds_take_turns_and_what_does_not_fit_is_counted():
    both = [found_in(failures(30), 1), found_in(failures(10), 2)]
    shown = gallery_of(both, None, limit=12)
    assert [f.round for f in shown.failures] == [1, 2] * 6
    assert shown.total == 40
    assert [f.learned for f in shown.failures] == [True] * 6 + [False] * 6
    room = sum(len(p) for f in shown.failures[:5] for p in f.pictures)
    assert gallery_of(both, None, limit=12, room=room).failures == shown.failures[:5]
    assert len(gallery_of(both, None, room=1).failures) == 1


def test_the_page_says_how_many_are_shown(folder):
    text = Page(render_page(gather(folder, limit=7))).text
    assert "7 of 20 are shown" in text


def test_learned_failures_are_known_again(evidence):
    assert sum(f.learned for f in evidence.gallery.failures) == 5


def test_bounds_that_are_not_known_are_those_of_the_values():
    suite = failures(4)
    wide = replace(suite, rows=type(suite.rows)([suite.x * 255]))
    assert len(gallery_of([found_in(wide)], None).failures) == 4


@pytest.mark.parametrize("wrong", [False, True])
def test_a_search_without_operational_failures_has_a_page(wrong, tmp_path):
    found = failures(8, wrong=wrong)
    found = found.with_columns(naturalness=torch.zeros(8))
    page = page_of(campaign_folder(tmp_path, found=found))
    assert "No operational failure was found from 12 seeds" in page.text


# Campaigns that are under way, folders that are none


def test_a_round_that_is_not_finished_is_told_apart(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    (place / "round-001" / ".round.json.seal").unlink()
    evidence = gather(place)
    assert len(evidence.rounds) == 1
    assert evidence.labels == 40
    assert evidence.under_way.startswith("Round 1 is under way; finished of it: cases, 1 chunks of seeds")
    assert evidence.under_way in Page(render_page(evidence)).text
    assert "skipped" in junit_xml(evidence).decode()


def test_a_campaign_that_has_just_begun_has_a_report(tmp_path):
    with RunFolder(tmp_path / "run", signature=SETTINGS):
        pass
    page = write_report(tmp_path / "run", tmp_path / "out")
    assert "Not known: no round is finished yet." in Page(page.read_text(encoding="utf-8")).text
    assert sorted(file.name for file in page.parent.iterdir()) == [
        "report.html", "report.json", "report.md", "report.xml"
    ]  # fmt: skip


@pytest.mark.parametrize("content", [None, "{", "[]", '{"requirement": "0.1"}', json.dumps(SETTINGS | {"level": "x"})])
def test_a_folder_of_something_else_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"(no run.json; give|damaged; run|begin the campaign anew)"):
        gather(tmp_path)


def test_a_round_of_an_older_version_is_refused(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    file = place / "round-001" / "round.json"
    page = json.loads(file.read_text())
    page["value"]["score"] = 1
    file.write_text(json.dumps(page))
    with pytest.raises(ValueError, match=r"round.json is not a format-1 Round.*begin the campaign anew"):
        gather(place)


def test_damaged_cases_are_a_finding(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    shard = next((place / "round-001" / "suite" / "chunk-0000").glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-40])
    evidence = gather(place)
    assert ("folder", "damaged file", "error") in [(w, f.name, f.severity) for w, f in evidence.findings]
    assert evidence.gallery.failures == ()


def test_a_report_of_another_format_is_refused(evidence, tmp_path):
    results.save(replace(evidence, version=VERSION + 1), tmp_path / "report.json")
    with pytest.raises(ValueError, match=r"format 5, this version of Operant knows format 4; write it again"):
        load_evidence(tmp_path / "report.json")
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a report"):
        load_evidence(tmp_path / "report.json")


# Files


def test_writing_twice_gives_the_same_files(folder, tmp_path):
    names = ["report.html", "report.json", "report.xml", "report.md"]
    first, second = ([(write_report(folder, tmp_path / "out").parent / n).read_bytes() for n in names] for _ in "ab")
    assert first == second
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(names)


def test_where_a_report_goes(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    assert write_report(place) == place / "report.html"
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; choose another"):
        write_report(place, tmp_path / "file")
    with pytest.raises(ValueError, match="limit must be at least 1"):
        write_report(place, limit=0)


def test_the_command(folder, tmp_path):
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "out"), "--limit", "3"])
    assert done.exit_code == 0
    assert "Not met:" in done.output
    assert len(load_evidence(tmp_path / "out" / "report.json").gallery.failures) == 3
    failed = CliRunner().invoke(app, ["report", str(tmp_path / "nothing")])
    assert failed.exit_code == 2
    assert "is not a campaign's folder" in " ".join(failed.output.split())


# What a campaign keeps for its report


def test_insight_counts_what_the_models_say():
    shape = (1, 8, 8)
    labelled, clean, of = inputs(30, shape, "labelled"), inputs(40, shape, "clean"), profile(shape)
    old, new = classifier(shape), classifier(shape, 1)
    kept = insight_of(old, new, labelled, clean, profile=of, centres=of.codes[:5].double())
    right = [int(counts.diagonal().sum()) for counts in (kept.before, kept.after, kept.clean)]
    pairs = ((old, labelled), (new, labelled), (new, clean))
    assert right == [int((model.predict(some.x) == some.labels).sum()) for model, some in pairs]
    assert kept.fixed - kept.broken == right[1] - right[0]
    assert torch.equal(kept.before.sum(1).long(), torch.bincount(labelled.labels))
    assert (int(kept.cell_labels.sum()), int(kept.cell_failures.sum())) == (30, 30 - right[1])
    assert float(kept.cell_mass.sum()) == pytest.approx(1)
    assert kept.cell_centres.shape == (5, 2)


def test_certainty_is_of_some_failures_evenly_and_the_same_every_time():
    shape = (1, 8, 8)
    model, failing = dropping(shape), failures(LOOKED_AT * 2 - 1, shape)
    kept, again = (certainty_of(model, failing, generator=spawn(3, "patterns")) for _ in range(2))
    assert (kept.failures, len(kept.pcs), len(kept.vro), kept.reason) == (2 * LOOKED_AT - 1, LOOKED_AT, LOOKED_AT, "")
    assert torch.equal(kept.vro, again.vro)
    some = failing.x[::2]
    assert torch.allclose(kept.pcs, prediction_confidence(model.probs(some)))
    other = mc_dropout(model, some, passes=400, generator=spawn(4)).probs
    assert float((kept.vro - variation_ratio_original(other, model.predict(some))).abs().mean()) < 0.1


def test_without_dropout_only_how_decided_the_model_was_is_known(tmp_path):
    shape = (1, 8, 8)
    kept = certainty_of(classifier(shape), failures(30, shape), generator=spawn(0))
    assert (len(kept.pcs), len(kept.vro)) == (30, 0)
    place = campaign_folder(tmp_path, more=False)
    with RunFolder(place, signature=SETTINGS) as run:
        run.step("round-001/patterns", Certainty, lambda: kept)
    evidence = gather(place)
    page = Page(render_page(evidence))
    assert evidence.certainties.patterns == {}
    assert (evidence.certainties.decided, evidence.certainties.undecided) == (
        int((kept.pcs > 0.7).sum()),
        int((kept.pcs < 0.3).sum()),
    )
    assert "Only PCS is known" in page.text
    assert "without any dropout" in page.text
    assert "Only PCS is known" in markdown(evidence)


def test_patterns_are_counted_over_all_rounds(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    known = results.load(place / "round-001" / "patterns.json", Certainty)
    more = Certainty(failures=4, pcs=torch.tensor([0.9, 0.1]), vro=torch.tensor([0.1, 0.9]), passes=50, reason="")
    with RunFolder(place, signature=SETTINGS) as run:
        run.step("round-002/patterns", Certainty, lambda: more)
    told = gather(place).certainties
    which = pattern(known.pcs, known.vro).tolist()
    assert (told.failures, told.looked_at) == (24, 22)
    assert told.patterns == {name: which.count(name) + (name in ("HL", "LH")) for name in ("HL", "LH", "LL", "HH", "")}
    assert len(told.points) == 22
    assert f"{told.patterns['HL']} in 22 failures" in page_of(place).text


def test_about_and_map_say_what_there_is():
    shape = (1, 8, 8)
    train, clean = inputs(900, shape, "train"), inputs(40, shape, "clean")
    about = about_of(classifier(shape), train, clean)
    assert (about.classes, about.train, about.clean) == (("0", "1", "2", "3"), (225,) * 4, 40)
    assert about.versions["torch"] == torch.__version__
    kept = map_of(profile(shape), train)
    assert (tuple(kept.train.shape), len(kept.labels)) == ((600, 2), 600)


# Defences


def blurred(n: int, name: str) -> Samples:
    """Images of a bright quarter, which says the class, with a little noise."""
    label = torch.arange(n) % CLASSES
    x = 0.2 * torch.rand((n, 1, 8, 8), generator=spawn(0, "blurred", name))
    for row, quarter in enumerate(label.tolist()):
        x[row, 0, 4 * (quarter // 2) : 4 * (quarter // 2) + 4, 4 * (quarter % 2) : 4 * (quarter % 2) + 4] += 0.6
    return Samples(x, label)


class Brightest(nn.Module):
    """Says which quarter is the brightest, and how much; a single bright pixel in a corner turns its answer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = nn.functional.avg_pool2d(x, 4).flatten(1)
        fooled = (x[:, :, :1, :1].flatten(1) > 0.97) * torch.tensor([9.0, 0.0, 0.0, 0.0])
        return 10 * (means + fooled)


def fooled(n: int) -> Suite:
    """Failures by that pixel, two of each seed."""
    seeds = blurred(n, "fooled")
    seeds = seeds[seeds.labels > 0]
    rows = torch.arange(len(seeds)).repeat_interleave(2)
    x = seeds.x[rows].clone()
    x[:, :, :1, :1] = 0.98
    zeros = torch.zeros(len(rows)).long()
    return Suite.of(x, seeds=seeds, origin=rows, prediction=zeros, method="pixel")


def test_guards_are_set_up_by_other_clean_inputs_than_they_are_tried_on():
    model, clean, failing = Classifier(Brightest()), blurred(2 * TRIED, "clean"), fooled(60)
    assert bool((model.predict(failing.x) != failing.label).all())
    kept, again = (guards_of(model, failing, clean, generator=spawn(0)) for _ in range(2))
    assert kept == again
    assert (kept.failures, kept.level, kept.reason) == (len(failing), LEVEL, "")
    told = {guarded.name: guarded for guarded in kept.tried}
    assert {"feature squeezing", "fewer colours", "JPEG compression", "median filter"} <= set(told)
    filtered = told["median filter"]
    assert filtered.stopped == filtered.failures == len(failing)  # no median leaves a single pixel
    parts = clean.split(fitting=0.5, trying=0.5)
    for guarded in kept.tried:
        assert guarded.clean == len(parts["trying"])
        assert guarded.wrong <= 3 * LEVEL * guarded.clean
        assert guarded.trials == pytest.approx(guarded.failures / 2)  # two of each seed
    learned = told["network on logits"]
    assert 0 < learned.failures < len(failing)  # the other half was learned from


def test_guards_are_for_images_and_need_clean_inputs():
    flat = Classifier(nn.Linear(6, CLASSES), bounds=(-math.inf, math.inf))
    rows = Samples(torch.randn(60, 6, generator=spawn(1)), torch.arange(60) % CLASSES)
    suite = Suite.of(rows.x, seeds=rows, origin=torch.arange(60), prediction=(rows.labels + 1) % 4, method="any")
    kept = guards_of(flat, suite, rows, generator=spawn(0))
    assert (kept.tried, kept.failures) == ((), 60)
    assert "for images" in kept.reason
    few = guards_of(Classifier(Brightest()), fooled(8), blurred(20, "few"), generator=spawn(0))
    assert few.tried == ()
    assert "too few to set defences up" in few.reason


def guarded(name: str, stopped: int, wrong: int) -> DefenceTrial:
    return DefenceTrial(name=name, stopped=stopped, failures=100, trials=50.0, wrong=wrong, clean=200)


def with_guards(path: Path, *rounds: DefenceTrials) -> Evidence:
    place = campaign_folder(path, more=False)
    with RunFolder(place, signature=SETTINGS) as run:
        for number, kept in enumerate(rounds, 1):
            run.step(f"round-{number:03d}/defences", DefenceTrials, lambda kept=kept: kept)
    return gather(place)


def test_a_defence_is_recommended_if_it_stops_most_failures_of_all_rounds(tmp_path):
    first = DefenceTrials(failures=300, tried=(guarded("JPEG", 20, 4), guarded("median", 90, 9)), level=0.05, reason="")
    second = DefenceTrials(failures=100, tried=(guarded("median", 80, 7),), level=0.05, reason="")
    evidence = with_guards(tmp_path, first, second)
    known = evidence.defences
    assert [d.name for d in known.tried] == ["median", "JPEG"]
    best = known.tried[0]
    assert (known.failures, best.stopped, best.failures, best.wrong, best.clean) == (400, 170, 200, 16, 400)
    both = 1 - 0.05 / 2  # two defences were tried
    assert (best.lower, best.upper) == interval(170, 200, both, trials=100)
    assert best.most_wrong == interval(16, 400, both, trials=200)[1]  # the same clean inputs in both rounds
    assert known.told.startswith("Recommended: median before the model")
    page = Page(render_page(evidence))
    for words in (known.told.split(",")[0], "170 of 200", "20 of 100", "5 %"):
        assert words in page.text.replace("\u00a0", " ")
    assert "Recommended: median" in markdown(evidence)


def test_where_no_guard_is_good_enough_retraining_is_recommended(tmp_path):
    tried = (guarded("JPEG", 20, 4), guarded("median", 90, 80))  # the better one gets clean inputs wrong
    evidence = with_guards(tmp_path / "a", DefenceTrials(failures=100, tried=tried, level=0.05, reason=""))
    assert evidence.defences.told.startswith("Recommended: retrain, and do not count on a guard.")
    none = with_guards(tmp_path / "b", DefenceTrials(failures=9, tried=(), level=0.05, reason="They are for images"))
    assert none.defences.told == "No defence was tried: they are for images."
    assert "they are for images" in Page(render_page(none)).text


def test_a_folder_that_tells_of_no_defences_says_so(tmp_path):
    evidence = gather(campaign_folder(tmp_path, more=False))
    assert evidence.defences is None
    assert "does not tell what defences would do" in Page(render_page(evidence)).text
