"""A model without a fault on purpose: valid tests, distances, Table 3; and sources."""

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
    pooled,
    shares,
    told,
)
from operant_studies.semantic.transfer import HUNTS, WIDE, TransferCounts
from operant_studies.shared import mean, table

EITHER = "both anchored searches, two tests a seed"
TITLES = {
    FEATURES: "FeatureFuzz",
    ANCHORED: "FeatureFuzz, anchored",
    PIXELS: "PGD",
    WIDE: "FeatureFuzz, anchored, one layer more",
}


def moved(plain: SemanticOutcome, attacked: str, search: str) -> list[TransferCounts]:
    return [t.moved[attacked][search] for t in plain.transferred]


def hits(plain: SemanticOutcome) -> list[tuple[str, list[Tensor], list[Tensor]]]:
    """By search of features, which seeds have a failing test, and which a valid one."""
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
    rows = [[title, told(shares(some)), told(shares(valid)), pooled(valid)] for title, some, valid in hits(plain)]
    text = f"""## Seeds with a valid test

LeNet-5 on {s.title}: {s.hunted} fresh seeds of all classes in each of {len(s.seeds)} repetitions, untargeted tests,
margin {s.confidence:g}, with a budget and steps that are fixed beforehand (see the end of the page). A
test counts if it was written, read again, and still fails by the margin. In percent of the seeds; the models' accuracy
on test images is {mean(h.accuracy for h in plain.hunted).share} %.

"""
    return text + table(["search", "failing", "failing and valid", "failing and valid, all seeds as one"], rows)


def parts_of_validity(plain: SemanticOutcome) -> str:
    """Who refuses the tests of each search."""
    rows = []
    for search in HUNTS:
        each = plain.passed(search)
        rows.append([TITLES[search], *(told([p[part] for p in each]) for part in each[0])])
    text = """Which part of validity lets failing tests pass, in percent. Naturalness was learned from the source's own
images, and may refuse PGD's noise where other classifiers still see the label. Where it alone leaves PGD without valid
tests, this says little of whether people would know what they show.

"""
    return text + table(["search", "judges see the label", "its class explains it best", "natural", "valid"], rows)


def distances(plain: SemanticOutcome) -> str:
    s = plain.setting
    pixels = beyond([h.shots[PIXELS] for h in plain.hunted], "l2", s.bounds[1], valid=False)
    text = f"""## Fig. 2: distances in pixels

How far failing tests lie from their seeds, beside bounds that are usual: {s.bounds[0]:g} in L-infinity and
{s.bounds[1]:g} in L2. In the paper, with ImageNet and bounds of 16/255 and 3, tests from 1000 seeds all lie beyond. PGD
must keep to the first bound, yet {told(shares(pixels))} % of its failing tests lie beyond the second.

![Distances from seed to test](semantic-distances.svg)

"""
    rows = []
    for search in HUNTS:
        shots = [h.shots[search] for h in plain.hunted]
        cells = [
            told(shares(beyond(shots, norm, bound, valid=valid)))
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
                    told(accuracies(each, robust, valid=False)),
                    told(accuracies(each, robust, valid=True)),
                    told([m.right_seeds[robust] / m.failing if m.failing else None for m in each]),
                )
            ]
            rows.append([attacked, TITLES[search], sum(m.seeds for m in each), failing, valid, *cells])
    columns = ["model under test", "search", "seeds", "failing", "valid"]
    for robust in first.robust:
        columns += [f"{robust}: all, %", "valid, %", "their seeds, %"]
    known_numbers = "; ".join(f"{a} to {b}, {x} and {y}" for (a, b), (x, y) in paper.TABLE_3.items())
    text = f"""## Table 3: transfer to adversarially trained models

Accuracy of adversarially trained models on tests that plain models fail by the margin, with the same seeds and targets
for every search. High accuracy: what was found is mended by adversarial training. A test that no longer shows its label
lowers it too, so that only valid tests say something.

The paper, in percent, for pixels and for features: {known_numbers}.

"""
    facts = [
        [robust, *(told([getattr(t.robust[robust], what) for t in plain.transferred]) for what in ("clean", "pgd"))]
        for robust in first.robust
    ]
    text += table(columns, rows) + f"\nHow robust these models are (PGD of radius {plain.setting.radius:g}):\n\n"
    return text + table(["model", "accuracy, %", "under PGD, %"], facts)


# Sources


def sources(outcomes: Sequence[SemanticOutcome], natural: Sequence[RatedSource]) -> str:
    text = """## Sources

Sources that were trained and rated; the first kind that passes is tested with. Consistency is the share of images in
which a classifier that had no part in it sees the class that was asked for, beside its accuracy on real ones; distance
is Fréchet's in its features, by their variance; variety is the variance within classes, by that of real images.

"""
    rows = [_source(o.setting.title, rated) for o in outcomes for rated in o.rated]
    rows += [_source("CIFAR-10", rated) for rated in natural]
    columns = ["data", "kind", "consistency, %", "judge, %", "distance", "variety", "CPU s", "passes"]
    told_ = "\nCIFAR-10 was not tried: its images or the judge's weights are not in the data folder.\n"
    if natural:
        passed = [r.kind for r in natural if r.passed]
        why = "; ".join(f"{r.kind}: {', '.join(r.quality.problems)}" for r in natural if not r.passed)
        told_ = f"\nCIFAR-10: {'passes with ' + ', '.join(passed) if passed else 'no source of a few minutes passes'}"
        told_ += f" ({why}).\n" if why else ".\n"
    return text + table(columns, rows) + told_


def _source(title: str, r: RatedSource) -> list[object]:
    q = r.quality
    cells = [f"{100 * q.consistency:.1f}", f"{100 * q.accuracy:.1f}", f"{q.distance:.2f}", f"{q.variety:.2f}"]
    return [title, r.kind, *cells, f"{r.seconds:.0f}", "yes" if r.passed else "no"]


def seconds(
    outcomes: Sequence[SemanticOutcome], plain: SemanticOutcome | None, natural: Sequence[RatedSource]
) -> float:
    """CPU time of sources, models and tests; without that of judges."""
    total = sum(r.seconds for r in natural)
    for o in (*outcomes, *([plain] if plain else [])):
        total += sum(r.seconds for r in o.rated)
        total += sum(t.seconds for each in o.tried.values() for t in each)
    if plain:
        total += sum(h.seconds for h in plain.hunted) + sum(t.seconds for t in plain.transferred)
    return total
