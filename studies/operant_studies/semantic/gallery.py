"""The gallery: seeds and the valid tests made from them, one contact sheet per fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from operant_studies.operational_fuzz.sheets import pictures
from operant_studies.semantic.injected import SHOWN, GalleryPairs
from operant_studies.semantic.outcome import SemanticOutcome
from operant_studies.semantic.settings import Flaw
from operant_studies.semantic.tables import fault_name
from operant_studies.shared import write_sections

FOLDER = "semantic-gallery"
CELL, ARROW, CAPTION, GAP = 56, 18, 13, 10  # pixels


def write_gallery(out: Path, outcomes: Sequence[SemanticOutcome]) -> Path:
    """Write ``semantic-gallery.md`` and its sheets into ``out``."""
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    parts = [_intro()]
    for o in outcomes:
        for flaw, each in o.tried.items():
            name = f"{o.setting.name}-{flaw.name}.png"
            draw_pairs(each[0].pairs, flaw, o.setting.names, out / FOLDER / name)
            parts.append(_part(o, flaw, each[0].pairs, f"{FOLDER}/{name}"))
    return write_sections(out / "semantic-gallery.md", parts)


def _intro() -> str:
    return f"""# Seeds and tests, by fault

Tests of the [study of semantic tests](semantic.md): pairs seed => test from models with an injected fault. Below each
seed is its class, below each test the model's prediction. A star means that the test reveals the fault, by its computed
feature. Nothing is chosen by eye: these are the first {SHOWN} tests per direction of the anchored search in the first
repetition that are valid and fail by the margin. The upper row starts at the first class, the lower at the second.
"""


def _part(o: SemanticOutcome, flaw: Flaw, pairs: GalleryPairs, picture: str) -> str:
    title = fault_name(o.setting, flaw)
    if len(pairs.label) == 0:
        return f"## {title}\n\nNo valid test was found.\n"
    low, high = (o.setting.names[c] for c in flaw.classes)
    meaning = f"In training, low {flaw.feature} meant {low} and high meant {high}, whatever the image shows."
    return f"## {title}\n\n{meaning}\n\n![{title}: seeds and tests]({picture})\n"


def draw_pairs(pairs: GalleryPairs, flaw: Flaw, names: Sequence[str], path: Path) -> None:
    """Draw one row per direction, each seed left of its test."""
    width, height = 2 * CELL + ARROW + GAP, CELL + CAPTION + 4
    sheet = Image.new("RGB", (max(1, SHOWN) * width, 2 * height), "white")
    pen = ImageDraw.Draw(sheet)
    place = dict.fromkeys(flaw.classes, 0)
    images = zip(pictures(pairs.x0), pictures(pairs.x), strict=True)
    facts = zip(pairs.label.tolist(), pairs.prediction.tolist(), pairs.reveals.tolist(), strict=True)
    for (before, after), (label, prediction, reveals) in zip(images, facts, strict=True):
        left, top = place[label] * width, flaw.classes.index(label) * height
        place[label] += 1
        for image, at in ((before, left), (after, left + CELL + ARROW)):
            drawn = Image.fromarray(image).convert("RGB").resize((CELL, CELL), Image.Resampling.NEAREST)
            sheet.paste(drawn, (at, top))
        pen.text((left + CELL + 3, top + CELL // 2 - 5), "=>", fill="black")
        pen.text((left + 2, top + CELL), names[label], fill="black")
        pen.text((left + CELL + ARROW + 2, top + CELL), names[prediction] + (" *" if reveals else ""), fill="black")
    sheet.save(path, optimize=True)
