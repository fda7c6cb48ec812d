"""A campaign as a file: what ``operant.toml`` may say, and what is told where it is wrong."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from operant.conditions import CONDITIONS, Severity, fixed, half_normal, normal, uniform

Share = Annotated[float, Field(gt=0, lt=1)]
Part = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Pair = Annotated[tuple[float, float], Field(strict=False)]
Size = Annotated[tuple[Count, Count], Field(strict=False)]


class Table(BaseModel):
    """A table of the file: types as they are written, and no other keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelTable(Table):
    """The classifier to test and harden."""

    module: str
    """what builds the torch module without arguments, as "package.module:callable" or "file.py:callable" names it"""
    weights: str | None = None
    """safetensors file with its weights"""
    bounds: Pair = (0.0, 1.0)
    """smallest and largest value of an input"""
    mean: float | list[float] | None = None
    """what the module expects subtracted: a number, or a list with one a channel"""
    std: float | list[float] | None = None
    """what it expects divided by, likewise"""
    batch_size: Count = 256
    """rows computed at once"""


class DataTable(Table):
    """Files: npz with x and y, or folders of pictures, one folder a class; field data also without labels."""

    train: str
    """labelled training data: what cases are made from, and what is retrained with"""
    clean: str | None = None
    """labelled data that nothing learns from, to guard clean accuracy"""
    clean_share: Share = 0.1
    """without clean, the share of train that is held out in its place"""
    field: str | list[str]
    """inputs from use, labels not needed; patterns such as "field/*.npz" are looked at again in every round"""
    size: Size | None = None
    """height and width that pictures are resized to"""
    classes: list[str] | None = None
    """the name of each label, in order, for the report"""


class LabelsTable(Table):
    """Who tells the true labels of field inputs: one of the three."""

    file: str | None = None
    """npz file with x and y, or csv file with name,label, where names are ids or files of pictures"""
    callable: str | None = None
    """function from Samples to a tensor of their labels, as "module:function" or "file.py:function" names it"""
    folder: str | None = None
    """where inputs are written for people to label; run again when they are"""

    @model_validator(mode="after")
    def _one(self) -> LabelsTable:
        if (n := len(self.model_fields_set)) != 1:
            raise ValueError(f"must have exactly one of file, callable and folder, got {n}")
        return self


class RequirementTable(Table):
    """What the model must keep."""

    pmi: Share
    """largest share of field inputs that may be misclassified, such as 0.01"""
    confidence: Share = 0.95
    """of the bound that shows it"""
    max_drop: Annotated[float, Field(ge=0, le=1)] = 0.005
    """clean accuracy that may be lost in all; 0.005 is half a point"""


class BudgetTable(Table):
    """What it may cost."""

    rounds: Count = 5
    """at most"""
    cases: Count = 5000
    """failures to learn from, in all"""
    labels: Count = 400
    """of field inputs, in all"""
    seeds_per_round: Count = 500
    """training inputs to search around in each round"""
    cases_per_round: Count = 300
    """failures to learn from in each round, at most"""
    label_batch: Count = 25
    """labels asked for at a time"""
    chunk: Count = 100
    """seeds of a chunk, or inputs to be assessed, after which work is on disk"""


class SeverityTable(Table):
    """How likely each severity of a condition is: one of four kinds, with what belongs to it."""

    normal: Positive | None = None
    half_normal: Positive | None = None
    uniform: Pair | None = None
    fixed: float | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    absent: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="after")
    def _one(self) -> SeverityTable:
        kinds = [name for name in EXTRAS if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(f"must have exactly one of {', '.join(EXTRAS)}, got {', '.join(kinds) or 'none'}")
        allowed = ("absent", *EXTRAS[kinds[0]])
        if other := [name for name in self.model_fields_set if name not in (*allowed, kinds[0])]:
            raise ValueError(f"{kinds[0]} can have {', '.join(allowed)}, got {', '.join(sorted(other))}")
        self.severity()
        return self

    def severity(self) -> Severity:
        """The distribution that is meant."""
        if self.normal is not None:
            mean = 0.0 if self.mean is None else self.mean
            return normal(self.normal, mean=mean, low=self.low, high=self.high, absent=self.absent)
        if self.half_normal is not None:
            return half_normal(self.half_normal, high=self.high, absent=self.absent)
        if self.uniform is not None:
            return uniform(*self.uniform, absent=self.absent)
        assert self.fixed is not None
        return fixed(self.fixed, absent=self.absent)


EXTRAS: dict[str, tuple[str, ...]] = {
    "normal": ("mean", "low", "high"),
    "half_normal": ("high",),
    "uniform": (),
    "fixed": (),
}


class ConditionsTable(Table):
    """What happens to images in use, for instance rotation = {normal = 12}; leave it out where nothing is known."""

    estimate: bool = False
    """whether the conditions are the strongest that could be, and how strong they are is estimated from field data"""
    padding: Literal["border", "reflection", "zeros"] = "border"
    """what lies outside an image: "zeros", "reflection", or "border" (its outermost pixels go on)"""
    severities: dict[str, SeverityTable] = {}

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, given: Any) -> Any:
        """Conditions stand in the file beside the other keys."""
        if not isinstance(given, dict):
            return given
        own = ("estimate", "padding")
        if unknown := [name for name in given if name not in (*own, *CONDITIONS)]:
            told = "; ".join(f"there is no condition {n}{_meant(n, [*CONDITIONS, *own])}" for n in unknown)
            raise ValueError(
                f"{told}; there are {', '.join(n for n in CONDITIONS if '/' not in n)}, c/fog and its like"
            )
        conditions = {name: value for name, value in given.items() if name not in own}
        return {name: given[name] for name in own if name in given} | {"severities": conditions}

    @model_validator(mode="after")
    def _something(self) -> ConditionsTable:
        if not self.severities:
            raise ValueError("must name at least one condition, got none; leave out the table if there are none")
        return self


class GenerateTable(Table):
    """How failures are searched. Declared conditions are one move, each radius of the gradient search another."""

    radii: list[Positive] | None = None
    """of the gradient search, in input units; [] for none; unless given, two that fit the training inputs"""
    norm: Literal["l2", "linf"] = "l2"
    """of the radii, "l2" or "linf", which changes all values alike"""
    steps: Count = 10
    """of the gradient search"""
    genetic: bool = False
    """breed cases without gradients as well; slow, for images"""
    patterns: list[Literal["HL", "HH", "LL"]] = []
    """breed failures for uncommon patterns of uncertainty as well, ["HL"] for sure and wrong; slow, needs dropout"""
    dimensions: Count = 16
    """of the profile's codes"""
    level: Share = 0.05
    """p-value from which a failure is natural"""
    mass_quantile: Part = 0.1
    """share of use that must lie where it is no denser than around a failure"""


class RetrainTable(Table):
    """How the model learns from failures."""

    epochs: Count = 10
    """of each round, at most"""
    steps: Count | None = None
    """of an epoch; unless given, as many as the training data need"""
    batch_size: Count = 64
    """rows of a step"""
    learning_rate: Positive = 1e-3
    """at its highest"""
    optimiser: Literal["adam", "sgd"] = "adam"
    """either "adam" or "sgd" with momentum"""
    case_share: Part = 0.25
    """of the rows that are failures"""
    cap: Annotated[float, Field(ge=1)] = 10.0
    """how much oftener than the average a failure may be drawn"""
    ema: Part = 0.0
    """if above 0, the running average of the weights is kept"""
    patience: Count = 3
    """epochs without a better one, after which to stop"""


class RunTable(Table):
    """Where and how to run."""

    folder: str = "operant-run"
    """where everything is kept; run again, it goes on from there"""
    seed: Annotated[int, Field(ge=0)] = 0
    """of everything random"""
    workers: Count = 1
    """processes; the result is the same with any number"""
    feedback: bool = True
    """whether rounds learn from each other where to search"""
    when_drifted: Literal["update", "stop"] = "update"
    """whether to "update" the profile or to "stop" where new field inputs differ from those before"""


class Config(Table):
    """All that ``operant.toml`` says; made by `load_config`."""

    model: ModelTable
    data: DataTable
    labels: LabelsTable = LabelsTable(folder="to_label")
    requirement: RequirementTable
    budget: BudgetTable = BudgetTable()
    conditions: ConditionsTable | None = None
    generate: GenerateTable = GenerateTable()
    retrain: RetrainTable = RetrainTable()
    run: RunTable = RunTable()
    _place: Path = PrivateAttr(default_factory=Path.cwd)

    def path(self, name: str) -> Path:
        """A path of the file: relative ones are relative to the file."""
        return self._place / Path(name).expanduser()


TABLES: dict[str, type[Table]] = {
    "model": ModelTable,
    "data": DataTable,
    "labels": LabelsTable,
    "requirement": RequirementTable,
    "budget": BudgetTable,
    "conditions": ConditionsTable,
    "generate": GenerateTable,
    "retrain": RetrainTable,
    "run": RunTable,
}


def load_config(path: str | Path) -> Config:
    """Read ``operant.toml``; whatever is wrong in it is told at once, a line for each key."""
    path = Path(path)
    if path.is_dir():
        path = path / "operant.toml"
    if not path.is_file():
        raise ValueError(f"there is no {path}; `operant init` writes one to start from")
    try:
        page = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not readable TOML: {error}; {_advice(str(error))}") from None
    try:
        config = Config.model_validate(page)
    except ValidationError as error:
        told = _sentences(error)
        raise ValueError(f"{path}: {told[0]}" if len(told) == 1 else "\n  ".join([f"{path}:", *told])) from None
    config._place = path.parent.resolve()
    return config


# What is told


def _advice(error: str) -> str:
    """What to do about TOML that cannot be read."""
    if error.startswith("Cannot declare"):
        return "a table stands in the file once: change the keys of the one that is there, in place"
    if error.startswith("Cannot overwrite"):
        return "a key stands in its table once: change the one that is there, in place"
    return "words stand in quotes, lists in [ ]"


def _sentences(error: ValidationError) -> list[str]:
    """What is wrong, a sentence for each key."""
    told: list[str] = []
    wanted: dict[str, list[str]] = {}  # by key, all that it could have been
    came: dict[str, str] = {}
    for e in error.errors(include_url=False):
        place = [str(part) for part in e["loc"] if part != "severities"]
        if e["type"] == "extra_forbidden":
            told.append(_unknown(place))
        elif e["type"] == "missing" and isinstance(e["loc"][-1], str):
            told.append(f"{_named(place)} is missing{_meaning(place)}")
        elif e["type"] == "value_error":
            told.append(f"{_named(place)}: {e['msg'].removeprefix('Value error, ')}")
        else:
            must = TYPES.get(e["type"], e["msg"].removeprefix("Input should be "))
            wanted.setdefault(_named(place), []).append(f"{must[:1].lower()}{must[1:]}")
            came[_named(place)] = f"{e['input']!r:.80}"
    return told + [f"{name} must be {' or '.join(dict.fromkeys(w))}, got {came[name]}" for name, w in wanted.items()]


TYPES = {
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "a word in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "missing": "a list of two numbers",
    "too_long": "a list of two numbers",
    "model_type": "a table such as {normal = 12}",
}


def _named(place: list[str]) -> str:
    """``[table] key``; what follows a key is which of several types was tried, or which item of a list is meant."""
    table, *rest = place
    return f"[{table}] {'.'.join(rest if table == 'conditions' else rest[:1])}".rstrip()


def _meaning(place: list[str]) -> str:
    if len(place) == 1:
        return f"; it needs {', '.join(n for n, f in TABLES[place[0]].model_fields.items() if f.is_required())}"
    field = TABLES[place[0]].model_fields.get(place[1])
    return f": {field.description}" if field and field.description else ""


def _unknown(place: list[str]) -> str:
    """A key or table that there is not, with the one that was probably meant."""
    *outer, name = place
    homes = " or ".join(f"[{table}]" for table, kind in TABLES.items() if name in kind.model_fields)
    belongs = f"; the key {name} belongs to {homes}" if homes else ""
    if not outer:
        tables = [f"[{table}]" for table in TABLES]
        return f"there is no table [{name}]{belongs or _meant(f'[{name}]', tables)}; there are {', '.join(tables)}"
    known = list((TABLES[outer[0]] if len(outer) == 1 else SeverityTable).model_fields)
    return f"{_named(outer)} has no key {name}{_meant(name, known) or belongs}; it has {', '.join(known)}"


def _meant(name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
