"""A model without a fault on purpose: claims, valid tests, distances, Table 3; and sources."""

from __future__ import annotations

from collections.abc import Sequence

from operant.studies._work import mean, table
from operant.studies.semantic import paper
from operant.studies.semantic.injected import ANCHORED, FEATURES, PIXELS, SEARCHES
from operant.studies.semantic.instruments import Rated
from operant.studies.semantic.outcome import (
    Outcome,
    accuracies,
    all_of,
    beyond,
    difference,
    found,
    found_by_either,
    judged,
    told,
)
from operant.studies.semantic.transfer import HUNTS, WIDE, Moved

TITLES = {
    FEATURES: "FeatureFuzz",
    ANCHORED: "FeatureFuzz, anchored",
    PIXELS: "PGD",
    WIDE: "FeatureFuzz, anchored, one layer more",
}


def plain_claims(plain: Outcome | None) -> list[list[str]]:
    """Rows of the table of claims."""
    if plain is None:
        return []
    s, rows = plain.setting, []
    goal: list[float | None] = [paper.VALID_SEEDS] * len(s.seeds)
    shares: list[float | None]
    for title, _, valids in _found(plain):
        shares = list(valids)
        claim = f"Valid tests for at least {100 * paper.VALID_SEEDS:.0f} % of seeds, LeNet-5 (not the paper's)"
        rows.append(
            [
                claim,
                f"{title}: {told(shares)} % of seeds, less that",
                judged(difference(shares, goal), tests=s.hunted * len(s.seeds)),
            ]
        )
    for norm, bound, name in (("linf", s.bounds[0], "L-infinity"), ("l2", s.bounds[1], "L2")):
        for valid, which in ((False, "all"), (True, "valid")):
            shares = beyond([h.shots[FEATURES] for h in plain.hunted], norm, bound, valid=valid)
            claim = f"All tests lie beyond the usual bound on pixels, {bound:g} in {name} (Fig. 2)"
            rows.append([claim, f"share of {which} tests of {TITLES[FEATURES]} that do", all_of(shares)])
    for attacked in plain.transferred[0].moved:
        for robust in plain.transferred[0].robust:
            for valid, which in ((False, "all"), (True, "valid")):
                pixels, ours = (
                    accuracies(_moved(plain, attacked, search), robust, valid=valid and search != PIXELS)
                    for search in (PIXELS, FEATURES)
                )
                claim = "Robust models do worse on feature tests than on tests by PGD (Table 3)"
                how = f"{attacked}, shown to {robust}: accuracy on all tests of PGD, less that on {which} feature tests"
                rows.append([claim, how, judged(difference(pixels, ours))])
    return rows


def _moved(plain: Outcome, attacked: str, search: str) -> list[Moved]:
    return [t.moved[attacked][search] for t in plain.transferred]


def _found(plain: Outcome) -> list[tuple[str, list[float], list[float]]]:
    """By search of features, the share of seeds with a failing test, and with a valid one."""
    shots = {name: [h.shots[name] for h in plain.hunted] for name in HUNTS}
    rows = [
        (TITLES[name], found(shots[name], valid=False), found(shots[name], valid=True))
        for name in HUNTS
        if name != PIXELS
    ]
    either = [found_by_either(shots[ANCHORED], shots[WIDE], valid=valid) for valid in (False, True)]
    return [*rows, ("both anchored searches, two tests a seed", either[0], either[1])]


def seeds_found(plain: Outcome) -> str:
    s = plain.setting
    rows = [[title, told(list(some)), told(list(valid))] for title, some, valid in _found(plain)]
    text = f"""## Seeds with a valid test

LeNet-5 on {s.title}: {s.hunted} fresh seeds of all classes in each of {len(s.seeds)} repetitions, untargeted tests,
margin {s.confidence:g}, with a budget and steps that are fixed beforehand (see the end of the page). A
test counts if it was written, read again, and still fails by the margin. In percent of the seeds; the models' accuracy
on test images is {mean(h.accuracy for h in plain.hunted).share} %.

"""
    return text + table(["search", "failing", "failing and valid"], rows)


def distances(plain: Outcome) -> str:
    s = plain.setting
    text = f"""## Fig. 2: distances in pixels

How far failing tests lie from their seeds, beside bounds that are usual: {s.bounds[0]:g} in L-infinity and
{s.bounds[1]:g} in L2. In the paper, all of its tests lie beyond.

![Distances from seed to test](semantic-distances.svg)

"""
    rows = []
    for search in HUNTS:
        shots = [h.shots[search] for h in plain.hunted]
        cells = [
            told(beyond(shots, norm, bound, valid=valid))
            for norm, bound in (("linf", s.bounds[0]), ("l2", s.bounds[1]))
            for valid in (False, True)
        ]
        rows.append([TITLES[search], *cells])
    columns = ["search", "beyond in L-infinity, all, %", "valid, %", "beyond in L2, all, %", "valid, %"]
    return text + table(columns, rows)


def table_3(plain: Outcome) -> str:
    rows: list[list[object]] = []
    first = plain.transferred[0]
    for attacked in first.moved:
        for search in SEARCHES:
            each = _moved(plain, attacked, search)
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
        [robust, *(mean(getattr(t.robust[robust], what) for t in plain.transferred).share for what in ("clean", "pgd"))]
        for robust in first.robust
    ]
    text += table(columns, rows) + f"\nHow robust these models are (PGD of radius {plain.setting.radius:g}):\n\n"
    return text + table(["model", "accuracy, %", "under PGD, %"], facts)


# Sources


def sources(outcomes: Sequence[Outcome], natural: Sequence[Rated]) -> str:
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


def _source(title: str, r: Rated) -> list[object]:
    q = r.quality
    cells = [f"{100 * q.consistency:.1f}", f"{100 * q.accuracy:.1f}", f"{q.distance:.2f}", f"{q.variety:.2f}"]
    return [title, r.kind, *cells, f"{r.seconds:.0f}", "yes" if r.passed else "no"]


def seconds(outcomes: Sequence[Outcome], plain: Outcome | None, natural: Sequence[Rated]) -> float:
    """CPU time of sources, models and tests; without that of judges."""
    total = sum(r.seconds for r in natural)
    for o in (*outcomes, *([plain] if plain else [])):
        total += sum(r.seconds for r in o.rated)
        total += sum(t.seconds for each in o.tried.values() for t in each)
    if plain:
        total += sum(h.seconds for h in plain.hunted) + sum(t.seconds for t in plain.transferred)
    return total
