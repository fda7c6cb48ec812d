"""From what ``operant.toml`` says to a campaign that is ready to run: model, data, labeller and moves."""

from __future__ import annotations

import glob
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.campaign.campaign import Campaign
from operant.campaign.choosing import unguided
from operant.campaign.config import Config
from operant.campaign.field import FEWEST
from operant.campaign.result import CampaignResult
from operant.conditions import Recipe
from operant.data import LabelFolder, LabelsMissing, Samples, labels_of, read_samples
from operant.data.labels import name_of
from operant.data.reading import picture_files
from operant.execution.events import EventHandler
from operant.execution.run_folder import RunFolder, make_folder
from operant.generate import ConditionMove, GeneticMove, GradientMove, UncertaintyFuzz
from operant.measure import mc_dropout
from operant.model import Classifier
from operant.model.hashing import described
from operant.model.importing import build_module, find_callable
from operant.networks import load_weights
from operant.profile import FittedConditions, fit_conditions
from operant.retrain import OperationalFinetune
from operant.rng import spawn
from operant.types import Fuzzer, Labeller

RADII = (0.02, 0.05)  # for images: of the range of training inputs, for every value that an input has
TABLE_RADII = (0.05, 0.1)  # for tables: of the spread of a column
GENETIC_RADIUS = 0.3  # of that range; naturalness, not the ball, keeps these cases near
PATTERN_RADIUS = 0.1  # of that range, for each value; nothing but the ball keeps these cases near
MEMBERS, GENERATIONS = 50, 20  # of what is bred for a pattern; the paper's 100 and 50 take five times as long
Moves = dict[str, Callable[..., Fuzzer]]


@dataclass(frozen=True, kw_only=True, eq=False)
class CampaignJob:
    """A campaign with everything that it is called with; made by `build`.

    Attributes:
        field: all field inputs that have arrived by a round.
        classes: the name of each label; none where labels are told by their numbers.
        notes: what was decided in the user's place.
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
    workers: int
    notes: tuple[str, ...]

    def run(self, *, watch: EventHandler | None = None) -> CampaignResult:
        """Run the campaign, or go on with it."""
        return self.campaign(
            self.model,
            train=self.train,
            clean=self.clean,
            field=self.field,
            labeller=self.labeller,
            classes=self.classes,
            folder=self.folder,
            seed=self.seed,
            workers=self.workers,
            watch=watch,
        )


def build(config: Config, *, workers: int | None = None) -> CampaignJob:
    """Read and check everything that the configuration names; what is wrong is told with its key.

    Args:
        config: what ``operant.toml`` says.
        workers: in place of the configuration's.
    """
    notes: list[str] = []
    model = build_model(config, notes)
    train, clean, arrived = read_data(config, model, notes)
    folder = config.path(config.run.folder)
    with _told_of("run", "folder"):
        make_folder(folder)
    with _told_of("labels"):
        labeller = build_labeller(config, model, train, arrived.names)
    with _told_of("conditions"):
        recipe = find_recipe(config, model, train, arrived, folder, notes)
    if config.generate.patterns:
        with _told_of("generate", "patterns"):  # without dropout nothing is known of them
            mc_dropout(model, train.x[:2], passes=2, generator=spawn(config.run.seed, "dropout"))
    return CampaignJob(
        campaign=make_campaign(config, make_moves(config, train, recipe, notes)),
        model=model,
        train=train,
        clean=clean,
        field=arrived,
        labeller=labeller,
        classes=_class_names(config, model, train),
        folder=folder,
        seed=config.run.seed,
        workers=workers or config.run.workers,
        notes=tuple(notes),
    )


def _class_names(config: Config, model: Classifier, train: Samples) -> tuple[str, ...]:
    names, classes = tuple(config.data.classes or ()), model.classes(train.x[:1])
    if names and len(names) != classes:
        raise ValueError(f"[data] classes must name each of the model's {classes} classes, got {len(names)} names")
    return names


def make_campaign(config: Config, moves: Moves) -> Campaign:
    """The options of all tables."""
    with _told_of("retrain"):
        finetune = OperationalFinetune(**config.retrain.model_dump(), progress=False)
    return Campaign(
        requirement=config.requirement.pmi,
        confidence=config.requirement.confidence,
        max_drop=config.requirement.max_drop,
        moves=moves,
        **config.budget.model_dump(),
        **config.generate.model_dump(include={"dimensions", "level", "mass_quantile"}),
        **config.run.model_dump(include={"feedback", "when_drifted"}),
        finetune=finetune,
    )


# The user's code


def build_model(config: Config, notes: list[str]) -> Classifier:
    """The classifier of [model]."""
    table = config.model
    with _told_of("model", "module"):
        module = build_module(imported(config, table.module))
    if table.weights is None:
        notes.append("[model] weights is not given: the module is used as its callable builds it")
    else:
        with _told_of("model", "weights"):
            load_weights(module, _existing(config.path(table.weights)))
    with _told_of("model"):
        return Classifier(module, **table.model_dump(include={"bounds", "mean", "std", "batch_size"}))


def imported(config: Config, target: str) -> str:
    """``module:callable`` for what the file names, with the place of it among those to import from.

    Other processes import it again, so a file is imported by its name too, from its own folder.
    """
    source, colon, name = target.rpartition(":")
    if not (source and colon and name):
        raise ValueError(f'must be "package.module:callable" or "file.py:callable", got {target!r}')
    if not source.endswith(".py"):
        _importable(config.path("."))
        return target
    file = _existing(config.path(source)).resolve()
    _importable(file.parent)
    find_callable(f"{file.stem}:{name}")
    found = getattr(sys.modules[file.stem], "__file__", None)
    if found is None or Path(found).resolve() != file:
        raise ValueError(f"{file.name} has the name of another module, {found or file.stem}; rename the file")
    return f"{file.stem}:{name}"


def _importable(folder: Path) -> None:
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, place)


# Data


def read_data(config: Config, model: Classifier, notes: list[str]) -> tuple[Samples, Samples, Field]:
    """Training and clean samples, and the function that gives field inputs; all checked against the model."""
    table, read = config.data, partial(read_samples, size=config.data.size)
    with _told_of("data", "train"):
        train = _labelled(model.match_dtype(read(_existing(config.path(table.train)), part="train")))
        model.check(train)
    with _told_of("data", "clean"):
        if table.clean is None:
            train, clean = _held_out(train, table.clean_share, notes)
        else:
            clean = _labelled(model.match_dtype(read(_existing(config.path(table.clean)))))
        _same_shape(clean, train)
        model.check(clean)
    patterns = tuple(str(config.path(p)) for p in ([table.field] if isinstance(table.field, str) else table.field))
    arrived = Field(patterns=patterns, size=table.size, model=model, train=train, clean=clean)
    if (n := len(arrived(0))) < 2 * FEWEST:
        notes.append(
            f"[data] field holds {n} inputs, which is few: one half teaches what the field looks like, which takes "
            f"{FEWEST}, and the other is labelled"
        )
    return train, clean, arrived


def _held_out(train: Samples, share: float, notes: list[str]) -> tuple[Samples, Samples]:
    parts = train.split(train=1 - share, clean=share)
    notes.append(
        f"[data] clean is not given: {len(parts['clean'])} of {len(train)} training inputs, dealt by content, guard "
        "clean accuracy in its place; the model has learned from them, so give others if you can"
    )
    if not len(parts["clean"]):
        raise ValueError(f"is not given, and {len(train)} training inputs are too few to hold some out; give clean")
    return parts["train"], parts["clean"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Field:
    """All field inputs that have arrived: every file that the patterns match when it is asked.

    Attributes:
        names: by id, the files of pictures that were read so far.
    """

    patterns: tuple[str, ...]
    size: tuple[int, int] | None
    model: Classifier
    train: Samples
    clean: Samples
    names: dict[int, Path] = field(default_factory=dict)

    def __call__(self, number: int) -> Samples:
        with _told_of("data", "field"):
            files = self.files()
            parts = [self.model.match_dtype(read_samples(p, size=self.size, part="field")) for p in files]
            for file, part in zip(files, parts, strict=True):
                _same_shape(part, self.train)
                if file.is_dir():
                    self.names.update(zip(part.ids.tolist(), picture_files(file), strict=True))
            everything = Samples.concat([Samples(part.x, ids=part.ids) for part in parts])  # labels are the labeller's
            self.model.check_inputs(everything.x)
            if bool(torch.isin(everything.ids, torch.cat([self.train.ids, self.clean.ids])).all()):
                raise ValueError("must hold inputs that are not in train or clean, which say nothing new; got none")
        return everything

    def files(self) -> list[Path]:
        """Files and folders of the patterns, in the order of their names; a folder of npz files stands for them."""
        found = []
        for pattern in self.patterns:
            matches = sorted(Path(p) for p in glob.glob(pattern, recursive=True))
            if not matches:
                raise ValueError(f"there is no {pattern}; put inputs from use there, or name another place")
            found += [file for match in matches for file in (sorted(match.glob("*.npz")) or [match])]
        return list(dict.fromkeys(found))


def _labelled(samples: Samples) -> Samples:
    if samples.y is None:
        raise ValueError("holds no labels, and needs them; save y beside x")
    return samples


def _same_shape(samples: Samples, others: Samples, what: str = "training") -> None:
    if samples.shape != others.shape:
        raise ValueError(
            f"must hold inputs of the {what} data's shape {tuple(others.shape)}, got {tuple(samples.shape)}; convert "
            "them, or set [data] size for pictures"
        )


# Labels


def build_labeller(config: Config, model: Classifier, train: Samples, pictures: dict[int, Path]) -> Labeller:
    """Who tells the labels of field inputs, as [labels] says; a table may name them by their pictures' files."""
    table, classes = config.labels, model.classes(train.x)
    if table.folder is not None:
        names = tuple(config.data.classes or ())
        return LabelFolder(folder=config.path(table.folder), classes=classes, bounds=model.bounds, names=names)
    if table.callable is not None:
        function = find_callable(imported(config, table.callable))
        return partial(_asked, function, table.callable, classes)
    assert table.file is not None
    path = _existing(config.path(table.file))
    if path.suffix == ".npz":
        return partial(_looked_up, path, classes)
    if path.suffix != ".csv":
        raise ValueError(f"file must be an npz file with x and y, or a csv file with name,label, got {path.name}")
    return partial(_looked_up_by_name, path, classes, config.path("."), pictures)


def _asked(function: Callable[..., Any], name: str, classes: int, asked: Samples) -> Tensor:
    """Labels that the user's function tells."""
    inputs = f"{len(asked)} inputs of shape {tuple(asked.shape)}, {name_of(int(asked.ids[0]))} the first"
    try:
        told = torch.as_tensor(function(asked))
    except LabelsMissing:
        raise
    except Exception as error:  # the user's code may raise anything
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"[labels] callable: {name} failed on {inputs} ({why}); mend it and run this again") from error
    whole = not (told.is_floating_point() or told.is_complex() or told.dtype == torch.bool)
    if told.shape != (len(asked),) or not whole or not bool(((told >= 0) & (told < classes)).all()):
        raise ValueError(
            f"[labels] callable: {name} must return {len(asked)} whole numbers from 0 to {classes - 1}, one for each "
            f"of {inputs}, got {told.dtype} of shape {tuple(told.shape)}"
        )
    return told.long()


def _looked_up(path: Path, classes: int, asked: Samples) -> Tensor:
    """Labels of an npz file, read when they are asked for: more may have been added."""
    with _told_of("labels", "file"):
        labelled = _labelled(read_samples(path, part="field"))
        _same_shape(labelled, asked, "field")
        if (largest := int(labelled.labels.max())) >= classes:
            raise ValueError(f"{path} must hold labels from 0 to {classes - 1}, the model's classes, got {largest}")
    if unknown := int((~torch.isin(asked.ids, labelled.ids)).sum()):
        raise LabelsMissing(
            f"{unknown} of {len(asked)} inputs are not in {path}; add them to its x and their classes to its y, and "
            "run this again"
        )
    return labels_of(labelled)(asked)


def _looked_up_by_name(path: Path, classes: int, place: Path, pictures: dict[int, Path], asked: Samples) -> Tensor:
    """Labels of a table by the inputs' names, as `LabelFolder` writes it, or by those of the files they are read from.

    A file goes by its path from operant.toml on, or by as many of its last parts as no other picture shares.
    """
    known = LabelFolder(folder=path.parent, classes=classes, table=path.name).read()
    called = _names_of(pictures, place)
    names = [[name_of(i), *called.get(i, ())] for i in asked.ids.tolist()]
    told = [[y for name in several if (y := known.get(_as_read(name))) is not None] for several in names]
    if missing := [several[-1] for several, labels in zip(names, told, strict=True) if not labels]:
        raise LabelsMissing(
            f"{len(missing)} of {len(asked)} inputs have no label in {path}; add rows such as {missing[0]},3 and run "
            "this again, or let [labels] folder write inputs and table"
        )
    return torch.tensor([labels[0] for labels in told], dtype=torch.int64)


def _names_of(pictures: dict[int, Path], place: Path) -> dict[int, list[str]]:
    """By id, what a table may call a picture, from its whole path to the shortest end of it that is its own."""
    paths = {i: Path(os.path.relpath(file, place)).parts for i, file in pictures.items()}
    names = {i: ["/".join(parts[-n:]) for n in range(len(parts), 0, -1)] for i, parts in paths.items()}
    times = Counter(_as_read(name) for several in names.values() for name in several)
    return {i: [name for name in several if times[_as_read(name)] == 1] for i, several in names.items()}


def _as_read(name: str) -> str:
    """As `LabelFolder.read` gives it."""
    return name.lower().removesuffix(".png").removesuffix(".npz")


# How failures are searched


def find_recipe(
    config: Config,
    model: Classifier,
    train: Samples,
    arrived: Callable[[int], Samples],
    folder: Path,
    notes: list[str],
) -> Recipe | None:
    """The conditions of [conditions], as declared or as estimated from the half of field data that profiles it."""
    table = config.conditions
    if table is None:
        return None
    if len(train.shape) != 3:
        raise ValueError(f"conditions are for images, and inputs have the shape {tuple(train.shape)}; leave them out")
    severities = {name: s.severity() for name, s in table.severities.items()}
    declared = Recipe(severities=severities, bounds=model.bounds, padding=table.padding)
    if not table.estimate:
        return declared
    found = _estimated(declared, train, arrived, folder / "conditions", config.run.seed)
    notes.append(str(found))
    kept = {name: s for name, s in found.recipe.severities.items() if s.low < 0 or s.high > 0}
    return replace(found.recipe, severities=kept) if kept else None


def _estimated(
    widest: Recipe, train: Samples, arrived: Callable[[int], Samples], folder: Path, seed: int
) -> FittedConditions:
    """Estimated once; a campaign that goes on keeps what it began with, also where more of the field has arrived."""

    def fit() -> FittedConditions:
        seen = arrived(0).split(profile=0.5, assessment=0.5)["profile"]
        return fit_conditions(seen, train, widest=widest, generator=spawn(seed, "conditions"), progress=False)

    signature = {"estimated within": described(widest), "train": described(train), "seed": str(seed)}
    with RunFolder(folder, signature=signature) as run:
        return run.step("estimated", FittedConditions, fit)


def make_moves(config: Config, train: Samples, recipe: Recipe | None, notes: list[str]) -> Moves:
    """Conditions first, where there are any; then a gradient search for each radius; then what is bred."""
    table = config.generate
    moves: Moves = {} if recipe is None else {"conditions": partial(ConditionMove, recipe=recipe)}
    for radius in table.radii if table.radii is not None else default_radii(train, table.norm, notes):
        moves[f"gradient-{radius:g}"] = partial(GradientMove, radius=radius, norm=table.norm, steps=table.steps)
    for name in ("genetic", "patterns"):
        if getattr(table, name) and len(train.shape) != 3:
            raise ValueError(f"[generate] {name} is for images, and inputs have the shape {tuple(train.shape)}")
    if table.genetic:
        moves["genetic"] = partial(GeneticMove, radius=GENETIC_RADIUS * _range(train))
    for pattern in dict.fromkeys(table.patterns):
        radius = PATTERN_RADIUS * _range(train)
        fuzz = UncertaintyFuzz(pattern=pattern, radius=radius, population=MEMBERS, generations=GENERATIONS)
        moves[f"uncertainty-{pattern}"] = partial(unguided, fuzz)
    if not moves:
        raise ValueError("[generate]: there must be something to search with; give radii, or declare conditions")
    return moves


def default_radii(train: Samples, norm: str, notes: list[str]) -> list[float]:
    """Two radii that fit the inputs, at which cases keep their labels.

    For images, shares of their range, in L2 for each of an input's values. For tables, shares of a column's spread, in
    L2 whatever the number of columns: how far an input lies from another class depends on how well classes can be told
    apart, not on how many columns it takes. The shares were found on Gaussian classes of 10 and 30 columns, plain or
    with heavy tails, standardised or scaled to [0, 1], whose best rule is known and wrong on 4 % of inputs, with PGD on
    networks that are wrong on 5 to 31 %. Of all cases 99 % stay on the side of the rule that their seeds are on. Of the
    failures among them it is 96 % at the smaller radius and 93 % at the larger one, on average over eight settings, and
    fewer (four in five) where the network is as good as the rule; at 0.25 of the spread it would be 56 to 95 %. Where
    classes overlap by more than that, look at failures, and give radii of your own.
    """
    d, image = train.shape.numel(), len(train.shape) == 3
    scale = _range(train) * math.sqrt(d) if image else _spread(train)
    what = "the range of the training inputs" if image else "the spread of a column (its interquartile range)"
    shares = RADII if image else TABLE_RADII
    radii = [float(f"{share * scale / (1.0 if norm == 'l2' else math.sqrt(d)):.2g}") for share in shares]
    notes.append(f"[generate] radii is not given: {radii} in {norm}, which fits {what}")
    return radii


def _spread(train: Samples) -> float:
    """Interquartile range of a typical column: the median of those that have one, else of standard deviations."""
    x = train.x.flatten(1).numpy()
    low, high = np.quantile(x, (0.25, 0.75), axis=0)
    for spreads in (high - low, x.std(0)):
        if (spreads > 0).any():
            return float(np.median(spreads[spreads > 0]))
    raise ValueError("[data] train: inputs must differ, got the same values in all of them")


def _range(train: Samples) -> float:
    low, high = torch.aminmax(train.x)
    return float(high - low)


# What is told


@contextmanager
def _told_of(table: str, key: str = "") -> Iterator[None]:
    """Name the key in what is refused."""
    name = f"[{table}] {key}".rstrip()
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"{name}: there is no {error.filename or error}") from error
    except (ValueError, OSError, RuntimeError) as error:
        why = str(error).replace("give Classifier the bounds", "set [model] bounds to the bounds")
        raise ValueError(f"{name}: {why}") from error


def _existing(path: Path) -> Path:
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob(f"*{path.suffix}")) if path.parent.is_dir() else []
        raise ValueError(f"there is no {path}" + (f"; beside it are {', '.join(near[:5])}" if near else ""))
    return path
