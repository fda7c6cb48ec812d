"""Verdicts on the paper's claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from operant_studies.robot.mnist_networks import NetworkRobustness
from operant_studies.robot.results import MEASURES, RobotStudyResults
from operant_studies.robot.unit import FirstOrderLosses, RetrainedModel
from operant_studies.shared import NOT_DECIDED, compare, mean, table, verdict


def claims(found: Sequence[RobotStudyResults], known: Sequence[NetworkRobustness]) -> str:
    rows = [row for f in found for row in (*_fol_claims(f), *_choice_claims(f), *_race_claims(f))]
    rows += _known_claims(known)
    columns = ["claim", "data, radius", "measured", "difference", ""]
    text = f"""## What held

*Held*: the interval of the difference lies above 0; *not held*: below; *not decided*: it contains 0, or all seeds agree
exactly, as where every model scores 0. With {len(rows)} rows at 95 %, a few are significant by chance. Epochs were
chosen by static cases, also for the adaptive rows. The comparison of the two existing networks has no seeds: the middle
halves of their FOL must not overlap.

"""
    return text + table(columns, rows)


def _row(
    claim: str, f: RobotStudyResults, how: str, differences: Sequence[float], *, percent: bool = True
) -> list[str]:
    if not differences:
        return [claim, f.setting.label, how, "no cases to compare", f"**{NOT_DECIDED}**"]
    value = mean(differences)
    return [claim, f.setting.label, how, str(value) if percent else value.plain, f"**{verdict(value)}**"]


def _fol_claims(f: RobotStudyResults) -> list[list[str]]:
    claim, rows = "FOL is smaller for more robust models", []
    share = f.setting.shares[-1]
    first, last = f.of("fol-original", FirstOrderLosses), f.of(f"fol-be-st-{share}", FirstOrderLosses)
    for attack in ("fgsm", "pgd"):
        how = f"median FOL of {attack.upper()} cases, original less BE-ST {share} % (statically more robust)"
        rows.append(_row(claim, f, how, _medians(first, last, attack, attack), percent=False))
    how = "median FOL, FGSM less PGD, original model"
    differences = _medians(first, first, "fgsm", "pgd")
    return [*rows, _row("PGD cases have smaller FOL than FGSM cases", f, how, differences, percent=False)]


def _medians(first: Sequence[FirstOrderLosses], second: Sequence[FirstOrderLosses], a: str, b: str) -> list[float]:
    """Differences of medians, seed by seed; a seed without cases is left out."""
    pairs = [(getattr(x, a), getattr(y, b)) for x, y in zip(first, second, strict=True)]
    return [p.quantiles[2] - q.quantiles[2] for p, q in pairs if p.n and q.n]


def _known_claims(known: Sequence[NetworkRobustness]) -> list[list[str]]:
    """The comparison of two networks has no seeds: the middle halves of the cases must not overlap."""
    if len(known) < 2:
        return []
    by = {k.kind: k for k in known}
    rows = []
    for attack in ("fgsm", "pgd"):
        plain, robust = (getattr(by[kind], attack).quantiles for kind in ("plain", "robust"))
        word = compare(plain[1] - robust[3], plain[3] - robust[1])
        how = f"median FOL of {attack.upper()} cases, plain less adversarially trained (adaptively more robust)"
        halves = (f"{q[1]:.1f} to {q[3]:.1f}" for q in (plain, robust))
        text = f"{plain[2] - robust[2]:.2f}, middle halves {', '.join(halves)}"
        rows.append(["FOL is smaller for more robust models", "mnist, 0.3, existing weights", how, text, f"**{word}**"])
    return rows


def _choice_claims(f: RobotStudyResults) -> list[list[str]]:
    """Differences between strategies, averaged over the shares within each seed; and from the control."""
    rows = []
    for strategy in f.setting.strategies[:1] if len(f.setting.strategies) > 1 else ():
        share = f.setting.shares[-1]
        for how, measure in MEASURES.items():
            both = zip(f.judged(strategy, share), f.judged("control", 0), strict=True)
            claim = f"Retraining with cases (BE-ST, {share} %) is above clean data alone"
            rows.append(_row(claim, f, how, [measure(a) - measure(b) for a, b in both]))
    pairs = [("BE-ST", "be-st", "DeepGini", "deepgini"), ("KM-ST", "km-st", "DeepGini", "deepgini")]
    pairs += [("BE-ST", "be-st", "random choice", "random"), ("KM-ST", "km-st", "random choice", "random")]
    for first, a, second, b in pairs:
        if not {a, b} <= set(f.setting.strategies):
            continue
        for how, measure in MEASURES.items():
            differences = _averaged(f, a, b, measure)
            claim = f"{first} is above {second}" + ("" if b == "deepgini" else " (not the paper's)")
            rows.append(_row(claim, f, how, differences))
    return rows


def _averaged(f: RobotStudyResults, a: str, b: str, measure: Callable[[RetrainedModel], float]) -> list[float]:
    by_share = [
        [measure(x) - measure(y) for x, y in zip(f.judged(a, share), f.judged(b, share), strict=True)]
        for share in f.setting.shares
    ]
    return [sum(values) / len(values) for values in zip(*by_share, strict=True)]


def _race_claims(f: RobotStudyResults) -> list[list[str]]:
    rows = []
    for limit in f.setting.race[-1:]:
        ours = f.judged("fol-fuzz", limit)
        rivals = ((name, f"{name} (not the paper's)") for name in f.setting.rivals)
        for name, title in (("adapt", "ADAPT"), ("adapt-linf", "ADAPT in the same ball"), *rivals):
            for how, measure in MEASURES.items():
                differences = [measure(a) - measure(b) for a, b in zip(ours, f.judged(name, limit), strict=True)]
                rows.append(_row(f"FOL-Fuzz is above {title} at equal time ({limit:g} CPU s)", f, how, differences))
    return rows
