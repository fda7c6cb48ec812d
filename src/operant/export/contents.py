"""What an export contains, before it is written."""

from __future__ import annotations

from dataclasses import dataclass

from operant.conditions import Recipe
from operant.export.class_weights import ClassWeight
from operant.export.failures import ARRAYS, FOLDER, ExportedFailures
from operant.export.labelling import ToLabel
from operant.model import Finding

TRANSFORM, RECIPE = "field_transform.py", "recipe.json"
WEIGHTS, TO_LABEL = "class_weights.csv", "to_label.csv"


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A file that an export does not have, and the reason."""

    file: str
    why: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportContents:
    """What is known of a field, for other training code; `write_export` writes it.

    Attributes:
        recipe: the conditions of the field; None leaves out the transform.
        recipe_from: where the recipe comes from, such as ``"declared in operant.toml"``.
        weights: of the classes; empty leaves out their table.
        weights_from: where the class shares come from.
        to_label: inputs to label; None leaves out their table.
        failures: operational failures; None leaves them out.
        missing: what is left out, and why.
        notes: what to know about the estimates.
        findings: reasons to doubt them, each with the name of its part.
    """

    recipe: Recipe | None = None
    recipe_from: str = ""
    weights: tuple[ClassWeight, ...] = ()
    weights_from: str = ""
    to_label: ToLabel | None = None
    failures: ExportedFailures | None = None
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[tuple[str, Finding], ...] = ()

    @property
    def files(self) -> dict[str, str]:
        """The files of the export, with what each is."""
        files = {}
        if self.recipe is not None:
            files[TRANSFORM] = "puts training images under the conditions of the field, drawn anew for each image"
            files[RECIPE] = f"these conditions and how likely each severity is; {self.recipe_from}"
        if self.weights:
            files[WEIGHTS] = f"share of each class in the field and in the training data; {self.weights_from}"
        if self.to_label is not None:
            files[TO_LABEL] = f"{len(self.to_label.inputs)} field inputs to label, the most useful first"
        return files | self._failure_files

    @property
    def _failure_files(self) -> dict[str, str]:
        if self.failures is None:
            return {}
        n = f"{len(self.failures.suite)} inputs that the model gets wrong and that look like field inputs"
        pictures = {f"{FOLDER}/": f"{n}, as pictures in 256 shades, in one folder per true class"}
        arrays = "exact inputs `x`, true labels `y`, `names`, predictions and columns such as `naturalness` and `mass`"
        return (pictures if self.failures.pictures else {}) | {ARRAYS: f"{n}: {arrays}"}
