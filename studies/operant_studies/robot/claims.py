"""What the paper claims, and whether it held here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from operant_studies.robot.found import MEASURES, Found, label
from operant_studies.robot.known import Known
from operant_studies.robot.unit import FOLs, Judged
from operant_studies.shared import mean, table, verdict


def claims(found: Sequence[Found], known: Sequence[Known]) -> str:
    rows = [row for f in found for row in (*_fol_claims(f), *_choice_claims(f), *_race_claims(f))]
    rows += _known_claims(known)
    columns = ["claim", "data, radius", "measured", "difference", ""]
    text = f"""## What held

*Held*: the interval of the difference lies above 0; *not held*: below; *not decided*: it holds 0, or all seeds agree
to the last digit, as where every model scores 0. With {len(rows)} rows at 95 % a few would come out by chance alone.
Epochs were chosen by static cases, for the adaptive rows too. Between the two given networks there are no seeds: the
middle halves of their FOL must not overlap.

"""
    return text + table(columns, rows)


def _row(claim: str, f: Found, how: str, differences: Sequence[float], *, percent: bool = True) -> list[str]:
    if not differences:
        return [claim, label(f.setting), how, "no cases to compare", "**not decided**"]
    value = mean(differences)
    told = str(value) if percent else value.plain
    return [claim, label(f.setting), how, told, f"**{verdict(value)}**"]


def _fol_claims(f: Found) -> list[list[str]]:
    claim, rows = "FOL is smaller for more robust models", []
    first, last = f.of("fol-original", FOLs), f.of(f"fol-be-st-{f.setting.shares[-1]}", FOLs)
    for attack in ("fgsm", "pgd"):
        how = f"median FOL of {attack.upper()} cases, original less BE-ST {f.setting.shares[-1]} % (static says robust)"
        rows.append(_row(claim, f, how, _medians(first, last, attack, attack), percent=False))
    how = "median FOL, FGSM less PGD, original model"
    differences = _medians(first, first, "fgsm", "pgd")
    return [*rows, _row("PGD cases have smaller FOL than FGSM cases", f, how, differences, percent=False)]


def _medians(first: Sequence[FOLs], second: Sequence[FOLs], a: str, b: str) -> list[float]:
    """Differences of medians, seed by seed; a seed without cases is left out."""
    pairs = [(getattr(x, a), getattr(y, b)) for x, y in zip(first, second, strict=True)]
    return [p.quantiles[2] - q.quantiles[2] for p, q in pairs if p.n and q.n]


def _known_claims(known: Sequence[Known]) -> list[list[str]]:
    """Between two given networks there are no seeds: the middle halves of the cases must not overlap."""
    if len(known) < 2:
        return []
    by = {k.kind: k for k in known}
    rows = []
    for attack in ("fgsm", "pgd"):
        plain, robust = (getattr(by[kind], attack).quantiles for kind in ("plain", "robust"))
        held = "held" if robust[3] < plain[1] else "not held" if robust[1] > plain[3] else "not decided"
        how = f"median FOL of {attack.upper()} cases, plain less adversarially trained (adaptively more robust)"
        halves = (f"{q[1]:.1f} to {q[3]:.1f}" for q in (plain, robust))
        told = f"{plain[2] - robust[2]:.2f}, middle halves {', '.join(halves)}"
        rows.append(["FOL is smaller for more robust models", "mnist, 0.3, given weights", how, told, f"**{held}**"])
    return rows


def _choice_claims(f: Found) -> list[list[str]]:
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


def _averaged(f: Found, a: str, b: str, measure: Callable[[Judged], float]) -> list[float]:
    by_share = [
        [measure(x) - measure(y) for x, y in zip(f.judged(a, share), f.judged(b, share), strict=True)]
        for share in f.setting.shares
    ]
    return [sum(values) / len(values) for values in zip(*by_share, strict=True)]


def _race_claims(f: Found) -> list[list[str]]:
    rows = []
    for limit in f.setting.race[-1:]:
        ours = f.judged("fol-fuzz", limit)
        rivals = ((name, f"{name} (not the paper's)") for name in f.setting.rivals)
        for name, told in (("adapt", "ADAPT"), ("adapt-linf", "ADAPT in the same ball"), *rivals):
            for how, measure in MEASURES.items():
                differences = [measure(a) - measure(b) for a, b in zip(ours, f.judged(name, limit), strict=True)]
                rows.append(_row(f"FOL-Fuzz is above {told} at equal time ({limit:g} CPU s)", f, how, differences))
    return rows
