"""The campaign as it was before there was a race: it learns from generated failures, and assesses with its labels."""

from __future__ import annotations

from pathlib import Path

from operant.campaign import Campaign
from operant.data import labels_of
from operant.generate import default_moves, default_radii
from operant.model import Classifier
from operant.networks import load_weights
from operant.profile import FittedConditions
from operant_studies.field.fields import FieldInputs
from operant_studies.field.settings import FieldCase
from operant_studies.operational.variants import UNREACHABLE
from operant_studies.repair.settings import RepairSetting

ROUNDS = 4


def campaign_points(
    setting: RepairSetting,
    case: FieldCase,
    inputs: FieldInputs,
    model: Classifier,
    conditions: FittedConditions,
    out: Path,
) -> list[tuple[int, Classifier]]:
    """Labels bought and the model after each round of a campaign with default options."""
    train, folder = inputs.fresh[: setting.train], out / "campaigns" / f"{case.name}-{inputs.seed}"
    recipe = conditions.recipe if conditions.active else None
    labels = max(setting.budgets)
    campaign = Campaign(
        requirement=UNREACHABLE,
        moves=default_moves(train, recipe=recipe, radii=[] if recipe else default_radii(train)),
        rounds=ROUNDS,
        labels=labels,
        label_batch=max(10, labels // (ROUNDS + 1)),
        max_drop=setting.max_drop,
    )
    done = campaign(
        model,
        train=train,
        clean=inputs.labelled,
        field=inputs.seen.with_labels(None),
        labeller=labels_of(inputs.seen),
        folder=folder,
        seed=inputs.seed,
        conditions=conditions,
        recipe=recipe,
    )
    points, bought = [], 0
    for each in done.rounds:
        if each.changed:
            weights = folder / f"round-{each.number:03d}" / "weights.safetensors"
            model = model.rewrap(load_weights(model.unwrap(), weights))
        bought += each.assessment.bought if each.assessment else 0
        points.append((bought, model))
    return points
