"""The page of the study of seeds: claims with verdicts, tables, pictures, and a file of all numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from operant.results import write_atomically
from operant_studies.seeds import tables
from operant_studies.seeds.claims import claims
from operant_studies.seeds.outcome import ArmResult, MapResult, SeedsOutcome
from operant_studies.seeds.pictures import draw_designs, draw_weightings
from operant_studies.seeds.settings import SETUPS, SeedsSetting
from operant_studies.shared import write_sections


def write_page(out: Path, setting: SeedsSetting, *, scale: str) -> Path:
    """Write ``seeds.md`` with its pictures, and ``seeds.json`` with every arm's numbers, into ``out``."""
    outcomes = [SeedsOutcome(setting, name, kind, out / "steps") for name in SETUPS for kind in setting.networks]
    draw_designs(outcomes, out / "seeds-designs.svg")
    draw_weightings(outcomes, out / "seeds-weightings.svg")
    sections = [
        _intro(setting, scale),
        claims(outcomes),
        tables.possible(outcomes),
        tables.default(outcomes),
        tables.weightings(outcomes),
        tables.risk_maps(outcomes),
        tables.rankings(outcomes),
        tables.designs(outcomes),
        tables.method(outcomes),
    ]
    _write_numbers(outcomes, out)
    return write_sections(out / "seeds.md", sections)


def _intro(setting: SeedsSetting, scale: str) -> str:
    return f"""# Seeds: does the profile matter?

Step 2 draws seeds where use and weakness meet: by the profile's mass and by an estimate of risk. This page measures
what that finds, with scores of the model's outputs and with the [risk map](../how-to/risk.md) of operational cases, and
its effect on the estimate of the probability of misclassification (*pmi*), by `operant study seeds --scale {scale}`.
Every design draws n = {setting.draws} inputs and is repeated {setting.repetitions} times; intervals are 95 %, over
these repetitions. *Failing mass found* is the profile's mass of the distinct failing inputs drawn.

![Failing mass found and RMSE of the estimate, by design](seeds-designs.svg)
"""


def _write_numbers(outcomes: Sequence[SeedsOutcome], out: Path) -> None:
    numbers = {
        f"{o.name}-{o.kind}": {
            "facts": asdict(o.facts),
            "risk maps": [_map_numbers(one) for one in o.maps],
            "arms": [_numbers(t) for t in o.tried.values()],
            "best, fresh": _numbers(o.best),
            "weightings": [{"truth": w.truth, "ways": [asdict(way) for way in w.ways]} for w in o.weighed],
        }
        for o in outcomes
    }
    write_atomically(out / "seeds.json", json.dumps(numbers, indent=1).encode() + b"\n")


def _map_numbers(one: MapResult) -> dict[str, object]:
    names = ("failing", "distance", "learned", "findings")
    numbers: dict[str, object] = {"seed": one.seed, **{name: getattr(one.rated, name) for name in names}}
    known = {"conditions": one.conditions.active, "unexplained": one.conditions.unexplained, "pmi": one.expected}
    return numbers | known | {"found / simple": one.arm.gain.value}


def _numbers(t: ArmResult) -> dict[str, object]:
    numbers: dict[str, object] = {**asdict(t.arm), "failures": float(t.failures.mean())}
    values = {"found": t.mass, "found / simple": t.gain}
    if t.estimates:
        values |= {"rmse": t.rmse, "rmse / simple": t.loss}
    return numbers | {name: [v.value, v.lower, v.upper] for name, v in values.items()}
