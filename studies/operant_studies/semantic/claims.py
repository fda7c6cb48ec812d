"""What held: the paper's claims, and those of this project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from operant_studies.semantic import paper
from operant_studies.semantic.injected import ANCHORED, FEATURES, PIXELS, SOUND, FaultResult
from operant_studies.semantic.outcome import (
    ClaimResult,
    SemanticOutcome,
    accuracies,
    all_of,
    at_least,
    beyond,
    counts,
    exceeds,
    of_seeds,
    pooled,
    present,
    revealing,
    shares,
)
from operant_studies.semantic.plain_tables import TITLES, hits, moved
from operant_studies.semantic.tables import fault_name, summed
from operant_studies.shared import table

OURS = (FEATURES, ANCHORED)


def claims(outcomes: Sequence[SemanticOutcome], plain: SemanticOutcome | None) -> str:
    """The section, with one table per kind of claim."""
    text = """## What held

*Held*: the 95 % t-interval over repetitions lies above 0, or above the required share; *not held*: below; *not
decided*: the interval contains it, or there is nothing to compare. If all repetitions agree, 1 / √tests replaces half
the interval; for transfer, which has none, nothing is then decided. Differences are in percentage points, and intervals
end at the limits of shares and differences. Repetitions share the source and the judges, so the intervals do not
include their variation. With so many rows at 95 %, a few come out by chance alone.
"""
    if outcomes:
        text += _of_faults(outcomes)
    if plain is not None:
        text += _of_seeds(plain) + _of_distances(plain) + _of_transfer(plain)
    return text


# Injected faults


@dataclass(frozen=True, kw_only=True)
class FaultFindings:
    """What one search shows about one fault."""

    over_sound: ClaimResult  # share of valid tests that reveal it, against that of a model without the fault
    over_pixels: ClaimResult  # share of failing tests that reveal it, valid or not, against PGD's
    over_pixels_valid: ClaimResult  # share of seeds with a valid test that reveals it, against PGD's
    least: ClaimResult  # share of valid tests that reveal it, against the paper's lowest share


def fault_findings(each: Sequence[FaultResult], search: str) -> FaultFindings:
    """The verdicts on one fault; if all repetitions agree, the number of tests gives the interval."""
    ours, pixels, sound = (counts(each, arm) for arm in (search, PIXELS, SOUND + search))
    valid, n, chance, other = revealing(ours, valid=True), summed(ours), summed(sound), summed(pixels)
    failing = min(n.failing, other.failing)
    return FaultFindings(
        over_sound=exceeds(valid, revealing(sound, valid=True), tests=min(n.valid_failing, chance.valid_failing)),
        over_pixels=exceeds(revealing(ours, valid=False), revealing(pixels, valid=False), tests=failing),
        over_pixels_valid=exceeds(of_seeds(ours), of_seeds(pixels), tests=n.seeds),
        least=at_least(valid, paper.LEAST, tests=n.valid_failing),
    )


def sound_reach_least(outcomes: Sequence[SemanticOutcome]) -> int:
    """Number of faults for which the sound model exceeds the paper's lowest share on average."""
    each = [present(revealing(counts(t, SOUND + FEATURES), valid=True)) for o in outcomes for t in o.tried.values()]
    return sum(bool(left) and sum(left) / len(left) > paper.LEAST for left in each)


def _of_faults(outcomes: Sequence[SemanticOutcome]) -> str:
    least = f"{100 * paper.LEAST:.0f} %"
    rows = []
    for o in outcomes:
        for flaw, each in o.tried.items():
            there = sum(t.faulty.confirmed for t in each)
            doubt = "" if there == len(each) else f" (confirmed in {there} of {len(each)})"
            for search in OURS:
                f = fault_findings(each, search)
                name = fault_name(o.setting, flaw) + doubt if search == OURS[0] else ""
                rows.append([name, TITLES[search], f.over_sound, f.over_pixels, f.over_pixels_valid, f.least])
    text = f"""
### Injected faults

How much the share of tests that reveal the fault exceeds another share. *Than sound*: share of valid tests, against
that of a model without the fault; uncertain where that model has few valid tests (see the counts below). *Than PGD,
all*: share of failing tests, against PGD's. *Than PGD, valid*: share of seeds with a valid test that reveals the fault;
where PGD has no valid test (see Table 2), because naturalness rejects its noise, this only says so. The last column is
the share of valid tests itself, against the paper's lowest, {least}; a sound model gives more than {least} for
{sound_reach_least(outcomes)} of {len(rows) // len(OURS)} faults, and there this column proves little.

"""
    return text + table(
        ["fault", "search", "than sound", "than PGD, all", "than PGD, valid", f"at least {least}"], rows
    )


# The model without an injected fault


def seed_findings(plain: SemanticOutcome) -> list[tuple[str, ClaimResult, str]]:
    """By search: whether enough seeds have a valid test, and how many do."""
    n = plain.setting.hunted * len(plain.setting.seeds)
    return [
        (title, at_least(shares(valid), paper.VALID_SEEDS, tests=n), pooled(valid)) for title, _, valid in hits(plain)
    ]


def _of_seeds(plain: SemanticOutcome) -> str:
    text = f"""
### Valid tests for at least {100 * paper.VALID_SEEDS:.0f} % of seeds

LeNet-5 without an injected fault; a goal of this project, not of the paper. Two intervals answer two questions. Over
repetitions (Student's t): what would another model, trained in the same way, give? All seeds as one (Clopper and
Pearson): what would more seeds give with these models? The verdict uses the first. The two anchored searches are
counted together, with two tests per seed; this and their settings were chosen after trials.

"""
    return text + table(["search", "over repetitions, %", "all seeds as one, %"], seed_findings(plain))


def distance_findings(plain: SemanticOutcome) -> list[tuple[str, ClaimResult, ClaimResult]]:
    """By bound: whether all tests, and all valid ones, lie beyond it."""
    s, shots = plain.setting, [h.shots[FEATURES] for h in plain.hunted]
    bounds = (("linf", s.bounds[0], "L-infinity"), ("l2", s.bounds[1], "L2"))
    return [
        (f"{bound:g} in {name}", *(all_of(beyond(shots, norm, bound, valid=valid)) for valid in (False, True)))  # type: ignore[misc]
        for norm, bound, name in bounds
    ]


def _of_distances(plain: SemanticOutcome) -> str:
    text = f"""
### All tests lie beyond the usual bounds on pixels (Fig. 2)

Failing tests of {TITLES[FEATURES]}, with Clopper and Pearson's interval; one test within the bound is enough for *not
held*.

"""
    return text + table(["bound", "all tests, %", "valid tests, %"], distance_findings(plain))


def transfer_findings(plain: SemanticOutcome) -> list[tuple[str, str, str, ClaimResult, ClaimResult]]:
    """By model under test, robust model and search: verdicts for all tests, and for valid ones."""
    rows = []
    first = plain.transferred[0]
    for attacked in first.moved:
        for robust in first.robust:
            pixels = accuracies(moved(plain, attacked, PIXELS), robust, valid=False)
            for search in OURS:
                each = moved(plain, attacked, search)
                every, valid = (exceeds(pixels, accuracies(each, robust, valid=valid)) for valid in (False, True))
                rows.append((attacked, robust, TITLES[search], every, valid))
    return rows


def _of_transfer(plain: SemanticOutcome) -> str:
    text = """
### Robust models do worse on feature tests than on PGD's (Table 3)

Their accuracy on all tests of PGD minus that on feature tests, all or valid.

"""
    columns = ["model under test", "robust model", "search", "all tests", "valid tests"]
    return text + table(columns, transfer_findings(plain))
