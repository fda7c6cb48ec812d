"""A campaign's folder without a campaign, and a parser for its page; shared by the tests of reports and observers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from operant import Classifier, Samples, Suite, spawn
from operant.campaign import OBSERVERS, Decision, ObservedRound, Observer, Round, Section, SequentialAssessment
from operant.campaign.field import FieldState
from operant.campaign.records import CampaignInfo, FieldIds, Requirement, describe_campaign
from operant.execution.round_state import LabelBatch
from operant.execution.run_folder import RunFolder
from operant.measure import with_dropout
from operant.model.doctor import Finding
from operant.networks import fit_pca, save_weights
from operant.profile import Drift, Profile, fit_profile
from operant.report import Evidence
from operant.retrain import FinetuneEpoch, FinetuneRecord

HOSTILE = """</style></script><script src='//a.org/x.js'>alert("1")</script><img src=x onerror=alert(1)>|`&lt;\x01"""
SETTINGS = {
    "requirement": "0.05", "confidence": "0.95", "max_drop": "0.01", "level": "0.05", "mass_quantile": "0.1",
    "feedback": "True", "seed": "0", "model": "aa", "train": "bb", "clean": "cc",
}  # fmt: skip
REQUIREMENT = Requirement(pmi=0.05, confidence=0.95, max_drop=0.01, level=0.05, mass_quantile=0.1)
FINDING = Finding(name="zero gradients", problem="some vanish", advice="look", severity="warning")
VOID = {"meta", "img", "link", "br", "input", "line", "circle", "path", "polyline", "rect"}
CLASSES = 4
SHAPE = (1, 8, 8)


# Parts of a campaign


def inputs(n: int, shape: tuple[int, ...], name: str) -> Samples:
    g = spawn(0, name, n)
    return Samples(torch.rand((n, *shape), generator=g), torch.arange(n) % CLASSES)


@cache
def profile(shape: tuple[int, ...] = SHAPE) -> Profile:
    return fit_profile(inputs(80, shape, "field"), encoder=partial(fit_pca, dimensions=3), generator=spawn(0))


def classifier(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Classifier:
    torch.random.manual_seed(seed)
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), CLASSES)))


def dropout_classifier(shape: tuple[int, ...] = SHAPE) -> Classifier:
    """The same model with dropout, which makes all four patterns of uncertainty likely."""
    return with_dropout(classifier(shape), before=["1"], rate=0.5)


def failures(n: int, shape: tuple[int, ...] = SHAPE, *, move: str = "gradient", wrong: bool = True) -> Suite:
    """Cases; the first half is operational, if they fail."""
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


def retraining(best: int = 1) -> FinetuneRecord:
    epochs = [FinetuneEpoch(epoch=i, loss=0.5, accuracy=0.9, monitor=0.2 / i, kept=True, why="") for i in (1, 2)]
    return FinetuneRecord(
        best_epoch=best, reason="epoch 1 was best", n_train=80, n_cases=5, accuracy_before=0.9, history=tuple(epochs),
        monitor_before=0.3, train_rows=80, case_rows=20, effective_cases=5.0, stopped_early=False,
    )  # fmt: skip


def drift(*findings: Finding) -> Drift:
    """Drift with p = 0.003 at level 0.025."""
    shares = (1 / CLASSES,) * CLASSES
    return Drift(
        level=0.025, sizes=(80, 60), compared=(80, 60), outputs=0.001, inputs=0.2, within=None, shares=0.3,
        discrepancy=0.01, reference_shares=shares, current_shares=shares, distances=(0.1, 0.2, 0.3, 0.4),
        detectable=0.3, findings=findings,
    )  # fmt: skip


def observed(
    before: Classifier,
    after: Classifier,
    labelled: Samples,
    *,
    number: int = 1,
    failing: Suite | None = None,
    clean: Samples | None = None,
    new_profile: bool = False,
) -> ObservedRound:
    """A round as observers see it, in a field of five cells."""
    shape = tuple(labelled.x.shape[1:])
    field = SimpleNamespace(
        profile=profile(shape),
        centres=profile(shape).codes[:5].double(),
        profile_is_new=new_profile,
        inputs=inputs(80, shape, "field"),
    )
    field.cells = partial(FieldState.cells, field)
    return ObservedRound(
        record=Round(number=number, arrived=80, clean=0.9),
        before=before,
        after=after,
        labelled=labelled,
        train=inputs(60, shape, "train"),
        clean=inputs(40, shape, "clean") if clean is None else clean,
        field=field,
        spawn=partial(spawn, 0, f"round-{number:03d}"),
        load_failures=lambda: failing,
    )


# The folder


def begin(run: RunFolder, shape: tuple[int, ...], upper: float, names: Sequence[str]) -> None:
    train, clean = inputs(60, shape, "train"), inputs(40, shape, "clean")
    info = describe_campaign(REQUIREMENT, classifier(shape), train, clean, names=names)
    run.step("info", CampaignInfo, lambda: replace(info, findings=(FINDING,)))
    run.step("round-000/field", FieldIds, lambda: FieldIds(ids=torch.arange(80)))
    run.cached("round-000/profile.json", lambda: profile(shape), save=Profile.save, load=Path)
    run.step(
        "round-000/labels-000", LabelBatch, lambda: LabelBatch(ids=torch.arange(20), labels=torch.arange(20) % CLASSES)
    )
    first = Round(number=0, arrived=80, clean=0.9, assessment=assessed(upper))
    run.step("round-000/round", Round, lambda: first)


def add_round(run: RunFolder, found: Suite, upper: float, drifted: Drift | None) -> None:
    """Round 1, which changes the model."""
    model = classifier(tuple(found.rows.shape))
    run.suite("round-001/suite/chunk-0000", lambda: found)
    run.suite("round-001/cases", lambda: found[: min(5, len(found))])
    run.cached("round-001/weights.safetensors", lambda: model.unwrap(), save=save_weights, load=Path)
    run.step(
        "round-001/labels-000", LabelBatch, lambda: LabelBatch(ids=torch.arange(20, 40), labels=torch.arange(20) % 3)
    )
    decision = Decision(
        what="class", names=("0", "1", "2", "3"), before=(0.25,) * 4, after=(0.15, 0.2, 0.4, 0.25), why="3 of 20 fail"
    )
    second = Round(
        number=1, arrived=80, drift=drifted, decisions=(decision,), attempted=12, found=len(found),
        operational=len(found) // 2, chosen=5, cases=5, retraining=retraining(), clean=0.895,
        assessment=assessed(upper, 1),
    )  # fmt: skip
    run.step("round-001/round", Round, lambda: second)


def add_unchanged_round(place: Path, *, failing: int = 4, best: int = 0, bought: int = 5) -> Path:
    """Round 2, which by default leaves the model unchanged and buys more labels for it."""
    with RunFolder(place, signature=SETTINGS) as run:
        labelled, model = inputs(bought, SHAPE, "more"), classifier(SHAPE, 1)
        batch = LabelBatch(ids=torch.arange(40, 40 + bought), labels=labelled.labels)
        together = replace(assessed(0.1, failing), labels=20 + bought, before=20)
        done = Round(
            number=2, arrived=80, attempted=12, found=9, operational=8, chosen=7, cases=12, retraining=retraining(best),
            clean=0.895, assessment=together,
        )  # fmt: skip
        run.suite("round-002/suite/chunk-0000", lambda: failures(16))
        run.suite("round-002/cases", lambda: failures(16)[:7])
        run.step("round-002/labels-000", LabelBatch, lambda: batch)
        run.step("round-002/round", Round, lambda: done)
        observe(run, observed(model, model, labelled, number=2))
    return place


def observe(run: RunFolder, seen: ObservedRound, observers: Sequence[Observer] = OBSERVERS) -> None:
    for observer in observers:
        if (value := observer.observe(seen)) is not None:
            name = f"round-{seen.record.number:03d}/{observer.name}"
            run.step(name, observer.record, lambda value=value: value)


def campaign_folder(
    path: Path,
    *,
    shape: tuple[int, ...] = SHAPE,
    n: int = 40,
    upper: float = 0.12,
    names: tuple[str, ...] = (),
    found: Suite | None = None,
    observers: Sequence[Observer] = OBSERVERS,
    drifted: Drift | None = None,
) -> Path:
    """The folder of a campaign with two rounds."""
    found = failures(n, shape) if found is None else found
    old, new, labelled = dropout_classifier(shape), classifier(shape, 1), inputs(20, shape, "labelled")
    with RunFolder(path, signature=SETTINGS) as run:
        begin(run, shape, 0.2, names)
        observe(run, observed(old, old, labelled, number=0, new_profile=True), observers)
        add_round(run, found, upper, drifted)
        failing = found.failures()
        if len(failing):
            failing = failing.operational(REQUIREMENT.level, REQUIREMENT.mass_quantile)
        observe(run, observed(old, new, labelled, failing=failing if len(failing) else None), observers)
    return path


def section_of(evidence: Evidence, name: str) -> Section:
    return next(section for section in evidence.sections if section.name == name)


class Page(HTMLParser):
    """A parsed page: its tags with their attributes, its text, and a check that tags are closed in order."""

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

    @property
    def sections(self) -> list[str | None]:
        return [section["id"] for section in self.all("section")]
