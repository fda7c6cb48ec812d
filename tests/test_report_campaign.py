"""Laws of a campaign's report: it shows what the folder contains, in every form, and loads nothing else."""

import base64
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from operant import Suite, results
from operant.campaign import Round, SequentialAssessment
from operant.campaign.observers.error_sources import present_rounds
from operant.campaign.records import CampaignInfo, FieldIds, StopRecord
from operant.cli import app
from operant.execution.run_folder import RunFolder
from operant.formatting import percent
from operant.report import Evidence, gather, load_evidence, write_report
from operant.report.charts import epoch_chart, scale
from operant.report.evidence import VERSION
from operant.report.failures import MAX_SIDE, Gallery, RoundFailures, gallery_of
from operant.report.junit import junit_xml
from operant.report.markdown import markdown
from operant.report.page import render_page
from operant.suite.verdicts import log_files
from operant.triage import open_desk
from operant.triage.desk import RequestFields
from report_folder import (
    FINDING,
    HOSTILE,
    REQUIREMENT,
    SETTINGS,
    SHAPE,
    Page,
    add_unchanged_round,
    assessed,
    campaign_folder,
    classifier,
    drift,
    failures,
    profile,
    retraining,
    section_of,
)

SECTIONS = [
    "cost",
    "field",
    "field_description",
    "field_map",
    "error_sources",
    "failures",
    "uncertainty",
    "defences",
    "retraining",
    "feedback",
    "drift",
    "checks",
    "settings",
]
INFO = CampaignInfo(
    requirement=REQUIREMENT, classes=("0", "1", "2", "3"), bounds=(0.0, 1.0), train=(15,) * 4, clean=40, feedback=True,
    findings=(FINDING,), versions={"torch": "2"},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return campaign_folder(tmp_path_factory.mktemp("campaign") / "run")


@pytest.fixture(scope="module")
def evidence(folder: Path) -> Evidence:
    return gather(folder)


def page_of(folder: Path) -> Page:
    return Page(render_page(gather(folder)))


# What is gathered


def test_the_evidence_round_trips(evidence, tmp_path):
    results.save(evidence, tmp_path / "report.json")
    assert load_evidence(tmp_path / "report.json") == evidence


def test_the_folder_is_not_changed_and_may_be_in_use(folder):
    with RunFolder(folder, signature=SETTINGS) as run:
        before = run.digest()
        gather(folder)
        assert run.digest() == before


def test_the_evidence_is_what_the_folder_contains(evidence):
    assert [done.number for done in evidence.rounds] == [0, 1]
    assert evidence.labels == 40
    assert evidence.cases == 5
    assert [prior.labels for prior in evidence.priors] == [12, 12, 11, 5]
    assert sum(prior.share for prior in evidence.priors) == pytest.approx(1)
    assert all(prior.lower <= prior.share <= prior.upper for prior in evidence.priors)
    field_map = section_of(evidence, "field_map").values
    assert (len(field_map["train"]), len(field_map["failures"])) == (60, 20)
    assert len(field_map["field"]) == len(profile(SHAPE).codes)
    assert {name for name, _ in evidence.hashes} >= {"initial model", "weights after round 1"}
    assert ("model", "zero gradients") in [(where, finding.name) for where, finding in evidence.findings]


def test_equal_weights_have_equal_hashes(tmp_path):
    place = campaign_folder(tmp_path / "run")  # its weights after round 1 are the initial ones
    with RunFolder(place, signature=SETTINGS) as run:
        run.deliver(classifier(), None)
    evidence = gather(place)
    hashes = dict(evidence.hashes)
    assert hashes["initial model"] == hashes["weights after round 1"] == hashes["model.safetensors"]
    with RunFolder(place, signature=SETTINGS) as run:
        run.deliver(classifier(seed=1), None)
    assert dict(gather(place).hashes)["model.safetensors"] != hashes["initial model"]


def test_the_retrainer_does_not_contradict_the_campaign(tmp_path):
    signature = SETTINGS | {"retrainer": "Mine(max_drop=0.02, inner=Other(epochs=2, max_drop=0.03))"}
    with RunFolder(tmp_path, signature=signature):
        pass
    evidence = gather(tmp_path)
    assert evidence.settings == SETTINGS | {"retrainer": "Mine(inner=Other(epochs=2))"}


def test_the_brier_score_is_a_plain_number(evidence):
    chart = str(epoch_chart(evidence.rounds[-1]))
    assert "before 0.3, epoch 1 0.2, epoch 2 0.1" in chart
    assert "%" not in chart


def test_notes_keep_their_lines(evidence):
    noted = replace(evidence, info=replace(INFO, notes=("Conditions:\n  blur high 1\n  gamma mean 2", "one line")))
    assert "- Conditions:\n  - blur high 1\n  - gamma mean 2\n- one line" in markdown(noted)
    (item,) = re.findall(r"<li[^>]*>Conditions:[^<]*</li>", render_page(noted))
    assert item.startswith('<li class="lines">')
    assert item.count("\n") == 2
    assert ".lines { white-space: pre-line; }" in render_page(noted)


def test_sections_without_records_are_left_out(tmp_path):
    evidence = gather(campaign_folder(tmp_path, observers=()))
    assert evidence.sections == ()
    page = Page(render_page(evidence))
    own = {"field_description", "field_map", "error_sources", "uncertainty", "defences"}
    assert page.sections == [name for name in SECTIONS if name not in own]
    assert not own & {a["href"].removeprefix("#") for a in page.all("a")}


def test_time_is_summed_by_step_and_a_truncated_line_is_left_out(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    lines = [{"round-000/profile.json": 2.0}, {"round-001/suite": 3.0}, {"conditions": 6.5}]
    (place / "timing.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"round-001/ro']))
    evidence = gather(place)
    assert evidence.seconds == {"conditions": 6.5, "profile": 2.0, "generate": 3.0, "total": 11.5}
    text = Page(render_page(evidence)).text
    parts = "estimating conditions 6 s, learning the profile of the field 2 s, searching for failures 3 s"
    assert f"of all sessions until this report; of that {parts}" in text


def test_a_report_without_times_says_so(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    (place / "timing.jsonl").unlink(missing_ok=True)
    evidence = gather(place)
    assert evidence.seconds == {}
    assert "How long the work took is not recorded" in Page(render_page(evidence)).text


# Only what people called valid


@pytest.fixture
def judged(folder: Path, tmp_path: Path) -> Path:
    """A campaign that has ended: 20 operational failures, 5 of them chosen, none judged."""
    place = shutil.copytree(folder, tmp_path / "a run")
    with RunFolder(place, signature=SETTINGS) as run:
        run.suite("cases", lambda: failures(40)[:5])
    return place


def mark(place: Path, **verdicts: str) -> None:
    desk = open_desk(place, by="ann")
    for row, verdict in verdicts.items():
        desk.mark(RequestFields({"row": int(row[1:]), "verdict": verdict}))


def test_only_valid_failures_are_shown_of_all_and_the_page_says_so(judged):
    mark(judged, r0="valid", r2="valid", r3="invalid")
    evidence = gather(judged, valid=True)
    assert evidence.valid
    assert (len(evidence.gallery.failures), evidence.gallery.total) == (2, 20)
    text = Page(render_page(evidence)).text
    assert "2 of 20 are shown, only those that people called valid" in text
    assert "The others were not called valid, have not been judged (people see only failures that were chosen" in text
    every = gather(judged)
    assert not every.valid
    assert every.gallery.total == len(every.gallery.failures) == 20
    assert "or do not fit on this page. Differences are" in text
    text = Page(render_page(every)).text
    assert "20 of 20 are shown; 5" in text
    assert "the model of its round. Differences are" in text
    results.save(evidence, judged / "report.json")
    assert load_evidence(judged / "report.json") == evidence


def test_without_valid_failures_the_page_does_not_say_that_none_was_found(judged):
    mark(judged, r0="invalid")
    evidence = gather(judged, valid=True)
    assert (evidence.gallery.failures, evidence.gallery.total) == ((), 20)
    text = Page(render_page(evidence)).text
    assert "None of 20 operational failures was called valid" in text
    assert "No operational failure was found" not in text
    assert section_of(evidence, "uncertainty").values["failures"] == 20  # sections are about all of them


def test_valid_failures_need_verdicts(folder, judged):
    with pytest.raises(ValueError, match=r"has no cases to judge yet.*when it ends; run `operant triage .*run` then"):
        gather(folder, valid=True)
    with pytest.raises(ValueError, match=r"nobody has judged the cases of .*; run `operant triage '.*a run'` first"):
        gather(judged, valid=True)
    mark(judged, r0="valid")
    open_desk(judged, by="ann").undo(RequestFields({}))
    with pytest.raises(ValueError, match="nobody has judged the cases"):
        write_report(judged, valid=True)
    done = CliRunner().invoke(app, ["report", str(judged), "--valid"])
    assert done.exit_code == 2
    assert "run `operant triage" in done.stderr.replace("\n", " ")


def test_the_page_shows_the_path_that_was_given(judged, monkeypatch):
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
    shown = bare(rounds=rounds, info=replace(INFO, requirement=replace(REQUIREMENT, pmi=requirement)))
    assert shown.met == (upper <= requirement)
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit_xml(shown)).iter("testcase")}
    assert (cases["requirement"].find("failure") is None) == shown.met
    assert markdown(shown).startswith("## ✅" if shown.met else "## ❌")
    assert shown.verdict.startswith("Met:" if shown.met else "Not met:")
    numbers = re.findall(r"[\d.e-]+(?= %)", shown.verdict)
    assert len(numbers) == 2
    assert shown.met or numbers[0] != numbers[1] or math.isclose(upper, requirement, rel_tol=1e-3)


def test_a_changed_field_that_was_not_assessed_has_no_verdict():
    rounds = (
        Round(number=0, arrived=80, clean=0.9, assessment=assessed(0.01)),
        Round(number=1, arrived=90, clean=0.9, drift=drift()),
    )
    shown = bare(rounds=rounds)
    assert (shown.status, shown.met) == ("not known", False)
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit_xml(shown)).iter("testcase")}
    assert cases["drift"].find("failure").get("message") == f"Round 1: {drift().summary}"
    assert "model's outputs            p = 0.001" in cases["drift"].find("failure").text
    assert cases["requirement"].find("skipped") is not None
    text = Page(render_page(shown)).text
    assert "Found in round 1 Drift (p = 0.003, level 0.025): 80 reference inputs, 60 current ones." in text
    assert "inputs within classes not comparable" in text
    assert "Round 1: Drift" in markdown(shown)


def bare(**changes: Any) -> Evidence:
    """Evidence of an empty campaign, with changes."""
    empty = Evidence(
        name="run", settings=SETTINGS, info=INFO, rounds=(), under_way="", labels=0, seconds={}, priors=(),
        different_cases=0,
        gallery=Gallery(), compared=(), findings=(), hashes=(),
    )  # fmt: skip
    return replace(empty, **changes)


def test_lost_accuracy_fails_in_ci():
    rounds = tuple(Round(number=i, arrived=80, clean=c, assessment=assessed()) for i, c in enumerate((0.9, 0.85)))
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit_xml(bare(rounds=rounds))).iter("testcase")}
    assert "85" in cases["clean accuracy"].find("failure").get("message")
    assert set(cases) == {"requirement", "clean accuracy", "drift", "round 0", "round 1"}


def test_accuracies_look_the_same_everywhere():
    rounds = tuple(
        Round(number=i, arrived=80, attempted=9 * i, clean=c, assessment=assessed())
        for i, c in enumerate((0.92174, 0.9))
    )
    shown = bare(rounds=rounds, info=replace(INFO, requirement=replace(INFO.requirement, max_drop=0.02)))
    xml = junit_xml(shown).decode()
    assert "Clean accuracy was 92.17 % and is 90 %; 2 points may be lost." in xml
    assert "clean accuracy 92.17 %" in str(rounds[0])
    for text in (markdown(shown), Page(render_page(shown)).text.replace("\u00a0", " ")):
        assert "92.17 %" in text
        assert "92.2 %" not in text


def test_the_markdown_has_the_time():
    assert "\nTime of all sessions: 15 min: searching for failures 10 min.\n" in markdown(
        bare(seconds={"generate": 600.0, "total": 900.0})
    )
    assert "Time of all" not in markdown(bare())


def test_junit_counts_its_cases(evidence):
    suite = ElementTree.fromstring(junit_xml(evidence)).find("testsuite")
    assert int(suite.get("tests")) == len(suite.findall("testcase")) == 5
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) == 1


@pytest.mark.parametrize("rounds", [1, 4, 30])
def test_any_number_of_rounds_is_drawn_also_without_labels(rounds):
    nothing = SequentialAssessment(labels=0, failures=0, upper=1.0, confidence=0.99, reason="no label is left")
    shown = tuple(
        Round(number=i, arrived=80, clean=0.9, assessment=(assessed(0.5 / (i + 1)), None, nothing)[i % 3])
        for i in range(rounds)
    )
    page = Page(render_page(bare(rounds=shown)))
    assert not any("nan" in (value or "") for _, attributes in page.tags for value in attributes.values())


# Rounds that left the model unchanged


@pytest.fixture(scope="module")
def idle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return gather(add_unchanged_round(shutil.copytree(folder, tmp_path_factory.mktemp("idle") / "run")))


def test_a_round_that_changed_nothing_is_marked_and_its_labels_add_up(idle):
    row = next(line for line in markdown(idle).splitlines() if line.startswith("| 2"))
    assert "| 2 (unchanged) |" in row
    assert "4 of 25, 5 new" in row
    text = Page(render_page(idle)).text
    assert "2 unchanged" in text
    assert "4 of 25, 5 new" in text
    assert "Round 2: model unchanged; 4 of 25, 5 new wrong" in text
    case = next(c for c in ElementTree.fromstring(junit_xml(idle)).iter("testcase") if c.get("name") == "round 2")
    assert "5 of the 25 labels are new" in case.find("system-out").text


def test_only_what_was_kept_is_learned_from(idle, folder, tmp_path):
    assert (idle.cases, idle.learned) == (12, 5)
    assert sum(f.learned for f in idle.gallery.failures) == 5
    text = Page(render_page(idle)).text
    assert "Cases chosen 12 7 different 5 learned from" in text
    assert "Cases tried, result not kept" in text
    assert "12 cases chosen (7 different), 5 learned from" in markdown(idle)
    kept = gather(add_unchanged_round(shutil.copytree(folder, tmp_path / "run"), best=1))
    assert (kept.learned, sum(f.learned for f in kept.gallery.failures)) == (12, 7)  # 5 of the cases are the same


def test_error_sources_use_all_labels_of_the_present_model(idle, evidence, folder, tmp_path):
    sources = section_of(idle, "error_sources").values
    first, second = sources["changes"][-2:]
    assert sources["present"] == [1, 2]
    assert sum(row["labels"] for row in sources["by_class"]) == 25 == sum(row["labels"] for row in sources["by_region"])
    labelled = [change["matrices"][-2] for change in (first, second)]  # the last one is of clean inputs
    assert [part["total"] for part in labelled] == [20, 5]
    by_class = sources["by_class"][0]
    assert by_class["labels"] - by_class["failures"] == sum(part["rows"][0][0][0] for part in labelled)
    failing = sum(row["failures"] for row in sources["by_class"])
    assert failing == sum(row["failures"] for row in sources["by_region"])
    assert failing == sum(part["total"] - part["right"] for part in labelled)
    assert f"{failing} of 25 field inputs labelled for it in rounds 1, 2" in Page(render_page(idle)).text
    assert section_of(evidence, "error_sources").values["present"] == [1]
    changed = gather(add_unchanged_round(shutil.copytree(folder, tmp_path / "run"), best=1))
    assert section_of(changed, "error_sources").values["present"] == [2]
    moved = tuple(replace(done, drift=drift() if done.number == 2 else None) for done in idle.rounds)
    assert present_rounds(moved) == [2]


def test_confusion_before_is_shown_only_if_the_model_changed(idle, evidence):
    assert Page(render_page(evidence)).text.count("Before: field inputs") == 1
    assert Page(render_page(idle)).text.count("Before: field inputs") == 1
    assert Page(render_page(idle)).text.count("Clean inputs") == 2


def test_a_retraining_without_a_monitor_has_no_chart():
    epochs = tuple(replace(epoch, monitor=math.nan) for epoch in retraining().history)
    record = replace(retraining(), monitor_before=None, history=epochs)
    done = Round(number=1, arrived=80, clean=0.9, retraining=record, assessment=assessed())
    page = Page(render_page(bare(rounds=(done,))))
    assert "Epoch 1 was best." in page.text
    assert "the large dot was kept" not in page.text


# How it ended, and what the verdict is about


STOPPED = StopRecord(
    met=False,
    reason="labels spent",
    sentence="All labels are spent after round 1",
    advice="To meet it: more labels. The last one was not kept.",
    last=1,
    rounds=3,
    cases=100,
    labels=40,
)


def stop(place: Path) -> Path:
    with RunFolder(place, signature=SETTINGS) as run:
        run.replace("stop", STOPPED)
        run.deliver(classifier((1, 8, 8)), None)
    return place


def test_the_stop_reason_is_shown_once_and_the_weights_by_name(folder, tmp_path):
    shown = gather(stop(shutil.copytree(folder, tmp_path / "run")))
    assert shown.why == "All labels are spent after round 1."
    assert shown.advice == "To meet it: more labels. The last one was not kept."
    name, weights = shown.judged_model
    assert name == "weights after round 1"
    assert dict(shown.hashes)["model.safetensors"] == weights
    text = Page(render_page(shown)).text
    lead = text.partition("The model misclassified ")[2].partition(" To meet it")[0]
    assert lead.startswith("1 of 20 labelled inputs, 5 %. The bound holds")
    assert lead.endswith("All labels are spent after round 1.")
    assert text.count("required 5") == 0
    for form in (text, markdown(shown), junit_xml(shown).decode()):
        assert weights in form
        assert form.count("All labels are spent") == 1


def test_a_stop_is_ignored_after_the_campaign_was_resumed(folder, tmp_path):
    place = stop(shutil.copytree(folder, tmp_path / "run"))
    assert gather(place).stop is not None
    with RunFolder(place, signature=SETTINGS) as run:
        run.step("round-002/field", FieldIds, lambda: FieldIds(ids=torch.arange(80)))
    assert gather(place).stop is None
    further = gather(add_unchanged_round(place))
    assert (further.under_way, further.stop, further.why) == ("", None, "")
    assert further.advice.startswith("To meet it: ")


def test_a_model_that_never_changed_is_the_initial_model():
    shown = bare(
        rounds=(Round(number=0, arrived=80, clean=0.9, assessment=assessed()),), hashes=(("initial model", "aa"),)
    )
    assert shown.judged_model == ("initial model", "aa")
    assert "initial model, hash `aa`" in markdown(shown)


# The page


def test_the_page_is_complete_and_in_order(evidence):
    page = Page(render_page(evidence))
    assert page.sections == SECTIONS
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in page.all("a")]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert len(page.all("svg")) == len(page.all("desc")) == 9
    assert len(page.all("title")) == 10
    assert " ".join(evidence.verdict.split()) in page.text
    assert len(page.all("li")) >= len(evidence.gallery.failures) == 20
    assert all(picture["alt"] for picture in page.all("img"))


def test_the_page_loads_nothing(evidence):
    source = render_page(evidence)
    page = Page(source)
    assert all(picture["src"].startswith("data:image/png;base64,") for picture in page.all("img"))
    assert not page.all("link")
    assert "@import" not in source
    assert "url(" not in source
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


def test_names_with_markup_are_text(tmp_path):
    names = (HOSTILE, "two", "three", "four")
    found = failures(40, move=HOSTILE.replace("\x01", ""))
    finding = replace(FINDING, name=HOSTILE, problem=HOSTILE)
    place = campaign_folder(tmp_path / "run", names=names, found=found, drifted=drift(finding))
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
    assert "without feedback: cat 25 %, dog 25 %, cow 25 %, hen 25 %" in text
    assert "cow 40 %, hen 25 %, dog 20 %, cat 15 %" in text


@given(most=st.floats(1e-6, 1.0))
def test_a_scale_reaches_its_largest_value_with_few_lines(most):
    ticks = scale(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-6)
    assert len(ticks) <= 6
    assert ticks == sorted(set(ticks))


@given(share=st.floats(0, 1))
def test_percentages_are_near_their_share(share):
    assert float(percent(share).removesuffix(" %")) == pytest.approx(100 * share, abs=0.051)


# Failures


def found_in(suite: Suite, number: int = 1) -> RoundFailures:
    first = torch.arange(len(suite)) < 3
    return RoundFailures(round=number, suite=suite, chosen=first, learned=first)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 5), (1, 1, 12)])
def test_pictures_of_any_shape_are_drawn(shape, tmp_path):
    shown = gather(campaign_folder(tmp_path, shape=shape)).gallery
    assert len(shown.failures) == shown.total == 20
    assert all(len(f.pictures) == 3 and not f.changes for f in shown.failures)


@pytest.mark.parametrize("shape", [(6,), (2, 4, 4), (4, 4)])
def test_other_inputs_are_shown_as_changed_values(shape, tmp_path):
    place = campaign_folder(tmp_path, shape=shape)
    shown = gather(place).gallery
    assert all(f.changes and not f.pictures for f in shown.failures)
    assert "value 3" in page_of(place).text


def test_large_pictures_are_made_smaller_but_distances_are_not():
    suite = failures(3, (1, 300, 100))
    shown = gallery_of([found_in(suite)], (0.0, 1.0))
    width, height = (int.from_bytes(decoded(shown.failures[0].pictures[1])[i : i + 4]) for i in (16, 20))
    assert (height, width) == (MAX_SIDE, MAX_SIDE // 3)
    assert shown.failures[0].l2 == pytest.approx(float(suite.distances("l2")[0]))


def decoded(uri: str) -> bytes:
    return base64.b64decode(uri.removeprefix("data:image/png;base64,"))


def test_rounds_alternate_and_failures_that_do_not_fit_are_counted():
    both = [found_in(failures(30), 1), found_in(failures(10), 2)]
    shown = gallery_of(both, None, limit=12)
    assert [f.round for f in shown.failures] == [1, 2] * 6
    assert shown.total == 40
    assert [f.learned for f in shown.failures] == [True] * 6 + [False] * 6
    size = sum(len(p) for f in shown.failures[:5] for p in f.pictures)
    assert gallery_of(both, None, limit=12, max_characters=size).failures == shown.failures[:5]
    assert len(gallery_of(both, None, max_characters=1).failures) == 1


def test_failures_found_again_are_counted_and_shown_once(tmp_path):
    place = campaign_folder(tmp_path / "run")
    first = gather(place).gallery.failures
    with RunFolder(place, signature=SETTINGS) as run:
        found = failures(40)[:10]
        again = Round(number=2, arrived=80, attempted=12, found=10, operational=10, chosen=7, cases=12, clean=0.895)
        run.suite("round-002/suite/chunk-0000", lambda: found)
        run.suite("round-002/cases", lambda: found[:7])
        run.step("round-002/round", Round, lambda: again)
    evidence = gather(place)
    shown = evidence.gallery
    assert (shown.total, shown.found) == (20, 30)
    assert sorted(f.pictures for f in shown.failures) == sorted(f.pictures for f in first)
    assert len({f.pictures for f in shown.failures}) == len(shown.failures) == 20
    assert sum(f.learned for f in shown.failures) == 5
    assert (evidence.cases, evidence.different_cases) == (12, 7)
    text = Page(render_page(evidence)).text
    assert "20 of 20 different failures (30 found, some in several rounds) are shown; 5" in text
    assert "7 different" in text
    assert "12 cases chosen (7 different), 5 learned from" in markdown(evidence)
    assert "different" not in markdown(gather(campaign_folder(tmp_path / "other")))


def test_the_page_says_how_many_are_shown(folder):
    text = Page(render_page(gather(folder, limit=7))).text
    assert "7 of 20 are shown" in text


def test_failures_that_were_learned_from_are_marked(evidence):
    assert sum(f.learned for f in evidence.gallery.failures) == 5


def test_unknown_bounds_are_taken_from_the_values():
    suite = failures(4)
    wide = replace(suite, rows=type(suite.rows)([suite.x * 255]))
    assert len(gallery_of([found_in(wide)], None).failures) == 4


@pytest.mark.parametrize("wrong", [False, True])
def test_a_search_without_operational_failures_has_a_page(wrong, tmp_path):
    found = failures(8, wrong=wrong)
    found = found.with_columns(naturalness=torch.zeros(8))
    page = page_of(campaign_folder(tmp_path, found=found))
    assert "No operational failure was found from 12 seeds" in page.text


# Campaigns that are under way, and other folders


def test_an_unfinished_round_is_described(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    (place / "round-001" / ".round.json.seal").unlink()
    evidence = gather(place)
    assert len(evidence.rounds) == 1
    assert evidence.labels == 40
    assert evidence.under_way == (
        "Round 1 is under way; finished so far: choice of cases, 1 chunk of seeds, 1 batch of labels."
    )
    assert evidence.under_way in Page(render_page(evidence)).text
    assert "40 labels so far; in finished rounds: 0 seeds, 0 cases chosen" in markdown(evidence)
    assert "skipped" in junit_xml(evidence).decode()


def test_a_campaign_that_has_just_begun_has_a_report(tmp_path):
    with RunFolder(tmp_path / "run", signature=SETTINGS):
        pass
    page = write_report(tmp_path / "run", tmp_path / "out")
    assert "Not known: no round is finished yet." in Page(page.read_text(encoding="utf-8")).text
    assert sorted(file.name for file in page.parent.iterdir()) == [
        "report.html", "report.json", "report.md", "report.xml"
    ]  # fmt: skip


WRONG_RUNS = [
    (None, "no run.json; give"),
    ("{", "run.json is damaged; run"),
    ("[]", "run.json is damaged; run"),
    ('{"seed": "0"}', "does not belong to a campaign; give .*has no 'requirement'"),
    ('{"requirement": "0.1"}', "does not belong to a campaign; give .*has no 'confidence'"),
    (json.dumps(SETTINGS | {"level": "x"}), "run.json is damaged; run"),
]


@pytest.mark.parametrize(("content", "message"), WRONG_RUNS)
def test_a_folder_of_something_else_is_rejected(content, message, tmp_path):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        gather(tmp_path)


@pytest.mark.parametrize("name", ["round-001/round", "info", "round-001/error_sources"])
def test_records_of_another_version_are_rejected(name, folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    file = place / f"{name}.json"
    page = json.loads(file.read_text())
    page["value"]["score"] = 1
    file.write_text(json.dumps(page))
    with pytest.raises(ValueError, match=rf"{name}.json is not a format-1 .*start the campaign again in another"):
        gather(place)


def test_a_missing_info_file_is_an_error_that_says_what_to_do(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    (place / "info.json").unlink()
    with pytest.raises(ValueError, match=r"info.json is missing; resume the campaign, which writes it again"):
        gather(place)


def test_damaged_cases_are_a_finding(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    shard = next((place / "round-001" / "suite" / "chunk-0000").glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-40])
    evidence = gather(place)
    assert ("folder", "damaged file", "error") in [(w, f.name, f.severity) for w, f in evidence.findings]
    assert evidence.gallery.failures == ()


def test_a_report_of_another_format_is_rejected(evidence, tmp_path):
    results.save(replace(evidence, version=VERSION + 1), tmp_path / "report.json")
    with pytest.raises(
        ValueError, match=rf"format {VERSION + 1}, this version of Operant reads format {VERSION}; write it again"
    ):
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


def test_where_a_report_is_written(folder, tmp_path):
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
