"""Laws of a campaign: its records are true, its bounds hold, and no finished work is ever lost.

Run as a script, this file kills a campaign again and again, at chosen and at random moments, and resumes it.
"""

import json
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, load_digits, results, spawn
from operant.campaign import (
    Campaign,
    CampaignResult,
    Round,
    allocate,
    assessing,
    confidence_of,
)
from operant.campaign import field as field_module
from operant.campaign import run as run_module
from operant.campaign.assessing import (
    LabelBudget,
    SequentialAssessment,
    assess_model,
    labels_needed,
    what_it_takes,
    why_no_labels,
)
from operant.campaign.choosers import risk_weighted_seeds
from operant.campaign.feedback import FLOOR, reweighted
from operant.campaign.labels import FieldLabels
from operant.campaign.observers import UncertaintyOfFailures
from operant.campaign.observers.uncertainty import Uncertainty
from operant.campaign.records import MoveTest, SearchShares, StopRecord, seed_rows
from operant.campaign.stopping import stop_record
from operant.data import LabelFolder, LabelsMissing, labels_of
from operant.data.label_files import labels_from_npz, labels_from_table
from operant.data.label_folder import name_of
from operant.execution import Damaged, Engine, Event, RunFolder, chunked_fuzzing, pool
from operant.execution.round_state import LabelBatch, RoundState
from operant.execution.timing import Stopwatch
from operant.formatting import at_most, percent
from operant.generate import GradientMove, UncertaintyFuzz, unguided
from operant.measure import Naturalness, with_dropout
from operant.model import copy_module
from operant.networks import fit, initialise, load_weights
from operant.report import writing
from operant.report.gathering import gather
from operant.results import TEMPORARY
from operant.retrain import Finetune, FinetuneEpoch, FinetuneRecord, OperationalFinetune, Retrained, training
from operant.seeds import draw
from operant.types import Labeller

digits = cache(load_digits)

GRADIENT = {"small": partial(GradientMove, radius=0.5, steps=2), "large": partial(GradientMove, radius=1.0, steps=2)}
TINY = Campaign(
    requirement=0.001,
    moves=GRADIENT,
    rounds=2,
    labels=150,
    max_drop=0.1,
    seeds_per_round=30,
    cases_per_round=15,
    label_batch=10,
    chunk=15,
    dimensions=4,
    judge_draws=0,  # judges take seconds
    retrainer=OperationalFinetune(epochs=2, steps=15, progress=False),
)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@cache
def model() -> Classifier:
    """A model that has not learned enough, so that rounds help."""
    start = initialise(network, generator=spawn(0, "weights"))
    return Classifier(fit(start, train(), epochs=6, generator=spawn(0, "fit"), progress=False).module)


def train() -> Samples:
    return digits().train[:300]


def clean() -> Samples:
    return digits().train[300:450]


def field(n: int = 600, *, dark: bool = False, seed: int = 0) -> Samples:
    """Labelled field inputs: digits with noise; dark ones are inverted."""
    g, source = spawn(seed, "field", n, str(dark)), digits().test
    rows = torch.randint(len(source), (n,), generator=g)
    x = source.x[rows] + 0.1 * torch.rand((n, *source.x.shape[1:]), generator=g)
    return Samples((1 - x if dark else x).clamp(0, 1), source.labels[rows])


def unlabelled(samples: Samples) -> Samples:
    return Samples(samples.x, ids=samples.ids)


def run(folder: Path, labelled: Samples | None = None, *, seed: int = 0, **changes: Any) -> CampaignResult:
    """A campaign that takes a second; ``changes`` are options, or arguments of its call."""
    labelled = field() if labelled is None else labelled
    arguments = {"field": unlabelled(labelled), "labeller": labels_of(labelled), "train": train(), "clean": clean()}
    called = {name: changes.pop(name, value) for name, value in arguments.items()}
    called |= {name: changes.pop(name) for name in ("on_event", "classes", "stopwatch") if name in changes}
    return replace(TINY, **changes)(model(), folder=folder, seed=seed, **called)


def digest(folder: Path) -> str:
    with RunFolder(folder, signature=json.loads((folder / "run.json").read_bytes())) as opened:
        return opened.digest()


def same_weights(a: Classifier, b: Classifier) -> bool:
    x = digits().test.x
    return torch.equal(a.batched_logits(x), b.batched_logits(x))


@pytest.fixture(scope="module", autouse=True)
def _fitted_once() -> Iterator[None]:
    """Most of these campaigns have the same field: naturalness is fitted to it once."""
    fit_naturalness, known = field_module.fit_naturalness, {}

    def remembered(inputs: Samples, *, generator: torch.Generator, **options: Any) -> Naturalness:
        key = inputs.ids.sum().item(), len(inputs), generator.initial_seed()
        if key not in known:
            known[key] = fit_naturalness(inputs, generator=generator, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field_module, "fit_naturalness", remembered)
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CampaignResult]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, run(folder)


class RecordingLabeller:
    """A labeller that remembers its inputs and has no labels after this many batches."""

    def __init__(self, labelled: Samples, *, batches: int = 10**9) -> None:
        self.labels, self.left = labels_of(labelled), batches
        self.asked: list[Tensor] = []

    def __call__(self, asked: Samples) -> Tensor:
        assert asked.y is None
        if self.left == 0:
            raise LabelsMissing("write them")
        self.left -= 1
        self.asked.append(asked.ids)
        return self.labels(asked)

    @property
    def ids(self) -> Tensor:
        return torch.cat(self.asked)


# Records ------------------------------------------------------------------------------------------------------------


def test_rounds_record_what_happened(undisturbed: tuple[Path, CampaignResult]) -> None:
    folder, done = undisturbed
    first, *later = done.rounds
    assert [r.number for r in done.rounds] == [0, 1, 2]
    assert first.attempted == first.cases == 0
    assert not first.changed
    assert first.assessment is not None
    cases = 0
    for each in later:
        cases += each.chosen
        assert each.attempted == TINY.seeds_per_round
        assert 0 < each.chosen <= min(each.operational, TINY.cases_per_round)
        assert each.operational <= each.found
        assert sum(each.by_move.values()) == each.operational
        assert each.cases == cases
        assert each.arrived == 600
        assert sum(each.moves.values()) == pytest.approx(1)
        assert each.assessment is None or each.changed == (each.assessment.before == 0)
        assert each.retraining is not None
        assert each.retraining.n_cases == cases
        assert results.load(folder / f"round-{each.number:03d}" / "round.json", Round) == each
    assert any(r.changed for r in later)
    assert later[-1].clean == done.model.accuracy(clean())
    assert done.suite is not None
    assert len(done.suite) == cases
    assert bool((done.suite.prediction != done.suite.label).all())
    assert done.labels == sum(r.assessment.bought for r in done.rounds if r.assessment)
    assert done.assessment == [r.assessment for r in done.rounds if r.assessment][-1]
    assert str(done).count("\n") == 4


def test_the_assessment_of_the_last_model_is_true(undisturbed: tuple[Path, CampaignResult]) -> None:
    """Its failures are those of the delivered weights on the inputs whose labels are in the folder."""
    folder, done = undisturbed
    last = max(r.number for r in done.rounds if r.assessment)
    known = [results.load(f, LabelBatch) for f in sorted((folder / f"round-{last:03d}").glob("labels-*.json"))]
    ids, labels = torch.cat([k.ids for k in known]), torch.cat([k.labels for k in known])
    everything = field()
    rows = torch.stack([(everything.ids == i).nonzero()[0, 0] for i in ids])
    assert torch.equal(labels, everything.labels[rows])
    assert int((done.model.predict(everything.x[rows]) != labels).sum()) == done.assessment.failures
    assert len(ids) == done.assessment.labels


def test_the_initial_model_is_not_changed(undisturbed: tuple[Path, CampaignResult]) -> None:
    start = initialise(network, generator=spawn(0, "weights"))
    again = Classifier(fit(start, train(), epochs=6, generator=spawn(0, "fit"), progress=False).module)
    assert same_weights(model(), again)
    assert not same_weights(model(), undisturbed[1].model)


def test_every_step_sends_events(tmp_path: Path) -> None:
    events: list[Event] = []
    done = run(tmp_path, rounds=1, on_event=events.append)
    steps = [(e.round, e.step) for e in events]
    for step in ((0, "profile"), (0, "assess"), (1, "generate"), (1, "retrain"), (0, "round"), (1, "round")):
        assert step in steps
    rounds = [e.details for e in events if e.step == "round"]
    assert [details["record"] for details in rounds] == list(done.rounds)
    shares, error = rounds[0]["field"]  # what is estimated without labels, once
    assert shares.startswith("Class shares in the field (")
    assert "Without labels, the model is estimated to get " in error
    assert f"The requirement is {percent(TINY.requirement)}" in error
    assert "field" not in rounds[1]
    assert all(0 <= e.done <= e.total for e in events)


@pytest.mark.slow
def test_a_search_for_a_pattern_of_uncertainty_is_a_move(tmp_path: Path) -> None:
    """Its failures are rated like any others; the uncertainty of a model with dropout is recorded."""
    fuzz = UncertaintyFuzz(pattern="HH", radius=0.2, population=8, generations=2, tournament=3, passes=8)
    campaign = replace(TINY, moves={"gradient": GRADIENT["small"], "bred": partial(unguided, fuzz)}, rounds=1)
    labelled, ran = field(), []
    for name, workers in (("one", 1), ("two", 2)):
        options = {"field": unlabelled(labelled), "labeller": labels_of(labelled)}
        dropping = with_dropout(model(), before=["3"], rate=0.5)
        spread = replace(campaign, engine=pool(workers))
        ran.append(spread(dropping, train=train(), clean=clean(), folder=tmp_path / name, **options))
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    last = ran[0].rounds[-1]
    assert last.operational > 0
    assert set(last.by_move) == {"gradient", "bred"}
    parts = [Suite.open(place) for place in sorted((tmp_path / "one" / "round-001" / "suite").glob("chunk-*"))]
    found = Suite.concat(parts)
    bred = found[found["move"] == "bred"]
    assert len(bred) > 0
    assert bool((bred.prediction != bred.label).all())
    assert set(bred["aim"].tolist()) == {"HH"}
    assert bool((bred.distances("linf") <= 0.2 + 1e-6).all())
    kept = results.load(tmp_path / "one" / "round-001" / "uncertainty.json", Uncertainty)
    most = UncertaintyOfFailures().most
    assert (kept.failures, len(kept.vro), kept.reason) == (last.operational, min(last.operational, most), "")


def test_without_dropout_only_confidence_is_recorded(undisturbed: tuple[Path, CampaignResult]) -> None:
    folder, done = undisturbed
    for each in done.rounds[1:]:
        kept = results.load(folder / f"round-{each.number:03d}" / "uncertainty.json", Uncertainty)
        assert (kept.failures, len(kept.pcs), len(kept.vro)) == (each.operational, each.operational, 0)
        assert "without any dropout" in kept.reason


# Stopping ------------------------------------------------------------------------------------------------------------


def test_a_requirement_that_is_already_met_ends_the_campaign(tmp_path: Path) -> None:
    done = run(tmp_path, requirement=0.95)
    assert done.met
    assert done.reason.startswith("The requirement was met after round 0")
    assert len(done.rounds) == 1
    assert done.suite is None
    assert same_weights(done.model, model())
    assert done.assessment.upper <= 0.95


STUBBORN = OperationalFinetune(epochs=1, steps=1, learning_rate=1e-12, progress=False)


@pytest.mark.parametrize(
    ("changes", "reason", "rounds"),
    [
        ({"rounds": 1}, "All rounds are finished after round 1", 2),
        ({"labels": 1}, "All labels are spent after round 0", 1),
        ({"cases": 10}, "All cases are spent after round 1", 2),
        ({"retrainer": STUBBORN, "rounds": 5}, "Rounds 1 and 2 changed nothing", 3),
    ],
)
def test_a_requirement_out_of_reach_ends_with_a_reason_and_advice(tmp_path, changes, reason, rounds) -> None:
    done = run(tmp_path, **changes)
    assert not done.met
    assert done.reason.startswith(reason)
    assert "To meet it: pmi is estimated at" in done.reason
    assert "must fall below 0.1 % first" in done.reason
    assert len(done.rounds) == rounds
    assert done.labels <= changes.get("labels", TINY.labels)
    assert done.rounds[-1].cases <= changes.get("cases", TINY.cases)


def test_an_unchanged_model_is_assessed_further(tmp_path: Path) -> None:
    """With the same confidence, on other inputs, until labels are spent or the requirement is shown to be met."""
    asking = RecordingLabeller(field(2000))
    wanted = 1 - model().accuracy(field(2000)) + 0.05
    done = run(tmp_path, field(2000), labeller=asking, requirement=wanted, labels=300, retrainer=STUBBORN)
    first, *later = [r.assessment for r in done.rounds]
    assert first.before == 0
    assert first.labels == 200  # two thirds
    assert later[0].before == first.labels
    assert later[0].confidence == first.confidence
    assert later[0].failures >= first.failures
    assert len(asking.ids.unique()) == len(asking.ids) == done.labels == done.assessment.labels
    assert done.met == (done.assessment.upper <= wanted)
    assert first.labels < done.labels <= 300
    assert "model unchanged" in str(done.rounds[1])


def test_a_round_whose_retraining_was_rejected_buys_labels_for_the_next(tmp_path: Path) -> None:
    """Also if they cannot show that the requirement is met: the next monitor shall see more."""
    done = run(tmp_path, retrainer=STUBBORN, rounds=5)
    first, *later = [r.assessment for r in done.rounds]
    assert [r.changed for r in done.rounds] == [False] * 3
    known = first.labels
    for each in later:
        assert (each.before, each.confidence) == (known, first.confidence)
        assert each.bought >= TINY.labels // 6
        known = each.labels


def wanted_pmi() -> float:
    """A requirement that dozens of labels cannot decide about."""
    return 1 - model().accuracy(field()) + 0.02


@pytest.mark.parametrize("batches", [0, 1])
def test_labels_added_during_an_assessment_are_bought_in_it(tmp_path: Path, batches: int) -> None:
    """The bound holds whenever one stops; so the campaign ends as if it had had them from the beginning."""
    options = {"requirement": wanted_pmi(), "rounds": 1, "retrainer": STUBBORN}
    with pytest.raises(LabelsMissing):
        run(tmp_path / "raised", labels=30, labeller=RecordingLabeller(field(), batches=batches), **options)
    assert results.load(tmp_path / "raised/round-000/budget.json", LabelBudget).most == 20
    raised, whole = run(tmp_path / "raised", labels=90, **options), run(tmp_path / "whole", labels=90, **options)
    assert raised.rounds == whole.rounds
    assert raised.rounds[0].assessment.labels > 20
    assert digest(tmp_path / "raised") == digest(tmp_path / "whole")


def test_an_assessment_that_bought_its_last_batch_keeps_its_labels(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if "assessment" in event.details:
            raise KeyboardInterrupt

    options = {"requirement": wanted_pmi(), "rounds": 1, "retrainer": STUBBORN, "label_batch": 40}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, labels=30, on_event=stop, **options)
    done = run(tmp_path, labels=90, **options)
    assert done.rounds[0].assessment.labels == 20
    assert done.labels > 20  # the next round may buy the others


def test_added_labels_continue_a_campaign_that_changed_nothing(tmp_path: Path) -> None:
    options = {"requirement": wanted_pmi(), "retrainer": STUBBORN, "rounds": 5}
    few = run(tmp_path, labels=40, **options)
    assert few.reason.startswith("All labels are spent after round 2")
    assert "For a further round, raise labels of the budget and run again." in few.reason
    more = run(tmp_path, labels=90, **options)
    assert len(more.rounds) == len(few.rounds) + 1
    assert more.assessment.labels > few.assessment.labels == 40


@pytest.mark.parametrize(
    ("reason", "rounds", "bought", "advice"),
    [
        ("rounds spent", 1, 50, "100 of 150 labels were not bought: WHY. For a further round, raise rounds of"),
        ("cases spent", 5, 50, "100 of 150 labels were not bought: WHY. For a further round, raise cases of"),
        ("cases spent", 1, 50, "WHY. For a further round, raise cases and rounds of the budget and run again."),
        ("labels spent", 1, 150, "raise labels and rounds of the budget"),
        ("no change", 1, 50, "100 of 150 labels were not bought: WHY. The last round"),
    ],
)
def test_the_advice_names_unspent_labels_and_what_to_raise(reason, rounds, bought, advice) -> None:
    assessed = SequentialAssessment(labels=bought, failures=5, upper=0.3, confidence=0.975, reason="WHY")
    history = [Round(number=0, arrived=9, clean=0.9, assessment=assessed), Round(number=1, arrived=9, clean=0.9)]
    found = stop_record(replace(TINY, rounds=rounds), reason, history, clean=200).advice
    assert advice in found
    assert ("not bought" in found) == (bought < 150)


def test_an_earlier_smaller_bound_is_named(undisturbed: tuple[Path, CampaignResult]) -> None:
    done = undisturbed[1]
    bounds = {r.number: r.assessment.upper for r in done.rounds if r.assessment}
    best = min(bounds, key=bounds.__getitem__)
    named = f"The model after round {best} has the smallest bound, {at_most(bounds[best])}:"
    later = any(r.changed for r in done.rounds[best + 1 :])
    assert (named in done.reason) == (bounds[best] < done.assessment.upper and later)


def ended(
    *epochs: tuple[float, float], operational: int = 9, diverged: bool = False, tests: tuple[MoveTest, ...] = ()
) -> str:
    """The advice after a round whose epochs had these clean accuracies and monitors; 0.9 and 0.4 before."""
    history = tuple(
        FinetuneEpoch(epoch=i, loss=0.0, accuracy=accuracy, monitor=monitor, kept=False, why="")
        for i, (accuracy, monitor) in enumerate(epochs, 1)
    )
    record = FinetuneRecord(
        best_epoch=0, reason="REASON", n_train=9, n_cases=9, accuracy_before=0.9, history=history, monitor_before=0.4,
        train_rows=9, case_rows=9, effective_cases=9.0, stopped_early=False, diverged=diverged,
    )  # fmt: skip
    assessed = SequentialAssessment(labels=50, failures=5, upper=0.3, confidence=0.975, reason="")
    first = Round(number=0, arrived=9, clean=0.92, assessment=assessed)  # 0.02 of max_drop is used
    retraining = record if epochs else None
    last = Round(
        number=1, arrived=9, clean=0.9, attempted=9, operational=operational, retraining=retraining, tests=tests
    )
    return stop_record(replace(TINY, max_drop=0.05), "no change", [first, last], clean=200).advice


def test_the_advice_names_what_stood_in_the_way() -> None:
    accuracy, monitor = "Clean accuracy stood in the way", "The monitor stood in the way"

    def named(*epochs: tuple[float, float], **options: Any) -> tuple[bool, bool]:
        advice = ended(*epochs, **options)
        assert "The last retraining was not kept: REASON." in advice
        assert ("max_drop" in advice) == (accuracy in advice)
        return accuracy in advice, monitor in advice

    assert named((0.88, 0.5), (0.9, 0.45)) == (False, True)
    assert named((0.8, 0.2), (0.7, 0.3)) == (True, False)
    assert named((0.8, 0.2), (0.9, 0.5)) == (True, True)  # each epoch failed one of them
    assert named((0.8, 0.5), (0.7, 0.6)) == (True, True)  # each epoch failed both
    assert named((0.9, 0.5), diverged=True) == (False, False)
    assert "of 200 clean samples, at least 8 were lost, and 6 more may be lost, which chance may explain" in ended(
        (0.86, 0.2)
    )
    assert "of 200 clean samples, at least 20 were lost, and 6 more may be lost, a clear loss" in ended((0.8, 0.2))
    assert "a smaller learning rate or fewer steps" in ended((0.8, 0.2))
    assert "Give more clean samples" not in ended((0.8, 0.2))
    assert "Give more clean samples" in ended((0.86, 0.2), (0.8, 0.3))
    assert "found no operational failure. Declare wider" in ended(operational=0)
    shrunk = MoveTest(move="gradient", searched=True, accepted=0.6, draws=600, radius=0.05, why="3 % at radius 1")
    told = ended(operational=0, tests=(shrunk, replace(shrunk, move="other")))
    assert "found no operational failure. gradient: 60 % of 600 unselected draws look like field inputs at" in told
    assert told.count("Set this radius to 0.05, or search over conditions.") == 1
    assert "Declare wider" not in told
    assert "chose none of its 9 operational failures" in ended()


def changing(number: int, upper: float, *, changed: bool = True) -> Round:
    assessed = SequentialAssessment(labels=50, failures=5, upper=upper, confidence=0.975, reason="")
    retraining = scale_weights_record(best_epoch=int(changed)) if number else None
    return Round(number=number, arrived=9, clean=0.9, attempted=9, retraining=retraining, assessment=assessed)


@pytest.mark.parametrize(
    ("uppers", "changed", "file"),
    [
        ((0.3, 0.1, 0.2), (True, True, True), "round 1 has the smallest bound, 10 %: its weights are in round-001/"),
        ((0.3, 0.2, 0.1, 0.2), (True, True, False, True), "round 2 .* weights are in round-001/weights.safetensors"),
        ((0.1, 0.3), (True, True), "round 0 has the smallest bound, 10 %: it is the initial model"),
    ],
)
def test_the_file_of_an_earlier_better_model_is_named(uppers, changed, file) -> None:
    rounds = [changing(i, upper, changed=c) for i, (upper, c) in enumerate(zip(uppers, changed, strict=True))]
    advice = stop_record(TINY, "rounds spent", rounds, clean=200).advice
    assert re.search(file, advice)
    assert "model.safetensors has those after the last round" in advice


def test_a_smaller_budget_does_not_forget_finished_rounds(tmp_path: Path) -> None:
    full = run(tmp_path, rounds=2)
    assert len(full.rounds) == 3
    for less in ({"rounds": 1}, {"rounds": 2, "labels": 1}, {"rounds": 2, "cases": 1}):
        again = run(tmp_path, **less)
        assert again.rounds == full.rounds
        assert same_weights(again.model, full.model)


def test_the_stop_record_is_valid_until_the_campaign_resumes(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    first = results.load(tmp_path / "stop.json", StopRecord)
    assert (first.reason, first.last, first.rounds) == ("rounds spent", 1, 1)
    with pytest.raises(LabelsMissing):
        run(tmp_path, rounds=2, labels=1000, labeller=RecordingLabeller(field(), batches=0))
    assert not (tmp_path / "stop.json").exists()  # it is under way
    done = run(tmp_path, rounds=2, labels=1000)
    stop = results.load(tmp_path / "stop.json", StopRecord)
    assert (stop.met, stop.last, stop.rounds) == (done.met, done.rounds[-1].number, 2)
    assert done.reason.startswith(stop.sentence)
    assert done.reason.endswith(stop.advice)


@pytest.mark.parametrize(
    "spoil",
    [lambda y: y + 10, lambda y: y.float(), lambda y: y[:-1], lambda y: -y - 1],
    ids=["too large", "float", "few", "negative"],
)
def test_invalid_labels_are_rejected_and_can_be_fixed(tmp_path: Path, spoil: Any) -> None:
    right = labels_of(field())
    with pytest.raises(ValueError, match="labels must be .* whole numbers from 0 to 9"):
        run(tmp_path, labeller=lambda asked: spoil(right(asked)), rounds=1)
    assert run(tmp_path, rounds=1).rounds == run(tmp_path / "other", rounds=1).rounds


def test_the_final_model_and_cases_are_in_the_folder(undisturbed: tuple[Path, CampaignResult]) -> None:
    folder, done = undisturbed
    kept = model().rewrap(load_weights(model().unwrap(), folder / "model.safetensors"))
    assert same_weights(kept, done.model)
    assert Suite.open(folder / "cases").digest() == done.suite.digest()


def test_first_counts_seeds_that_a_move_was_tried_on_first(undisturbed: tuple[Path, CampaignResult]) -> None:
    folder, done = undisturbed
    for r in done.rounds[1:]:
        chunks = sorted((folder / f"round-{r.number:03d}" / "suite").glob("chunk-*"))
        good = Suite.concat([Suite.open(c) for c in chunks]).operational(TINY.level, TINY.mass_quantile)
        first = [
            (m, s) for m, s, t in zip(good["move"], good.seed.tolist(), good["turn"].tolist(), strict=True) if t == 0
        ]
        assert r.first == {name: len({s for m, s in first if m == name}) for name in TINY.moves}
        assert sum(r.first.values()) <= r.attempted


def test_more_rounds_continue_a_finished_campaign(tmp_path: Path) -> None:
    short = run(tmp_path, rounds=1)
    more = run(tmp_path, rounds=2, labels=200)
    assert more.rounds[:2] == short.rounds
    assert len(more.rounds) == 3


def test_a_field_without_inputs_to_assess_ends_the_campaign(tmp_path: Path) -> None:
    everything = field(600)
    roles = everything.split(profile=0.5, assessment=0.5)
    both = Samples.concat([train(), roles["assessment"]])
    done = run(tmp_path, everything, train=both)
    assert done.reason.startswith("All field inputs are labelled after round 0")
    assert "there were none" in done.reason
    assert (done.labels, done.assessment.upper, done.met) == (0, 1.0, False)


def test_advice_counts_labels_of_the_bound_in_use() -> None:
    few = SequentialAssessment(labels=100, failures=2, upper=0.09, confidence=0.975, reason="")
    needed = labels_needed(0.02, 0.05, 0.975)
    assert f"about {needed} labels" in what_it_takes(few, 0.05)
    assert assessing.confidence_sequence(round(0.02 * needed), needed, confidence=0.975).upper <= 0.05
    assert "too close to 2 % to be shown" in what_it_takes(few, 0.020001)
    assert "too few to decide whether it is below 2 %" in what_it_takes(few, 0.02)
    assert "must fall below 0.5 % first" in what_it_takes(few, 0.005)
    assert "there were none" in what_it_takes(replace(few, labels=0, failures=0), 0.05)


@settings(max_examples=25)
@given(st.floats(0, 0.9), st.floats(0.001, 0.5), st.floats(0.8, 0.999))
def test_labels_needed_grow_as_the_requirement_gets_closer(share, requirement, confidence) -> None:
    easy, hard = (labels_needed(s * requirement, requirement, confidence) for s in (share / 2, share))
    assert easy <= 1.2 * hard + 20  # counts are whole, so a slightly smaller pmi can need slightly more labels
    assert confidence_holds(0, easy, requirement, confidence)


def confidence_holds(k: int, n: int, requirement: float, confidence: float) -> bool:
    return assessing.confidence_sequence(k, n, confidence=confidence).upper <= requirement


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requirement": 1.0}, "requirement must be between 0 and 1, got 1.0; it is the highest error rate allowed"),
        ({"confidence": 0.0}, "confidence must be between 0 and 1, got 0.0"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"max_drop": 1.5}, "max_drop must be a share"),
        ({"when_drifted": "ignore"}, "when_drifted must be one of update, stop, got 'ignore'"),
        ({"requirement": None}, "requirement must be between 0 and 1, got None"),
        ({"rounds": None}, "rounds must be at least 1, got None"),
        ({"when_drifted": None}, "when_drifted must be one of update, stop, got None"),
        ({"moves": {}}, "at least one move"),
    ],
)
def test_invalid_options_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


def test_invalid_data_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not share inputs, got 10 in both"):
        run(tmp_path, clean=train()[:10])
    with pytest.raises(ValueError, match="there are no clean samples"):
        run(tmp_path, clean=clean()[:0])
    with pytest.raises(ValueError, match="field inputs"):
        run(tmp_path, field(8))


# Roles ----------------------------------------------------------------------------------------------------------------


def test_assessed_inputs_are_fresh_and_split_by_id(tmp_path: Path) -> None:
    """Field inputs that are also training or clean data are not assessed."""
    labelled = Samples.concat([field(), train()[:60], clean()[:60]])
    asking = RecordingLabeller(labelled)
    done = run(tmp_path, labelled, labeller=asking, labels=100)
    assert len(asking.ids) == done.labels <= 100
    assert len(asking.ids.unique()) == len(asking.ids)
    assert all(len(some) <= TINY.label_batch for some in asking.asked)
    assert bool(torch.isin(asking.ids, labelled.split(profile=0.5, assessment=0.5)["assessment"].ids).all())
    for learned in (train().ids, clean().ids, done.suite.samples().ids):
        assert not bool(torch.isin(asking.ids, learned).any())


def test_labels_are_never_overspent(tmp_path: Path) -> None:
    asking = RecordingLabeller(field())
    done = run(tmp_path, labeller=asking, labels=33)
    assert len(asking.ids) == done.labels <= 33


def test_the_order_of_field_inputs_does_not_matter(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    """Neither on resume nor from the start: ids alone decide."""
    with pytest.raises(LabelsMissing):
        run(tmp_path, labeller=RecordingLabeller(field(), batches=7))
    shuffled = field()[torch.randperm(600, generator=spawn(1))]
    run(tmp_path, shuffled)
    assert digest(tmp_path) == digest(undisturbed[0])


def test_missing_field_inputs_are_an_error(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    with pytest.raises(ValueError, match="3 of 600 field inputs that round 0 began with are missing"):
        run(tmp_path, field()[3:])


# Missing labels -----------------------------------------------------------------------------------------------------


def test_missing_labels_stop_the_campaign_and_it_resumes(
    tmp_path: Path, undisturbed: tuple[Path, CampaignResult]
) -> None:
    asked = []
    for batches in (0, 1, 6, 10**9):
        asking = RecordingLabeller(field(), batches=batches)
        try:
            done = run(tmp_path, labeller=asking)
        except LabelsMissing:
            assert batches < 10**9
        asked += asking.asked
    assert digest(tmp_path) == digest(undisturbed[0])
    ids = torch.cat(asked)
    assert len(ids.unique()) == len(ids) == done.labels


# Retraining that fails ------------------------------------------------------------------------------------------------


def test_infinite_losses_keep_the_weights(tmp_path: Path) -> None:
    finetune = OperationalFinetune(epochs=2, steps=15, learning_rate=1e30, optimiser="sgd", progress=False)
    done = run(tmp_path, retrainer=finetune, rounds=1)
    assert same_weights(done.model, model())
    for each in done.rounds[1:]:
        assert each.retraining is not None
        assert not each.changed
        assert each.assessment is None
        assert "model unchanged (the loss became" in str(each)
    assert len(done.rounds) == 2
    assert done.assessment == done.rounds[0].assessment


def test_clean_accuracy_falls_no_further_than_allowed(tmp_path: Path) -> None:
    done = run(tmp_path, max_drop=0.0, rounds=1)
    assert all(r.clean >= done.rounds[0].clean for r in done.rounds)


# Drift ----------------------------------------------------------------------------------------------------------------


def arriving(*parts: Samples) -> tuple[Samples, Callable[[int], Samples]]:
    """All inputs, and a field where one more part arrives in every round."""
    everything = Samples.concat(parts)

    def field_(number: int) -> Samples:
        return unlabelled(Samples.concat(parts[: number + 1]))

    return everything, field_


def test_a_field_that_drifts_is_assessed_again(tmp_path: Path) -> None:
    old, new = field(), field(200, dark=True)
    everything, there = arriving(old, old[:0], new)
    asking = RecordingLabeller(everything)
    done = run(tmp_path, everything, field=there, labeller=asking, rounds=3, labels=400)
    third = done.rounds[2]
    assert [r.drift is not None for r in done.rounds] == [False, False, True, False]
    assert [r.arrived for r in done.rounds] == [600, 600, 800, 800]
    assert third.attempted == 0
    assert third.assessment is not None
    late = asking.ids[-sum(r.assessment.bought for r in done.rounds[2:] if r.assessment) :]
    assert bool(torch.isin(late, new.ids).all())
    assert len(late) < len(asking.ids)
    why = done.rounds[3].decisions[0].why
    a = third.assessment
    assert why == f"the present model gets {a.failures} of all {a.labels} field inputs labelled so far wrong"
    assert (tmp_path / "round-002" / "profile.json").exists()
    assert not (tmp_path / "round-003" / "profile.json").exists()
    assert run(tmp_path, everything, field=there, rounds=3, labels=400).rounds == done.rounds


def test_drift_stops_the_campaign_if_so_configured(tmp_path: Path) -> None:
    old = field()
    everything, there = arriving(old, old[:0], field(200, dark=True))
    names = tuple(f"digit {name}" for name in "abcdefghij")
    options = {"rounds": 3, "labels": 400, "when_drifted": "stop", "requirement": 0.3, "classes": names}
    done = run(tmp_path, everything, field=there, **options)
    found = done.rounds[2].drift
    assert found is not None
    assert f"class {names[found.most_moved]} moved most" in found.details
    assert done.reason.startswith("Stopped in round 2 because the field has changed (Drift (p < 1e-6")
    assert not done.met
    assert done.rounds[2].assessment is None
    assert done.assessment == next(r.assessment for r in reversed(done.rounds) if r.assessment)


def test_drift_is_found_if_only_few_inputs_arrive_at_a_time(tmp_path: Path) -> None:
    everything, there = arriving(field(), field(30, dark=True), field(30, dark=True, seed=1))
    done = run(tmp_path, everything, field=there, labels=400)
    assert [r.drift is not None for r in done.rounds] == [False, False, True]


def test_drift_can_be_found_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels of all rounds add up to one; the smallest p-value of permutations is below a third of each."""
    tests: list[dict[str, Any]] = []

    def test(*_: object, **options: Any) -> Any:
        tests.append(options)
        return SimpleNamespace(alarm=False)

    monkeypatch.setattr(field_module, "drift", test)
    with RunFolder(tmp_path, signature={}) as opened:
        arrived, options = (lambda _: field()), {"seed": 0, "dimensions": 4, "follow": True}
        state = field_module.FieldState(arrived, model(), train().ids, opened, **options)
        state._reference = field()
        for number in range(1, 9):
            assert state._compare(f"round-{number:03d}", number, field()) is None
    assert sum(options["level"] for options in tests) <= field_module.DRIFT_LEVEL
    assert all(1 / (options["permutations"] + 1) < options["level"] / 3 for options in tests)


def test_more_of_the_same_joins_the_field(tmp_path: Path) -> None:
    everything, there = arriving(field(), field(150, seed=5))
    asking = RecordingLabeller(everything)
    done = run(tmp_path, everything, field=there, labeller=asking, labels=400, rounds=1)
    assert not any(r.drift for r in done.rounds)
    assert done.rounds[1].arrived == 750
    assert bool(torch.isin(asking.ids, field(150, seed=5).ids).any())


# Feedback -------------------------------------------------------------------------------------------------------------


def test_feedback_decides_and_is_recorded(undisturbed: tuple[Path, CampaignResult]) -> None:
    rounds = undisturbed[1].rounds
    assert [d.what for d in rounds[1].decisions] == ["class", "cell"]
    assert [d.what for d in rounds[2].decisions] == ["class", "cell", "move"]
    for each in (d for r in rounds for d in r.decisions):
        assert sum(each.before) == pytest.approx(1)
        assert sum(each.after) == pytest.approx(1)
        assert len(each.names) == len(each.before) == len(each.after)
        assert each.title in str(each)
        assert each.why in str(each)
    assert rounds[2].decisions[2].after == tuple(rounds[2].moves.values())
    yields = {name: rounds[1].first[name] / rounds[1].moves[name] for name in GRADIENT}
    assert max(yields, key=lambda n: yields[n]) == max(rounds[2].moves, key=lambda n: rounds[2].moves[n])
    assert not rounds[0].decisions


def test_without_feedback_nothing_is_decided(tmp_path: Path) -> None:
    done = run(tmp_path, feedback=False, rounds=1)
    assert all(not r.decisions for r in done.rounds)
    assert all(r.moves == {"small": 0.5, "large": 0.5} for r in done.rounds[1:])


shares = st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda b: sum(b) > 0.01)


@st.composite
def budgets(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    base = torch.tensor(draw(shares), dtype=torch.float64)
    counts = draw(st.lists(st.integers(0, 500), min_size=len(base), max_size=len(base)))
    return torch.tensor(counts), base / base.sum()


@given(budgets(), st.floats(0, 1))
def test_shares_sum_to_one_and_keep_the_floor(budget: tuple[Tensor, Tensor], floor: float) -> None:
    counts, base = budget
    given_ = allocate(counts, base, floor=floor)
    assert float(given_.sum()) == pytest.approx(1)
    assert bool((given_ >= floor * base - 1e-12).all())
    assert bool((given_[base == 0] == 0).all())
    assert torch.allclose(allocate(torch.zeros_like(counts), base, floor=floor), base)
    assert torch.allclose(allocate(counts, base, floor=1.0), base)


@given(budgets(), st.integers(0, 7), st.integers(1, 100))
def test_a_larger_contribution_gets_a_larger_share(budget: tuple[Tensor, Tensor], part: int, more: int) -> None:
    counts, base = budget
    part %= len(base)
    raised = counts.clone()
    raised[part] += more
    before, after = allocate(counts, base), allocate(raised, base)
    others = torch.arange(len(base)) != part
    assert float(after[part]) >= float(before[part]) - 1e-12
    assert bool((after[others] <= before[others] + 1e-12).all())


def test_many_counts_decide_all_but_the_floor() -> None:
    base = torch.tensor([0.7, 0.2, 0.1])
    given_ = allocate(torch.tensor([0, 0, 10**9]), base)
    assert torch.allclose(given_, FLOOR * base.double() + (1 - FLOOR) * torch.tensor([0, 0, 1.0]).double(), atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "base", "floor", "message"),
    [
        ([1.0], [0.5, 0.5], 0.3, r"must hold one number of 0 or more per part, .* got \[1.0\] and"),
        ([-1.0, 1.0], [0.5, 0.5], 0.3, r"must hold one number of 0 or more per part, .* got \[-1.0, 1.0\]"),
        ([1.0, 1.0], [0.6, 0.6], 0.3, r"base summing to 1, got .* and \[0.6"),
        ([1.0], [1.0], 1.5, "floor must be a share from 0 to 1, got 1.5"),
    ],
)
def test_invalid_counts_and_shares_are_rejected(counts, base, floor, message) -> None:
    with pytest.raises(ValueError, match=message):
        allocate(torch.tensor(counts), torch.tensor(base), floor=floor)


@given(st.data())
def test_reweighted_sums_are_the_shares_and_proportions_stay(data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, 5))
    n = data.draw(st.integers(1, 20))
    weights = torch.tensor(data.draw(st.lists(st.floats(0.01, 10), min_size=n, max_size=n)), dtype=torch.float64)
    part = torch.tensor(data.draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)))
    wanted = torch.tensor(data.draw(st.lists(st.floats(0.01, 1), min_size=parts, max_size=parts)), dtype=torch.float64)
    new = reweighted(weights, part, wanted)
    assert float(new.sum()) == pytest.approx(1)
    held = part.unique()
    assert torch.allclose(torch.bincount(part, new, minlength=parts)[held], wanted[held] / wanted[held].sum())
    for each in held:
        rows = part == each
        assert torch.allclose(new[rows] / new[rows].sum(), weights[rows] / weights[rows].sum())


# Bounds ---------------------------------------------------------------------------------------------------------------


@given(st.floats(0.5, 0.999), st.integers(1, 200))
def test_levels_of_all_rounds_together_keep_the_campaigns(confidence: float, rounds: int) -> None:
    spent = sum(1 - confidence_of(r, confidence) for r in range(rounds))
    assert spent == pytest.approx((1 - confidence) * (1 - 1 / (rounds + 1)), abs=1e-9)


EMPTY = Samples(torch.zeros(200, 1))
ZEROS = torch.zeros(200, dtype=torch.int64)  # predictions, wrong if the label is 1
PATHS = 500


def simulated(pmi: float, generator: torch.Generator, **options: Any) -> SequentialAssessment:
    wrong = (torch.rand(200, generator=generator) < pmi).long()

    def ask(i: int, asked: Samples) -> Tensor:
        return wrong[i * 10 : i * 10 + len(asked)]

    return assess_model(ZEROS, EMPTY, ask, **{"batch": 10, "budget": LabelBudget(fewest=1, most=200), **options})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of the same counts are computed once."""
    for name in ("confidence_sequence", "clopper_pearson_interval"):
        monkeypatch.setattr(assessing, name, cache(getattr(assessing, name)))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("pmi", [0.02, 0.2])
@pytest.mark.parametrize("ease", [0.5, 0.999, 1.5])
def test_the_bound_holds_whatever_the_stopping(pmi: float, ease: float) -> None:
    """With a requirement just below the truth, labels are bought until the bound is wrong, if it ever is."""
    g = spawn(0, "paths", round(1000 * pmi), round(1000 * ease))
    done = [simulated(pmi, g, requirement=ease * pmi, confidence=0.9) for _ in range(PATHS)]
    wrong = sum(d.upper < pmi for d in done)
    assert wrong <= 0.1 * PATHS + 3 * (0.09 * PATHS) ** 0.5
    assert all(d.labels <= 200 and d.reason for d in done)
    if ease > 1:
        assert sum(d.upper <= ease * pmi for d in done) >= (PATHS // 4 if pmi > 0.05 else 0)
    if ease < 1:
        assert sum(d.labels < 200 for d in done) > PATHS // 2  # more labels would not help


@pytest.mark.usefixtures("quick")
def test_the_last_bound_of_a_campaign_holds_whichever_round_it_ends_with() -> None:
    """Rounds that change nothing, each checked against a requirement just below the truth: the worst that can be."""
    pmi, g, wrong = 0.1, spawn(0, "campaigns"), 0
    for _ in range(300):
        for number in range(3):
            done = simulated(pmi, g, requirement=0.999 * pmi, confidence=confidence_of(number, 0.9))
            if done.upper < pmi:
                wrong += 1
                break
    assert wrong <= 30


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("requirement", [0.05, 0.0999, 0.15, 0.3])
def test_labels_of_two_rounds_give_the_same_bound_as_in_one(requirement: float) -> None:
    """The bound of an unchanged model that is assessed further is that of all its labels."""
    for i in range(40):
        wrong = (torch.rand(200, generator=spawn(0, "two", i)) < 0.1).long()

        def ask(start: int, number: int, asked: Samples, wrong: Tensor = wrong) -> Tensor:
            return wrong[start + number * 10 : start + number * 10 + len(asked)]

        options = {"requirement": requirement, "confidence": 0.975, "batch": 10}

        def most(n: int) -> LabelBudget:
            return LabelBudget(fewest=0, most=n)

        first = assess_model(ZEROS[:90], EMPTY[:90], partial(ask, 0), budget=most(90), **options)
        more, left = partial(ask, first.labels), most(200 - first.labels)
        both = assess_model(ZEROS[90:], EMPTY[90:], more, budget=left, earlier=first, **options)
        assert both.before == first.labels
        assert both.failures == int(wrong[: both.labels].sum())
        assert (both.bought == 0) == (both.labels == first.labels)
        why = why_no_labels(left, 110, requirement=requirement, earlier=first)
        assert (why == both.reason) if both.bought == 0 else not why
        if first.upper <= requirement or "confidence" in first.reason:
            assert both.bought == 0
        if first.reason == "the labels of this round are spent":
            once = assess_model(ZEROS, EMPTY, partial(ask, 0), budget=most(both.labels), **options)
            assert (once.labels, once.failures, once.upper) == (both.labels, both.failures, both.upper)


@pytest.mark.usefixtures("quick")
def test_without_labels_the_bound_is_one() -> None:
    done = simulated(0.1, spawn(0), requirement=0.1, confidence=0.9, budget=LabelBudget(fewest=1, most=0))
    assert (done.labels, done.failures, done.upper, done.reason) == (0, 0, 1.0, "no label is left")


# Your own parts -------------------------------------------------------------------------------------------------------


def scale_weights(model: Classifier, train: Samples, cases: Samples, **arguments: Any) -> Retrained:
    """A user's retrainer: moves every weight a little."""
    module = copy_module(model.unwrap())
    with torch.no_grad():
        for values in module.parameters():
            values.mul_(1.001)
    epoch = FinetuneEpoch(epoch=1, loss=0.0, accuracy=1.0, monitor=0.0, kept=True, why="the only one")
    arguments["on_epoch"](epoch)
    record = replace(scale_weights_record(), n_train=len(train), n_cases=len(cases), history=(epoch,))
    return Retrained(model=model.rewrap(module), record=record)


def scale_weights_record(best_epoch: int = 1) -> FinetuneRecord:
    return FinetuneRecord(
        best_epoch=best_epoch, reason="scaled", n_train=9, n_cases=9, accuracy_before=1.0, history=(),
        monitor_before=None, train_rows=0, case_rows=0, effective_cases=0.0, stopped_early=False,
    )  # fmt: skip


def test_any_retrainer_will_do(tmp_path: Path) -> None:
    done = run(tmp_path / "own", retrainer=scale_weights, rounds=1)
    assert done.rounds[1].retraining.reason == "scaled"
    assert done.rounds[1].changed
    assert not same_weights(done.model, model())
    assert run(tmp_path / "own", retrainer=scale_weights, rounds=1).rounds == done.rounds
    shipped = run(tmp_path / "shipped", retrainer=Finetune(epochs=1, progress=False), rounds=1)
    assert shipped.rounds[1].retraining.n_cases == shipped.rounds[1].chosen


def unchanged(model: Classifier, train: Samples, cases: Samples, **arguments: Any) -> Retrained:
    """A user's retrainer that returns another model but says that the original one is kept."""
    done = scale_weights(model, train, cases, **arguments)
    return Retrained(model=done.model, record=replace(done.record, best_epoch=0))


def ruined(model: Classifier, train: Samples, cases: Samples, **arguments: Any) -> Retrained:
    """A user's retrainer that ignores ``max_drop``."""
    module = copy_module(model.unwrap())
    with torch.no_grad():
        module[1].weight.mul_(-1)
    return Retrained(model=model.rewrap(module), record=scale_weights(model, train, cases, **arguments).record)


def test_the_record_of_a_retrainer_decides_which_model_is_kept(tmp_path: Path) -> None:
    done = run(tmp_path / "unchanged", retrainer=unchanged, rounds=1)
    assert same_weights(done.model, model())
    assert same_weights(run(tmp_path / "unchanged", retrainer=unchanged, rounds=1).model, model())
    with pytest.raises(
        ValueError, match=r"the retrainer returned a model with clean accuracy [\d.]+ %, but [\d.]+ % must"
    ):
        run(tmp_path / "ruined", retrainer=ruined, rounds=1)


def first_seeds(model: Classifier, inputs: Samples, n: int, **others: Any) -> Samples:
    assert {"field", "shares", "generator"} == set(others)
    return inputs[:n]


def last_cases(model: Classifier, failures: Suite, n: int, **others: Any) -> Tensor:
    assert {"profile", "learned", "generator"} == set(others)
    return torch.arange(len(failures) - n, len(failures))


def test_seeds_and_cases_can_be_chosen_by_own_functions(tmp_path: Path) -> None:
    done = run(tmp_path, seed_chooser=first_seeds, case_chooser=last_cases, rounds=1, seeds_per_round=20)
    seeds = model().correct(train())[:20]
    found = Suite.concat([Suite.open(c) for c in sorted((tmp_path / "round-001" / "suite").glob("chunk-*"))])
    good = found.operational(TINY.level, TINY.mass_quantile)
    assert bool(torch.isin(found.seed, seeds.ids).all())
    assert torch.equal(done.suite.x, good.x[-done.rounds[1].chosen :])


def test_seeds_are_chosen_once(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    """A resumed campaign reads them."""
    calls = []

    def interrupt(event: Event) -> None:
        if event.step == "generate" and event.done:
            raise KeyboardInterrupt

    def counted(*arguments: Any, **options: Any) -> Samples:
        calls.append(1)
        return risk_weighted_seeds(*arguments, **options)

    counted.__module__, counted.__qualname__ = risk_weighted_seeds.__module__, risk_weighted_seeds.__qualname__
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, rounds=1, seed_chooser=counted, on_event=interrupt)
    done = run(tmp_path, rounds=1, seed_chooser=counted)
    assert len(calls) == 1
    assert done.rounds[:2] == undisturbed[1].rounds[:2]


def test_the_seeds_that_are_read_are_those_that_were_chosen() -> None:
    pool = Samples(torch.rand(5, 3).repeat(2, 1), torch.arange(10) % 2, names=[f"{i}.png" for i in range(10)])
    for chosen in (pool[torch.tensor([7, 2, 9])], pool[torch.tensor([3, 3, 1, 3])], pool[[8]], pool[:0]):
        again = seed_rows(chosen, pool).samples(pool)
        for name in ("x", "y", "ids", "occurrence"):
            assert torch.equal(getattr(again, name), getattr(chosen, name))
    assert seed_rows(pool[torch.tensor([7, 2])], pool).samples(pool).names == ("7.png", "2.png")
    for other in (replace(pool[:3], x=pool.x[:3] + 1), Samples(torch.rand(2, 3), [0, 1]), pool[:2].with_labels([3, 3])):
        with pytest.raises(ValueError, match="must return some of the inputs it was given"):
            seed_rows(other, pool)


def test_seeds_of_a_model_that_is_certain_of_everything_follow_the_mass() -> None:
    module = model().unwrap()
    with torch.no_grad():
        module[-1].weight.mul_(1e6)  # type: ignore[index, operator, union-attr]
    certain = model().rewrap(module)
    inputs, mass = train(), torch.rand(len(train()), generator=spawn(1)).double()
    assert float(certain.probs(inputs.x).max(1).values.min()) == 1
    field: Any = SimpleNamespace(
        profile=SimpleNamespace(weights=lambda _: mass), cells=lambda x: torch.zeros(len(x)).long(), risk=None
    )
    shares = SearchShares(classes=(0.1,) * 10, cells=(1.0,), moves={})
    seeds = risk_weighted_seeds(certain, inputs, 40, field=field, shares=shares, generator=spawn(0))
    weights = reweighted(mass, inputs.labels, torch.full((10,), 0.1))
    assert torch.equal(seeds.ids, draw(inputs, weights, 40, design="sequential", generator=spawn(0)).ids)


def backwards(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """A user's engine: the last item first."""
    yield from ((i, work(item)) for i, item in reversed(list(enumerate(items))))


def test_any_engine_gives_the_same_results(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    engine: Engine = backwards
    run(tmp_path, engine=engine)
    assert digest(tmp_path) == digest(undisturbed[0])


def test_moves_radii_and_retrainer_have_defaults(tmp_path: Path) -> None:
    labelled = field()
    small = replace(Campaign(requirement=0.02), rounds=1, seeds_per_round=20, labels=60, judge_draws=0)
    done = small(
        model(), train=train(), clean=clean(), field=unlabelled(labelled), labeller=labels_of(labelled), folder=tmp_path
    )
    assert [name.partition("-")[0] for name in done.rounds[1].moves] == ["gradient", "gradient"]


# The folder -----------------------------------------------------------------------------------------------------------


def test_a_finished_campaign_is_only_read(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    asking = RecordingLabeller(field())
    again = run(tmp_path / "copy", labeller=asking)
    assert asking.asked == []
    assert again.rounds == undisturbed[1].rounds
    assert again.reason == undisturbed[1].reason
    assert same_weights(again.model, undisturbed[1].model)
    assert digest(tmp_path / "copy") == digest(undisturbed[0])


def test_other_settings_are_rejected_by_name(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    with pytest.raises(ValueError, match=r"contains a run with other settings: chunk .15 -> 10.; seed .0 -> 1."):
        run(tmp_path / "copy", chunk=10, seed=1)
    with pytest.raises(ValueError, match="contains a run with other settings: retrainer"):
        run(tmp_path / "copy", retrainer=STUBBORN)
    with pytest.raises(ValueError, match="contains a run with other settings: clean"):
        run(tmp_path / "copy", clean=clean()[1:])
    assert digest(tmp_path / "copy") == digest(undisturbed[0])


@pytest.mark.parametrize(
    "damaged",
    ["round-000/profile.json", "round-000/labels-001.json", "round-001/weights.safetensors", "round-001/round.json"],
)
def test_a_damaged_file_is_named_and_computed_again(tmp_path, undisturbed, damaged) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    file = tmp_path / "copy" / damaged
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for _ in range(3):  # the advice may be to delete a file first, then its round
        error = damage(tmp_path / "copy")
        assert not error or str(file if file.exists() else file.parent) in error
        if error:
            shutil.rmtree(file.parent) if not file.exists() else file.unlink()
    assert digest(tmp_path / "copy") == digest(undisturbed[0])


def damage(folder: Path) -> str:
    """The error about damaged files; empty if the campaign ended."""
    try:
        run(folder)
    except Damaged as error:
        return str(error)
    return ""


def test_labels_of_other_inputs_are_rejected(tmp_path: Path) -> None:
    """The record of the first field inputs was deleted, and other inputs have arrived."""
    with pytest.raises(LabelsMissing):
        run(tmp_path, labeller=RecordingLabeller(field(), batches=2))
    (tmp_path / "round-000" / "field.json").unlink()
    with pytest.raises(ValueError, match="-000.json in .* belongs to other inputs"):
        run(tmp_path, Samples.concat([field(100, seed=3), field()]))


def write_labels(source: str, labelled: Samples, place: Path) -> Labeller:
    """The same labels in memory, in an npz file, in a csv table, or in a folder that people label in."""
    if source == "memory":
        return labels_of(labelled)
    if source == "npz":
        np.savez(place / "labels.npz", x=labelled.x.numpy(), y=labelled.labels.numpy())
        return labels_from_npz(place / "labels.npz", classes=10)
    rows = zip(labelled.ids.tolist(), labelled.labels.tolist(), strict=True)
    (place / "labels.csv").write_text("name,label\n" + "".join(f"{name_of(i)},{y}\n" for i, y in rows))
    if source == "csv":
        return labels_from_table(place / "labels.csv", classes=10)
    return LabelFolder(folder=place, classes=10)


@pytest.mark.parametrize("source", ["memory", "npz", "csv", "folder"])
@pytest.mark.parametrize("finished", [False, True])
def test_labels_that_changed_since_they_were_bought_are_noticed(tmp_path: Path, source: str, finished: bool) -> None:
    """Also in a round that is under way; with the same labels again, the run ends as without the change."""
    folder, labelled = tmp_path / "run", field()
    named = {"classes": [f"digit {10 - c}" for c in range(10)]} if finished else {}
    if finished:
        run(folder, labeller=write_labels(source, labelled, tmp_path), **named)
    else:
        with pytest.raises(LabelsMissing):
            run(folder, labeller=RecordingLabeller(labelled, batches=3))
    ids = torch.cat([results.load(file, LabelBatch).ids for file in folder.glob("round-*/labels-*.json")])
    rows = labelled.rows_of(ids[[4, 11]])
    y = labelled.labels.clone()
    y[rows] = (y[rows] + 1) % 10
    wrong = Samples(labelled.x, y, labelled.ids)
    with pytest.raises(ValueError, match=rf"^2 of {len(ids)} labels that .*run already has are different now") as error:
        run(folder, labeller=write_labels(source, wrong, tmp_path), **named)
    title = (lambda c: f"class digit {10 - c}") if finished else (lambda c: f"class number {c}")
    examples = [
        f"{name_of(int(labelled.ids[r]))}, which was {title(labelled.labels[r])} and is {title(y[r])} now" for r in rows
    ]
    assert any(example in str(error.value) for example in examples)
    assert run(folder, labeller=write_labels(source, labelled, tmp_path), **named).labels == 150


def test_answers_of_functions_are_not_asked_for_again(tmp_path: Path) -> None:
    first, again = RecordingLabeller(field(), batches=3), RecordingLabeller(field())
    with pytest.raises(LabelsMissing):
        run(tmp_path, labeller=first)
    run(tmp_path, labeller=again)
    assert not torch.isin(torch.cat(again.asked), torch.cat(first.asked)).any()


def test_the_time_of_a_campaign_is_the_sum_of_its_sessions(tmp_path: Path) -> None:
    """Of a clock that jumps at every look; also of a session that ends with an error."""
    jumps, passed = random.Random(0), 0.0

    def clock() -> float:
        nonlocal passed
        passed += jumps.choice([0.0, 0.001, 0.25, 3.0])
        return passed

    with pytest.raises(LabelsMissing):
        run(tmp_path, labeller=RecordingLabeller(field(), batches=3), stopwatch=Stopwatch(started=0.0, clock=clock))
    between = passed = passed + 1000
    run(tmp_path, stopwatch=Stopwatch(started=between, clock=clock))
    seconds = gather(tmp_path).seconds
    assert seconds["total"] == pytest.approx(passed - 1000)
    assert sum(seconds.values()) == pytest.approx(2 * seconds["total"])
    assert {"start", "profile", "naturalness", "generate", "retrain", "assess", "observers"} <= set(seconds)


def test_other_class_names_are_rejected(tmp_path: Path) -> None:
    """People read them when they label."""
    names = [f"class {i}" for i in range(10)]
    run(tmp_path, classes=names)
    with pytest.raises(ValueError, match="contains a run with other settings: classes .'class 0' -> 'class 1'"):
        run(tmp_path, classes=[names[1], names[0], *names[2:]])


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="must be a folder, but is a file"):
        run(tmp_path / "file")
    if os.name == "posix" and os.geteuid():  # root can write everywhere
        tmp_path.chmod(0o500)
        with pytest.raises(ValueError, match="make the folder writable|cannot be created"):
            run(tmp_path / "closed")
        tmp_path.chmod(0o700)


@pytest.mark.slow
def test_two_workers_and_one_end_the_same(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    run(tmp_path, engine=pool(2))
    assert digest(tmp_path) == digest(undisturbed[0])


# Kills ----------------------------------------------------------------------------------------------------------------

# What a campaign and its report do, one after the other; a kill is sent inside each.
EARLY, LATE = ("profile", "chunk", "observers", "delivery"), ("retraining", "assessment", "report")
ONCE = ["chunk", "retraining", "assessment", "observers", "delivery", "report"]
TWICE = ["profile", "chunk", "retraining", "assessment", "observers", "retraining", "assessment", "delivery"]


def test_a_campaign_killed_in_every_phase_ends_the_same(tmp_path: Path) -> None:
    assert kill(tmp_path, [*ONCE, "end"]) == {"kills": dict.fromkeys(ONCE, 1), "campaigns": 1, "differences": []}


@pytest.mark.slow
def test_a_campaign_killed_forty_times_ends_the_same(tmp_path: Path) -> None:
    found = kill(tmp_path, [*TWICE, "report", "report", "end"] * 4)
    assert found["differences"] == []
    assert sum(found["kills"].values()) == 40
    assert sum(found["kills"][phase] for phase in LATE) == 24
    assert set(found["kills"]) == {*EARLY, *LATE}


@pytest.mark.slow
def test_a_campaign_killed_at_random_times_ends_the_same(tmp_path: Path) -> None:
    found = kill(tmp_path, [*["any"] * 10, "end"])
    assert found["differences"] == []
    assert sum(found["kills"].values()) == 10


def kill(folder: Path, phases: list[str]) -> dict[str, Any]:
    """The result of this file as a script: it imports torch once, then forks."""
    arguments = [sys.executable, __file__, str(folder), *phases]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Moments:
    """Moments at which a process can kill itself: before and after each phase, training step and change of a file.

    Attributes:
        phases: those that the process is in, the innermost last.
        counts: moments so far, by phase.
        target: phase to be killed in, and moments of it to survive; None to survive all.
        shared: the innermost phase, for the process that kills this one.
    """

    def __init__(self) -> None:
        self.phases, self.counts = ["between"], Counter[str]()
        self.target: tuple[str, int] | None = None
        self.shared = mmap.mmap(-1, 16)

    def pass_one(self) -> None:
        phase = self.phases[-1]
        self.shared[:] = phase.encode().ljust(16)
        self.counts[phase] += 1
        if self.target is not None and phase == self.target[0] and self.counts[phase] > self.target[1]:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any], phase: str = "") -> Callable[..., Any]:
        """The same function, with a moment before and one after, in a phase of its own if it is named."""

        def called(*arguments: object, **options: object) -> object:
            self.phases.append(phase or self.phases[-1])
            self.pass_one()
            result = call(*arguments, **options)
            self.pass_one()
            self.phases.pop()
            return result

        return called

    def install(self) -> None:
        for name in ("rename", "replace", "link", "unlink", "rmdir"):
            setattr(os, name, self.around(getattr(os, name)))
        os.fsync = lambda _: self.pass_one()  # written data outlive a process anyway
        for owner, name, phase in (
            (field_module.FieldState, "update", "profile"),
            (field_module, "fit_naturalness", "profile"),
            (chunked_fuzzing.ChunkedFuzzing, "__call__", "chunk"),
            (GradientMove, "__call__", "chunk"),
            (RoundState, "retrain", "retraining"),
            (training.TrainableModel, "descend", "retraining"),
            (FieldLabels, "assess", "assessment"),
            (RoundState, "predictions", "assessment"),
            (run_module, "observe_round", "observers"),
            (RunFolder, "deliver", "delivery"),
            (writing, "gather", "report"),
            (writing, "render_page", "report"),
            (writing, "save", "report"),
            (writing, "write_atomically", "report"),
        ):
            setattr(owner, name, self.around(getattr(owner, name), phase))


def attempt(moments: Moments, place: Path, target: tuple[str, int] | None, *, seconds: float = 0.0) -> str | None:
    """Resume a campaign, and write its report, in a process of its own; the phase it was killed in, None if it ended.

    Args:
        moments: that it passes.
        place: where its folder is.
        target: phase and moment at which it kills itself.
        seconds: when it is killed, if this is not 0.
    """
    if (child := os.fork()) == 0:
        moments.counts.clear()
        moments.target = target
        whole(place)
        os._exit(0)
    if seconds:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return bytes(moments.shared).decode().strip() if os.WIFSIGNALED(status) else None


def whole(place: Path) -> None:
    """A campaign and its report; the folder's name, which the report shows, is always the same."""
    place.mkdir(exist_ok=True)
    os.chdir(place)
    run(Path("run"))
    writing.write_report(Path("run"))


def kills(folder: Path, phases: list[str]) -> dict[str, object]:
    """Kill campaigns in these phases, one after the other; how their results differ from those of an undisturbed one.

    At "end" a campaign is resumed until it ends, and the next one begins.
    """
    moments, chance = Moments(), random.Random(0)
    moments.install()
    start = time.monotonic()
    whole(folder / "undisturbed")  # here, so that later ones need no imports
    lasts, counted = time.monotonic() - start, Counter(moments.counts)
    done, differences, number = Counter[str](), list[str](), 0
    while phases:
        place, phase = folder / f"campaign {number}", phases[0]
        target = (phase, chance.randrange(1 + counted[phase] // 4)) if phase not in ("any", "end") else None
        killed_in = attempt(moments, place, target, seconds=chance.uniform(0.01, lasts / 4) * (phase == "any"))
        if killed_in is None:  # it ended
            differences += differ(place, folder / "undisturbed")
            number += 1
        else:
            done[killed_in] += 1
            differences += [f"torn: {file}" for file in place.rglob("*.json") if not readable(file)]
        if killed_in is not None or phase == "end":  # otherwise it ended too early: try the next campaign
            phases = phases[1:]
    return {"kills": dict(done), "campaigns": number, "differences": differences}


REPORTS = ("report.html", "report.json", "report.md", "report.xml")
TIMES = (
    r"<dt>Time</dt><dd>[^<]*</dd>", r"Wall-clock time of all sessions[^<]*<", r'"seconds": \{[^}]*\}', r' time="[^"]*"',
    r"\nTime of all sessions: [^\n]*\n",
)  # fmt: skip


def differ(place: Path, other: Path) -> list[str]:
    """What differs between two campaigns: results, reports except for the time they took, or files left behind."""
    found = [] if digest(place / "run") == digest(other / "run") else [f"digest of {place}"]
    for name in REPORTS:
        texts = [re.sub("|".join(TIMES), "TIME", (each / "run" / name).read_text()) for each in (place, other)]
        assert "TIME" in texts[0]
        found += [f"{name} of {place}"] * (texts[0] != texts[1])
    return found + [str(file) for file in place.rglob(f"*{TEMPORARY}")]


def readable(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(kills(Path(sys.argv[1]).resolve(), sys.argv[2:])))
