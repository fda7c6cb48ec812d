"""``operant init``: writes the first ``operant.toml`` from the files in a folder, without running any code."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from operant.activity import activity
from operant.campaign.config import TABLES, Table
from operant.conditions import CONDITIONS
from operant.data.formats import PICTURES, read_npz
from operant.data.tables import NAME_COLUMNS
from operant.networks.weights import PICKLED, conversion
from operant.results import write_atomically

NAME = "operant.toml"
MAX_DEPTH = 3  # levels of folders that are searched
MAX_FILES = 5000  # files and folders that are searched
MODULES = ("Module", "Sequential")
BUILDER_NAME = re.compile(r"(?i)^((build|make|create|get|load)_?\w*)?(model|net|network|classifier)$")
ROLES = {
    "train": re.compile(r"(?i)(^|[^a-z])train"),
    "clean": re.compile(r"(?i)(^|[^a-z])(clean|val|valid|validation|test|holdout)([^a-z]|$)"),
    "field": re.compile(r"(?i)(^|[^a-z])(field|live|prod|production|use|usage|operation|operational)([^a-z]|$)"),
}
LABELS = re.compile(r"(?i)(^|[^a-z])labels?([^a-z]|$)")
IGNORED = re.compile(r"^([._].*|.*venv.*|site-packages|node_modules|operant-.*|to_label|round-\d+)$")
OWN_FILES = re.compile(r".*\.json\.[0-9a-f]{12}\.safetensors|(shard|chunk)-\d{6,}.*")  # tensors of results, cases
OWN_FOLDERS = ("info.json", "round-000")  # what the folder of a campaign contains, whatever its name
MISSING = "NOT FOUND"
LINE_LENGTH = 120
EXAMPLES = {
    ("model", "module"): "net.py:Net",
    ("model", "weights"): "model.safetensors",
    ("model", "mean"): 0.5,
    ("model", "std"): 0.25,
    ("data", "train"): "train.npz",
    ("data", "clean"): "test.npz",
    ("data", "field"): "field/*.npz",
    ("data", "size"): [28, 28],
    ("data", "classes"): ["cat", "dog"],
    ("data", "groups"): "groups.csv",
    ("data", "max_bytes"): 8_000_000_000,
    ("labels", "file"): "labels.npz",
    ("labels", "callable"): "labels.py:label",
    ("labels", "folder"): "to_label",
    ("conditions", "estimate"): True,
    ("generate", "radii"): [0.5, 1.0],
    ("generate", "moves"): {"fog": "my_moves.py:fog"},
    ("retrain", "method"): "my_training.py:retrain",
    ("retrain", "steps"): 100,
}
SEVERITIES = {
    "rotation": "{normal = 12}",
    "scale": "{normal = 0.1}",
    "shear": "{normal = 0.1}",
    "shift_x": "{uniform = [-0.1, 0.1]}",
    "shift_y": "{uniform = [-0.1, 0.1]}",
    "occlusion": "{uniform = [0, 0.3]}",
    "shadow": "{uniform = [0, 0.6], absent = 0.5}",
    "fog": "{half_normal = 0.2, absent = 0.5}",
    "motion_blur": "{uniform = [0, 4]}",
    "motion_angle": "{uniform = [-180, 180]}",
    "defocus": "{uniform = [0, 1.5], absent = 0.5}",
    "blur": "{uniform = [0, 1.3]}",
    "vignetting": "{uniform = [0, 0.4]}",
    "exposure": "{normal = 0.2}",
    "warmth": "{normal = 0.1}",
    "tint": "{normal = 0.05}",
    "brightness": "{normal = 0.1}",
    "contrast": "{normal = 0.3}",
    "gamma": "{normal = 0.2}",
    "downsampling": "{uniform = [0, 0.5]}",
    "shot_noise": "{half_normal = 0.1}",
    "gaussian_noise": "{half_normal = 0.1, absent = 0.5}",
    "impulse_noise": "{half_normal = 0.02}",
    "saturation": "{normal = 0.2}",
    "jpeg": "{uniform = [0, 2]}",
}
SEVERITY_HELP = (
    "Some conditions, each with the unit of its severity. Distributions: normal (standard deviation around 0), "
    "half_normal (the same, above 0), uniform (from, to) or fixed. absent is the share of images without the condition."
)


@dataclass(frozen=True, kw_only=True)
class FolderContents:
    """Files in a folder that a campaign could use.

    Attributes:
        values: what goes into the file, by table and key.
        others: alternatives, by table and key.
        shape: of one training input; empty if unknown.
        pickled: weights written by torch.save, which must be converted.
    """

    values: dict[tuple[str, str], Any] = field(default_factory=dict)
    others: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    pickled: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Required keys without a value."""
        needed = [(t, k) for t, kind in TABLES.items() for k, f in kind.model_fields.items() if f.is_required()]
        return [f"[{t}] {k}" for t, k in needed if (t, k) not in self.values]


def write_example(folder: str | Path) -> tuple[Path, FolderContents]:
    """Write an example ``operant.toml`` into a folder; an existing one is never changed."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give the one with your model and data")
    path = folder / NAME
    taken = f"{path} exists already and was not changed; edit it, or move it away and run this again"
    if path.exists():
        raise ValueError(taken)
    with activity(f"searching {folder} for a model and data"):
        found = search_folder(folder)
    try:
        write_atomically(path, example(found).encode(), overwrite=False)
    except FileExistsError:
        raise ValueError(taken) from None
    return path, found


# Finding files


def search_folder(folder: Path) -> FolderContents:
    """Search a folder and those below for data, weights and code; nothing is imported."""
    values: dict[tuple[str, str], Any] = {}
    others: dict[tuple[str, str], tuple[str, ...]] = {}
    files = list(_walk(folder))
    for key, places in _candidates(folder, files).items():
        if places:
            values[key], *rest = places
            others[key] = tuple(rest)
    known = {path: _arrays(folder / path) for path in dict.fromkeys(values.values()) if str(path).endswith(".npz")}
    shape: tuple[int, ...] = ()
    if (train := known.get(values.get(("data", "train"), ""))) is not None:
        x = train.get("x_train", train.get("x", np.empty(0)))
        shape = x.shape[1:] if x.dtype.kind == "f" else (1, *x.shape[1:3])
        if bounds := _bounds(x):
            values["model", "bounds"] = bounds
    if {"x", "y"} <= set(known.get(values.get(("data", "field"), ""), ())):  # field inputs with their labels
        values.setdefault(("labels", "file"), values["data", "field"])
    if ("labels", "file") not in values:
        values["labels", "folder"] = "to_label"
    values["requirement", "pmi"] = 0.05
    pickled = () if ("model", "weights") in values else tuple(p.as_posix() for p in files if p.suffix in PICKLED)
    return FolderContents(values=values, others={k: v for k, v in others.items() if v}, shape=shape, pickled=pickled)


def _walk(folder: Path) -> Iterator[Path]:
    """Paths below a folder, relative to it, by name; hidden files and files of Operant are left out."""
    seen = 0
    for root, folders, files in os.walk(folder):
        here = Path(root).relative_to(folder)
        wanted = [f for f in folders if not IGNORED.match(f) and not _is_campaign(Path(root, f))]
        folders[:] = sorted(wanted) if len(here.parts) < MAX_DEPTH else []
        regular = [name for name in files if os.path.isfile(os.path.join(root, name))]  # a pipe would block
        for name in sorted([*folders, *regular]):
            if not IGNORED.match(name) and not OWN_FILES.fullmatch(name):
                yield here / name
                seen += 1
        if seen > MAX_FILES:
            return


def _is_campaign(folder: Path) -> bool:
    return all((folder / name).exists() for name in OWN_FOLDERS)


def _candidates(folder: Path, files: Sequence[Path]) -> dict[tuple[str, str], list[str]]:
    """All candidates by key, the most likely first."""
    labels = [path for path in files if _named_labels(path) and _holds_labels(folder / path)]
    data = {path: kind for path in files if path not in labels and (kind := _kind(folder / path))}
    by_role: dict[str, list[str]] = {"train": [], "clean": [], "field": []}
    for path, kind in data.items():
        for role in _roles(path, kind):
            by_role[role].append(path.as_posix())
    by_role["train"] = by_role["train"] or [p.as_posix() for p, kind in data.items() if kind == "labelled"]
    by_role["field"] = _field(by_role["field"], by_role)
    by_role["clean"] = [p for p in by_role["clean"] if p not in by_role["field"]]
    weights = [path.as_posix() for path in files if path.suffix == ".safetensors"]
    modules = [
        f"{path.as_posix()}:{name}" for path in files if path.suffix == ".py" for name in _builders(folder / path)
    ]
    return {
        ("model", "module"): modules,
        ("model", "weights"): weights,
        **{("data", role): places for role, places in by_role.items()},
        ("labels", "file"): [path.as_posix() for path in labels],
    }


def _field(found: list[str], by_role: dict[str, list[str]]) -> list[str]:
    """Field data: npz files in a folder of their own become a pattern, so that more can arrive."""
    folders = dict.fromkeys(Path(p).parent for p in found if p.endswith(".npz"))
    patterns = [f"{folder.as_posix()}/*.npz" for folder in folders if ROLES["field"].search(folder.name)]
    named = [p for p in found if Path(p).parent.name and f"{Path(p).parent.as_posix()}/*.npz" in patterns]
    rest = [p for p in found if p not in named and (p not in by_role["train"] or p not in by_role["clean"])]
    return patterns + sorted(rest, key=lambda p: p in by_role["train"])


def _kind(path: Path) -> str:
    """What a file or folder contains: "parts" of a data set, "labelled" or "unlabelled" inputs, or nothing useful."""
    if path.is_dir():
        inside = sorted(path.iterdir())
        if any(_is_picture(p) for p in inside):
            return "" if any(_is_picture(p) for p in path.parent.iterdir()) or _in_class(path) else "unlabelled"
        folders = [p for p in inside if p.is_dir()]
        if len({role for p in folders if (role := _role_of(p.name))}) > 1:  # train, clean and field, not classes
            return ""
        classes = [p for p in folders if any(_is_picture(q) for q in p.iterdir())]
        return "labelled" if len(classes) > 1 else ""
    if path.suffix != ".npz":
        return ""
    names = _names(path)
    if {"x_train", "y_train"} <= names:
        return " ".join(["parts", *sorted(names & {"x_test", "y_test", "x_field"})])
    return "labelled" if {"x", "y"} <= names else "unlabelled" if "x" in names else ""


def _in_class(path: Path) -> bool:
    """Whether a folder of images is one of several side by side: a class."""
    beside = [p for p in path.parent.iterdir() if p.is_dir() and p != path]
    return not _role_of(path.name) and any(any(_is_picture(q) for q in p.iterdir()) for p in beside)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES


def _roles(path: Path, kind: str) -> list[str]:
    """Roles of a file, by its contents and by its name or its folder's."""
    if kind.startswith("parts"):
        names = kind.split()[1:]
        clean = "x_test" in names and "y_test" in names
        return ["train", *["clean"] * clean, *["field"] * ("x_field" in names or ("x_test" in names and not clean))]
    named = [role for p in (path, *path.parents) if (role := _role_of(p.name.partition(".")[0]))]
    if kind == "labelled":
        return named[:1]
    return ["field"] if "field" in named or not named else []  # inputs named train or test without labels are of no use


def _role_of(name: str) -> str:
    """The role that a name stands for; empty if there is none."""
    return next((role for role, pattern in ROLES.items() if pattern.search(name)), "")


def _names(path: Path) -> set[str]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return set(arrays.files)
    except Exception:  # not an npz file, whatever its name
        return set()


def _arrays(path: Path) -> dict[str, Any]:
    try:
        return read_npz(path)
    except (ValueError, OSError):  # `operant run` reports it
        return {}


def _bounds(x: np.ndarray[Any, Any]) -> list[float]:
    """Whole numbers that floats lie between, unless they lie in [0, 1]; uint8 is scaled to [0, 1]."""
    if x.dtype.kind != "f" or x.size == 0:
        return []
    low, high = float(x.min()), float(x.max())
    return [] if low >= 0 and high <= 1 else [float(math.floor(low)), float(math.ceil(high))]


def _named_labels(path: Path) -> bool:
    """Whether a file is named labels, does not belong to training data, and is not among field inputs."""
    other = any(ROLES[role].search(path.stem) for role in ("train", "clean"))
    return bool(LABELS.search(path.stem)) and not other and not ROLES["field"].search(path.parent.name)


def _holds_labels(path: Path) -> bool:
    """Whether a file contains inputs with labels, or a table of labels."""
    if path.suffix == ".csv":
        with suppress(OSError), open(path, encoding="utf-8-sig", errors="replace") as file:
            cells = {cell.strip().lower() for cell in re.split("[,;]", file.readline())}
            return "label" in cells and not cells.isdisjoint(NAME_COLUMNS)
    return path.suffix == ".npz" and {"x", "y"} <= _names(path)


# Finding code that builds a model, without running it


def _builders(path: Path) -> list[str]:
    """Functions and classes of a file that build a module without arguments: functions first, then the last class."""
    if path.name.startswith(("test_", "conftest", "setup")):
        return []
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, OSError, ValueError, RecursionError, MemoryError):
        return []
    modules: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and _is_module(node, modules):
            modules.insert(0, node.name)
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and _builds(n, modules)]
    free = {n.name for n in tree.body if isinstance(n, ast.ClassDef) and _needs_nothing(_init_of(n), bound=1)}
    return functions + [name for name in modules if name in free]


def _builds(node: ast.FunctionDef, modules: Sequence[str]) -> bool:
    """Whether a function is annotated to return a module, returns one, or is named like a builder."""
    if node.name.startswith("_") or not _needs_nothing(node):
        return False
    if node.returns is not None:
        return ast.unparse(node.returns).endswith((*MODULES, *modules))
    values = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
    made = [ast.unparse(v.func) for v in values if isinstance(v, ast.Call)]
    return any(m in modules or "nn." in m for m in made) or bool(values and BUILDER_NAME.match(node.name))


def _is_module(node: ast.ClassDef, known: Sequence[str]) -> bool:
    return any(ast.unparse(base).endswith(MODULES) or ast.unparse(base) in known for base in node.bases)


def _init_of(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)


def _needs_nothing(node: ast.FunctionDef | None, *, bound: int = 0) -> bool:
    """Whether it can be called without arguments, apart from the first ``bound``."""
    if node is None:
        return True
    arguments = node.args
    free = len(arguments.posonlyargs) + len(arguments.args) - bound - len(arguments.defaults)
    return free <= 0 and all(default is not None for default in arguments.kw_defaults)


# Writing the file


def example(found: FolderContents) -> str:
    """The commented file: found values filled in, defaults commented out, missing values marked."""
    first = (
        "# A campaign for `operant run`, written by `operant init` from the files beside it.\n"
        "# Paths are relative to this file. A key behind # shows its default, or an example if it is optional;\n"
        f"# {MISSING} marks what must be filled in.\n"
    )
    return "\n".join([first, *(_table(name, kind, found) for name, kind in TABLES.items())])


def _table(name: str, kind: type[Table], found: FolderContents) -> str:
    head = _comment((kind.__doc__ or "").strip().rstrip("."))
    if name == "conditions":
        if len(found.shape) == 1:  # a table
            return ""
        return f"{head}\n# [conditions]\n{_keys(name, kind, found, skip=('severities',))}{_severities()}"
    return f"{head}\n[{name}]\n{_keys(name, kind, found)}"


def _severities() -> str:
    """An example of each condition, with its unit."""
    lines = [_beside(f"# {name} = {severity}", CONDITIONS[name].meaning) for name, severity in SEVERITIES.items()]
    return f"{_comment(SEVERITY_HELP)}\n{''.join(lines)}"


def _keys(name: str, kind: type[Table], found: FolderContents, skip: Sequence[str] = ()) -> str:
    return "".join(_key(name, key, info, found) for key, info in kind.model_fields.items() if key not in skip)


def _key(table: str, key: str, info: Any, found: FolderContents) -> str:
    """A key with its value, and its meaning: beside it if it fits, else above."""
    place, about = (table, key), info.description or ""
    if place in found.values:
        line = f"{key} = {_toml(found.values[place])}"
        about += f"; also found: {', '.join(found.others[place][:5])}" if place in found.others else ""
    else:
        line = f"# {key} = {_toml(EXAMPLES.get(place, info.get_default()))}"
        about = f"{MISSING}: {about}" if info.is_required() else about
    if place == ("model", "weights") and found.pickled:
        about += f"; {found.pickled[0]} found; convert it:"
        return f"{_comment(about)}\n{textwrap.indent(conversion(found.pickled[0]), '#   ')}\n{line}\n"
    return _beside(line, about)


def _beside(line: str, about: str) -> str:
    beside = f"{line:<30}  # {about}\n"
    return beside if len(beside) <= LINE_LENGTH else f"{_comment(about)}\n{line}\n"


def _toml(value: Any) -> str:
    """Strings, numbers, booleans and lists look the same in JSON and TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + "}"
    return json.dumps(value)


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in textwrap.wrap(text, LINE_LENGTH - 2))
