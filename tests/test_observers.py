"""Laws of observers: what they record of a round, their sections, and that a campaign does not depend on them."""

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from operant import Classifier, Samples, Suite, load_digits, results, spawn
from operant.campaign import OBSERVERS, Campaign, CampaignResult, ObservedRound, Round, Section
from operant.campaign.observers.base import MAX_POINTS, RESERVED
from operant.campaign.observers.defences import LEVEL, MAX_TRIED, DefenceTrial, DefenceTrials, try_defences
from operant.campaign.observers.error_sources import MAX_WRONG, ErrorSources, _summary, matrix
from operant.campaign.observers.field_description import DescriptionOfField
from operant.campaign.observers.field_map import MapOfField
from operant.campaign.observers.uncertainty import Uncertainty, UncertaintyOfFailures
from operant.campaign.records import describe_campaign
from operant.conditions import Recipe, uniform
from operant.data import labels_of
from operant.defend.evaluate import interval
from operant.execution.run_folder import RunFolder
from operant.generate import GradientMove
from operant.measure import mc_dropout, pattern, prediction_confidence, variation_ratio_original
from operant.model.hashing import fingerprint
from operant.networks import fit, initialise
from operant.profile import FieldDescription, FittedConditions, Parameter
from operant.report import Evidence, gather, load_evidence, write_report
from operant.report.markdown import markdown, plain
from operant.report.page import render_page
from operant.retrain import OperationalFinetune
from report_folder import (
    CLASSES,
    HOSTILE,
    REQUIREMENT,
    SETTINGS,
    SHAPE,
    Page,
    campaign_folder,
    classifier,
    drift,
    dropout_classifier,
    failures,
    inputs,
    observe,
    observed,
    profile,
    section_of,
)

MEASURED = UncertaintyOfFailures().most


# Error sources


def test_confusion_counts_the_predictions_of_both_models():
    labelled, clean = inputs(30, SHAPE, "labelled"), inputs(40, SHAPE, "clean")
    old, new = classifier(), classifier(seed=1)
    found = ErrorSources().observe(observed(old, new, labelled, clean=clean))
    right = [int(counts.diagonal().sum()) for counts in (found.before, found.after, found.clean)]
    pairs = ((old, labelled), (new, labelled), (new, clean))
    assert right == [int((model.predict(some.x) == some.labels).sum()) for model, some in pairs]
    assert found.fixed - found.broken == right[1] - right[0]
    assert torch.equal(found.before.sum(1).long(), torch.bincount(labelled.labels))
    assert (int(found.cell_labels.sum()), int(found.cell_failures.sum())) == (30, 30 - right[1])
    assert float(found.cell_mass.sum()) == pytest.approx(1)
    assert len(found.cell_mass) == len(found.cell_labels) == len(found.cell_failures) == 5
    assert ErrorSources().observe(observed(old, new, labelled[:0], clean=clean)) is None


def test_misclassified_field_inputs_are_listed_by_name_and_class(tmp_path):
    old, new = classifier(), classifier(seed=1)
    labelled = inputs(120, SHAPE, "labelled")
    labelled = replace(labelled, names=tuple(f"night/{i:03d}.png" for i in range(120)))
    predicted = new.predict(labelled.x)
    wrong = [i for i in range(120) if predicted[i] != labelled.labels[i]]
    found = ErrorSources().observe(observed(old, new, labelled, number=0))
    assert [(w.name, w.label, w.prediction) for w in found.wrong] == [
        (f"night/{i:03d}.png", int(labelled.labels[i]), int(predicted[i])) for i in wrong
    ]
    place, names = campaign_folder(tmp_path, observers=()), ("cat", "dog", "frog", HOSTILE)
    (place / "round-001" / "round.json").unlink()  # only round 0 is finished, and its model is the present one
    with RunFolder(place, signature=SETTINGS) as run:
        observe(run, observed(old, new, labelled, number=0), [ErrorSources()])
    evidence = gather(place)
    evidence = replace(evidence, sections=(ErrorSources().section({0: found}, rounds=evidence.rounds, classes=names),))
    page, text = Page(render_page(evidence)), markdown(evidence)
    assert len(wrong) > MAX_WRONG
    for i in wrong[:MAX_WRONG]:
        name, true, taken = f"night/{i:03d}.png", names[int(labelled.labels[i])], names[int(predicted[i])]
        assert plain(f"{name}: {true} taken for {taken}") in text
        assert name in page.text
    assert f"And {len(wrong) - MAX_WRONG} more." in page.text
    assert f"and {len(wrong) - MAX_WRONG} more" in text
    assert f"night/{wrong[MAX_WRONG]:03d}.png" not in page.text + text


def test_failures_in_further_classes_are_counted():
    rows = [{"name": str(c), "failures": 7 - c, "labels": 10} for c in range(8)]
    assert "; 3 more in 2 other classes." in _summary(rows, [0])
    assert "; 1 more in 1 other class." in _summary(rows[:4] + rows[5:], [0])
    assert "more" not in _summary(rows[:5], [0])


def test_many_classes_get_the_pairs_that_are_most_confused():
    counts = torch.tensor([[50 if t == p else int(t == 7 and p == 9) * 4 for p in range(30)] for t in range(30)])
    shown = matrix(counts, (), "clean")
    assert (shown["rows"], shown["pairs"]) == ([], [["7", "9", 4]])
    assert (shown["right"], shown["total"]) == (1500, 1504)
    small = matrix(torch.tensor([[3, 1], [0, 4]]), ("cat",), "clean")
    assert [[share for _, share in row] for row in small["rows"]] == [[0.75, 0.25], [0.0, 1.0]]
    assert small["names"] == ["cat", "1"]


# Uncertainty


def test_uncertainty_is_measured_on_evenly_spaced_failures_and_repeats_exactly():
    model, failing = dropout_classifier(), failures(2 * MEASURED - 1)
    seen = observed(model, model, inputs(1, SHAPE, "labelled"), failing=failing)
    found, again = (UncertaintyOfFailures().observe(seen) for _ in range(2))
    assert (found.failures, len(found.pcs), len(found.vro), found.reason) == (2 * MEASURED - 1, MEASURED, MEASURED, "")
    assert torch.equal(found.vro, again.vro)
    some = failing.x[::2]
    assert torch.allclose(found.pcs, prediction_confidence(model.probs(some)))
    other = mc_dropout(model, some, passes=400, generator=spawn(4)).probs
    assert float((found.vro - variation_ratio_original(other, model.predict(some))).abs().mean()) < 0.1
    assert UncertaintyOfFailures().observe(observed(model, model, inputs(1, SHAPE, "labelled"))) is None


def test_failures_that_a_later_round_finds_again_are_measured_once():
    model, labelled = dropout_classifier(), inputs(1, SHAPE, "labelled")
    some = failures(30)
    parts = {1: some[:20], 2: some[10:], 3: some}
    records = {
        n: UncertaintyOfFailures().observe(observed(model, model, labelled, failing=s)) for n, s in parts.items()
    }
    values = UncertaintyOfFailures().section(records, rounds=(), classes=()).values
    assert (values["failures"], values["measured"], sum(values["patterns"].values())) == (30, 30, 30)
    every = UncertaintyOfFailures().section({3: records[3]}, rounds=(), classes=()).values
    assert values["confident"] == every["confident"]


def test_without_dropout_only_confidence_is_known(tmp_path):
    seen = observed(classifier(), classifier(), inputs(20, SHAPE, "labelled"), failing=failures(30))
    found = UncertaintyOfFailures().observe(seen)
    assert (len(found.pcs), len(found.vro)) == (30, 0)
    place = campaign_folder(tmp_path, observers=())
    with RunFolder(place, signature=SETTINGS) as run:
        observe(run, seen, [UncertaintyOfFailures()])
    evidence = gather(place)
    section, page = section_of(evidence, "uncertainty"), Page(render_page(evidence))
    confident, unconfident = int((found.pcs > 0.7).sum()), int((found.pcs < 0.3).sum())
    assert section.values["patterns"] == {}
    assert (section.values["confident"], section.values["unconfident"]) == (confident, unconfident)
    assert "VRO is not known" in page.text
    assert "without any dropout" in page.text
    assert f"In {confident} of 30 failures the model was confident" in page.text
    assert f"In {confident} of 30 failures the model was confident" in markdown(evidence)


def test_patterns_are_counted_over_all_rounds(tmp_path):
    place = campaign_folder(tmp_path / "run")
    first = results.load(place / "round-001" / "uncertainty.json", Uncertainty)
    second = Uncertainty(failures=4, pcs=torch.tensor([0.9, 0.1]), vro=torch.tensor([0.1, 0.9]), passes=50, reason="")
    with RunFolder(place, signature=SETTINGS) as run:
        run.step("round-002/uncertainty", Uncertainty, lambda: second)
    section = section_of(gather(place), "uncertainty")
    which = pattern(first.pcs, first.vro).tolist()
    expected = {name: which.count(name) + (name in ("HL", "LH")) for name in ("HL", "LH", "LL", "HH", "")}
    assert (section.values["failures"], section.values["measured"]) == (24, 22)
    assert section.values["patterns"] == expected
    assert len(section.values["points"]) == 22
    assert f"In {expected['HL']} of 22 failures" in Page(render_page(gather(place))).text


# Map of the field, and what is known before a campaign begins


def test_the_map_has_positions_of_the_newest_profile_only():
    model, some = classifier(), inputs(1, SHAPE, "labelled")
    see = MapOfField().observe
    first = see(observed(model, model, some, number=0, new_profile=True))
    assert first.new_profile
    assert torch.equal(first.field, profile().codes[:, :2].double())
    assert (tuple(first.train.shape), len(first.failures)) == ((60, 2), 0)
    assert see(observed(model, model, some, number=1)) is None
    found = see(observed(model, model, some, number=2, failing=failures(8)))
    assert (found.new_profile, len(found.field), len(found.train), len(found.failures)) == (False, 0, 0, 8)
    newest = see(observed(model, model, some, number=3, failing=failures(3), new_profile=True))
    section = partial(MapOfField().section, rounds=(), classes=())
    assert len(section({0: first, 2: found}).values["failures"]) == 8
    assert len(section({0: first, 2: found, 3: newest}).values["failures"]) == 3
    assert section({2: found}) is None


def test_a_large_map_is_thinned_evenly():
    model, some = classifier(), inputs(1, SHAPE, "labelled")
    seen = replace(observed(model, model, some, new_profile=True), train=inputs(900, SHAPE, "train"))
    found = MapOfField().observe(seen)
    assert tuple(found.train.shape) == (MAX_POINTS, 2)
    many = replace(found, failures=torch.rand(2 * MAX_POINTS, 2, generator=spawn(0)))
    assert len(MapOfField().section({0: many}, rounds=(), classes=()).values["failures"]) == MAX_POINTS


def test_the_description_of_a_campaign_counts_classes_and_names_versions():
    train, clean = inputs(900, SHAPE, "train"), inputs(40, SHAPE, "clean")
    info = describe_campaign(REQUIREMENT, classifier(), train, clean)
    assert (info.classes, info.train, info.clean) == (("0", "1", "2", "3"), (225,) * 4, 40)
    assert info.versions["torch"] == torch.__version__
    with pytest.raises(ValueError, match="a name for each of the model's 4 classes, got 2"):
        describe_campaign(REQUIREMENT, classifier(), train, clean, names=("cat", "dog"))


# Defences


def quarters(n: int, name: str) -> Samples:
    """Noisy images whose class is their bright quarter."""
    label = torch.arange(n) % CLASSES
    x = 0.2 * torch.rand((n, 1, 8, 8), generator=spawn(0, "blurred", name))
    for row, quarter in enumerate(label.tolist()):
        x[row, 0, 4 * (quarter // 2) : 4 * (quarter // 2) + 4, 4 * (quarter % 2) : 4 * (quarter % 2) + 4] += 0.6
    return Samples(x, label)


class BrightestQuarter(nn.Module):
    """Predicts the brightest quarter; a single bright pixel in a corner makes it predict class 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = nn.functional.avg_pool2d(x, 4).flatten(1)
        fooled = (x[:, :, :1, :1].flatten(1) > 0.97) * torch.tensor([9.0, 0.0, 0.0, 0.0])
        return 10 * (means + fooled)


def pixel_failures(n: int) -> Suite:
    """Failures caused by that pixel, two per seed."""
    seeds = quarters(n, "fooled")
    seeds = seeds[seeds.labels > 0]
    rows = torch.arange(len(seeds)).repeat_interleave(2)
    x = seeds.x[rows].clone()
    x[:, :, :1, :1] = 0.98
    zeros = torch.zeros(len(rows)).long()
    return Suite.of(x, seeds=seeds, origin=rows, prediction=zeros, method="pixel")


def test_defences_are_set_up_and_tried_on_different_clean_inputs():
    model, clean, failing = Classifier(BrightestQuarter()), quarters(2 * MAX_TRIED, "clean"), pixel_failures(60)
    assert bool((model.predict(failing.x) != failing.label).all())
    found, again = (try_defences(model, failing, clean, generator=spawn(0)) for _ in range(2))
    assert found == again
    assert (found.failures, found.level, found.reason) == (len(failing), LEVEL, "")
    trials = {trial.name: trial for trial in found.tried}
    assert {"feature squeezing", "fewer colours", "JPEG compression", "median filter"} <= set(trials)
    filtered = trials["median filter"]
    assert filtered.stopped == filtered.failures == len(failing)  # no median leaves a single pixel
    parts = clean.split(fitting=0.5, trying=0.5)
    for trial in found.tried:
        assert trial.clean == len(parts["trying"])
        assert trial.wrong <= 3 * LEVEL * trial.clean
        assert trial.trials == pytest.approx(trial.failures / 2)  # two failures per seed
    learned = trials["network on logits"]
    assert 0 < learned.failures < len(failing)  # it learned from the other half


def test_defences_need_images_and_clean_inputs():
    flat = Classifier(nn.Linear(6, CLASSES), bounds=(-math.inf, math.inf))
    rows = Samples(torch.randn(60, 6, generator=spawn(1)), torch.arange(60) % CLASSES)
    suite = Suite.of(rows.x, seeds=rows, origin=torch.arange(60), prediction=(rows.labels + 1) % 4, method="any")
    found = try_defences(flat, suite, rows, generator=spawn(0))
    assert (found.tried, found.failures) == ((), 60)
    assert "for images" in found.reason
    few = try_defences(Classifier(BrightestQuarter()), pixel_failures(8), quarters(20, "few"), generator=spawn(0))
    assert few.tried == ()
    assert "At least 40 correctly classified clean inputs are needed" in few.reason


def trial(name: str, stopped: int, wrong: int) -> DefenceTrial:
    return DefenceTrial(name=name, stopped=stopped, failures=100, trials=50.0, wrong=wrong, clean=200)


def with_defences(path: Path, *rounds: DefenceTrials) -> Evidence:
    place = campaign_folder(path, observers=())
    with RunFolder(place, signature=SETTINGS) as run:
        for number, record in enumerate(rounds, 1):
            run.step(f"round-{number:03d}/defences", DefenceTrials, lambda record=record: record)
    return gather(place)


def test_a_defence_is_recommended_if_it_stops_most_failures_of_all_rounds(tmp_path):
    first = DefenceTrials(failures=300, tried=(trial("JPEG", 20, 4), trial("median", 90, 9)), level=0.05, reason="")
    second = DefenceTrials(failures=100, tried=(trial("median", 80, 7),), level=0.05, reason="")
    evidence = with_defences(tmp_path, first, second)
    section = section_of(evidence, "defences")
    tried = section.values["tried"]
    assert [row["name"] for row in tried] == ["median", "JPEG"]
    best = tried[0]
    assert section.values["failures"] == 400
    assert [best[name] for name in ("stopped", "failures", "wrong", "clean")] == [170, 200, 16, 400]
    both = 1 - 0.05 / 2  # two defences were tried
    assert (best["lower"], best["upper"]) == interval(170, 200, both, trials=100)
    assert best["most_wrong"] == interval(16, 400, both, trials=200)[1]  # the same clean inputs in both rounds
    assert section.summary.startswith("Recommended: median before the model")
    page = Page(render_page(evidence))
    for words in (section.summary.split(",")[0], "170 of 200", "20 of 100", "5 %"):
        assert words in page.text.replace("\u00a0", " ")
    assert "Recommended: median" in markdown(evidence)


def test_without_a_good_defence_retraining_is_recommended(tmp_path):
    tried = (trial("JPEG", 20, 4), trial("median", 90, 80))  # the better one gets clean inputs wrong
    evidence = with_defences(tmp_path / "a", DefenceTrials(failures=100, tried=tried, level=0.05, reason=""))
    summary = section_of(evidence, "defences").summary
    assert summary.startswith("Recommended: retrain, and do not rely on a defence.")
    none = with_defences(tmp_path / "b", DefenceTrials(failures=9, tried=(), level=0.05, reason="They are for images"))
    assert section_of(none, "defences").summary == "No defence was tried: they are for images."
    assert "they are for images" in Page(render_page(none)).text


# Observers of users, in a campaign that takes about a second


@dataclass(frozen=True, kw_only=True)
class BrightnessRecord:
    """The mean of a round's labelled field inputs, and of its operational failures."""

    labelled: float
    failures: float | None


@dataclass(frozen=True)
class Brightness:
    """A user's observer."""

    name: ClassVar[str] = "brightness"
    record: ClassVar[type] = BrightnessRecord
    template: ClassVar[str] = (
        "<p>{{ summary }}</p><ol>{% for row in rows %}<li>round {{ row.round }}: {{ row.labelled | percent }}</li>"
        "{% endfor %}</ol><p>{% for name in names %}<b>{{ name }}</b>{% endfor %}</p>"
        '<figure>{{ count_bars(counts, 2, "Rounds by class", {}) }}</figure>'
    )

    def observe(self, seen: ObservedRound) -> BrightnessRecord | None:
        if len(seen.labelled) == 0:
            return None
        failing = None if seen.failures is None else float(seen.failures.x.mean())
        return BrightnessRecord(labelled=float(seen.labelled.x.mean()), failures=failing)

    def section(
        self, records: Mapping[int, BrightnessRecord], *, rounds: Sequence[Round], classes: Sequence[str]
    ) -> Section | None:
        rows = [{"round": number, "labelled": record.labelled} for number, record in sorted(records.items())]
        values = {"rows": rows, "names": list(classes), "counts": dict.fromkeys(classes, 1)}
        summary = f"Brightness was recorded in {len(records)} of {len(rounds)} rounds, of <{classes[0]}> and others."
        return Section(name=self.name, title="How bright inputs are", summary=summary, values=values)


digits = cache(load_digits)
WITH_BRIGHTNESS = (*OBSERVERS, Brightness())
TINY = Campaign(
    requirement=0.001,
    moves={"small": partial(GradientMove, radius=0.5, steps=2)},
    rounds=1,
    labels=60,
    max_drop=0.1,
    seeds_per_round=20,
    cases_per_round=10,
    label_batch=10,
    chunk=10,
    dimensions=4,
    judge_draws=0,
    retrainer=OperationalFinetune(epochs=1, steps=10, progress=False),
)


@cache
def model() -> Classifier:
    start = initialise(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)),
        generator=spawn(0, "weights"),
    )
    return Classifier(fit(start, digits().train[:300], epochs=6, generator=spawn(0, "fit"), progress=False).module)


@cache
def field() -> Samples:
    """Digits with noise."""
    g, source = spawn(0, "field"), digits().test
    rows = torch.randint(len(source), (600,), generator=g)
    x = source.x[rows] + 0.1 * torch.rand((600, *source.x.shape[1:]), generator=g)
    return Samples(x.clamp(0, 1), source.labels[rows])


def run(folder: Path, *, classes: Sequence[str] = (), **changes: Any) -> CampaignResult:
    return replace(TINY, **changes)(
        model(),
        train=digits().train[:300],
        clean=digits().train[300:450],
        field=Samples(field().x, ids=field().ids),
        labeller=labels_of(field()),
        folder=folder,
        classes=classes,
    )


def records(folder: Path, observers: Sequence[Any]) -> dict[str, str]:
    """Records of observers that are on disk, as text."""
    files = [file for observer in observers for file in sorted(folder.glob(f"round-*/{observer.name}.json"))]
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def results_of(folder: Path) -> dict[str, str]:
    """Fingerprints of everything in a folder but the records of observers, times, locks and reports."""
    own = "|".join(observer.name for observer in WITH_BRIGHTNESS)
    skipped = re.compile(rf"\.?({own})\.json.*|timing\.jsonl|report\..*|\.?lock.*")
    files = (file for file in folder.rglob("*") if file.is_file() and not skipped.fullmatch(file.name))
    return {str(file.relative_to(folder)): fingerprint(file) for file in files}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a campaign with a user's observer, and class names with markup."""
    folder = tmp_path_factory.mktemp("own") / "run"
    names = (HOSTILE.replace("\x01", ""), *"bcdefghij")
    run(folder, observers=WITH_BRIGHTNESS, classes=names)
    return folder


def test_the_field_is_described_when_its_profile_is_new(own):
    found = {path.parent.name: path for path in sorted(own.glob("round-*/field_description.json"))}
    assert list(found) == ["round-000"]
    described = results.load(found["round-000"], FieldDescription)
    assert described.inputs == gather(own).rounds[0].arrived == 600
    assert described.notes[0] == "Conditions were not estimated."
    assert described.priors is not None
    page = Page(write_report(own).read_text(encoding="utf-8"))
    assert "What the field looks like" in page.text
    assert "Class shares without labels" in page.text
    assert described.overview in page.text


def test_estimated_conditions_are_part_of_the_description_of_the_first_field_only():
    recipe = Recipe(severities={"blur": uniform(0, 1)})
    width = Parameter(condition="blur", name="high", value=1.0, lower=0.8, upper=1.2, limits=(0.0, 3.0))
    values = {"before": 3.0, "after": 1.0, "floor": 0.8, "floor_high": 1.0, "priors": (), "confidence": 0.95}
    conditions = FittedConditions(recipe=recipe, parameters=(width,), **values, findings=())
    labelled, observer = inputs(30, SHAPE, "labelled"), DescriptionOfField()
    later = Round(number=2, arrived=80, clean=0.9, drift=drift())
    for number, new in ((0, True), (0, False), (2, True)):
        seen = observed(classifier(), classifier(), labelled, number=number, new_profile=new)
        seen = replace(seen, conditions=conditions, record=later if number else seen.record)
        found = observer.observe(seen)
        if not new:
            assert found is None
            continue
        assert (found.conditions == conditions) == (number == 0)
        assert (found.drift == later.drift) == bool(number)
        section = observer.section({0: found, number: found}, rounds=(), classes=("a", "b", "c", "d"))
        assert section.name == "field_description"
        assert "80 field inputs" in section.summary
        assert ("blur" in section.summary) == (number == 0)
        assert ("since round 2" in section.values["comparison"]) == bool(number)
    assert observer.section({}, rounds=(), classes=()) is None


def test_an_observer_of_a_user_gets_its_section_in_every_form(own, tmp_path):
    rounds = gather(own).rounds
    assert len(records(own, [Brightness()])) == sum(done.assessment is not None for done in rounds)
    found = results.load(own / "round-001" / "brightness.json", BrightnessRecord)
    assert 0 < found.labelled < 1
    assert (found.failures is None) == (rounds[1].operational == 0)
    path = write_report(own, tmp_path / "out", observers=WITH_BRIGHTNESS)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.sections.index("brightness") == page.sections.index("retraining") - 1
    assert {"href": "#brightness"} in page.all("a")
    summary = f"Brightness was recorded in {len(rounds)} of {len(rounds)} rounds"
    for words in ("How bright inputs are", summary, "round 1: ", "Rounds by class"):
        assert words in page.text
    (section,) = [s for s in load_evidence(path.with_suffix(".json")).sections if s.name == "brightness"]
    assert section.values["rows"][1] == {"round": 1, "labelled": found.labelled}
    written = json.loads(path.with_suffix(".json").read_text())["value"]["sections"][-1]
    assert written["title"] == "How bright inputs are"
    assert summary in path.with_suffix(".md").read_text()


def test_without_the_observer_a_report_leaves_its_section_out(own, tmp_path):
    evidence = load_evidence(write_report(own, tmp_path / "all", observers=WITH_BRIGHTNESS).with_suffix(".json"))
    assert "brightness" not in Page(render_page(evidence)).sections  # no template for it
    assert "brightness" not in [section.name for section in gather(own).sections]
    assert gather(own, observers=()).sections == ()


def test_templates_of_sections_escape_class_names(own, tmp_path):
    path = write_report(own, tmp_path / "out", observers=WITH_BRIGHTNESS)
    page = Page(path.read_text(encoding="utf-8"))
    assert [attributes for attributes in page.all("script") if "src" in attributes] == []
    assert len(page.all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count("<img src=x onerror=alert(1)>") >= 4  # summary, list and chart of the section, confusion
    shown = path.with_suffix(".md").read_text()
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", shown)


def test_observers_can_be_switched_off_and_on_between_runs(own, tmp_path):
    names = (HOSTILE.replace("\x01", ""), *"bcdefghij")
    folder = tmp_path / "run"
    without = run(folder, observers=(), classes=names)
    assert records(folder, WITH_BRIGHTNESS) == {}
    assert gather(folder).sections == ()
    again = run(folder, observers=WITH_BRIGHTNESS, classes=names)  # resumed: finished rounds are observed now
    assert again.rounds == without.rounds
    assert records(folder, WITH_BRIGHTNESS) == records(own, WITH_BRIGHTNESS)
    assert results_of(folder) == results_of(own)
    run(folder, observers=(), classes=names)
    assert records(folder, WITH_BRIGHTNESS) == records(own, WITH_BRIGHTNESS)  # kept, but no longer needed


def test_a_longer_campaign_is_the_same_with_and_without_observers(own, tmp_path):
    names = (HOSTILE.replace("\x01", ""), *"bcdefghij")
    budget = {"rounds": 2, "labels": 90, "classes": names}
    partly, none = shutil.copytree(own, tmp_path / "partly"), tmp_path / "none"
    run(none, observers=(), rounds=1, labels=60, classes=names)
    a, b = run(partly, observers=(Brightness(),), **budget), run(none, observers=(), **budget)
    assert a.rounds == b.rounds
    assert len(a.rounds) == 3
    assert results_of(partly) == results_of(none)


@pytest.mark.parametrize(
    "name", ["round", "labels-000", "cases", "drift", "defences", "", "../up", "field", "count", "A"]
)
def test_names_of_observers_must_be_free(name):
    class Renamed(Brightness):
        pass

    Renamed.name = name
    with pytest.raises(ValueError, match="each observer needs its own name"):
        replace(TINY, observers=(*OBSERVERS, Renamed()))


def test_names_of_round_files_and_page_parts_are_reserved(own):
    observers = {observer.name for observer in WITH_BRIGHTNESS}
    files = {re.split(r"[.-]", file.name)[0] for file in own.glob("round-*/[!.]*")}
    assert files - observers <= RESERVED
    ids = {attributes["id"] for _, attributes in Page(render_page(gather(own))).tags if "id" in attributes}
    assert {name for name in ids if not name.startswith("h-")} - observers <= RESERVED


class Failing(Brightness):
    """A user's observer with a mistake."""

    def observe(self, seen: Any) -> Any:
        raise RuntimeError("a mistake")


def test_an_observer_that_fails_does_not_stop_the_campaign(own, tmp_path):
    with pytest.warns(UserWarning, match=r"the observer brightness failed in round-00\d \(RuntimeError: a mistake\)"):
        done = run(tmp_path / "run", observers=(Failing(),))
    assert done.rounds == run(tmp_path / "other", observers=()).rounds
