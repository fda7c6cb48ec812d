"""The configuration of a campaign, ``operant.toml``: its tables and keys, and clear errors where it is wrong."""

from __future__ import annotations

import math
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from operant.campaign.observers import OBSERVERS
from operant.conditions import CONDITIONS, Severity, fixed, half_normal, normal, uniform

MAX_RATIO = 1e6  # of std to the width of the bounds, and the other way round
Share = Annotated[float, Field(gt=0, lt=1)]
Part = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Pair = Annotated[tuple[float, float], Field(strict=False)]
Size = Annotated[tuple[Count, Count], Field(strict=False)]


class Table(BaseModel):
    """A table of the file: strict types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


def _check_path(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Reject an empty path, which would mean the folder of the file."""
    paths = [value] if isinstance(value, str) else value
    if paths is not None and (not paths or any(not path.strip() or "\0" in path for path in paths)):
        needed = cls.model_fields[info.field_name or ""].is_required()
        advice = "fill it in" if needed else "fill it in, or leave the key out"
        raise ValueError(f"must name a file or folder, got {value!r}; {advice}")
    return value


class ModelTable(Table):
    """The classifier to test and harden."""

    module: str
    """builds the torch module without arguments, as "package.module:callable" or "file.py:callable" names it"""
    weights: str | None = None
    """safetensors file with its weights"""
    bounds: Pair = (0.0, 1.0)
    """smallest and largest value of an input"""
    mean: float | list[float] | None = None
    """subtracted from inputs before the module: a number, or a list with one per channel"""
    std: float | list[float] | None = None
    """inputs are divided by it: a number, or a list with one per channel"""
    batch_size: Count = 256
    """rows computed at once"""

    _paths = field_validator("weights")(_check_path)

    @field_validator("mean", "std")
    @classmethod
    def _normalisation(cls, value: float | list[float] | None, info: ValidationInfo) -> float | list[float] | None:
        """Values far from the bounds would make all inputs equal to the model, or infinite."""
        low, high = info.data.get("bounds", (0.0, 1.0))
        width = high - low
        if value is None or not 0 < width < math.inf:  # unlimited inputs may need any value
            return value
        smallest = width / MAX_RATIO if info.field_name == "std" else low - width * MAX_RATIO
        largest = width * MAX_RATIO if info.field_name == "std" else high + width * MAX_RATIO
        if not all(smallest <= v <= largest for v in (value if isinstance(value, list) else [value])):
            raise ValueError(
                f"must fit the bounds, [{low:g}, {high:g}], and lie between {smallest:.3g} and {largest:.3g}, got "
                f"{value}; give it in the unit of the inputs"
            )
        return value


class DataTable(Table):
    """Files: npz with x and y, or folders of images, one folder per class; field data may have no labels."""

    train: str
    """labelled training data, to make cases from and to retrain with"""
    clean: str | None = None
    """labelled data that nothing learns from, to measure clean accuracy"""
    clean_share: Share = 0.1
    """share of train that is held out as clean, if clean is not given"""
    field: str | list[str]
    """field inputs, labels not needed; patterns such as "field/*.npz" are read again in every round"""
    size: Size | None = None
    """height and width that images are resized to"""
    classes: list[str] | None = None
    """the name of each label, in order (default: the names of train's folders)"""
    groups: str | None = None
    """csv file with file,group for all field inputs; a group (scene, session, device) is never separated"""
    max_bytes: Count | None = None
    """what a file may unpack to (default: 1 GiB); the environment variable OPERANT_MAX_BYTES wins over it"""

    _paths = field_validator("train", "clean", "field", "groups")(_check_path)


class LabelsTable(Table):
    """Where the true labels of field inputs come from: exactly one of the three."""

    file: str | None = None
    """npz file with x and y, or csv file with name,label, where names are ids or image files"""
    callable: str | None = None
    """function from Samples to a tensor of labels, as "module:function" or "file.py:function" names it"""
    folder: str | None = None
    """folder where inputs are written for people to label; run again when they are labelled"""

    _paths = field_validator("file", "folder")(_check_path)

    @model_validator(mode="after")
    def _one(self) -> LabelsTable:
        if (n := len(self.model_fields_set)) != 1:
            raise ValueError(f"must have exactly one of file, callable and folder, got {n}")
        return self


class RequirementTable(Table):
    """What the model must achieve."""

    pmi: Share
    """largest accepted share of misclassified field inputs, such as 0.01"""
    confidence: Share = 0.95
    """confidence of the bound"""
    max_drop: Annotated[float, Field(ge=0, le=1)] = 0.005
    """clean accuracy that may be lost in total; 0.005 is half a point"""


class BudgetTable(Table):
    """What the campaign may cost."""

    rounds: Count = 5
    """maximum number of rounds"""
    cases: Count = 5000
    """failures to learn from, in total"""
    labels: Count = 400
    """labels of field inputs, in total"""
    seeds_per_round: Count = 500
    """training inputs to search from, per round"""
    cases_per_round: Count = 300
    """failures to learn from, at most, per round"""
    label_batch: Count = 25
    """labels per request"""
    chunk: Count = 100
    """seeds or field inputs per chunk of work; finished chunks are on disk"""


class SeverityTable(Table):
    """The distribution of a condition's severity: one of four kinds, with its own keys."""

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
        """The distribution."""
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
    """What happens to images in the field, for instance rotation = {normal = 12}; left out, it is estimated."""

    estimate: bool | None = None
    """true: estimated from field data, within given severities; false: only those given (default: true without any)"""
    padding: Literal["border", "reflection", "zeros"] = "border"
    """what fills the area outside an image: "zeros", "reflection", or "border" (its outermost pixels)"""
    severities: dict[str, SeverityTable] = {}

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, given: Any) -> Any:
        """Collect the conditions, which are in the table beside the other keys."""
        if not isinstance(given, dict):
            return given
        own = ("estimate", "padding")
        if unknown := [name for name in given if name not in (*own, *CONDITIONS)]:
            problems = "; ".join(f"there is no condition {n}{_suggestion(n, [*CONDITIONS, *own])}" for n in unknown)
            known = ", ".join(n for n in CONDITIONS if "/" not in n)
            raise ValueError(f"{problems}; there are {known}, and corruptions such as c/fog")
        conditions = {name: value for name, value in given.items() if name not in own}
        return {name: given[name] for name in own if name in given} | {"severities": conditions}

    @property
    def estimated(self) -> bool:
        """Whether conditions are estimated."""
        return not self.severities if self.estimate is None else self.estimate

    @property
    def wanted(self) -> bool:
        """Whether there are conditions at all."""
        return bool(self.severities) or self.estimated


class GenerateTable(Table):
    """How to search for failures. Draws of the conditions are one move, each radius of a gradient search another."""

    climb: bool = False
    """also search over the severities of conditions, step by step; for images with conditions"""
    radii: list[Positive] | None = None
    """radii of gradient searches, in input units (default: none with conditions, else two that fit the inputs)"""
    norm: Literal["l2", "linf"] = "l2"
    """norm of the radii, either "l2" or "linf", with a limit per value"""
    steps: Count = 10
    """steps of the gradient search"""
    genetic: bool = False
    """also search with a genetic algorithm, without gradients; slow, for images"""
    patterns: list[Literal["HL", "HH", "LL"]] = []
    """also search for uncommon patterns of uncertainty, ["HL"] for certain but wrong; slow, needs dropout"""
    moves: dict[str, str] = {}
    """your own moves by name: functions that return a fuzzer, as "file.py:function" names them"""
    judge_draws: Annotated[int, Field(ge=0)] = 600
    """unselected draws of each move that its judge learns from, of reserved inputs, at least 100; 0 for no judges"""
    dimensions: Count = 16
    """dimensions of the profile's codes"""
    level: Share = 0.05
    """smallest naturalness (p-value) of an operational failure"""
    mass_quantile: Part = 0.1
    """minimum density quantile of an operational failure among field inputs"""
    draws: Annotated[int, Field(ge=0)] = 3000
    """unselected cases that teach the risk map, of reserved and clean inputs, if there are conditions; 0 for none"""


class RetrainTable(Table):
    """How the model learns from failures."""

    method: str | None = None
    """your own retrainer in place of the built-in one and the keys below, as "file.py:function" names it"""
    epochs: Count = 10
    """maximum number of epochs per round"""
    steps: Count | None = None
    """steps per epoch (default: enough to use all training data once)"""
    batch_size: Count = 64
    """rows per step"""
    learning_rate: Positive = 1e-3
    """highest learning rate"""
    optimiser: Literal["adam", "sgd"] = "adam"
    """either "adam", or "sgd" with momentum"""
    case_share: Part = 0.25
    """share of rows that are failures"""
    cap: Annotated[float, Field(ge=1)] = 10.0
    """maximum sampling weight of a failure, relative to the mean"""
    ema: Part = 0.0
    """decay of the running average of weights; 0 for none"""
    patience: Count = 3
    """stop after this many epochs without improvement"""

    @model_validator(mode="after")
    def _either(self) -> RetrainTable:
        if self.method is not None and (others := self.model_fields_set - {"method"}):
            raise ValueError(
                f"method replaces the other keys, got {', '.join(sorted(others))} too; set them in {self.method}"
            )
        return self


class RunTable(Table):
    """Where and how to run."""

    folder: str = "operant-run"
    """where everything is kept; running again resumes from it"""
    seed: Annotated[int, Field(ge=0)] = 0
    """random seed"""
    workers: Count = 1
    """number of processes; does not change the result"""
    feedback: bool = True
    """whether rounds learn from each other where to search"""
    when_drifted: Literal["update", "stop"] = "update"
    """whether to "update" the profile or to "stop" when new field inputs differ from earlier ones"""
    observers: list[str] = [observer.name for observer in OBSERVERS]
    """sections that the report adds, each at some cost; [] for none"""

    _paths = field_validator("folder")(_check_path)


class Config(Table):
    """The whole of ``operant.toml``; read by `load_config`."""

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
        """A path named in the file; relative paths start from the file's folder."""
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


TOO_DEEP = "its lists or tables are nested too deeply; no key needs more than two levels"


def load_config(path: str | Path) -> Config:
    """Read ``operant.toml``; all problems are reported together, one line per key."""
    path = Path(path)
    if path.is_dir():
        path = path / "operant.toml"
    if not path.is_file():
        raise ValueError(f"there is no {path}; `operant init` writes one to start from")
    try:
        text = path.read_text(encoding="utf-8-sig")
        page = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not readable TOML: {error}; save it as UTF-8") from None
    except RecursionError:
        raise ValueError(f"{path} is not readable TOML: {TOO_DEEP}") from None
    except ValueError as error:
        advice = "save it as UTF-8" if "\0" in text else _advice(text)  # in UTF-16, every other byte is zero
        raise ValueError(f"{path} is not readable TOML: {error}; {advice}") from None
    try:
        config = Config.model_validate(page)
    except ValidationError as error:
        problems = _problems(error)
        one = len(problems) == 1
        raise ValueError(f"{path}: {problems[0]}" if one else "\n  ".join([f"{path}:", *problems])) from None
    except RecursionError:
        raise ValueError(f"{path} is not a configuration: {TOO_DEEP}") from None
    config._place = path.parent.resolve()
    return config


# Errors


def _advice(page: str) -> str:
    """What to do about TOML that cannot be read."""
    tables = [line.strip() for line in page.splitlines() if re.fullmatch(r"\s*\[[\w.]+\]\s*(#.*)?", line)]
    if len(tables) > len(set(tables)):
        return "a table may appear only once: change the keys of the first one in place"
    return "a key may appear only once per table, strings are in quotes, lists in [ ]"


def _problems(error: ValidationError) -> list[str]:
    """One sentence per key that is wrong."""
    problems: list[str] = []
    wanted: dict[str, list[str]] = {}  # by key, every type that would be accepted
    given: dict[str, str] = {}
    for e in error.errors(include_url=False):
        place = [str(part) for part in e["loc"] if part != "severities"]
        if e["type"] == "extra_forbidden":
            problems.append(_unknown(place))
        elif e["type"] == "missing" and isinstance(e["loc"][-1], str):
            problems.append(f"{_key_name(place)} is missing{_meaning(place)}")
        elif e["type"] == "value_error":
            problems.append(f"{_key_name(place)}: {e['ctx']['error']}")
        else:
            must = TYPES.get(e["type"], e["msg"].removeprefix("Input should be "))
            wanted.setdefault(_key_name(place), []).append(f"{must[:1].lower()}{must[1:]}")
            given[_key_name(place)] = f"{e['input']!r:.80}"
    return problems + [
        f"{name} must be {' or '.join(dict.fromkeys(w))}, got {given[name]}" for name, w in wanted.items()
    ]


TYPES = {
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "a string in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "missing": "a list of two numbers",
    "too_long": "a list of two numbers",
    "model_type": "a table such as {normal = 12}",
}


def _key_name(place: list[str]) -> str:
    """``[table] key``; later parts only say which of several types was tried, or which item of a list is meant."""
    table, *rest = place
    return f"[{table}] {'.'.join(rest if table == 'conditions' else rest[:1])}".rstrip()


def _meaning(place: list[str]) -> str:
    if len(place) == 1:
        return f"; it needs {', '.join(n for n, f in TABLES[place[0]].model_fields.items() if f.is_required())}"
    field = TABLES[place[0]].model_fields.get(place[1])
    return f": {field.description}" if field and field.description else ""


def _unknown(place: list[str]) -> str:
    """An unknown key or table, with the one that was probably meant."""
    *outer, name = place
    homes = " or ".join(f"[{table}]" for table, kind in TABLES.items() if name in kind.model_fields)
    belongs = f"; the key {name} belongs to {homes}" if homes else ""
    if not outer:
        tables = [f"[{table}]" for table in TABLES]
        return f"there is no table [{name}]{belongs or _suggestion(f'[{name}]', tables)}; there are {', '.join(tables)}"
    known = list((TABLES[outer[0]] if len(outer) == 1 else SeverityTable).model_fields)
    return f"{_key_name(outer)} has no key {name}{_suggestion(name, known) or belongs}; it has {', '.join(known)}"


def _suggestion(name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
