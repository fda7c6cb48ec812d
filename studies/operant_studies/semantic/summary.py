"""The study in a few lines, generated from its numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from operant_studies.semantic import paper
from operant_studies.semantic.claims import (
    OURS,
    distance_findings,
    fault_findings,
    seed_findings,
    sound_reach_least,
    transfer_findings,
)
from operant_studies.semantic.injected import FEATURES, PIXELS, SOUND
from operant_studies.semantic.outcome import ClaimResult, SemanticOutcome, accuracies, counts, present, revealing
from operant_studies.semantic.plain_tables import moved
from operant_studies.semantic.tables import fault_name
from operant_studies.shared import mean


def summary(outcomes: Sequence[SemanticOutcome], plain: SemanticOutcome | None) -> str:
    lines = [*(_of_faults(outcomes) if outcomes else ()), *(_of_plain(plain) if plain is not None else ())]
    wrap = textwrap.TextWrapper(width=120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "## In short\n\n" + "".join(f"{wrap.fill(line)}\n" for line in lines)


def _of_faults(outcomes: Sequence[SemanticOutcome]) -> Iterator[str]:
    each = {fault_name(o.setting, flaw): tried for o in outcomes for flaw, tried in o.tried.items()}
    plain, anchored = ({name: fault_findings(t, search) for name, t in each.items()} for search in OURS)
    ours, sound = (
        _range([revealing(counts(t, arm), valid=True) for t in each.values()]) for arm in (FEATURES, SOUND + FEATURES)
    )
    yield (
        f"**Injected faults.** Of valid tests, {ours} % reveal the fault; with a sound model, {sound} % seem to. "
        f"More than with the sound model: {_tally({name: f.over_sound for name, f in plain.items()})}; "
        f"anchored, {_tally({name: f.over_sound for name, f in anchored.items()})}."
    )
    none = sum(not present(revealing(counts(t, PIXELS), valid=True)) for t in each.values())
    yield (
        f"**Against PGD.** A greater share of all failing tests reveals the fault: "
        f"{_tally({name: f.over_pixels for name, f in plain.items()})}; "
        f"anchored, {_tally({name: f.over_pixels for name, f in anchored.items()})}. "
        f"By valid tests there is nothing to compare for {none} of {len(each)} faults: "
        "PGD has none, because validity requires images like the source's."
    )
    yield (
        f"**At least {100 * paper.LEAST:.0f} % reveal the fault, the paper's lowest:** "
        f"{_tally({name: f.least for name, f in plain.items()})}; "
        f"anchored, {_tally({name: f.least for name, f in anchored.items()})}. "
        f"But sound models, without the fault, exceed it for {sound_reach_least(outcomes)} of {len(each)}."
    )


def _of_plain(plain: SemanticOutcome) -> Iterator[str]:
    found = "; ".join(
        f"{title}, {over.text} % over repetitions, **{over.verdict}** ({everything} % with all seeds as one)"
        for title, over, everything in seed_findings(plain)[-2:]
    )
    yield f"**Valid tests for at least {100 * paper.VALID_SEEDS:.0f} % of seeds:** {found}."
    far = "; ".join(f"{bound}, {every.text} %, **{every.verdict}**" for bound, every, _ in distance_findings(plain))
    yield f"**All tests lie beyond the usual bounds on pixels:** {far}."
    pairs = [(attacked, robust) for attacked in plain.transferred[0].moved for robust in plain.transferred[0].robust]
    pixels = _range([accuracies(moved(plain, a, PIXELS), r, valid=False) for a, r in pairs])
    ours = _range([accuracies(moved(plain, a, search), r, valid=True) for a, r in pairs for search in OURS])
    low, high = (end(features for _, features in paper.TABLE_3.values()) for end in (min, max))
    valid = [finding for *_, finding in transfer_findings(plain)]
    n = sum(finding.verdict == "held" for finding in valid)
    yield (
        f"**Transfer.** Adversarially trained models get {ours} % of valid feature tests right, in the paper {low} to "
        f"{high} % of all; and {pixels} % of PGD's. That they do worse on valid feature tests than on PGD's "
        f"held in {n} of {len(valid)} comparisons."
    )


def _tally(findings: dict[str, ClaimResult]) -> str:
    """
    >>> _tally({"a": ClaimResult(verdict="held", text="1"), "b": ClaimResult(verdict="not decided", text="0")})
    'held for 1 of 2, not decided for b'
    """
    n = sum(finding.verdict == "held" for finding in findings.values())
    text = f"held for {n} of {len(findings)}"
    for verdict in ("not held", "not decided"):
        if names := [name for name, finding in findings.items() if finding.verdict == verdict]:
            text += f", {verdict} for {' and '.join(names)}"
    return text


def _range(each: Sequence[Sequence[float | None]]) -> str:
    """The range of means, in percent."""
    means = sorted(mean(present(values)).value for values in each if present(values))
    ends = dict.fromkeys(f"{100 * value:.1f}" for value in (*means[:1], *means[-1:]))
    return " to ".join(ends) or "no"
