"""Read well-known data sets and the user's files into samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from operant.activity import activity
from operant.data.formats import (
    Array,
    Images,
    as_images,
    as_labels,
    images_from_arrays,
    pictures_in,
    read_cifar_binary,
    read_cifar_python,
    read_idx,
    read_image_folder,
    read_npz,
    read_pictures,
    read_svhn,
    scaled,
)
from operant.data.samples import Samples
from operant.validation import check_at_least, check_one_of

DIGITS = tuple("0123456789")
CLASSES = {
    "mnist": DIGITS,
    "fashion-mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "svhn": DIGITS,
    "usps": DIGITS,
}
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist
SPELLINGS = {
    "mnist": ("mnist", "MNIST"),
    "fashion-mnist": ("fashion-mnist", "fashion_mnist", "FashionMNIST"),
    "cifar10": ("cifar10", "CIFAR10"),
    "svhn": ("svhn", "SVHN"),
    "usps": ("usps", "USPS"),
}
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
FIRST_LABELS = {  # distinguish two sets whose files have the same names
    "mnist": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5, 3, 6, 1, 7],
    "fashion-mnist": [9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9],
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Training and test samples in a fixed split, and the name of each class."""

    train: Samples
    test: Samples
    classes: tuple[str, ...]


def load_digits(*, size: int = 8) -> Dataset:
    """The 1797 handwritten digits inside scikit-learn, ``(N, 1, size, size)`` in [0, 1]; nothing is downloaded.

    A fifth of them is for testing, chosen by content, so that equal images are never on both sides and every size has
    the same split.

    Args:
        size: height and width; above the original 8, images are enlarged bilinearly (28 fits networks for MNIST).

    >>> load_digits().test.shape
    torch.Size([1, 8, 8])
    """
    from sklearn import datasets

    check_at_least(8, advice="the original size of the digits", size=size)
    page = datasets.load_digits()
    x = torch.from_numpy(page.images).float().unsqueeze(1) / 16
    parts = Samples(x, torch.from_numpy(page.target), classes=DIGITS).split(train=0.8, test=0.2)
    if size > 8:
        enlarge = partial(interpolate, size=(size, size), mode="bilinear", align_corners=False)
        parts = {r: Samples(enlarge(part.x).clamp(0, 1), part.y, classes=DIGITS) for r, part in parts.items()}
    return Dataset(train=parts["train"], test=parts["test"], classes=DIGITS)


def samples_from_folder(path: str | Path, *, size: tuple[int, int] | None = None) -> Samples:
    """Images in one folder per class (see `operant.data.formats.read_image_folder`), ``(N, C, H, W)`` in [0, 1].

    The folders give the names of the classes; an input is named by its file in that folder, ``cat/0001.png``.
    """
    images = read_image_folder(path, size=size)
    return _samples(images, images.classes)


def samples_from_pictures(path: str | Path, *, size: tuple[int, int] | None = None) -> Samples:
    """Unlabelled pictures in one folder, in alphabetical order, ``(N, C, H, W)`` in [0, 1]; named by their files."""
    files = pictures_in(Path(path))
    return Samples(torch.from_numpy(scaled(read_pictures(files, size=size))), names=tuple(file.name for file in files))


def samples_from_npz(path: str | Path, *, part: str = "test") -> Samples:
    """The inputs ``x`` and, if present, labels ``y`` of an npz file; without ``x``, its ``x_test`` and ``y_test``.

    With ``part="train"``, ``x_train`` and ``y_train`` are read instead of ``x_test`` and ``y_test``.

    uint8 images ``(N, H, W)`` or ``(N, H, W, 3)`` become ``(N, C, H, W)`` in [0, 1]; floating-point inputs
    ``(N, *shape)`` keep their values, as float32. Row 17 is named ``field.npz[17]``, or ``data.npz[x_test][17]`` if the
    inputs are called ``x_test``. ``groups`` (``groups_test``) may hold the group of each row, as text or number.
    """
    arrays = read_npz(path)
    name = "x" if "x" in arrays else f"x_{part}"
    if name not in arrays or arrays[name].ndim < 2:
        found = {key: array.shape for key, array in arrays.items()}
        raise ValueError(f"{path} must hold x (N, *shape), and y if labels are known, got {found}; save it so")
    x, label = arrays[name], name.replace("x", "y", 1)
    y = torch.from_numpy(as_labels(arrays[label], len(x), f"{label} of {path}")) if label in arrays else None
    source = Path(path).name if name == "x" else f"{Path(path).name}[{name}]"
    names, groups = tuple(f"{source}[{i}]" for i in range(len(x))), _npz_groups(arrays, name, path)
    if x.dtype.kind == "f":
        return Samples(torch.from_numpy(x.astype(np.float32)), y, names=names, groups=groups)
    if x.dtype != np.uint8:
        raise ValueError(f"{name} of {path} must be uint8 images or floats (N, *shape), got {x.dtype}; convert it")
    return Samples(torch.from_numpy(scaled(as_images(x, f"{name} of {path}"))), y, names=names, groups=groups)


def _npz_groups(arrays: dict[str, Array], x: str, path: str | Path) -> tuple[str, ...] | None:
    """The group of each row, if the file has them."""
    name = x.replace("x", "groups", 1)
    if name not in arrays:
        return None
    groups, n = arrays[name], len(arrays[x])
    if groups.shape != (n,) or groups.dtype.kind not in "Uiu":
        got = f"{groups.dtype} of shape {groups.shape}"
        raise ValueError(f"{name} of {path} must be {n} strings or integers, one per input, got {got}; convert them")
    return tuple(map(str, groups.tolist()))


def load(name: str, root: str | Path) -> Dataset:
    """Find a well-known data set in a folder, in any of its formats.

    It searches ``root``, and a folder of the set's name in it, for ``<name>.npz`` (arrays x_train, y_train, x_test,
    y_test), MNIST's IDX files (gzipped or not), CIFAR-10's Python or binary batches and SVHN's MATLAB files.
    Images become ``(N, C, H, W)`` in [0, 1].

    Args:
        name: ``mnist``, ``fashion-mnist``, ``cifar10``, ``svhn`` or ``usps``.
        root: the folder to search.
    """
    check_one_of(CLASSES, advice="for own data use samples_from_folder", name=name)
    places = list(_places(name, Path(root)))
    for place in places:
        missing = [file for file in place.files if not file.is_file()]
        if not missing:
            return _dataset(name, place)
        if len(missing) < len(place.files):
            names = ", ".join(file.name for file in missing)
            raise ValueError(f"{place.files[0].parent} holds only a part of {name}: {names} missing; download it again")
    raise FileNotFoundError(f"no {name} under {root}; put it into one of these places:\n{_listed(places)}")


@dataclass(frozen=True)
class _Place:
    """The files of a data set, and the function that reads them into training and test images."""

    files: tuple[Path, ...]
    read: Callable[[tuple[Path, ...]], tuple[Images, Images]]

    def __str__(self) -> str:
        names = [file.name for file in self.files]
        return str(self.files[0]) if len(names) == 1 else f"{self.files[0].parent} with {', '.join(names)}"


def _places(name: str, root: Path) -> Iterator[_Place]:
    """Where a data set may be: its own folders come before the root, which other sets may share."""
    own = [root / spelling for spelling in SPELLINGS[name]]
    for folder in own:
        yield _Place((folder.with_name(f"{folder.name}.npz"),), _read_npz_set)
        yield _Place((folder / f"{folder.name}.npz",), _read_npz_set)
    if name in ("mnist", "fashion-mnist"):
        folders = [f for folder in own for f in (folder, folder / "raw")] + [root]
        for folder in folders + [DEBIAN_FASHION_MNIST] * (name == "fashion-mnist"):
            yield _Place(tuple(_plain_or_gz(folder / file) for file in IDX_FILES), _read_idx_set)
    if name == "cifar10":
        for folder in (f for base in (*own, root) for f in (base, base / "cifar-10-batches-py")):
            yield _Place(tuple(folder / file for file in CIFAR_FILES), _each(read_cifar_python))
        for folder in (f for base in (*own, root) for f in (base, base / "cifar-10-batches-bin")):
            yield _Place(tuple(folder / f"{file}.bin" for file in CIFAR_FILES), _each(read_cifar_binary))
    if name == "svhn":
        for folder in (*own, root):
            yield _Place((folder / "train_32x32.mat", folder / "test_32x32.mat"), _each(read_svhn))


def _listed(places: Sequence[_Place]) -> str:
    """One line per set of file names, with the folders that may hold them."""
    folders: dict[tuple[str, ...], list[str]] = {}
    for place in places:
        folders.setdefault(tuple(f.name for f in place.files), []).append(str(place.files[0].parent))
    return "\n".join(
        f"  {', '.join(names)}{' (or .gz)' * (names == IDX_FILES)} in {' or '.join(where)}"
        for names, where in folders.items()
    )


def _plain_or_gz(path: Path) -> Path:
    """The file itself, or its gzipped form if only that exists."""
    gz = path.with_name(f"{path.name}.gz")
    return gz if gz.is_file() and not path.is_file() else path


def _read_npz_set(files: tuple[Path, ...]) -> tuple[Images, Images]:
    arrays = read_npz(files[0])
    train, test = (images_from_arrays(arrays, f"x_{part}", f"y_{part}", files[0]) for part in ("train", "test"))
    return train, test


def _read_idx_set(files: tuple[Path, ...]) -> tuple[Images, Images]:
    def read(x: Path, y: Path) -> Images:
        return images_from_arrays({x.name: read_idx(x), y.name: read_idx(y)}, x.name, y.name, x.parent)

    return read(*files[:2]), read(*files[2:])


def _each(read: Callable[[Path], Images]) -> Callable[[tuple[Path, ...]], tuple[Images, Images]]:
    """A reader of several files of one format; the last file is the test set."""

    def read_all(files: tuple[Path, ...]) -> tuple[Images, Images]:
        *train, test = [read(file) for file in files]
        return Images(np.concatenate([part.x for part in train]), np.concatenate([part.y for part in train])), test

    return read_all


def _dataset(name: str, place: _Place) -> Dataset:
    """Read a data set, check that it is the requested one, and rescale it to [0, 1]."""
    with activity(f"reading {name} from {place.files[0].parent}"):
        train, test = place.read(place.files)
    if name == "svhn":  # its digit 0 is often labelled 10
        train, test = (Images(part.x, np.where(part.y == 10, 0, part.y)) for part in (train, test))
    highest, classes = max(train.y.max(), test.y.max()), CLASSES[name]
    if highest >= len(classes):
        needed = f"labels 0..{len(classes) - 1} for {name}, got {highest}"
        raise ValueError(f"{place} must hold {needed}; download the set again")
    if train.x.shape[1:] != test.x.shape[1:]:
        shapes = f"{train.x.shape[1:]} and {test.x.shape[1:]}"
        raise ValueError(f"{place} must hold images of one shape, got {shapes}; download the set again")
    for other, labels in FIRST_LABELS.items():
        if other != name and train.y[: len(labels)].tolist() == labels:
            raise ValueError(f"{place} holds {other}, not {name}; keep each set in a folder of its own name")
    return Dataset(train=_samples(train, classes), test=_samples(test, classes), classes=classes)


def _samples(images: Images, classes: tuple[str, ...]) -> Samples:
    x, y = torch.from_numpy(scaled(images.x)), torch.from_numpy(images.y)
    return Samples(x, y, names=images.names, classes=classes)
