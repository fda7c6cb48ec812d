"""Laws of `assert_reliable` and of the pytest plug-in that reports what it found."""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from operant import Samples, results
from operant.assess import plan
from operant.data import content_ids
from operant.formatting import at_most
from operant.reliability_checks import Check, InvalidCheck, subscribed
from operant.report.checks import Checks, write_checks
from operant.testing import assert_reliable, toy_classifier, toy_seeds

pytest_plugins = ["pytester"]

MODEL = toy_classifier()
RIGHT = toy_seeds(MODEL, n=300)
HOSTILE = "</style><script>alert('1')</script>|`&\x01"


def wrong(k: int) -> Samples:
    """Inputs whose first k the model misclassifies."""
    y = RIGHT.labels.clone()
    y[:k] = (y[:k] + 1) % 4
    return Samples(RIGHT.x, y)


# The assertion


@settings(max_examples=30)
@given(k=st.integers(0, 60), pmi=st.floats(0.005, 0.3), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_it_passes_just_where_the_exact_test_does(k, pmi, confidence):
    """So few failures must be as unlikely as 1 - confidence if pmi were just what may not be exceeded."""
    found = []
    with subscribed(found.append):
        try:
            assert_reliable(MODEL, wrong(k), pmi=pmi, confidence=confidence)
            passed = True
        except AssertionError:
            passed = False
    tail = binom.cdf(k, 300, pmi)
    assert passed == (tail <= 1 - confidence) or abs(tail - (1 - confidence)) < 1e-9
    assert (found[0].failures, found[0].labels, found[0].met) == (k, 300, passed)


def test_the_message_holds_estimate_bound_and_labels_needed():
    with pytest.raises(AssertionError) as caught:
        assert_reliable(MODEL, wrong(3), pmi=0.02, classes=["cat", "dog", "owl", "emu"])
    shown = str(caught.value)
    needed = plan(0.02, expected=0.01).labels
    assert "not shown" in shown
    assert "at most 2 % with 95 % confidence" in shown
    assert "The estimate is 1 %, the bound 2.57 %: 3 of 300" in shown
    assert f"about {needed} labels would prove the requirement: {needed - 300} more" in shown
    names = {["cat", "dog", "owl", "emu"][c] for c in wrong(3).labels[:3].tolist()}
    assert all(name in shown.partition("Worst classes: ")[2] for name in names)


def test_a_model_that_is_too_bad_is_not_sent_for_labels():
    with pytest.raises(AssertionError, match="not met.*With the same confidence pmi is above 5 %: improve the model"):
        assert_reliable(MODEL, wrong(30), pmi=0.05)


def test_a_large_estimate_from_a_few_labels_is_not_a_failure():
    """One of ten wrong says little: pmi may well be below 6 %."""
    with pytest.raises(AssertionError, match="not shown.*If the estimate is right, no number.*label more to decide"):
        assert_reliable(MODEL, wrong(1)[:10], pmi=0.06)


@settings(max_examples=30)
@given(k=st.integers(0, 60), pmi=st.floats(0.005, 0.3), confidence=st.sampled_from([0.3, 0.8, 0.95, 0.99]))
def test_it_is_not_met_exactly_if_the_opposite_exact_test_rejects(k, pmi, confidence):
    """So many failures must be as unlikely as 1 - confidence if pmi were just what may not be exceeded."""
    found = []
    with subscribed(found.append), contextlib.suppress(AssertionError):
        assert_reliable(MODEL, wrong(k), pmi=pmi, confidence=confidence)
    tail = binom.sf(k - 1, 300, pmi)
    assert (found[0].lower > pmi) == (tail < 1 - confidence) or abs(tail - (1 - confidence)) < 1e-9
    assert found[0].lower <= found[0].estimate <= found[0].upper or confidence < 0.5


def test_a_claim_that_needs_very_many_labels_is_answered_at_once():
    with pytest.raises(AssertionError, match="not shown.*about [0-9]{2}0{5,} labels"):
        assert_reliable(MODEL, wrong(30), pmi=0.1001)


def test_the_worst_classes_come_first():
    y = RIGHT.labels.clone()
    first, second = (torch.nonzero(y == c)[:, 0] for c in y.unique()[:2].tolist())
    rows = torch.cat([first[:2], second[:5]])
    truth = y.clone()
    truth[rows] = torch.cat([y[second[:1]].expand(2), y[first[:1]].expand(5)])
    found = []
    with subscribed(found.append), pytest.raises(AssertionError):
        assert_reliable(MODEL, Samples(RIGHT.x, truth), pmi=0.01)
    assert [k for _, k, _ in found[0].worst] == [5, 2]
    assert sum(k for _, k, _ in found[0].worst) == found[0].failures


def test_classes_have_the_names_of_the_field_data():
    names = [f"kind {c}" for c in range(MODEL.classes(RIGHT.x))]
    with pytest.raises(AssertionError, match="Worst classes: kind "):
        assert_reliable(MODEL, replace(wrong(30), classes=names), pmi=0.01)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"field": replace(RIGHT, y=None)}, "carry no labels"),
        ({"field": RIGHT[:0]}, "no inputs"),
        ({"field": Samples(RIGHT.x, RIGHT.labels + 4)}, "below the model's 4 classes"),
        ({"field": Samples(RIGHT.x + 5, RIGHT.y)}, "within bounds"),
        ({"field": RIGHT.x}, "field must be Samples, got Tensor"),
        ({"field": Samples.concat([RIGHT, RIGHT])}, "300 of 600 field inputs are copies"),
        ({"model": MODEL.unwrap()}, "model must be a Classifier"),
        ({"pmi": 0.0}, "pmi must be a share between 0 and 1"),
        ({"pmi": 2}, "pmi must be a share between 0 and 1"),
        ({"pmi": float("nan")}, "pmi must be a share between 0 and 1"),
        ({"confidence": 1.0}, "confidence"),
        ({"classes": ["a", "b"]}, "a name for each of 4 classes, got 2"),
        ({"used": content_ids(RIGHT.x[:7])}, "7 of 300 field inputs were learned from"),
    ],
)
def test_bad_input_is_rejected_and_reported(options, sentence):
    found = []
    with subscribed(found.append), pytest.raises(ValueError, match=sentence) as caught:
        assert_reliable(**{"model": MODEL, "field": RIGHT, "pmi": 0.1} | options)
    assert found == [InvalidCheck(reason=str(caught.value))]


@given(st.floats(1e-9, 1))
def test_a_bound_is_rounded_up_and_not_by_much(share):
    shown = float(at_most(share).removesuffix(" %")) / 100
    assert share * (1 - 1e-5) <= shown <= share * 1.0101


# The report


def check(**options) -> Check:
    shown = {"required": 0.05, "confidence": 0.95, "estimate": 0.01, "upper": 0.03, "failures": 1, "labels": 100}
    return Check(**{"test": "a.py::b"} | shown | options)


def test_all_report_formats_agree(tmp_path):
    checks = (check(), check(test=f"c.py::{HOSTILE}", upper=0.08, needed=400, worst=((HOSTILE, 1, 9),)))
    page = write_checks(checks, tmp_path / "new")
    assert results.load(page.with_suffix(".json"), Checks).checks == checks
    suite = ElementTree.parse(page.with_suffix(".xml")).find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert "400 labels" in suite.findall("testcase")[1].find("failure").get("message")
    text, html = page.with_suffix(".md").read_text(), page.read_text()
    for shown in (text, html):
        assert "1 of 2 requirements" in shown
        assert "about 400 labels" in shown
        assert "<script" not in shown.replace("\\<script", "")
    assert len(text.splitlines()) == 8
    assert "http" not in html.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("checks", "status"),
    [
        ([], "not shown"),
        ([check()], "met"),
        ([check(), check(upper=0.08, needed=400)], "not shown"),
        ([check(), check(estimate=0.06, lower=0.04, upper=0.1)], "not shown"),
        ([check(), check(upper=0.08, needed=400), check(estimate=0.07, lower=0.06, upper=0.1)], "not met"),
        ([check(), InvalidCheck(test="a.py::c", reason="no labels")], "not shown"),
        ([InvalidCheck(test="a.py::c", reason="no labels")], "not shown"),
    ],
)
def test_one_verdict_for_all(checks, status, tmp_path):
    page = write_checks(checks, tmp_path)
    assert results.load(page.with_suffix(".json"), Checks).status == status
    assert status.capitalize() in page.read_text()


def test_what_could_not_be_checked_counts(tmp_path):
    page = write_checks([check(), InvalidCheck(test="a.py::c", reason=f"fix this {HOSTILE}")], tmp_path)
    shown = results.load(page.with_suffix(".json"), Checks)
    assert (len(shown.checks), len(shown.invalid)) == (1, 1)
    assert shown.verdict == "1 of 2 requirements on models are not shown to hold; 1 could not be checked."
    suite = ElementTree.parse(page.with_suffix(".xml")).find("testsuite")
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["2", "0", "1"]
    assert suite.findall("testcase")[1].find("error").get("message").startswith("fix this")
    for text in (page.read_text(), page.with_suffix(".md").read_text()):
        assert "could not be checked" in text
        assert "fix this" in text
        assert "<script" not in text.replace("\\<script", "")


# In pytest

SESSION = """
import pytest
from operant import Samples
from operant.testing import assert_reliable, toy_classifier, toy_seeds

model = toy_classifier()
right = toy_seeds(model, n=300)

@pytest.fixture
def field():
    assert_reliable(model, right, pmi=0.02)
    return Samples(right.x, (right.labels + 1) % 4)

def test_good():
    assert_reliable(model, right, pmi=0.01)
    assert_reliable(model, right, pmi=0.015)

@pytest.mark.parametrize("share", [0.1, 0.2])
def test_bad(field, share):
    assert_reliable(model, field, pmi=share)

def test_other():
    assert model
"""
EXPECTED = [
    ("test_it.py::test_bad[0.1]", 0.02, True),
    ("test_it.py::test_bad[0.1]", 0.1, False),
    ("test_it.py::test_bad[0.2]", 0.02, True),
    ("test_it.py::test_bad[0.2]", 0.2, False),
    ("test_it.py::test_good", 0.01, True),
    ("test_it.py::test_good", 0.015, True),
]


def test_a_session_is_reported(pytester):
    pytester.makepyfile(test_it=SESSION)
    result = pytester.runpytest_inprocess("--operant-report=out/deep", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*AssertionError: not met: pmi must be at most 10 %*", "4 of 6 requirements met"])
    page = Path(pytester.path, "out", "deep", "report.html")
    result.stdout.fnmatch_lines([f"report: {page}"])
    shown = results.load(page.with_suffix(".json"), Checks).checks
    assert [(c.test, c.required, c.met) for c in shown] == EXPECTED


def test_a_check_that_is_rejected_is_not_lost(pytester):
    pytester.makepyfile(
        """
        from operant.testing import assert_reliable, toy_classifier, toy_seeds

        def test_good():
            assert_reliable(toy_classifier(), toy_seeds(toy_classifier(), n=300), pmi=0.02)

        def test_wrong():
            assert_reliable(toy_classifier(), toy_seeds(toy_classifier(), n=300), pmi=2)
        """
    )
    result = pytester.runpytest_inprocess("--operant-report=out", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["1 of 2 requirements met, 1 could not be checked"])
    result.stdout.no_fnmatch_line("*def _check_request*")
    shown = results.load(Path(pytester.path, "out", "report.json"), Checks)
    assert [r.reason for r in shown.invalid] == ["pmi must be a share between 0 and 1, such as 0.02, got 2"]
    assert shown.invalid[0].test.endswith("::test_wrong")
    assert shown.status == "not shown"


@pytest.mark.slow
def test_checks_arrive_from_the_processes_of_xdist(pytester):
    """The same checks, in the same order, in whichever process; without torch, so that processes start quickly."""
    pytester.makepyfile(
        """
        import pytest
        from operant.reliability_checks import Check, InvalidCheck, publish

        @pytest.mark.parametrize("k", range(6))
        def test_it(k):
            upper = k / 100 + 0.01
            publish(Check(required=0.03, confidence=0.95, estimate=k / 100, upper=upper, failures=k, labels=100,
                       worst=(("class 1", k, 50),)))
            publish(InvalidCheck(reason=f"number {k}")) if k == 5 else None
            assert upper <= 0.03
        """
    )
    result = pytester.runpytest_subprocess("--operant-report=out", "-n", "2", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=3)
    read = results.load(Path(pytester.path, "out", "report.json"), Checks)
    shown = read.checks
    assert [r.reason for r in read.invalid] == ["number 5"]
    assert [(c.failures, c.worst) for c in shown] == [(k, (("class 1", k, 50),)) for k in range(6)]
    assert all(c.test.endswith(f"::test_it[{c.failures}]") for c in shown)


def test_a_session_without_checks_is_reported(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    pytester.runpytest_inprocess("--operant-report=out").assert_outcomes(passed=1)
    assert "No test checked the reliability of a model" in Path(pytester.path, "out", "report.md").read_text()


def test_without_the_option_nothing_is_written(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    before = set(pytester.path.iterdir())
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert {path.name for path in set(pytester.path.iterdir()) - before} <= {"__pycache__"}


def test_a_file_in_the_way_is_reported_before_any_test_runs(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    Path(pytester.path, "out").write_text("")
    result = pytester.runpytest_inprocess("--operant-report=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--operant-report must name a folder to write to*"])


def test_a_folder_without_a_name_is_rejected(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    before = {path.name for path in pytester.path.iterdir()}
    result = pytester.runpytest_inprocess("--operant-report=")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--operant-report must name a folder to write to, got an empty name*"])
    assert {path.name for path in pytester.path.iterdir()} == before


def test_the_plug_in_is_installed_and_light():
    """It is imported in every pytest session of everybody who has Operant."""
    assert [e.value for e in entry_points(group="pytest11", name="operant")] == ["operant.pytest_plugin"]
    heavy = ["torch", "numpy", "scipy", "jinja2", "sklearn"]
    code = f"import operant.pytest_plugin, sys, json; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == []
