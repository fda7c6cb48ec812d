"""Laws of triage: what is acknowledged is on disk, nobody else is answered, and what verdicts come to is right.

Run as a script this file serves a suite to be killed: it imports everything once and then forks one server a round.
"""

import asyncio
import csv
import hashlib
import http.client
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import hypergeom
from sklearn.metrics import cohen_kappa_score
from typer.testing import CliRunner

import operant
from operant import Samples, Suite, results, samples_from_folder, spawn
from operant.campaign.records import CampaignInfo, Requirement
from operant.cli import app as command_line
from operant.data import LabelFolder, LabelsMissing
from operant.execution.run_folder import RunFolder
from operant.extras import install_command
from operant.suite import add_columns, open_with_index
from operant.suite.verdicts import VERDICTS, combined_verdict, log_files
from operant.triage import (
    SamplePlan,
    VerdictStore,
    agreement,
    anytime_interval,
    cohens_kappa,
    exact_interval,
    export_csv,
    export_pictures,
    open_desk,
    read_verdicts,
    valid_share,
    verdicts_for,
)
from operant.triage.desk import RequestFields
from operant.triage.sampling import population, ranked_rows, sample_rows
from operant.triage.server import _listen, make_app, serve

TOKEN = "a-token-nobody-knows"
CLASSES = ("<b>cat</b>", "dog & co", "=cow()", "hen/../..")


def made(n: int = 60, shape: tuple[int, ...] = (1, 6, 6), seed: int = 0) -> Suite:
    """Cases of 4 classes from 10 seeds, about three in four of them failures."""
    g = spawn(seed, "made", n)
    seeds = Samples(torch.rand(10, *shape, generator=g), torch.arange(10) % 4, torch.arange(10) + 100 * seed)
    origin = torch.arange(n) % 10
    noise = 0.2 * torch.rand(n, *shape, generator=g)
    return Suite.of(
        (seeds.x[origin] + noise).clamp(0, 1),
        seeds=seeds,
        origin=origin,
        prediction=torch.randint(4, (n,), generator=g),
        method=["pgd", "<i>turn</i>"][seed % 2],
        columns={"naturalness": torch.rand(n, generator=g), "mass": torch.rand(n, generator=g)},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made().save(tmp_path / "suite")


def opened(path: Path, plan: dict[str, Any] | None = None) -> VerdictStore:
    return VerdictStore(path, *open_with_index(path), plan=plan)


def said(path: Path) -> dict[tuple[int, str], tuple[str, tuple[str, ...]]]:
    return {(j.row, j.by): (j.verdict, j.tags) for j in read_verdicts(path)}


# Verdicts -------------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["ann", "bob"]),
            st.sampled_from(["", *VERDICTS]),
            st.lists(st.sampled_from(["rotation", "dark"]), max_size=2),
        ),
        st.tuples(st.just(None), st.sampled_from(["ann", "bob"])),
    ),
    max_size=20,
)


@settings(max_examples=25)
@given(steps=STEPS)
def test_verdicts_are_what_was_said_last_and_undo_takes_back_one_step(tmp_path_factory, steps) -> None:
    """Against a model of it: a stack of whole states for each person. What is read again is what is in memory."""
    path = made(6).save(tmp_path_factory.mktemp("steps") / "suite")
    verdicts = opened(path)
    now: dict[str, dict[int, tuple[str, tuple[str, ...]]]] = {"ann": {}, "bob": {}}
    before: dict[str, list[dict[int, Any]]] = {"ann": [], "bob": []}
    for i, step in enumerate(steps):
        if i == len(steps) // 2:
            verdicts = opened(path)  # as after a restart
        if step[0] is None:
            back = verdicts.undo(step[1])
            assert (back is None) == (not before[step[1]])
            now[step[1]] = before[step[1]].pop() if before[step[1]] else now[step[1]]
        else:
            row, by, verdict, tags = step
            new = (verdict, tuple(dict.fromkeys(tags)))
            if now[by].get(row, ("", ())) != new:
                before[by].append(dict(now[by]))
                now[by][row] = new
            verdicts.mark(row, by, verdict, tags)
    expected = {(row, by): given for by, rows in now.items() for row, given in rows.items() if given != ("", ())}
    assert said(path) == expected
    assert {k: (j.verdict, j.tags) for k, j in verdicts.judgements.items() if j.verdict or j.tags} == expected
    suite = Suite.open(path)
    if expected or any(now.values()):
        for row in range(6):
            each = [given for (r, _), given in sorted(expected.items()) if r == row]
            assert suite["verdict"][row] == combined_verdict(verdict for verdict, _ in each)
            assert suite["tags"][row] == ", ".join(sorted({tag for _, tags in each for tag in tags}))
    codes = verdicts.consensus_codes()
    combined = suite["verdict"].tolist() if "verdict" in suite.columns else [""] * 6
    assert [["", *VERDICTS, "disputed"][c] for c in codes] == combined


def test_a_suite_opens_with_who_and_when(folder) -> None:
    verdicts = opened(folder)
    verdicts.mark(3, "ann", "valid", ["rotation"])
    verdicts.mark(3, "bob", "valid", ["dark", "rotation"])
    verdicts.mark(4, "bob", "invalid")
    verdicts.mark(5, "ann", "valid")
    verdicts.mark(5, "bob", "invalid")
    verdicts.mark(6, "ann", "unsure")
    suite = Suite.open(folder)
    assert suite["verdict"][3:8].tolist() == ["valid", "invalid", "disputed", "unsure", ""]
    assert suite["verdict_by"][3:8].tolist() == ["ann, bob", "bob", "ann, bob", "ann", ""]
    assert suite["tags"][3] == "dark, rotation"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", at) for at in suite["verdict_at"][3:7])
    assert suite["verdict_at"][7] == ""
    assert torch.equal(suite.valid().x, suite.x[[3]])
    assert len(suite.failures().valid()) <= 1  # filters join
    assert replace(suite, columns={}).digest() == replace(made(), columns={}).digest()


def test_a_suite_that_nobody_judged_has_no_valid_cases_to_give(folder) -> None:
    with pytest.raises(ValueError, match="nobody has judged these cases; run `operant triage`"):
        Suite.open(folder).valid()
    assert read_verdicts(folder) == []
    assert valid_share(folder) is None


def test_verdicts_follow_cases_into_other_suites(tmp_path) -> None:
    """By file and row while the file is there; by content where it is not."""
    first, second = made(20), made(30, seed=1)
    path = first.save(tmp_path / "suite")
    opened(path).mark(7, "ann", "valid", ["dark"])
    second.append_to(path)
    assert np.flatnonzero(Suite.open(path)["verdict"] == "valid").tolist() == [7]
    opened(path).mark(25, "ann", "invalid")
    together_ = Suite.concat([second, first[5:]])
    other = replace(together_, columns={}).save(tmp_path / "other")
    for log in log_files(path):
        (other / log.name).write_bytes(log.read_bytes())
    suite = Suite.open(other)
    assert np.flatnonzero(suite["verdict"] == "valid").tolist() == [32]
    assert np.flatnonzero(suite["verdict"] == "invalid").tolist() == [5]
    assert suite["tags"][32] == "dark"
    assert verdicts_for(Suite.concat([first[6:9], second[:1]]), other).tolist() == ["", "valid", "", ""]
    assert verdicts_for(first[6:9], second.save(tmp_path / "second")).tolist() == [""] * 3  # nobody judged that one
    saved = suite.valid().save(tmp_path / "valid")
    assert Suite.open(saved)["verdict"].tolist() == ["valid"]  # as any other column
    assert valid_share(saved) is None  # nobody drew these at random


def test_another_process_is_heard(folder) -> None:
    mine, other = opened(folder), opened(folder)
    other.mark(1, "bob", "valid")
    mine.mark(1, "ann", "invalid")
    mine.refresh()
    other.refresh()
    assert mine.consensus_codes()[1] == other.consensus_codes()[1] == 4  # disputed
    assert [j.by for j in mine.others(1, "ann")] == ["bob"]
    assert len(log_files(folder)) == 2


def test_a_clock_that_goes_back_changes_nothing(folder, monkeypatch) -> None:
    opened(folder).mark(1, "ann", "valid")
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    opened(folder).mark(1, "ann", "invalid")
    assert said(folder) == {(1, "ann"): ("invalid", ())}


def test_a_torn_line_counts_for_nothing_and_a_damaged_one_is_named(folder) -> None:
    verdicts = opened(folder)
    for row in range(6):
        verdicts.mark(row, "ann", "valid")
    (log,) = log_files(folder)
    whole = log.read_bytes()
    for cut in range(len(whole) - 40, len(whole)):
        log.write_bytes(whole[:cut])
        assert len(read_verdicts(folder)) == 5
    assert Suite.open(folder).rejected == ()
    lines = whole.splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], lines[3].replace(b"valid", b"vaLid"), *lines[4:]]))
    with pytest.warns(UserWarning, match=r"line 4 of .*verdicts-000000.jsonl is damaged"):
        suite = Suite.open(folder)
    assert np.flatnonzero(suite["verdict"] == "valid").tolist() == [0, 1, 3, 4, 5]
    assert suite.rejected == ()  # no case is missing, so a campaign can continue
    log.write_bytes(b"".join(lines[1:]))  # without its first line, cases are known by their content
    assert len(read_verdicts(folder)) == 6
    log.write_bytes(b'12345678 {"something": "else"}\n')
    with pytest.warns(UserWarning, match="line 1 of .* is damaged"):
        assert "verdict" not in Suite.open(folder).columns


@pytest.mark.parametrize(
    ("row", "by", "verdict", "tags", "sentence"),
    [
        (60, "ann", "valid", [], "row must be from 0 to below 60, got 60"),
        (-1, "ann", "valid", [], "row must be from 0"),
        (0, "", "valid", [], "a name must be one line"),
        (0, "a,b", "valid", [], "a name must be one line of 1 to 60 characters without commas"),
        (0, "a\x00b", "valid", [], "a name must be one line"),
        (0, "ann", "good", [], "verdict must be one of valid, invalid, unsure"),
        (0, "ann", "valid", ["x" * 61], "a tag must be one line"),
        (0, "ann", "valid", ["\ud800"], "a tag must be one line"),
        (0, "ann", "valid", [str(i) for i in range(21)], "at most 20 tags, got 21"),
    ],
)
def test_what_is_no_verdict_is_rejected(folder, row, by, verdict, tags, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        opened(folder).mark(row, by, verdict, tags)
    assert log_files(folder) == []


def test_a_full_disk_loses_nothing_and_lies_about_nothing(folder, monkeypatch) -> None:
    verdicts = opened(folder)
    verdicts.mark(1, "ann", "valid")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda d, content: write(d, content[:9]))
        with pytest.raises(OSError, match="only 9 of"):
            verdicts.mark(2, "ann", "valid")
    assert verdicts.of(2, "ann").verdict == ""
    verdicts.mark(3, "ann", "invalid")
    assert said(folder) == {(1, "ann"): ("valid", ()), (3, "ann"): ("invalid", ())}
    assert Suite.open(folder).rejected == ()


def test_a_campaigns_cases_stay_sealed_and_keep_their_verdicts_when_it_goes_on(tmp_path) -> None:
    """Verdicts on sealed files lie beside them; when the campaign writes its cases anew, they are known by content."""
    run, first, second = tmp_path / "run", made(10), made(12, seed=1)
    with RunFolder(run, signature={}) as opened_run:
        opened_run.suite("cases", lambda: first)
        results.save(
            CampaignInfo(
                requirement=Requirement(pmi=0.1, confidence=0.95, max_drop=0.01, level=0.05, mass_quantile=0.1),
                classes=CLASSES,
                bounds=(0.0, 1.0),
                train=(),
                clean=0,
                feedback=True,
                findings=(),
                versions={},
            ),
            run / "info.json",
        )
        digest = opened_run.digest()
    desk = open_desk(run, by="ann")
    assert desk.about()["labels"][0] == (0, CLASSES[0])
    desk.mark(RequestFields({"row": 4, "verdict": "valid"}))
    assert [file.parent.name for file in log_files(run / "cases")] == ["cases.verdicts"]
    with RunFolder(run, signature={}) as opened_run:
        assert "verdict" not in opened_run.suite("cases", lambda: first).columns  # no part of the run
        assert opened_run.digest() == digest
        assert Suite.open(run / "cases")["verdict"][4] == "valid"
        opened_run.clear("cases")
        (run / ".cases.seal").unlink()
        opened_run.suite("cases", lambda: Suite.concat([second, first]))
    assert np.flatnonzero(Suite.open(run / "cases")["verdict"] == "valid").tolist() == [16]


@pytest.mark.parametrize("sealed", [True, False])
def test_verdicts_on_a_runs_cases_outlive_them_with_and_without_their_seal(tmp_path, sealed) -> None:
    """A run that goes on writes anew what has no seal; what people said of it lies elsewhere at every moment."""
    run, cases = tmp_path / "run", made(10)
    with RunFolder(run, signature={}) as opened_run:
        opened_run.suite("round-001/suite/chunk-0000", lambda: cases)
        place, seal = run / "round-001/suite/chunk-0000", run / "round-001/suite/.chunk-0000.seal"
        if not sealed:
            seal.unlink()
        opened(place).mark(4, "ann", "valid")
        seal.unlink(missing_ok=True)
        opened_run.suite("round-001/suite/chunk-0000", lambda: cases)
    assert np.flatnonzero(Suite.open(place)["verdict"] == "valid").tolist() == [4]


def test_a_suite_can_be_judged_from_within_its_folder(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    desk = open_desk(".", by="ann")
    assert desk.mark(RequestFields({"row": 2, "verdict": "valid"}))["verdict"] == "valid"
    monkeypatch.chdir("/")
    desk.mark(RequestFields({"row": 3, "verdict": "invalid"}))  # wherever the process goes
    assert said(folder) == {(2, "ann"): ("valid", ()), (3, "ann"): ("invalid", ())}


# The sample and its interval ------------------------------------------------------------------------------------------


def test_every_start_of_the_sample_is_the_same_for_every_size() -> None:
    suite = made(200)
    rows = population(suite, "failures")
    assert torch.equal(rows, (suite.prediction != suite.label).nonzero().flatten())
    small, large = (sample_rows(suite, SamplePlan(n=n)) for n in (20, 100))
    assert torch.equal(small, large[:20])
    assert len(large.unique()) == 100
    assert bool(torch.isin(large, rows).all())
    assert not torch.equal(small, sample_rows(suite, SamplePlan(n=20, seed=1)))
    assert len(sample_rows(suite, SamplePlan(n=10**6, of="all"))) == 200
    assert len(sample_rows(made(60)[:0], SamplePlan())) == 0


def test_each_failure_is_as_likely_to_be_drawn() -> None:
    suite = made(20)
    counts = torch.zeros(20)
    for seed in range(400):
        counts[sample_rows(suite, SamplePlan(n=5, seed=seed))] += 1
    failing = suite.prediction != suite.label
    expected = 400 * 5 / int(failing.sum())
    assert bool((counts[~failing] == 0).all())
    assert bool(((counts[failing] - expected).abs() < 6 * expected**0.5).all())


def test_ranked_failures_come_likeliest_first() -> None:
    suite = made(50)
    score = (suite["mass"] * suite["naturalness"])[ranked_rows(suite)]
    assert bool((score.diff() <= 0).all())
    assert len(score) == len(suite.failures())
    rated = suite.with_columns(risk=torch.rand(50, generator=spawn(3)))
    score = (rated["mass"] * rated["naturalness"] * rated["risk"])[ranked_rows(rated)]
    assert bool((score.diff() <= 0).all())
    plain = replace(suite, columns={})
    assert torch.equal(ranked_rows(plain), population(plain, "failures"))


@pytest.mark.parametrize(("size", "n"), [(1, 1), (7, 3), (20, 20), (40, 12), (60, 30)])
def test_the_exact_interval_covers_every_share_of_a_population(size, n) -> None:
    """Summed over all that can be drawn, not simulated."""
    found = [exact_interval(k, n, size, confidence=0.9) for k in range(n + 1)]
    for successes in range(size + 1):
        chances = hypergeom.pmf(np.arange(n + 1), size, successes, n)
        covered = sum(p for p, i in zip(chances, found, strict=True) if i.lower <= successes / size <= i.upper)
        assert covered >= 0.9 - 1e-9
    assert all(i.lower <= k / n <= i.upper for k, i in enumerate(found))
    assert found[0].lower == 0
    assert found[n].upper == 1
    if n == size:
        assert all(i.lower == i.upper == k / n for k, i in enumerate(found))


@pytest.mark.parametrize("successes", [0, 1, 9, 15, 26, 30])
def test_the_interval_before_the_end_holds_at_all_looks_together(successes) -> None:
    """The chance that it is wrong after any of the draws, by going through all counts after each draw."""
    size, chances, wrong = 30, {0: 1.0}, 0.0
    for n in range(size):
        reached: dict[int, float] = {}
        for k, chance in chances.items():
            up = (successes - k) / (size - n)
            for more, p in ((1, up), (0, 1 - up)):
                if p > 0:
                    reached[k + more] = reached.get(k + more, 0.0) + chance * p
        chances = {}
        for k, chance in reached.items():
            found = anytime_interval(k, n + 1, size, confidence=0.9)
            if found.lower <= successes / size <= found.upper:
                chances[k] = chance
            else:
                wrong += chance
    assert wrong <= 0.1 + 1e-9


def test_the_share_counts_only_what_was_judged_in_order(folder) -> None:
    desk = open_desk(folder, plan=SamplePlan(n=10), by="ann")
    rows = sample_rows(desk.suite, SamplePlan(n=10)).tolist()
    outside = next(row for row in range(60) if row not in rows)
    desk.mark(RequestFields({"row": outside, "verdict": "valid"}))
    assert "is unknown" in str(valid_share(folder))
    for row, verdict in zip([*rows[:4], rows[6]], ["valid", "valid", "invalid", "unsure", "valid"], strict=True):
        desk.mark(RequestFields({"row": row, "verdict": verdict}))
    share = valid_share(folder)
    assert (share.judged, share.valid, share.planned, share.verdicts) == (4, 2, 10, 6)
    assert not share.finished
    assert (share.lower, share.upper) == _ends(anytime_interval(2, 4, share.population))
    for row in rows[4:]:
        desk.mark(RequestFields({"row": row, "verdict": "valid"}))
    share = valid_share(folder, confidence=0.9)
    assert share.finished
    assert (share.judged, share.valid, share.people) == (10, 8, ("ann",))
    assert (share.lower, share.upper) == _ends(exact_interval(8, 10, share.population, confidence=0.9))
    assert "80 % of" in str(share)
    shown = desk.state(RequestFields({}))["share"]
    assert (shown["judged"], shown["valid"], shown["finished"]) == (10, 8, True)
    assert open_desk(folder).plan == SamplePlan(n=10)  # gone on with, unless another is asked for
    results.save(share, folder.parent / "share.json")
    assert results.load(folder.parent / "share.json", type(share)) == share


def test_a_size_chosen_after_a_look_has_the_interval_of_those_who_look(folder) -> None:
    """The exact interval is for a sample that was chosen before the first verdict."""

    def judged(plan: SamplePlan | None) -> tuple[Any, Any]:
        desk = open_desk(folder, plan=plan, by="ann")
        for row in sample_rows(desk.suite, desk.plan).tolist():
            desk.mark(RequestFields({"row": row, "verdict": "valid" if row % 4 else "invalid"}))
        about = f"{desk.plan.n} by {desk.plan.seed}"
        desk.mark(RequestFields({"row": 0, "verdict": "invalid", "tags": [about]}))  # a log of its own, at any rate
        return valid_share(folder), desk.state(RequestFields({}))["share"]

    for plan, interval in [
        (SamplePlan(n=20), exact_interval),
        (SamplePlan(n=30), anytime_interval),
        (None, anytime_interval),  # the newest is gone on with
        (SamplePlan(n=20, seed=1), anytime_interval),
        (SamplePlan(n=20), exact_interval),
    ]:
        share, shown = judged(plan)
        assert share.finished
        ends = _ends(interval(share.valid, share.judged, share.population))
        assert (share.lower, share.upper) == (shown["lower"], shown["upper"]) == ends


def test_who_takes_everything_back_has_judged_nothing(folder) -> None:
    verdicts = opened(folder)
    verdicts.mark(3, "ann", "valid", ["dark"])
    assert valid_share(folder).verdicts == 1
    verdicts.undo("ann")
    assert valid_share(folder) is None
    verdicts.mark(3, "ann", "", ["dark"])
    assert valid_share(folder) is None  # a word is no verdict


def _ends(interval: Any) -> tuple[float, float]:
    return interval.lower, interval.upper


# Agreement ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=60))
def test_kappa_is_that_of_another_library(pairs) -> None:
    a, b = zip(*pairs, strict=True)
    if len({*a, *b}) == 1:
        assert np.isnan(cohens_kappa(a, b))
    else:
        assert cohens_kappa(a, b) == pytest.approx(cohen_kappa_score(a, b), abs=1e-12)


def test_people_who_differ_are_listed(folder) -> None:
    verdicts = opened(folder)
    for row, (ann, bob) in enumerate(
        [("valid", "valid"), ("valid", "invalid"), ("invalid", "invalid"), ("unsure", "")]
    ):
        verdicts.mark(row, "ann", ann)
        verdicts.mark(row, "bob", bob)
    (found,) = agreement(folder)
    assert (found.people, found.both, found.same, found.rows) == (("ann", "bob"), 3, 2, (1,))
    assert found.kappa == pytest.approx(0.4)
    assert str(found) == "ann and bob agree on 2 of 3 cases (Cohen's kappa 0.40); they differ on rows 1"


# The page's questions -------------------------------------------------------------------------------------------------


def test_cases_of_a_campaign_are_called_by_their_move(tmp_path: Path) -> None:
    """As the report and the terminal call them."""
    suite = made(6).with_columns(move=np.array(["gradient-1", "fog"] * 3))
    desk = open_desk(suite.save(tmp_path / "suite"), by="ann")
    assert desk.about()["methods"] == ["fog", "gradient-1"]
    answer = desk.arrange(RequestFields({"order": "suite", "method": "fog"}))
    found = desk.rows(RequestFields({"key": answer["key"], "start": 0, "count": 9}))["rows"]
    assert [row["row"] for row in found] == [1, 3, 5]
    assert dict(found[0]["facts"])["move"] == "fog"
    assert "method" not in dict(found[0]["facts"])


def test_lists_are_ordered_filtered_and_stay_as_they_are(folder) -> None:
    desk = open_desk(folder, by="ann")
    suite = desk.suite

    def rows(**asked: Any) -> list[int]:
        answer = desk.arrange(RequestFields({"order": "suite", **asked}))
        found = [
            desk.rows(RequestFields({"key": answer["key"], "start": start, "count": 7}))["rows"]
            for start in range(0, 70, 7)
        ]
        assert answer["total"] == sum(map(len, found))
        return [row["row"] for part in found for row in part]

    assert rows() == list(range(60))
    assert rows(order="-mass") == suite["mass"].argsort(descending=True).tolist()
    assert rows(order="naturalness") == suite["naturalness"].argsort().tolist()
    assert rows(order="ranked") == ranked_rows(suite).tolist()
    assert rows(label=2) == (suite.label == 2).nonzero().flatten().tolist()
    assert rows(prediction="1") == (suite.prediction == 1).nonzero().flatten().tolist()
    assert rows(method="pgd") == list(range(60))
    assert rows(method="none such") == []
    listed = desk.arrange(RequestFields({"order": "suite", "show": "todo"}))
    for row, verdict in ((3, "valid"), (4, "invalid"), (9, "unsure")):
        desk.mark(RequestFields({"row": row, "verdict": verdict, "tags": ["dark"] if row == 4 else []}))
        desk.mark(RequestFields({"row": row, "verdict": "valid", "by": "bob"}))
    part = desk.rows(RequestFields({"key": listed["key"], "start": 3, "count": 1}))["rows"]
    assert [(row["row"], row["verdict"]) for row in part] == [(3, "valid")]  # the list stays, and knows the verdict
    assert rows(show="todo") == [row for row in range(60) if row not in (3, 4, 9)]
    assert rows(show="done") == [3, 4, 9]
    assert rows(show="invalid") == rows(tag="dark") == [4]
    assert rows(tag="dark", by="bob") == [4]  # whose own it is not, but who has judged the case
    assert rows(tag="dark", by="cid") == []
    assert rows(show="differ") == rows(show="differ", by="bob") == [4, 9]
    assert rows(show="differ", by="cid") == [4, 9]  # who may settle it
    assert desk.arrange(RequestFields({"order": "suite"}))["first"] == 0
    assert desk.arrange(RequestFields({"order": "suite", "show": "done"}))["done"] == 3


def test_others_are_heard_once_one_has_spoken_and_the_blind_see_no_answers(folder) -> None:
    desk = open_desk(folder, by="ann")
    desk.mark(RequestFields({"row": 0, "verdict": "invalid", "by": "bob"}))
    key = desk.arrange(RequestFields({"order": "suite"}))["key"]

    def first(**asked: Any) -> dict[str, Any]:
        return desk.rows(RequestFields({"key": key, "count": 1, **asked}))["rows"][0]

    assert first()["others"] == []
    assert first()["prediction"] is not None
    hidden = first(blind="1")
    assert hidden["prediction"] is hidden["failing"] is None
    assert {name for name, _ in hidden["facts"]} == {"naturalness", "mass", "L∞", "L2"}
    desk.mark(RequestFields({"row": 0, "verdict": "valid"}))
    assert first()["others"] == [{"by": "bob", "verdict": "invalid", "tags": []}]


def test_tables_show_the_values_that_changed(tmp_path) -> None:
    path = made(20, shape=(5,)).save(tmp_path / "suite")
    desk = open_desk(path)
    key = desk.arrange(RequestFields({"order": "suite"}))["key"]
    row = desk.rows(RequestFields({"key": key}))["rows"][0]
    assert len(row["changes"]) == 5
    with pytest.raises(LookupError, match="no such picture"):
        desk.picture(0, "case", 1)


# The guard ------------------------------------------------------------------------------------------------------------


class Client:
    """Calls an application as a server would; fit for requests that no browser would send.

    Attributes:
        own: headers of the rightful page, with the cookie that it got for the token.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        cookie = self("GET", "/", query=f"token={TOKEN}")[1]["set-cookie"].partition(";")[0]
        self.own = {"cookie": cookie, "origin": "http://127.0.0.1:8000"}

    def __call__(
        self, method: str, path: str, *, query: str = "", headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        sent = {"host": "127.0.0.1:8000", **(headers or {})}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": quote(path).encode(), "query_string": query.encode("utf-8", "replace"),
            "headers": [(k.encode(), v.encode("latin-1", "replace")) for k, v in sent.items() if v is not None],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "root_path": "",
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        headers_ = {k.decode(): v.decode("latin-1") for k, v in sent[0]["headers"]}
        return sent[0]["status"], headers_, b"".join(m.get("body", b"") for m in sent[1:])

    def say(self, path: str, page: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        sent = {**self.own, "content-type": "application/json", **headers}
        status, _, content = self("POST", path, headers=sent, body=json.dumps(page).encode())
        return status, json.loads(content)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    path = made().save(tmp_path_factory.mktemp("served") / "suite")
    (path.parent / "secret.png").write_bytes(b"for nobody")
    desk = open_desk(path, classes=CLASSES)
    client = Client(make_app(desk, TOKEN))
    client.desk = desk
    return client


PATHS = [
    "/",
    "/page.css",
    "/page.js",
    "/classes.js",
    "/controls.js",
    "/api/about",
    "/api/rows",
    "/api/state",
    "/image/0/case.png",
    "/verdicts.csv",
]
SAYS = ["/api/list", "/api/mark", "/api/undo"]


@pytest.mark.parametrize("path", [*PATHS, *SAYS, "/none/such"])
def test_nobody_is_answered_without_the_token(client, path) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        name, _, secret = client.own["cookie"].partition("=")
        cookies = ["", "operant-1=x", f"{name}={TOKEN}", f"{name}={secret[:-1]}", f"{name}=", f"x={secret}", secret]
        for headers in ({}, {"x-operant-token": TOKEN}, *({"cookie": cookie} for cookie in cookies)):
            status, received, content = client(method, path, headers={"origin": "http://127.0.0.1:8000", **headers})
            assert status == 403
            assert TOKEN not in f"{received}{content!r}"
            assert "set-cookie" not in received
    unused = Client(make_app(client.desk, TOKEN, "unused"))
    queries = ["token=", "token=unused&token=unused", "token=unuse", "Token=unused", "token=unused%00", "token"]
    for query in [*queries, *(["token=unused"] if path != "/" else [])]:  # only where it was printed
        status, received, _ = unused("GET", path, query=query)
        assert (status, "set-cookie" in received) == (403, False)


def test_neither_the_token_nor_the_cookie_gives_the_other(client) -> None:
    """A token from a log was used, a cookie has nothing of it, and every browser has another secret."""
    tokens = [f"token-{i}" for i in range(5)]
    app = make_app(client.desk, TOKEN, *tokens)
    rightful = Client(app)
    answers = [rightful("GET", "/", query=f"token={token}")[1]["set-cookie"] for token in tokens]
    cookies = [answer.partition(";")[0] for answer in answers] + [rightful.own["cookie"]]
    assert len(set(cookies)) == 6
    for token in (TOKEN, *tokens):
        assert not any(
            token in cookie or hashlib.sha256(token.encode()).hexdigest()[:8] in cookie for cookie in cookies
        )
        status, headers, _ = rightful("GET", "/", query=f"token={token}")
        assert (status, "set-cookie" in headers) == (403, False)
    for cookie in cookies:
        secret = cookie.partition("=")[2]
        assert rightful("GET", "/api/about", headers={"cookie": cookie})[0] == 200
        assert rightful("GET", "/", query=f"token={secret}")[0] == 403
        status, headers, _ = rightful("GET", "/", query=f"token={TOKEN}", headers={"cookie": cookie})
        assert (status, "set-cookie" in headers) == (200, False)  # the same browser may open the address again


@pytest.mark.parametrize("other", ['a={"b": 1}', "a b", "=", "a=1; a=2", "\xff", 'a="', "operant-1=x", "a=b,c[1]"])
def test_cookies_of_other_servers_do_not_lock_the_page(client, other) -> None:
    own = client.own["cookie"]
    for cookie in (f"{other}; {own}", f"{own}; {other}", f"{own};{other}"):
        assert client("GET", "/api/about", headers={"cookie": cookie})[0] == 200
    name = own.partition("=")[0]
    for cookie in (f"{own}; {name}=x", f"{name}=x; {own}", f"{own}x", f"{own} x", f'{name}="{own[len(name) + 1 :]}"'):
        assert client("GET", "/api/about", headers={"cookie": cookie})[0] == 403


def test_secrets_are_compared_in_constant_time(client, monkeypatch) -> None:
    compared: list[bytes] = []
    monkeypatch.setattr("operant.triage.access.compare_digest", lambda a, b: compared.append(a) or a == b)
    app = make_app(client.desk, TOKEN, "unused")
    rightful = Client(app)
    assert compared == [TOKEN.encode()] * 2  # with each token, also after the one that fits
    compared.clear()
    assert rightful("GET", "/", query="token=guess", headers=rightful.own)[0] == 200
    assert compared == [b"guess", rightful.own["cookie"].partition("=")[2].encode()]


def test_the_printed_address_gives_a_cookie_that_opens_the_rest(client) -> None:
    client = Client(make_app(client.desk, TOKEN, "unused"))
    assert client("HEAD", "/", query="token=unused")[0] == 403  # whoever only looks does not use it up
    status, headers, content = client("GET", "/", query="token=unused")
    assert status == 200
    assert b"<!doctype html>" in content
    assert "unused" not in f"{content!r}{headers}"
    assert re.search(r"=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict$", headers["set-cookie"])
    cookie = {"cookie": headers["set-cookie"].partition(";")[0]}
    for path in PATHS:
        assert client("GET", path, headers=cookie)[0] == (404 if path == "/api/rows" else 200)
    body = json.dumps({"order": "suite"}).encode()
    json_ = {**cookie, "content-type": "application/json"}
    assert client("POST", "/api/list", headers=json_, body=body)[0] == 403  # a browser names the origin
    own = {**json_, "origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert client("POST", "/api/list", headers=own, body=body)[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8000"}, 421),
        ({"host": "127.0.0.1.evil.example:8000"}, 421),
        ({"host": ""}, 421),
        ({"host": None}, 421),
        ({"host": " 127.0.0.1:8000"}, 421),
        ({"host": "127.0.0.1 :8000"}, 421),
        ({"host": "127.0.0.1.:8000"}, 421),
        ({"host": "localhost."}, 421),
        ({"host": "me@127.0.0.1:8000"}, 421),
        ({"host": "evil.example@127.0.0.1:8000"}, 421),
        ({"host": "127.0.0.1:8000@evil.example"}, 421),
        ({"host": "127.0.0.1:"}, 421),
        ({"host": "127.0.0.1:08000"}, 421),
        ({"host": "127.0.0.1:80"}, 421),
        ({"host": "127.0.0.1:8001"}, 421),
        ({"host": "127.0.0.1:8000:8000"}, 421),
        ({"host": "127.0.0.1:8000, evil.example"}, 421),
        ({"host": "127.1:8000"}, 421),
        ({"host": "2130706433:8000"}, 421),
        ({"host": "127.0.0.1%2e:8000"}, 421),
        ({"host": "http://127.0.0.1:8000"}, 421),
        ({"host": "::1:8000"}, 421),
        ({"host": "[::1%25lo]:8000"}, 421),
        ({"host": "localhost.localdomain:8000"}, 421),
        ({"host": "127.0.0.1:8000/"}, 421),
        ({"host": "\u217cocalhost:8000"}, 421),
        ({"Host": "127.0.0.1:8000"}, 421),  # twice
        ({"Host": "evil.example"}, 421),
        ({"host": "0.0.0.0:8000"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:3000"}, 403),
        ({"origin": "https://127.0.0.1:8000"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "localhost:9000", "origin": "http://localhost:9000"}, 421),  # another server's
        ({"host": "[::1]:8000", "origin": "http://[::1]:8000"}, 200),  # through a tunnel
        ({"host": "127.0.0.1", "origin": "http://127.0.0.1"}, 200),
        ({"host": "localhost:8000", "origin": "http://127.0.0.1:8000"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"origin": "http://127.0.0.1:8000/"}, 403),
        ({"origin": "http://me@127.0.0.1:8000"}, 403),
        ({"origin": ""}, 403),
        ({"Origin": "http://127.0.0.1:8000"}, 403),  # twice
    ],
)
def test_names_and_origins_that_are_not_ours_are_rejected_whatever_the_token(client, headers, status) -> None:
    body, sent = b'{"order": "suite"}', {**client.own, "content-type": "application/json", **headers}
    assert client("POST", "/api/list", headers=sent, body=body)[0] == status
    assert client("GET", "/api/about", headers=sent)[0] == status


def test_answers_forbid_frames_scripts_from_elsewhere_and_guesses(client) -> None:
    for path in (*PATHS, "/none/such"):
        _, headers, _ = client("GET", path, headers=client.own)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.png", "/image/../../secret.png", "/image/..%2f..%2fsecret/case.png", "/image/0/../../secret.png",
        "/image/0/..%2f..%2f..%2fsecret.png", "/page.css/../../secret.png", "//etc/passwd", "/image/60/case.png",
        "/image/-1/case.png", "/image/" + "9" * 5000 + "/case.png", "/image/0/x.png", "/manifest.json",
        "/shard-000000.safetensors", "/verdicts-000000.jsonl", "/image/0/case\x00.png",
    ],
)  # fmt: skip
def test_nothing_but_the_page_and_its_pictures_can_be_read(client, path) -> None:
    status, _, content = client("GET", path, headers=client.own)
    assert status == 404
    assert b"for nobody" not in content


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["row", "by", "verdict", "tags", "order", "show", "label", "prediction", "method", "tag", "key", "start", "count",
     "blind", "factor"]
)  # fmt: skip
LIKELY = st.sampled_from(["valid", "suite", "sample", "-mass", "todo", "differ", "ann", 0, 5, "7"])
WORDS = st.one_of(VALUES, LIKELY, st.integers(0, 70))


@settings(max_examples=150)
@given(
    method=st.sampled_from(["GET", "POST", "HEAD", "PUT", "OPTIONS"]),
    path=st.sampled_from([*PATHS, *SAYS]) | st.text(max_size=20).map(lambda text: f"/image/{text}"),
    query=st.dictionaries(NAMES, st.text(max_size=8), max_size=4),
    page=st.dictionaries(NAMES, WORDS, max_size=6) | VALUES,
    raw=st.none() | st.binary(max_size=30),
    kind=st.sampled_from(["application/json", "application/json; charset=utf-8", "text/plain", ""]),
)
def test_whatever_is_asked_the_answer_is_no_failure(client, method, path, query, page, raw, kind) -> None:
    body = json.dumps(page).encode("utf-8", "replace") if raw is None else raw
    headers = {**client.own, "content-type": kind, "content-length": str(len(body))}
    words = "&".join(f"{k}={quote(v, errors='replace')}" for k, v in query.items())
    status, _, content = client(method, path, query=words, headers=headers, body=body)
    assert status < 500
    if status >= 400 and method != "HEAD" and path.startswith("/api") and method == "POST" and status != 405:
        assert json.loads(content)["error"]


def test_unreadable_requests_get_an_error_message(client) -> None:
    assert client.say("/api/mark", {"row": 1, "verdict": "maybe"}) == (
        400,
        {"error": "verdict must be one of valid, invalid, unsure, got 'maybe'"},
    )
    assert client.say("/api/mark", [1])[0] == 400
    assert client.say("/api/mark", {"row": 1, "verdict": "valid"}, **{"content-type": "text/plain"})[0] == 415
    assert client.say("/api/mark", {"row": 1, "tags": ["x" * 20000]})[0] == 413
    assert client.say("/api/list", {"order": "none such"})[0] == 400
    status, _, content = client("GET", "/api/rows", query="key=gone", headers=client.own)
    assert (status, json.loads(content)["error"]) == (404, "this list no longer exists; request it again")


def test_no_picture_is_taken_for_that_of_another_desk(folder, tmp_path) -> None:
    """A browser keeps pictures by their address, which has the row and the desk's version."""
    ask = LabelFolder(folder=tmp_path / "to_label", classes=4)
    with pytest.raises(LabelsMissing):
        ask(Samples(torch.rand(2, 1, 8, 8, generator=spawn(0))))
    versions = [open_desk(path).about()["version"] for path in (folder, folder, ask.folder, ask.folder)]
    assert len(set(versions)) == 4
    assert all(re.fullmatch("[0-9a-f]{8}", version) for version in versions)


# A real server --------------------------------------------------------------------------------------------------------


def test_only_this_machine_can_reach_the_server() -> None:
    with _listen(0) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        assert listening.proto == socket.IPPROTO_TCP  # or every answer waits 40 ms to be sent
        with pytest.raises(ValueError, match=f"port {port} cannot be used"):
            _listen(port)
        for elsewhere in ("127.0.0.2", _own_address()):
            with socket.socket() as knocking, pytest.raises(OSError):  # noqa: PT012
                knocking.settimeout(1)
                knocking.connect((elsewhere, port))


def test_the_browser_is_started_without_the_token(folder, monkeypatch) -> None:
    """Anybody on the machine can read what a process is started with; the file that leads on, only its owner."""
    addresses: list[str] = []
    seen: dict[str, Any] = {}
    opened_ = threading.Event()

    def open_(address: str) -> None:
        file = Path(unquote(urlsplit(address).path))
        seen.update(address=address, file=file, mode=file.stat().st_mode & 0o777, text=file.read_text())
        opened_.set()

    monkeypatch.setattr("webbrowser.open", open_)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: opened_.wait(20))
    serve(open_desk(folder), on_start=addresses.append)
    assert seen["address"].startswith("file://")
    assert seen["mode"] == 0o600
    base, _, printed = addresses[0].partition("?token=")
    (opened_token,) = re.findall(re.escape(f"url={base}?token=") + r'([\w-]{32})"', seen["text"])
    assert opened_token != printed  # each works once
    assert opened_token not in seen["address"]
    assert not seen["file"].exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_the_command(folder, monkeypatch, number, code):
    def send(_: str) -> None:
        threading.Timer(0.2, os.kill, [os.getpid(), number]).start()

    monkeypatch.setattr("operant.cli.triage._print_address", send)
    done = CliRunner().invoke(command_line, ["triage", str(folder), "--no-browser"])
    assert (done.exit_code, done.stderr) == (code, f"stopped: interrupted with {signal.Signals(number).name}\n")


def interrupted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """What the command prints after Ctrl-C, on one line."""

    def send(_: str) -> None:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()

    monkeypatch.setattr("operant.cli.triage._print_address", send)
    done = CliRunner().invoke(command_line, ["triage", str(folder), "--no-browser"])
    assert (done.exit_code, done.stderr) == (0, "")
    return " ".join(done.stdout.split())


def test_ctrl_c_tells_how_many_inputs_have_labels_and_what_comes_next(to_label, monkeypatch) -> None:
    ask, _ = to_label
    names = list(ask.read())
    for name in names[1:]:
        ask.set_label(name, 2)
    some = interrupted(monkeypatch, ask.folder)
    assert some.startswith(f"5 of 6 inputs have labels; to label the others, run `operant triage {ask.folder}` again")
    ask.set_label(names[0], 1)
    with (ask.folder / "labels.csv").open("a") as table:
        table.write("ghost.png,1\n")
    whole = interrupted(monkeypatch, ask.folder)
    assert whole.startswith("6 of 6 inputs have labels; run `operant run` or `operant assess` again")
    assert "1 of 7 rows are ignored" in whole


def test_ctrl_c_tells_the_share_of_valid_cases(folder, monkeypatch) -> None:
    assert interrupted(monkeypatch, folder) == "No case has a verdict yet, so there is no share of valid ones"
    desk = open_desk(folder, plan=SamplePlan(n=5, of="all"))
    for row in sample_rows(desk.suite, desk.plan).tolist():
        desk.mark(RequestFields({"row": row, "verdict": "valid"}))
    assert "100 % of 60 cases are valid" in interrupted(monkeypatch, folder)


def _own_address() -> str:
    """An address of this machine that is not loopback; loopback of another name if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing
            found = asking.getsockname()[0]
        except OSError:
            found = "127.0.0.3"
    return "127.0.0.3" if found == "127.0.0.1" else str(found)


def stream(address: str, first: int) -> Iterator[tuple[int, bool]]:
    """Give verdicts one after another until the server is gone: each row, and whether it was acknowledged."""
    where = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", where.port, timeout=20)
    connection.request("GET", f"/?{where.query}")
    page_ = connection.getresponse()
    page_.read()
    own = {"Cookie": page_.headers["set-cookie"].partition(";")[0], "Origin": f"http://{where.netloc}"}
    for row in range(first, 10**6):
        page = {"row": row, "by": "ann", "verdict": VERDICTS[row % 3], "tags": [f"t{row}"]}
        try:
            connection.request("POST", "/api/mark", json.dumps(page), {**own, "Content-Type": "application/json"})
            answer = connection.getresponse()
            acknowledged = answer.status == 200 and json.loads(answer.read())["row"] == row
        except (OSError, http.client.HTTPException, ValueError):
            connection.close()
            yield row, False
            return
        assert acknowledged
        yield row, True


KILLS = 20


@pytest.mark.slow
def test_a_killed_server_loses_no_acknowledged_verdict(tmp_path) -> None:
    path = made(6000, shape=(4,)).save(tmp_path / "suite")
    chance, sent, kept = random.Random(14), set[int](), set[int]()
    with subprocess.Popen([sys.executable, __file__, str(path)], stdin=-1, stdout=-1, text=True) as server:
        for _ in range(KILLS):
            print("go", file=server.stdin, flush=True)
            pid, address = server.stdout.readline().split()
            moment = 0.1 + chance.random() * 0.4
            timer = threading.Timer(moment, os.kill, [int(pid), signal.SIGKILL])
            for row, acknowledged in stream(address, len(sent)):
                if timer.ident is None:
                    timer.start()  # the server is at work
                sent.add(row)
                kept |= {row} if acknowledged else set()
            timer.join()
            found = {j.row: (j.verdict, j.tags) for j in read_verdicts(path)}
            assert kept <= found.keys() <= sent
            assert all(given == (VERDICTS[row % 3], (f"t{row}",)) for row, given in found.items())
        server.communicate()
    assert len(kept) > 5 * KILLS  # it was killed at work
    suite = Suite.open(path)
    assert suite.rejected == ()
    assert {int(row) for row in np.flatnonzero(suite["verdict"] != "")} == set(found)


def fork_servers(path: Path) -> None:
    """One server for each line on the standard input, one after the other."""
    for _ in sys.stdin:
        if (child := os.fork()) == 0:
            serve(open_desk(path), open_browser=False, on_start=lambda address: print(os.getpid(), address, flush=True))
            os._exit(0)
        os.waitpid(child, 0)


# Labels that a campaign waits for -------------------------------------------------------------------------------------


@pytest.fixture
def to_label(tmp_path: Path) -> tuple[LabelFolder, Samples]:
    asked = Samples(torch.rand(6, 1, 8, 8, generator=spawn(0, "asked")))
    ask = LabelFolder(folder=tmp_path / "run" / "to_label", classes=4, names=CLASSES)
    with pytest.raises(LabelsMissing, match="operant triage"):
        ask(asked)
    return ask, asked


def test_labels_given_on_the_page_are_the_ones_a_campaign_reads(to_label) -> None:
    ask, asked = to_label
    client = Client(make_app(open_desk(ask.folder.parent), TOKEN))  # the folder that it lies in will do
    sent = client.own
    about = json.loads(client("GET", "/api/about", headers=sent)[2])
    assert (about["mode"], about["tests"], about["classes"][0]) == ("labels", 6, [0, CLASSES[0]])
    key = client.say("/api/list", {})[1]["key"]
    rows = json.loads(client("GET", "/api/rows", query=f"key={key}", headers=sent)[2])["rows"]
    for row in rows[:5]:
        assert client.say("/api/mark", {"row": row["row"], "label": row["row"] % 4})[1]["given"] == row["row"] % 4
    client.say("/api/mark", {"row": 0, "label": 3})
    assert client.say("/api/undo", {})[1]["given"] == 0
    with pytest.raises(LabelsMissing, match="1 of 6"):
        ask(asked)
    assert client.say("/api/mark", {"row": 5, "label": 4})[0] == 400
    assert client.say("/api/list", {"show": "todo"})[1]["total"] == 1
    client.say("/api/mark", {"row": 5, "label": 1})
    assert ask(asked).tolist() == [0, 1, 2, 3, 0, 1]
    more = Samples(torch.rand(2, 1, 8, 8, generator=spawn(1, "asked")))
    with pytest.raises(LabelsMissing):
        ask(more)
    assert client.say("/api/list", {"show": "todo"})[1]["total"] == 2  # without a restart
    state = json.loads(client("GET", "/api/state", headers=sent)[2])
    assert (state["tests"], state["labelled"]) == (8, 6)


def test_a_table_cannot_name_files_elsewhere(to_label) -> None:
    ask, _ = to_label
    (ask.folder.parent / "secret.png").write_bytes(b"for nobody")
    table = ask.folder / "labels.csv"
    table.write_text(table.read_text() + "../secret,\n/etc/passwd,\n..\\secret,\n")
    (ask.folder / "link.png").symlink_to(ask.folder.parent / "secret.png")
    table.write_text(table.read_text() + "link,\n")
    (ask.folder / "examples").mkdir()
    (ask.folder / "examples" / "0.png").symlink_to(ask.folder.parent / "secret.png")
    client = Client(make_app(open_desk(ask.folder), TOKEN))
    sent = client.own
    answers = [client("GET", f"/image/{row}/case.png", headers=sent) for row in range(12)]
    assert [status for status, _, _ in answers] == [200] * 6 + [404] * 6
    assert b"for nobody" not in [content for _, _, content in answers]
    assert client("GET", "/image/0/example.png", headers=sent)[0] == 404


@pytest.fixture(scope="module")
def labelling(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Of inputs that are no pictures."""
    ask = LabelFolder(folder=tmp_path_factory.mktemp("labels"), classes=3)
    with pytest.raises(LabelsMissing):
        ask(Samples(torch.rand(2, 5, generator=spawn(0))))
    return Client(make_app(open_desk(ask.folder), TOKEN))


@settings(max_examples=100)
@given(path=st.sampled_from([*PATHS, *SAYS]), page=st.dictionaries(NAMES, WORDS, max_size=4))
def test_whatever_is_asked_of_labels_the_answer_is_no_failure(labelling, path, page) -> None:
    headers = {**labelling.own, "content-type": "application/json"}
    method = "POST" if path in SAYS else "GET"
    assert labelling(method, path, headers=headers, body=json.dumps(page).encode("utf-8", "replace"))[0] < 500


def test_the_first_labelled_input_of_each_class_is_its_example(to_label, tmp_path) -> None:
    """Given to the labeller, which puts it into the folder, or to the desk; a class without inputs has none."""
    _, asked = to_label
    known = Samples(torch.rand(12, 1, 8, 8, generator=spawn(0, "known")), torch.tensor([2, 0, 3] * 4))
    labelled = LabelFolder(folder=tmp_path / "with", classes=4, examples=known)
    plain = LabelFolder(folder=tmp_path / "without", classes=4, examples=Samples(known.x))  # there are no labels
    for ask in (labelled, plain):
        with pytest.raises(LabelsMissing):
            ask(asked)
    assert list(labelled.read()) == list(plain.read())  # examples are not to be labelled
    for desk in (open_desk(labelled.folder), open_desk(plain.folder, examples=known)):
        client = Client(make_app(desk, TOKEN))
        assert json.loads(client("GET", "/api/about", headers=client.own)[2])["examples"] == [0, 2, 3]
        for label, row in ((0, 1), (2, 0), (3, 2)):
            status, _, content = client("GET", f"/image/{label}/example.png", headers=client.own)
            pixels = np.asarray(Image.open(io.BytesIO(content)))[::28, ::28]
            assert status == 200
            assert np.array_equal(pixels, (known.x[row, 0] * 255).round().numpy())
        for label in (1, 4, 10**6):
            assert client("GET", f"/image/{label}/example.png", headers=client.own)[0] == 404
    assert open_desk(plain.folder).about()["examples"] == []


def test_inputs_are_called_by_their_files_if_these_are_known(to_label, tmp_path) -> None:
    ask, asked = to_label
    identities = asked.ids.tolist()
    names = [f"i{i & (2**64 - 1):016x}" for i in identities]

    def titles(desk: Any) -> list[str]:
        key = desk.arrange(RequestFields({}))["key"]
        rows = desk.rows(RequestFields({"key": key}))["rows"]
        assert [row["facts"] for row in rows] == [
            [] if row["title"] == row["name"] else [("name", row["name"])] for row in rows
        ]
        return [row["title"] for row in rows]

    assert titles(open_desk(ask.folder)) == names
    files = tuple(f"somewhere/=é,{k}.png" for k in range(len(asked)))
    known, named = replace(ask, folder=tmp_path / "known"), replace(asked, names=files)
    for part in (named[:3], named):  # in two requests
        with pytest.raises(LabelsMissing):
            known(part)
    desk = open_desk(known.folder)
    desk.mark(RequestFields({"row": 2, "label": 1}))  # writes the table again
    assert titles(desk) == list(files)
    with pytest.raises(LabelsMissing):  # inputs with and without names in one folder
        ask(Samples(torch.rand(2, 1, 8, 8, generator=spawn(2, "asked")), names=("a.png", "b.png")))
    assert titles(open_desk(ask.folder)) == [*names, "a.png", "b.png"]


def test_one_label_is_written_without_touching_the_others(to_label) -> None:
    ask, _ = to_label
    names = list(ask.read())
    ask.set_label(names[2], 3)
    ask.set_label(names[4], 0)
    ask.set_label(names[4], None)
    assert ask.read() == {name: 3 if i == 2 else None for i, name in enumerate(names)}
    with pytest.raises(ValueError, match="has no row for 'nobody'"):
        ask.set_label("nobody", 1)
    with pytest.raises(ValueError, match="from 0 to 3, got 4"):
        ask.set_label(names[0], 4)
    (ask.folder / "classes.json").unlink()
    with pytest.raises(ValueError, match="has no classes.json.*--classes"):
        open_desk(ask.folder)
    assert open_desk(ask.folder, classes=("a", "b", "c", "d")).about()["classes"][3] == (3, "d")


# For other tools ------------------------------------------------------------------------------------------------------


def test_pictures_are_read_again_as_they_were(folder, tmp_path) -> None:
    verdicts = opened(folder)
    for row in range(0, 60, 3):
        verdicts.mark(row, "ann", "valid")
    assert export_pictures(folder, tmp_path / "out") == 20
    valid = Suite.open(folder).valid()
    again = samples_from_folder(tmp_path / "out")
    order = [row for label in again.labels.unique() for row in (valid.label == label).nonzero().flatten().tolist()]
    assert again.labels.tolist() == valid.label[order].tolist()
    grey = again.x.mean(1, keepdim=True)
    assert float((grey - valid.x[order]).abs().max()) <= 0.5 / 255 + 1e-6
    with pytest.raises(ValueError, match="is not empty; choose a new folder"):
        export_pictures(folder, tmp_path / "out")
    export_pictures(folder, tmp_path / "named", classes=CLASSES)
    made_folders = sorted(place.name for place in (tmp_path / "named").iterdir() if place.is_dir())
    assert len(made_folders) == len(set(valid.label.tolist()))
    assert not any(set("<>/=&") & set(name) for name in made_folders)


@pytest.mark.parametrize("named", [False, True])
def test_pictures_of_classes_with_gaps_keep_their_labels(tmp_path, named) -> None:
    """Folders are in the order of labels; a table lists the label of each picture in reading order."""
    labels = torch.tensor([10, 2, 11, 0, 2, 10, 5, 9])
    seeds = Samples(torch.arange(8).view(8, 1, 1, 1).expand(8, 1, 6, 6) / 8, labels)
    path = Suite.of(seeds.x, seeds=seeds, origin=torch.arange(8), prediction=labels, method="none").save(tmp_path / "s")
    verdicts = opened(path)
    for row in range(8):
        verdicts.mark(row, "ann", "invalid" if row == 7 else "valid")
    classes = [f"class {'zyxwvutsrqpo'[i]}" for i in range(12)] if named else ()
    assert export_pictures(path, tmp_path / "out", classes=classes) == 7
    again = samples_from_folder(tmp_path / "out")
    with open(tmp_path / "out" / "labels.csv", newline="") as file:
        table = list(csv.DictReader(file))
    rows = (again.x.mean((1, 2, 3)) * 8).round().long()  # which each of them was
    assert [int(row["label"]) for row in table] == labels[rows].tolist()
    assert [row["file"] for row in table] == [
        f"{int(label):02d}{f'-{classes[label]}' if named else ''}/case-{row:06d}.png"
        for row, label in zip(rows.tolist(), labels[rows].tolist(), strict=True)
    ]
    assert [row["class"] for row in table] == [classes[y] if named else str(y) for y in labels[rows].tolist()]
    assert [(tmp_path / "out" / row["file"]).is_file() for row in table] == [True] * 7


def test_the_table_tells_everything_and_no_spreadsheet_runs_it(folder, tmp_path) -> None:
    add_columns(folder, note=["=1+1"] * 60)
    verdicts = opened(folder)
    verdicts.mark(5, "ann", "valid", ["-x", "dark"])
    verdicts.mark(5, "bob", "invalid", ["=cmd()"])
    rows = list(csv.DictReader(io.StringIO(export_csv(folder, tmp_path / "t.csv", classes=CLASSES).read_text())))
    assert len(rows) == 60
    row, suite = rows[5], Suite.open(folder)
    assert (row["verdict"], row["verdict of ann"], row["verdict of bob"]) == ("disputed", "valid", "invalid")
    assert (row["verdict_by"], row["tags"], row["note"]) == ("ann, bob", "'-x, =cmd(), dark", "'=1+1")
    assert float(row["mass"]) == pytest.approx(float(suite["mass"][5]), rel=1e-6)
    assert row["label"] == ("'=cow()" if int(suite.label[5]) == 2 else CLASSES[int(suite.label[5])])
    assert rows[6]["verdict"] == ""


def test_tables_have_no_pictures_to_export(tmp_path) -> None:
    path = made(20, shape=(5,)).save(tmp_path / "suite")
    with pytest.raises(ValueError, match="are not pictures; export them as a table"):
        export_pictures(path, tmp_path / "out")
    picture = made().save(tmp_path / "pictures")
    with pytest.raises(ValueError, match="nobody has judged"):
        export_pictures(picture, tmp_path / "out")


# The command ----------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(command_line, ["triage", *map(str, arguments)])


def test_the_command_writes_table_and_pictures(folder, tmp_path) -> None:
    opened(folder).mark(5, "ann", "valid")
    done = run(folder, "--csv", tmp_path / "a.csv", "--pictures", tmp_path / "p", "--classes", "a,b,c,d")
    assert done.exit_code == 0
    assert "1 pictures in" in done.stdout.replace("\n", "")
    assert (tmp_path / "a.csv").read_text().startswith("row,seed,label,")


def test_the_command_serves_and_sums_up(folder, monkeypatch) -> None:
    served: list[Any] = []

    def stand_in(desk: Any, *, port: int, open_browser: bool, on_start: Any) -> None:
        on_start("http://127.0.0.1:1/?token=x")
        served.append((desk, port, open_browser))
        for row in sample_rows(desk.suite, desk.plan).tolist():
            desk.mark(RequestFields({"row": row, "verdict": "valid"}))

    monkeypatch.setattr("operant.triage.serve", stand_in)
    done = run(folder, "--sample", 5, "--of", "all", "--by", "ann", "--blind", "--no-browser", "--port", 0)
    assert done.exit_code == 0, done.output
    assert "http://127.0.0.1:1/?token=x" in done.stdout
    assert "100 % of 60 cases are valid" in done.stdout.replace("\n", " ")
    desk, port, opened_ = served[0]
    assert (desk.by, desk.blind, desk.plan, port, opened_) == ("ann", True, SamplePlan(n=5, of="all"), 0, False)


def test_what_the_command_does_not_name_stays_as_it_was(folder, monkeypatch) -> None:
    plans: list[SamplePlan] = []
    monkeypatch.setattr("operant.triage.serve", lambda desk, **_: plans.append(desk.plan))
    assert run(folder, "--of", "all").exit_code == 0
    open_desk(folder, plan=SamplePlan(n=7, seed=3)).mark(RequestFields({"row": 1, "verdict": "valid"}))
    for named in ([], ["--of", "all"], ["--sample", 9], ["--seed", 0, "--sample", 9]):
        assert run(folder, *named).exit_code == 0
    assert plans == [
        SamplePlan(of="all"),
        SamplePlan(n=7, seed=3),
        SamplePlan(n=7, seed=3, of="all"),
        SamplePlan(n=9, seed=3),
        SamplePlan(n=9, seed=0),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none"], "there is no folder none"),
        (["."], "holds nothing to judge"),
        (["to_label", "--csv", "a.csv"], "to_label holds inputs to label, not cases"),
        (["suite", "--of", "some"], "of must be one of failures, all"),
        (["suite", "--by", "a,b"], "a name must be one line"),
        (["suite", "--bounds", "1", "0"], "bounds must be (low, high) with low < high"),
    ],
)
def test_the_command_says_why_it_cannot(folder, monkeypatch, arguments, sentence) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "to_label").mkdir()
    (folder.parent / "to_label" / ("labels.csv" if "to_label" in arguments else "other")).touch()
    done = run(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr.replace("\n", " ")


def test_without_the_extra_the_command_says_what_to_install(folder, monkeypatch) -> None:
    for name in ("uvicorn", "starlette", "starlette.applications", "starlette.routing"):
        monkeypatch.setitem(sys.modules, name, None)
    done = run(folder, "--no-browser")
    assert done.exit_code == 2
    assert f"triage needs starlette and uvicorn, which are not installed; {install_command('triage')}" in (
        done.stderr.replace("\n", " ")
    )
    assert run(folder, "--csv", folder.parent / "a.csv").exit_code == 0  # needs nothing more


def test_nothing_here_needs_reports() -> None:
    """Reports use triage, so triage must not use them."""
    sources = list((Path(operant.__file__).parent / "triage").glob("*.py"))
    assert len(sources) > 10
    for file in sources:
        assert not re.findall(r"^\s*(?:from|import) operant\.report", file.read_text(encoding="utf-8"), re.MULTILINE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_servers(Path(sys.argv[1]))
