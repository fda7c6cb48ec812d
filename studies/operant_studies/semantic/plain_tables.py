"""A model without an injected fault: valid tests, distances, Table 3; and sources."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from operant_studies.semantic import paper
from operant_studies.semantic.injected import ANCHORED, FEATURES, PIXELS, SEARCHES
from operant_studies.semantic.instruments import RatedSource
from operant_studies.semantic.outcome import (
    SemanticOutcome,
    accuracies,
    beyond,
    found,
    found_by_either,
    mean_of,
    pooled,
    shares,
)
from operant_studies.semantic.transfer import HUNTS, WIDE, TransferCounts
from operant_studies.shared import mean, table

EITHER = "both anchored searches, two tests per seed"
TITLES = {
    FEATURES: "FeatureFuzz",
    ANCHORED: "FeatureFuzz, anchored",
    PIXELS: "PGD",
    WIDE: "FeatureFuzz, anchored, one layer more",
}


def moved(plain: SemanticOutcome, attacked: str, search: str) -> list[TransferCounts]:
    return [t.moved[attacked][search] for t in plain.transferred]


def hits(plain: SemanticOutcome) -> list[tuple[str, list[Tensor], list[Tensor]]]:
    """By feature search, which seeds have a failing test, and which a valid one."""
    shots = {name: [h.shots[name] for h in plain.hunted] for name in HUNTS}
    rows = [
        (TITLES[name], found(shots[name], valid=False), found(shots[name], valid=True))
        for name in HUNTS
        if name != PIXELS
    ]
    either = [found_by_either(shots[ANCHORED], shots[WIDE], valid=valid) for valid in (False, True)]
    return [*rows, (EITHER, either[0], either[1])]


def seeds_found(plain: SemanticOutcome) -> str:
    s = plain.setting
    rows = [[title, mean_of(shares(some)), mean_of(shares(valid)), pooled(valid)] for title, some, valid in hits(plain)]
    text = f"""## Seeds with a valid test

LeNet-5 on {s.title}: {s.hunted} fresh seeds of all classes in each of {len(s.seeds)} repetitions, untargeted tests,
margin {s.confidence:g}, with a fixed budget and fixed steps (see the end of the page). A
test counts if it was written, read again, and still fails by the margin. In percent of the seeds; the models' accuracy
on test images is {mean(h.accuracy for h in plain.hunted).share} %.

"""
    return text + table(["search", "failing", "failing and valid", "failing and valid, all seeds as one"], rows)


def parts_of_validity(plain: SemanticOutcome) -> str:
    """Which part of validity rejects the tests of each search."""
    rows = []
    for search in HUNTS:
        each = plain.passed(search)
        rows.append([TITLES[search], *(mean_of([p[part] for p in each]) for part in each[0])])
    text = """Failing tests that pass each part of validity, in percent. Naturalness was fitted on the source's images,
and may reject PGD's noise where other classifiers still see the label. Where naturalness alone leaves PGD without valid
tests, people might still recognise them.

"""
    return text + table(["search", "judges see the label", "its class explains it best", "natural", "valid"], rows)


def distances(plain: SemanticOutcome) -> str:
    s = plain.setting
    pixels = beyond([h.shots[PIXELS] for h in plain.hunted], "l2", s.bounds[1], valid=False)
    text = f"""## Fig. 2: distances in pixels

Distances of failing tests from their seeds, and the usual bounds: {s.bounds[0]:g} in L-infinity and
{s.bounds[1]:g} in L2. In the paper, with ImageNet and bounds of 16/255 and 3, tests from 1000 seeds all lie beyond. PGD
stays within the first bound, yet {mean_of(shares(pixels))} % of its failing tests lie beyond the second.

![Distances from seed to test](semantic-distances.svg)

"""
    rows = []
    for search in HUNTS:
        shots = [h.shots[search] for h in plain.hunted]
        cells = [
            mean_of(shares(beyond(shots, norm, bound, valid=valid)))
            for norm, bound in (("linf", s.bounds[0]), ("l2", s.bounds[1]))
            for valid in (False, True)
        ]
        rows.append([TITLES[search], *cells])
    columns = ["search", "beyond in L-infinity, all, %", "valid, %", "beyond in L2, all, %", "valid, %"]
    return text + table(columns, rows)


def table_3(plain: SemanticOutcome) -> str:
    rows: list[list[object]] = []
    first = plain.transferred[0]
    for attacked in first.moved:
        for search in SEARCHES:
            each = moved(plain, attacked, search)
            failing, valid = sum(m.failing for m in each), sum(m.valid for m in each)
            cells = [
                cell
                for robust in first.robust
                for cell in (
                    mean_of(accuracies(each, robust, valid=False)),
                    mean_of(accuracies(each, robust, valid=True)),
                    mean_of([m.right_seeds[robust] / m.failing if m.failing else None for m in each]),
                )
            ]
            rows.append([attacked, TITLES[search], sum(m.seeds for m in each), failing, valid, *cells])
    columns = ["model under test", "search", "seeds", "failing", "valid"]
    for robust in first.robust:
        columns += [f"{robust}: all, %", "valid, %", "their seeds, %"]
    known_numbers = "; ".join(f"{a} to {b}, {x} and {y}" for (a, b), (x, y) in paper.TABLE_3.items())
    text = f"""## Table 3: transfer to adversarially trained models

Accuracy of adversarially trained models on tests that plain models fail by the margin, with the same seeds and targets
for every search. High accuracy means that adversarial training fixes the failures. A test that no longer shows its
label lowers it too, so only valid tests are informative.

The paper, in percent, for pixels and for features: {known_numbers}.

"""
    facts = [
        [robust, *(mean_of([getattr(t.robust[robust], what) for t in plain.transferred]) for what in ("clean", "pgd"))]
        for robust in first.robust
    ]
    text += table(columns, rows) + f"\nHow robust these models are (PGD of radius {plain.setting.radius:g}):\n\n"
    return text + table(["model", "accuracy, %", "under PGD, %"], facts)


# Sources


def sources(outcomes: Sequence[SemanticOutcome], natural: Sequence[RatedSource]) -> str:
    text = """## Sources

Trained and rated sources; tests use the first kind that passes. Consistency is the share of images in which an
independent classifier sees the requested class, shown with its accuracy on real images; distance is Fréchet's in its
features, relative to their variance; variety is the variance within classes, relative to real images.

"""
    rows = [_source(o.setting.title, rated) for o in outcomes for rated in o.rated]
    rows += [_source("CIFAR-10", rated) for rated in natural]
    columns = ["data", "kind", "consistency, %", "judge, %", "distance", "variety", "CPU s", "passes"]
    return text + table(columns, rows) + _cifar(natural)


def _cifar(natural: Sequence[RatedSource]) -> str:
    if not natural:
        return "\nCIFAR-10 was not tried: its images or the judge's weights are not in the data folder.\n"
    passed = ", ".join(r.kind for r in natural if r.passed)
    why = "; ".join(f"{r.kind}: {', '.join(r.quality.problems)}" for r in natural if not r.passed)
    result = f"passes with {passed}" if passed else "no source of a few minutes passes"
    return f"\nCIFAR-10: {result} ({why}).\n" if why else f"\nCIFAR-10: {result}.\n"


def _source(title: str, r: RatedSource) -> list[object]:
    q = r.quality
    cells = [f"{100 * q.consistency:.1f}", f"{100 * q.accuracy:.1f}", f"{q.distance:.2f}", f"{q.variety:.2f}"]
    return [title, r.kind, *cells, f"{r.seconds:.0f}", "yes" if r.passed else "no"]


def seconds(
    outcomes: Sequence[SemanticOutcome], plain: SemanticOutcome | None, natural: Sequence[RatedSource]
) -> float:
    """CPU time of sources, models and tests, without judges."""
    total = sum(r.seconds for r in natural)
    for o in (*outcomes, *([plain] if plain else [])):
        total += sum(r.seconds for r in o.rated)
        total += sum(t.seconds for each in o.tried.values() for t in each)
    if plain:
        total += sum(h.seconds for h in plain.hunted) + sum(t.seconds for t in plain.transferred)
    return total
