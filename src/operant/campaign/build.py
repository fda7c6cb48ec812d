"""From ``operant.toml`` to a campaign that is ready to run: model, data, labeller, moves and retrainer."""

from __future__ import annotations

import glob
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from operant.activity import Activity, activity
from operant.campaign.campaign import Campaign
from operant.campaign.config import Config
from operant.campaign.field import MIN_PROFILE_INPUTS
from operant.campaign.observers import OBSERVERS, Observer
from operant.campaign.records import CampaignResult
from operant.conditions import Recipe
from operant.data import LabelFolder, Samples, read_samples
from operant.data.label_files import labels_from_function, labels_from_npz, labels_from_table
from operant.data.reading import picture_files
from operant.execution.engines import pool
from operant.execution.events import EventHandler, ignore
from operant.execution.run_folder import RunFolder, make_folder
from operant.generate import default_moves, default_radii
from operant.measure import mc_dropout
from operant.model import Classifier
from operant.model.hashing import described
from operant.model.importing import build_module, find_callable
from operant.networks import load_weights
from operant.profile import FittedConditions, fit_conditions
from operant.retrain import OperationalFinetune, Retrainer
from operant.rng import spawn
from operant.types import Labeller, Move


@dataclass(frozen=True, kw_only=True, eq=False)
class CampaignJob:
    """A campaign and the arguments of its call; made by `build`.

    Attributes:
        field: all field inputs that have arrived by a round.
        classes: the name of each label; empty if labels have only numbers.
        notes: choices that were made for the user.
    """

    campaign: Campaign
    model: Classifier
    train: Samples
    clean: Samples
    field: Callable[[int], Samples]
    labeller: Labeller
    classes: tuple[str, ...]
    folder: Path
    seed: int
    notes: tuple[str, ...]

    def run(self, *, on_event: EventHandler = ignore) -> CampaignResult:
        """Run the campaign, or resume it."""
        return self.campaign(
            self.model,
            train=self.train,
            clean=self.clean,
            field=self.field,
            labeller=self.labeller,
            classes=self.classes,
            folder=self.folder,
            seed=self.seed,
            on_event=on_event,
        )


def build(config: Config, *, workers: int | None = None) -> CampaignJob:
    """Read and check everything that the configuration names; errors name the key.

    Args:
        config: the contents of ``operant.toml``.
        workers: number of processes, in place of the configuration's.
    """
    notes: list[str] = []
    model = build_model(config, notes)
    train, clean, arrived = read_data(config, model, notes)
    folder = config.path(config.run.folder)
    with _naming_key("run", "folder"):
        make_folder(folder)
    with activity("preparing the labeller"), _naming_key("labels"):
        labeller = build_labeller(config, model, train, arrived.names)
    with _naming_key("conditions"):
        recipe = find_recipe(config, model, train, arrived, folder, notes)
    campaign = Campaign(
        requirement=config.requirement.pmi,
        confidence=config.requirement.confidence,
        max_drop=config.requirement.max_drop,
        moves=build_moves(config, model, train, recipe, notes),
        **config.budget.model_dump(),
        **config.generate.model_dump(include={"dimensions", "level", "mass_quantile"}),
        **config.run.model_dump(include={"feedback", "when_drifted"}),
        retrainer=build_retrainer(config),
        observers=_observers(config),
        engine=pool(workers or config.run.workers),
    )
    return CampaignJob(
        campaign=campaign,
        model=model,
        train=train,
        clean=clean,
        field=arrived,
        labeller=labeller,
        classes=_class_names(config, model, train),
        folder=folder,
        seed=config.run.seed,
        notes=tuple(notes),
    )


def _class_names(config: Config, model: Classifier, train: Samples) -> tuple[str, ...]:
    names, classes = tuple(config.data.classes or ()), model.classes(train.x[:1])
    if names and len(names) != classes:
        raise ValueError(f"[data] classes must name each of the model's {classes} classes, got {len(names)} names")
    return names


def _observers(config: Config) -> list[Observer]:
    known = {observer.name: observer for observer in OBSERVERS}
    if unknown := [name for name in config.run.observers if name not in known]:
        raise ValueError(f"[run] observers: there is no {unknown[0]}; there are {', '.join(known)}")
    return [observer for name, observer in known.items() if name in config.run.observers]


# The user's code


def build_model(config: Config, notes: list[str]) -> Classifier:
    """The classifier of [model]."""
    table = config.model
    with activity(f"building the model {table.module}"), _naming_key("model", "module"):
        module = build_module(importable(config, table.module))
    if table.weights is None:
        notes.append("[model] weights is not given: the module keeps the weights that its callable gives it")
    else:
        with activity(f"reading {table.weights}"), _naming_key("model", "weights"):
            load_weights(module, _existing(config.path(table.weights)))
    with _naming_key("model"):
        return Classifier(module, **table.model_dump(include={"bounds", "mean", "std", "batch_size"}))


def importable(config: Config, target: str) -> str:
    """``module:callable`` for a callable named in the file, with its folder added to the import path.

    Worker processes import it again, so a file is imported by its name, from its own folder.
    """
    source, colon, name = target.rpartition(":")
    if not (source and colon and name):
        raise ValueError(f'must be "package.module:callable" or "file.py:callable", got {target!r}')
    if not source.endswith(".py"):
        _add_to_import_path(config.path("."))
        return target
    file = _existing(config.path(source)).resolve()
    _add_to_import_path(file.parent)
    find_callable(f"{file.stem}:{name}")
    found = getattr(sys.modules[file.stem], "__file__", None)
    if found is None or Path(found).resolve() != file:
        raise ValueError(f"{file.name} has the same name as another module, {found or file.stem}; rename the file")
    return f"{file.stem}:{name}"


def _add_to_import_path(folder: Path) -> None:
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, place)


def build_retrainer(config: Config) -> Retrainer:
    """The retrainer of [retrain]: the user's own, or `OperationalFinetune` with its options."""
    if config.retrain.method is not None:
        with _naming_key("retrain", "method"):
            return find_callable(importable(config, config.retrain.method))
    with _naming_key("retrain"):
        return OperationalFinetune(**config.retrain.model_dump(exclude={"method"}), progress=False)


def build_moves(
    config: Config, model: Classifier, train: Samples, recipe: Recipe | None, notes: list[str]
) -> dict[str, Move]:
    """The moves of [generate]: conditions, one gradient search per radius, further searches, the user's own."""
    table = config.generate
    with _naming_key("generate", "moves"):
        own: dict[str, Move] = {name: find_callable(importable(config, t)) for name, t in table.moves.items()}
    with _naming_key("generate", "radii"), activity("choosing radii"):
        radii = default_radii(train, norm=table.norm) if table.radii is None else table.radii
    if table.radii is None:
        notes.append(f"[generate] radii is not given: {radii} in {table.norm}, which fit the training inputs")
    with _naming_key("generate", "patterns"):
        if table.patterns:  # fails for models without dropout
            mc_dropout(model, train.x[:2], passes=2, generator=spawn(config.run.seed, "dropout"))
    with _naming_key("generate"):
        options = table.model_dump(include={"norm", "steps", "genetic", "patterns"})
        return default_moves(train, recipe=recipe, radii=radii, own=own, **options)


# Data


def read_data(config: Config, model: Classifier, notes: list[str]) -> tuple[Samples, Samples, FieldFiles]:
    """Training and clean samples, and the function that returns field inputs; all checked against the model."""
    table, read = config.data, partial(read_samples, size=config.data.size)
    with activity("reading training data"), _naming_key("data", "train"):
        train = _labelled(model.match_dtype(read(_existing(config.path(table.train)), part="train")))
        model.check(train)
    with activity("reading clean data"), _naming_key("data", "clean"):
        if table.clean is None:
            train, clean = _hold_out(train, table.clean_share, notes)
        else:
            clean = _labelled(model.match_dtype(read(_existing(config.path(table.clean)))))
        _check_shape(clean, train)
        model.check(clean)
    patterns = tuple(str(config.path(p)) for p in ([table.field] if isinstance(table.field, str) else table.field))
    arrived = FieldFiles(patterns=patterns, size=table.size, model=model, train=train, clean=clean)
    if (n := len(arrived(0))) < 2 * MIN_PROFILE_INPUTS:
        notes.append(
            f"[data] field contains only {n} inputs: one half is for the profile, which needs {MIN_PROFILE_INPUTS}, "
            "and the other half is labelled"
        )
    return train, clean, arrived


def _hold_out(train: Samples, share: float, notes: list[str]) -> tuple[Samples, Samples]:
    parts = train.split(train=1 - share, clean=share)
    notes.append(
        f"[data] clean is not given: {len(parts['clean'])} of {len(train)} training inputs are held out to measure "
        "clean accuracy; the model has learned from them, so give others if you can"
    )
    if not len(parts["clean"]):
        raise ValueError(f"is not given, and {len(train)} training inputs are too few to hold some out; give clean")
    return parts["train"], parts["clean"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldFiles:
    """All field inputs that have arrived: every file that matches the patterns, read again at every call.

    Attributes:
        names: image files read so far, by id.
    """

    patterns: tuple[str, ...]
    size: tuple[int, int] | None
    model: Classifier
    train: Samples
    clean: Samples
    names: dict[int, Path] = field(default_factory=dict)

    def __call__(self, number: int) -> Samples:
        with _naming_key("data", "field"):
            files = self.files()
            with activity("reading field data", len(files), unit="files or folders") as work:
                parts = [self._read(file, work) for file in files]
            for file, part in zip(files, parts, strict=True):
                _check_shape(part, self.train)
                if file.is_dir():
                    self.names.update(zip(part.ids.tolist(), picture_files(file), strict=True))
            everything = Samples.concat([Samples(part.x, ids=part.ids) for part in parts])  # labels come from [labels]
            self.model.check_inputs(everything.x)
            if bool(torch.isin(everything.ids, torch.cat([self.train.ids, self.clean.ids])).all()):
                raise ValueError("must contain inputs that are not in train or clean, got none")
        return everything

    def _read(self, file: Path, work: Activity) -> Samples:
        samples = self.model.match_dtype(read_samples(file, size=self.size, part="field"))
        work.advance()
        return samples

    def files(self) -> list[Path]:
        """Files and folders that match the patterns, by name; a folder of npz files stands for those files."""
        found = []
        for pattern in self.patterns:
            matches = sorted(Path(p) for p in glob.glob(pattern, recursive=True))
            if not matches:
                raise ValueError(f"there is no {pattern}; put field inputs there, or name another place")
            found += [file for match in matches for file in (sorted(match.glob("*.npz")) or [match])]
        return list(dict.fromkeys(found))


def _labelled(samples: Samples) -> Samples:
    if samples.y is None:
        raise ValueError("has no labels, but needs them; save y beside x")
    return samples


def _check_shape(samples: Samples, train: Samples) -> None:
    if samples.shape != train.shape:
        raise ValueError(
            f"must contain inputs of the training data's shape {tuple(train.shape)}, got {tuple(samples.shape)}; "
            "convert them, or set [data] size for images"
        )


# Labels


def build_labeller(config: Config, model: Classifier, train: Samples, pictures: dict[int, Path]) -> Labeller:
    """The labeller of [labels]."""
    table, classes = config.labels, model.classes(train.x)
    if table.folder is not None:
        names = tuple(config.data.classes or ())
        return LabelFolder(folder=config.path(table.folder), classes=classes, bounds=model.bounds, names=names)
    if table.callable is not None:
        function = find_callable(importable(config, table.callable))
        return partial(_ask, "callable", labels_from_function(function, name=table.callable, classes=classes))
    assert table.file is not None
    path = _existing(config.path(table.file))
    if path.suffix == ".npz":
        return partial(_ask, "file", labels_from_npz(path, classes=classes))
    if path.suffix != ".csv":
        raise ValueError(f"file must be an npz file with x and y, or a csv file with name,label, got {path.name}")
    table_labels = labels_from_table(path, classes=classes, pictures=pictures, root=config.path("."))
    return partial(_ask, "file", table_labels)


def _ask(key: str, labeller: Labeller, asked: Samples) -> Tensor:
    with _naming_key("labels", key):
        return labeller(asked)


# Conditions


def find_recipe(
    config: Config,
    model: Classifier,
    train: Samples,
    arrived: Callable[[int], Samples],
    folder: Path,
    notes: list[str],
) -> Recipe | None:
    """The conditions of [conditions], as declared, or as estimated from the field inputs of the profile."""
    table = config.conditions
    if table is None:
        return None
    if len(train.shape) != 3:
        raise ValueError(f"conditions are for images, but inputs have the shape {tuple(train.shape)}; leave them out")
    severities = {name: s.severity() for name, s in table.severities.items()}
    declared = Recipe(severities=severities, bounds=model.bounds, padding=table.padding)
    if not table.estimate:
        return declared
    found = _estimate(declared, train, arrived, folder / "conditions", config.run.seed)
    notes.append(str(found))
    kept = {name: s for name, s in found.recipe.severities.items() if s.low < 0 or s.high > 0}
    return replace(found.recipe, severities=kept) if kept else None


def _estimate(
    widest: Recipe, train: Samples, arrived: Callable[[int], Samples], folder: Path, seed: int
) -> FittedConditions:
    """Conditions estimated once; a resumed campaign keeps them, even if more of the field has arrived."""

    def fit() -> FittedConditions:
        seen = arrived(0).split(profile=0.5, assessment=0.5)["profile"]
        return fit_conditions(seen, train, widest=widest, generator=spawn(seed, "conditions"), progress=False)

    signature = {"estimated within": described(widest), "train": described(train), "seed": str(seed)}
    with RunFolder(folder, signature=signature) as run:
        return run.step("estimated", FittedConditions, fit)


# Errors


@contextmanager
def _naming_key(table: str, key: str = "") -> Iterator[None]:
    """Put the key before the message of an error."""
    name = f"[{table}] {key}".rstrip()
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"{name}: there is no {error.filename or error}") from error
    except (ValueError, OSError, RuntimeError) as error:
        raise ValueError(f"{name}: {error}") from error


def _existing(path: Path) -> Path:
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob(f"*{path.suffix}")) if path.parent.is_dir() else []
        raise ValueError(f"there is no {path}" + (f"; beside it are {', '.join(near[:5])}" if near else ""))
    return path
