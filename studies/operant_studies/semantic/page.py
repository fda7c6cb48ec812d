"""The page of the study of semantic tests, its gallery, its picture, and a file of all numbers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from operant.results import write_atomically
from operant_studies.semantic import plain_tables, tables
from operant_studies.semantic.claims import claims
from operant_studies.semantic.gallery import write_gallery
from operant_studies.semantic.instruments import RatedSource
from operant_studies.semantic.natural import load_rated
from operant_studies.semantic.outcome import SemanticOutcome
from operant_studies.semantic.pictures import draw_distances
from operant_studies.semantic.settings import SemanticSetting
from operant_studies.semantic.summary import summary
from operant_studies.shared import table, write_sections


def write_page(out: Path, chosen: Sequence[SemanticSetting], data: Path | None, *, scale: str) -> Path:
    """Write ``semantic.md``, ``semantic-gallery.md`` with their pictures, and ``semantic.json``, into ``out``."""
    every = [SemanticOutcome(setting, out, data) for setting in chosen]
    tested = [o for o in every if o.tested]
    faults = [o for o in tested if o.setting.flaws]
    plain = next((o for o in tested if not o.setting.flaws), None)
    natural = load_rated(out)
    sections = [_intro(every, scale), summary(faults, plain), claims(faults, plain)]
    if faults:
        write_gallery(out, faults)
        sections.append(tables.table_2(faults))
    if plain is not None:
        draw_distances(plain, out / "semantic-distances.svg")
        sections += [plain_tables.seeds_found(plain), plain_tables.parts_of_validity(plain)]
        sections += [plain_tables.distances(plain), plain_tables.table_3(plain)]
    sections += [
        plain_tables.sources(every, natural),
        _method(every, scale, plain_tables.seconds(faults, plain, natural)),
    ]
    _write_numbers(out, faults, plain, every, natural)
    return write_sections(out / "semantic.md", sections)


def _intro(every: Sequence[SemanticOutcome], scale: str) -> str:
    titles = ", ".join(o.setting.title for o in every)
    left_out = "".join(
        f"\n{o.setting.title} is left out: none of its sources is good enough to test with.\n"
        for o in every
        if not o.tested
    )
    n = sum(len(o.setting.flaws) for o in every if o.tested)
    gallery = "\nPairs of seeds and tests are in the [gallery](semantic-gallery.md).\n" if n else ""
    return f"""# Semantic tests, run again

The experiments of *Exposing Previously Undetectable Faults in Deep Neural Networks* (Dunn et al., 2021), Tables 2 and 3
and Figure 2, by `operant study semantic --scale {scale}`, with {n} injected faults, on:
{titles}.
Small generators are trained here instead of the paper's BigGAN for ImageNet. Tests are counted twice: all of them, and
those that are *valid*: independent classifiers still see the label, the label's class explains the image best, and the
image looks like those of the source. A *sound* model has no injected fault; in an *anchored* search other classifiers
must keep the label. *Seeds* are the images that tests start from. Every repetition has its own models.
{gallery}{left_out}"""


def _method(every: Sequence[SemanticOutcome], scale: str, seconds: float) -> str:
    columns = ["data", "images: source", "models", "each judge", "likelihoods", "each anchor"]
    columns += ["layers, budget, steps", "anchored", "margin", "PGD radius", "seeds per direction", "repetitions"]
    rows = []
    for o in every:
        s = o.setting
        deal = dict(s.deal)
        n = [deal[role] for role in ("source", "model", "judge", "likelihood", "anchor")]
        plain = f"{' '.join(s.layers)}, {s.budget:g}, {s.steps}"
        anchored = f"the same, held by {s.hold:g}"
        if not s.flaws:
            anchored += f"; {' '.join(s.wide_layers)}, {s.wide_budget:g}, {s.wide_steps}, held by {s.wide_hold:g}"
        rows.append([s.title, *n, plain, anchored, f"{s.confidence:g}", f"{s.radius:g}"])
        rows[-1] += [s.tests if s.flaws else s.aimed, len(s.seeds)]
    return f"""## What was run

{table(columns, rows)}{METHOD}
CPU time of sources, models and tests, without judges: {seconds / 60:.0f} minutes. To run it again:

```text
operant study semantic --data DATA --scale {scale}
```
"""


METHOD = """
As in the paper: tests start at generated images that the model classifies correctly; perturbations are added to the
outputs of early layers; tests are targeted and confident; a fault is confirmed on two hold-outs.

What differs:

- Data and models are small: LeNet-5, trained here. One source serves all faults and repetitions of a data set. It is
  trained on images in which every feature of the data set's faults has one of two values, independent of the class. The
  sound model and all judges are trained on such images too, the faulty model on such images in which one feature
  decides between two classes. Repetitions differ in initial weights, batches, values of features and seeds, but share
  training images, source and judges.
- Source, models, judges, likelihoods and anchors are trained on different images. An anchor, which judges
  no test, rates the source.
- What a test reveals is computed from the image, not read by eye. A share is of tests that fail by the margin.
- The anchors and the model (for faults, both models) must classify seeds correctly; the paper requires it of the model
  alone.
- *Anchored* is not the paper's: two other classifiers must still see the label, so that only the model is wrong.
- The budget on features is fixed, and margins are in logits.
- Chosen after trials with other models and seeds but the same data sets: layers, budgets, steps and the hold of
  anchors; that anchors must classify seeds correctly; that two anchored searches of one seed are counted together,
  where one alone came near the 70 %; that PGD starts at the seed, because its random start moved features by itself;
  the classes of the fault of brightness, which was hardly confirmed with others; and the fine-tuning of models, because
  one gradient step left them vulnerable to PGD.
- PGD starts at the same generated seeds, in a ball of the usual radius, and stops at the margin. Naturalness, fitted on
  the source's images, may reject its noise: compare its valid tests with all of its tests. Noise can also change the
  measured feature: grey pixels on the right move the centre of the ink to the right.
- Robust models are the given weights, if they are in the data folder, and a second LeNet-5 per repetition, fine-tuned
  adversarially.
- Validity is a filter, not a person; its error rate was not measured.
"""


def _write_numbers(
    out: Path,
    faults: Sequence[SemanticOutcome],
    plain: SemanticOutcome | None,
    every: Sequence[SemanticOutcome],
    natural: Sequence[RatedSource],
) -> None:
    """Every number behind the page in one file; images are left out."""
    numbers: dict[str, Any] = {"sources": {o.setting.name: _plain(o.rated) for o in every}, "cifar10": _plain(natural)}
    numbers["faults"] = {
        o.setting.name: {flaw.name: [_plain(t) for t in each] for flaw, each in o.tried.items()} for o in faults
    }
    if plain is not None:
        numbers |= {"hunted": _plain(plain.hunted), "transferred": _plain(plain.transferred)}
    write_atomically(out / "semantic.json", json.dumps(numbers).encode() + b"\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return [round(number, 4) if number == number else None for number in value.tolist()]
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "pairs"}
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
