"""From ``operant.toml`` to a campaign that is ready to run: model, data, labeller, moves and retrainer."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from operant.activity import Activity, activity
from operant.campaign.campaign import Campaign
from operant.campaign.config import ConditionsTable, Config
from operant.campaign.field import MIN_PROFILE_INPUTS, FewFieldInputs, check_field_size
from operant.campaign.observers import OBSERVERS, Observer
from operant.campaign.records import CampaignResult
from operant.conditions import Recipe
from operant.data import LabelFolder, Samples, read_samples
from operant.data.groups import with_groups
from operant.data.label_files import labels_from_function, labels_from_npz, labels_from_table, note_on_unused_rows
from operant.data.label_folder import TABLE
from operant.data.reading import folder_classes
from operant.execution.engines import pool
from operant.execution.events import EventHandler, ignore
from operant.execution.run_folder import RunFolder, make_folder
from operant.execution.timing import Stopwatch
from operant.files import existing, set_max_bytes
from operant.generate import default_moves, default_radii
from operant.measure import mc_dropout
from operant.model import Classifier, Finding
from operant.model.hashing import described
from operant.model.importing import build_module, find_callable
from operant.networks import load_weights
from operant.profile import FittedConditions
from operant.profile._conditions import NoConditions, check_estimable, estimate_conditions, usual_conditions
from operant.profile._words import describe_conditions
from operant.profile.describe import field_findings, one_class
from operant.retrain import CaseRetrainer, OperationalFinetune
from operant.rng import spawn
from operant.types import Labeller, Move, StoredLabels

CONDITIONS, ESTIMATED = "conditions", "estimated"  # folder and name of the estimated conditions


@dataclass(frozen=True, kw_only=True, eq=False)
class CampaignJob:
    """A campaign and the arguments of its call; made by `build`.

    Attributes:
        field: all field inputs that have arrived by a round.
        classes: the name of each label; empty if labels have only numbers.
        notes: choices that were made for the user.
        findings: reasons to doubt the field inputs or the estimated conditions.
        conditions: estimated from the field; None if they were not.
        recipe: the conditions to draw cases from, declared or estimated; None if there are none.
        stopwatch: of the session.
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
    findings: tuple[Finding, ...]
    conditions: FittedConditions | None
    recipe: Recipe | None
    stopwatch: Stopwatch

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
            notes=self.notes,
            conditions=self.conditions,
            recipe=self.recipe,
            on_event=on_event,
            stopwatch=self.stopwatch,
        )


def build(
    config: Config,
    *,
    workers: int | None = None,
    stopwatch: Stopwatch | None = None,
    check: Callable[[Classifier, Samples], None] = lambda model, clean: None,
) -> CampaignJob:
    """Read and check everything that the configuration names; errors name the key.

    Args:
        config: the contents of ``operant.toml``.
        workers: number of processes, in place of the configuration's.
        stopwatch: of a session that began earlier (default: it begins now).
        check: called with the model and clean samples before anything that takes long.
    """
    stopwatch = Stopwatch() if stopwatch is None else stopwatch
    set_max_bytes(config.data.max_bytes)
    notes: list[str] = []
    findings: list[Finding] = []
    model = build_model(config, notes)
    check_label_table(config)
    train, clean, arrived = read_data(data_options(config), model, notes, findings)
    folder = config.path(config.run.folder)
    with _naming_key("run", "folder"):
        make_folder(folder)
    classes = configured_classes(config, model, train)
    with activity("preparing the labeller"):
        labeller = build_labeller(config, model, train, arrived.names, classes, notes)
    if hasattr(labeller, "stored"):
        labeller.stored(train.ids[:0])  # reads the labels, so that a damaged table is noticed now
    check(model, clean)
    retrainer, own = build_retrainer(config), own_moves(config)  # before anything that takes long
    with _naming_key("conditions"), stopwatch.timed("conditions"):
        recipe, conditions = find_recipe(config, model, train, arrived, folder, notes, findings)
    return CampaignJob(
        campaign=_campaign(config, build_moves(config, model, train, recipe, own, notes), retrainer, workers),
        model=model,
        train=train,
        clean=clean,
        field=arrived,
        labeller=labeller,
        classes=classes,
        folder=folder,
        seed=config.run.seed,
        notes=tuple(note.replace(f"{config.path('.')}{os.sep}", "") for note in notes),  # paths as in the file
        findings=tuple(findings),
        conditions=conditions,
        recipe=recipe,
        stopwatch=stopwatch,
    )


def _campaign(config: Config, moves: dict[str, Move], retrainer: CaseRetrainer, workers: int | None) -> Campaign:
    return Campaign(
        requirement=config.requirement.pmi,
        confidence=config.requirement.confidence,
        max_drop=config.requirement.max_drop,
        moves=moves,
        **config.budget.model_dump(),
        **config.generate.model_dump(include={"draws", "judge_draws", "dimensions", "level", "mass_quantile"}),
        **config.run.model_dump(include={"feedback", "when_drifted"}),
        retrainer=retrainer,
        observers=_observers(config),
        engine=pool(workers or config.run.workers),
    )


def configured_classes(config: Config, model: Classifier, train: Samples) -> tuple[str, ...]:
    """The name of each label: those of [data] classes, or of the folders of the training data; empty if unknown."""
    given, classes = tuple(config.data.classes or ()), model.classes(train.x[:1])
    if given and len(given) != classes:
        raise ValueError(f"[data] classes must name each of the model's {classes} classes, got {len(given)} names")
    if not given and train.classes and len(train.classes) != classes:
        raise ValueError(
            f"[data] train must have a folder for each of the model's {classes} classes, got {len(train.classes)} "
            "folders; add the missing ones, or name all classes in [data] classes"
        )
    return given or train.classes


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
        module = build_module(table.module, root=config.path("."))
    if table.weights is None:
        notes.append("[model] weights is not given: the module keeps the weights that its callable gives it")
    else:
        with activity(f"reading {table.weights}"), _naming_key("model", "weights"):
            load_weights(module, existing(config.path(table.weights)))
    with _naming_key("model"):
        return Classifier(module, **table.model_dump(include={"bounds", "mean", "std", "batch_size"}))


def build_retrainer(config: Config) -> CaseRetrainer:
    """The retrainer of [retrain]: the user's own, or `OperationalFinetune` with its options."""
    if config.retrain.method is not None:
        with _naming_key("retrain", "method"):
            return find_callable(config.retrain.method, root=config.path("."))
    with _naming_key("retrain"):
        return OperationalFinetune(**config.retrain.model_dump(exclude={"method"}), progress=False)


def own_moves(config: Config) -> dict[str, Move]:
    """The user's own moves of [generate]."""
    with _naming_key("generate", "moves"):
        return {n: find_callable(t, root=config.path(".")) for n, t in config.generate.moves.items()}


def build_moves(
    config: Config, model: Classifier, train: Samples, recipe: Recipe | None, own: dict[str, Move], notes: list[str]
) -> dict[str, Move]:
    """The moves of [generate]: conditions, one gradient search per radius, further searches, the user's own."""
    table = config.generate
    radii = table.radii or []
    if table.radii is None and recipe is None:
        with _naming_key("generate", "radii"), activity("choosing radii"):
            radii = default_radii(train, norm=table.norm)
        image = len(train.shape) == 3
        none = "; gradients are followed because there are no conditions to draw from" if image else ""
        what = "range of the training inputs" if image else "spread of a column (interquartile range)"
        notes.append(f"[generate] radii is not given: {radii} in {table.norm}, which fit the {what}{none}")
    with _naming_key("generate", "patterns"):
        if table.patterns:  # fails for models without dropout
            mc_dropout(model, train.x[:2], passes=2, generator=spawn(config.run.seed, "dropout"))
    with _naming_key("generate"):
        options = table.model_dump(include={"climb", "norm", "steps", "genetic", "patterns"})
        return default_moves(train, recipe=recipe, radii=radii, own=own, **options)


# Data


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which files to read, and how: what a command was given, or else what [data] says; made by `data_options`.

    Attributes:
        train: training data; its folders name the classes.
        clean: labelled data that nothing learns from; if None, a share of train is held out.
        field: patterns of the field data.
        root: folder that the names of field inputs start from.
        size: height and width that images are resized to.
        groups: table with the group of each field input.
        classes: the name of each label, if given.
    """

    train: Path | None
    clean: Path | None = None
    clean_share: float = 0.1
    field: tuple[str, ...] = ()
    root: Path = Path()
    size: tuple[int, int] | None
    groups: Path | None
    classes: tuple[str, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of classes in the order of their labels, which ``classes`` decides if it contains those of train."""
        known = () if self.train is None else folder_classes(self.train)
        return self.classes if set(known) <= set(self.classes) else known  # or other names for them, in their order

    def read(self, path: Path, *, part: str = "test", groups: Path | None = None) -> Samples:
        """Samples of a file or folder; the same folder has the same label in every part."""
        samples = read_samples(path, size=self.size, part=part, groups=groups)
        return samples.in_classes(self.folders) if samples.classes and self.folders else samples


def data_options(
    config: Config | None,
    *,
    train: Path | None = None,
    clean: Path | None = None,
    field: Path | None = None,
    size: tuple[int, int] | None = None,
    groups: Path | None = None,
) -> DataOptions:
    """The given options, and those of [data] for the others; its groups only for its own field."""
    given = () if field is None else (str(field),)
    if config is None:
        return DataOptions(train=train, clean=clean, field=given, size=size, groups=groups, classes=())
    table = config.data
    patterns = [table.field] if isinstance(table.field, str) else table.field
    own = field is None or (isinstance(table.field, str) and config.path(table.field).resolve() == field.resolve())
    if groups is None and own and table.groups is not None:
        groups = config.path(table.groups)
    if clean is None and table.clean is not None:
        clean = config.path(table.clean)
    return DataOptions(
        train=train or config.path(table.train),
        clean=clean,
        clean_share=table.clean_share,
        field=given or tuple(str(config.path(p)) for p in patterns),
        root=config.path("."),
        size=size or table.size,
        groups=groups,
        classes=tuple(table.classes or ()),
    )


def read_data(
    options: DataOptions, model: Classifier, notes: list[str], findings: list[Finding]
) -> tuple[Samples, Samples, FieldFiles]:
    """Training and clean samples, and the function that returns field inputs; all checked against the model."""
    train, clean = read_known(options, model, notes)
    arrived = field_files(options, model, train, clean)
    inputs = arrived(0)
    findings += [*field_findings(inputs, train, clean), *one_class(model, inputs)]
    if (n := len(inputs)) < 2 * MIN_PROFILE_INPUTS:
        notes.append(
            f"[data] field contains only {n} inputs: one half is for the profile, which needs {MIN_PROFILE_INPUTS}, "
            "and the other half is labelled"
        )
    return train, clean, arrived


def read_known(options: DataOptions, model: Classifier, notes: list[str]) -> tuple[Samples, Samples]:
    """Training and clean samples, checked against the model."""
    return _read_clean(options, model, _read_train(options, model), notes)


def field_files(options: DataOptions, model: Classifier, train: Samples, clean: Samples) -> FieldFiles:
    """The function that returns field inputs."""
    return FieldFiles(
        patterns=options.field,
        size=options.size,
        model=model,
        train=train,
        clean=clean,
        root=options.root,
        groups=options.groups,
    )


def _read_train(options: DataOptions, model: Classifier) -> Samples:
    """The training samples, with labels and checked against the model."""
    assert options.train is not None
    with activity("reading training data"), _naming_key("data", "train"):
        train = _labelled(model.match_dtype(options.read(existing(options.train), part="train")))
        model.check(train)
    return train


def _read_clean(options: DataOptions, model: Classifier, train: Samples, notes: list[str]) -> tuple[Samples, Samples]:
    """Training and clean samples; without [data] clean, a part of the training samples is held out."""
    with activity("reading clean data"), _naming_key("data", "clean"):
        if options.clean is None:
            train, clean = _hold_out(train, options.clean_share, notes)
        else:
            clean = _labelled(model.match_dtype(options.read(existing(options.clean))))
            clean = clean.in_classes(train.classes) if train.classes else clean
        _check_shape(clean, train)
        model.check(clean)
    return train, clean


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
        root: folder that the names of inputs start from.
        groups: table with the group of each input.
        names: ids of the inputs read so far, by name.
    """

    patterns: tuple[str, ...]
    size: tuple[int, int] | None
    model: Classifier
    train: Samples
    clean: Samples
    root: Path
    groups: Path | None = None
    names: dict[str, int] = field(default_factory=dict)

    def __call__(self, number: int) -> Samples:
        everything = self.read()
        with _naming_key("data", "field"):
            if bool(torch.isin(everything.ids, torch.cat([self.train.ids, self.clean.ids])).all()):
                raise ValueError("must contain inputs that are not in train or clean, got none")
        return everything

    def read(self) -> Samples:
        """The inputs, even if they are all training inputs."""
        with _naming_key("data", "field"):
            files = self.files()
            with activity("reading field data", len(files), unit="files or folders") as work:
                parts = [self._read(file, work) for file in files]
            for part in parts:
                _check_shape(part, self.train)
            everything = Samples.concat(parts)
            self.model.check_inputs(everything.x)
        self.names.update(zip(everything.names or (), everything.ids.tolist(), strict=True))
        if self.groups is None:
            return everything
        with _naming_key("data", "groups"):
            return with_groups(everything, existing(self.groups))

    def _read(self, file: Path, work: Activity) -> Samples:
        """The inputs of a file or folder without labels, which come from [labels]; names start from the root."""
        part = self.model.match_dtype(read_samples(file, size=self.size, part="field"))
        work.advance()
        return replace(part, y=None, classes=(), names=names_from(self.root, file, part))

    def files(self) -> list[Path]:
        """Files and folders that match the patterns, by name; a folder of npz files stands for those files."""
        found = []
        for pattern in self.patterns:
            matches = sorted(Path(p) for p in glob.glob(pattern, recursive=True))
            if not matches:
                raise ValueError(f"there is no {pattern}; put field inputs there, or name another place")
            found += [file for match in matches for file in (sorted(match.glob("*.npz")) or [match])]
        return list(dict.fromkeys(found))


def names_from(root: Path, file: Path, samples: Samples) -> tuple[str, ...]:
    """The names of the samples of a file or folder, with its place in a folder."""
    folder = os.path.relpath(file if file.is_dir() else file.parent, root)
    place = "" if folder == "." else f"{Path(folder).as_posix()}/"
    return tuple(f"{place}{name}" for name in samples.names or ())


def _labelled(samples: Samples) -> Samples:
    if samples.y is None:
        raise ValueError("has no labels, but needs them; save y beside x")
    return samples


def _check_shape(samples: Samples, train: Samples) -> None:
    here, there = ({1: "grey", 3: "colour"}.get(s.shape[0], "") if len(s.shape) == 3 else "" for s in (samples, train))
    if here and there and here != there and samples.shape[1:] == train.shape[1:]:
        raise ValueError(
            f"must contain {there} images like the training data, got {here} ones; a folder with one colour picture is "
            f"read in colour, so convert all pictures to {there}"
        )
    if samples.shape != train.shape:
        raise ValueError(
            f"must contain inputs of the training data's shape {tuple(train.shape)}, got {tuple(samples.shape)}; "
            "convert them, or set [data] size for images"
        )


# Labels


def build_labeller(
    config: Config,
    model: Classifier,
    train: Samples,
    names: dict[str, int],
    class_names: tuple[str, ...],
    notes: list[str],
) -> Labeller:
    """The labeller of [labels]; ``names`` are those of the field inputs, ``class_names`` those of the labels."""
    table, classes = config.labels, model.classes(train.x)
    if table.folder is not None:
        where = config.path(table.folder)
        labeller = LabelFolder(folder=where, classes=classes, bounds=model.bounds, names=class_names, examples=train)
        with _naming_key("labels", "folder"):
            labeller.read_by_id()  # faulty labels are noticed before anything that takes long
        if note := labeller.note_on_unused_rows():
            notes.append(note)
        return labeller
    if table.callable is not None:
        with _naming_key("labels", "callable"):
            function = find_callable(table.callable, root=config.path("."))
        return _NamingKey("callable", labels_from_function(function, name=table.callable, classes=classes))
    assert table.file is not None
    with _naming_key("labels", "file"):
        found = labels_from_file(config.path(table.file), classes, names, class_names, notes)
    return _NamingKey("file", found)


def check_label_table(config: Config, n: int | None = None) -> None:
    """Raise an error if the csv table of [labels] cannot be read, before any other data are read.

    ``n`` is the number of classes if they have no names in [data] classes or as folders of [data] train; without it and
    without names, nothing is checked.
    """
    table, options = config.labels, data_options(config)
    names = options.classes or options.folders
    path = config.path(table.file or f"{table.folder}/{TABLE}")
    if table.callable is not None or path.suffix != ".csv" or not path.is_file() or not (classes := len(names) or n):
        return
    with _naming_key("labels", "file" if table.file else "folder"):
        LabelFolder(folder=path.parent, table=path.name, classes=classes, names=names).read()


def labels_from_file(
    path: Path, classes: int, names: dict[str, int], class_names: tuple[str, ...], notes: list[str]
) -> StoredLabels:
    """A labeller that reads an npz file with x and y, or a csv table; see `build_labeller`."""
    if existing(path).suffix == ".npz":
        return labels_from_npz(path, classes=classes)
    if path.suffix != ".csv":
        raise ValueError(f"must be an npz file with x and y, or a csv file with name,label, got {path.name}")
    labeller = labels_from_table(path, classes=classes, names=names, class_names=class_names)
    labeller.stored(torch.empty(0, dtype=torch.int64))  # reads the table, so that a damaged one is noticed first
    if note := note_on_unused_rows(path, names):
        notes.append(note)
    return labeller


@dataclass(frozen=True)
class _NamingKey:
    """A labeller whose errors name the key of [labels]."""

    key: str
    labeller: Labeller

    def __call__(self, asked: Samples) -> Tensor:
        with _naming_key("labels", self.key):
            return self.labeller(asked)

    def stored(self, ids: Tensor) -> dict[int, tuple[str, int]]:
        """Labels of a file; those of a callable are not stored."""
        with _naming_key("labels", self.key):
            return self.labeller.stored(ids) if isinstance(self.labeller, StoredLabels) else {}


# Conditions


def find_recipe(
    config: Config,
    model: Classifier,
    train: Samples,
    arrived: Callable[[int], Samples],
    folder: Path,
    notes: list[str],
    findings: list[Finding],
) -> tuple[Recipe | None, FittedConditions | None]:
    """The conditions to search with, and what was estimated of them from the field inputs of the profile.

    Declared severities are used as they are, or limit the estimate. Without any, conditions are estimated for images,
    unless [conditions] estimate is false.
    """
    table = config.conditions or ConditionsTable()
    if len(train.shape) != 3:
        if config.conditions is None or not table.wanted:
            return None, None
        raise ValueError(f"conditions are for images, but inputs have the shape {tuple(train.shape)}; leave them out")
    if not table.wanted:
        return None, None
    if not table.estimated:
        return declared_recipe(table, model.bounds), None
    try:
        found = _estimate(limits_of(table, train, model.bounds), train, arrived, folder / CONDITIONS, config.run.seed)
    except NoConditions as error:
        if config.conditions is not None:  # asked for
            raise
        notes.append(f"conditions were not estimated, from the half of the field inputs for the profile: {error}")
        return None, None
    notes.append(describe_conditions(found))
    findings.extend(found.findings)
    return (found.recipe if found.recipe.severities else None), found


def declared_recipe(table: ConditionsTable, bounds: tuple[float, float]) -> Recipe:
    """The severities of [conditions]."""
    severities = {name: s.severity() for name, s in table.severities.items()}
    return Recipe(severities=severities, bounds=bounds, padding=table.padding)


def limits_of(table: ConditionsTable, train: Samples, bounds: tuple[float, float]) -> Recipe:
    """The strongest conditions that an estimate may find: declared ones, or a palette of usual ones."""
    if table.severities and table.estimate:
        return declared_recipe(table, bounds)
    return usual_conditions(tuple(train.shape), bounds, padding=table.padding)


def _estimate(
    widest: Recipe, train: Samples, arrived: Callable[[int], Samples], folder: Path, seed: int
) -> FittedConditions:
    """Conditions estimated once; a resumed campaign keeps them, even if more of the field has arrived."""

    def fit() -> FittedConditions:
        seen = arrived(0).split(profile=0.5, assessment=0.5)["profile"]
        return estimate_conditions(seen, train, widest=widest, generator=spawn(seed, "conditions"))

    if not folder.exists():  # nothing is written if it is clear that there will be no conditions
        inputs = arrived(0)
        for part in (inputs, inputs.split(profile=0.5, assessment=0.5)["profile"]):
            check_estimable(part, train)
        check_field_size(inputs)  # an estimate takes a minute or two, which would be in vain
    signature = {"estimated within": described(widest), "train": described(train), "seed": str(seed)}
    with RunFolder(folder, signature=signature) as run:
        return run.step(ESTIMATED, FittedConditions, fit)


# Errors


@contextmanager
def _naming_key(table: str, key: str = "") -> Iterator[None]:
    """Put the key before the message of an error."""
    name = f"[{table}] {key}".rstrip()
    try:
        yield
    except FewFieldInputs:  # not about this key
        raise
    except FileNotFoundError as error:
        raise ValueError(f"{name}: there is no {error.filename or error}") from error
    except (ValueError, OSError, RuntimeError) as error:
        raise ValueError(f"{name}: {error}") from error
