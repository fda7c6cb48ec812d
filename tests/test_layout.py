"""Laws of the source tree: imports go one way, and nothing unpickles or draws from a global random stream."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "operant"

# What may import what: a module imports from its own line and from the lines above it.
ORDER = [
    "types rng files results formatting activity engine reliability_checks signals validation extras",
    "data model suite",
    "networks density conditions measure",
    "profile",
    "seeds",
    "generate",
    "select",
    "retrain",
    "defend",
    "assess",
    "execution",
    "campaign robot",
    "triage",
    "report",
    "export",
    "repairing",
    "testing pytest_plugin demo",
    "cli",
    "__main__",
]
RANK = {name: rank for rank, line in enumerate(ORDER) for name in line.split()}


@cache
def modules(root: Path) -> dict[str, ast.Module]:
    """Every source file by its path below the root, parsed; the package's own front page is exempt."""
    files = sorted(file for file in root.rglob("*.py") if file != root / "__init__.py")
    return {file.relative_to(root).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


# The order of imports ------------------------------------------------------------------------------------------------


def wrong_imports(root: Path) -> list[str]:
    """A sentence for each import that goes against the order."""
    return [s for path, tree in modules(root).items() for s in _wrong_imports(path, tree, root)]


def _wrong_imports(path: str, tree: ast.Module, root: Path) -> Iterator[str]:
    own = path.split("/")[0].removesuffix(".py")
    if own not in RANK:
        yield f"{path}: {own} has no place in the order of imports; add it to ORDER in tests/test_layout.py"
        return
    for line, name in _imported(tree, path, root):
        if not name:
            yield f"{path}:{line} imports from the package's front page; import from the module that defines the name"
        elif name not in RANK:
            yield f"{path}:{line} imports {name}, which has no place in the order; add it to ORDER"
        elif RANK[name] > RANK[own]:
            yield f"{path}:{line}: {own} must not import {name}, which stands after it; pass the value in instead"


def _imported(tree: ast.Module, path: str, root: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level module of each import from the package; an empty name is the package itself."""
    for node in _runtime_nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = _targets(node, path, root)
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "operant":
                yield node.lineno, rest.partition(".")[0]


def _targets(node: ast.ImportFrom, path: str, root: Path) -> list[str]:
    """Full names of the modules that ``from ... import ...`` reads; relative ones are resolved."""
    here = ["operant", *path.split("/")[:-1]]
    base = [*here[: len(here) - node.level + 1], *filter(None, [node.module])] if node.level else [node.module or ""]
    if base != ["operant"]:
        return [".".join(base)]
    names = [a.name for a in node.names if a.name != "__version__"]  # which the front page defines itself
    found = [name for name in names if (root / name).is_dir() or (root / f"{name}.py").exists()]
    return [f"operant.{name}" for name in found] + ["operant"] * (len(found) < len(names))


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, functions included, but not what stands under ``if TYPE_CHECKING:``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield from [other, *_runtime_nodes(other)]
        else:
            yield child
            yield from _runtime_nodes(child)


def test_imports_go_one_way() -> None:
    assert not wrong_imports(SOURCE)


def test_every_line_of_the_order_is_met_once() -> None:
    names = " ".join(ORDER).split()
    assert len(names) == len(set(names)) == len(RANK)
    assert len(modules(SOURCE)) > 10  # the tree was found


@pytest.mark.parametrize(
    ("path", "source", "sentence"),
    [
        ("rng.py", "from operant.data import Samples", "rng.py:1: rng must not import data"),
        ("rng.py", "import operant.data", "must not import data"),
        ("rng.py", "import json, operant.data as d", "must not import data"),
        ("rng.py", "from operant import data", "must not import data"),
        ("rng.py", "from . import data", "must not import data"),
        ("rng.py", "from .data import Samples", "must not import data"),
        ("networks/a/b.py", "from ...seeds.risk import x", "b.py:1: networks must not import seeds"),
        ("data.py", "def f():\n    from operant.generate import PGD", "data.py:2: data must not import generate"),
        ("data.py", "try:\n    import operant.cli\nexcept ImportError:\n    pass", "data must not import cli"),
        ("data.py", "if TYPE_CHECKING:\n    x = 1\nelse:\n    import operant.cli", "data must not import cli"),
        ("data.py", "class A:\n    import operant.cli", "data must not import cli"),
        ("model/fast.py", "from operant.networks import LeNet5", "model must not import networks"),
        ("cli.py", "from operant import Classifier", "imports from the package's front page"),
        ("cli.py", "import operant", "imports from the package's front page"),
        ("cli.py", "from operant import data, Classifier", "imports from the package's front page"),
        ("cli.py", "from operant.novelty import x", "imports novelty, which has no place in the order; add it"),
        ("novelty.py", "", "novelty has no place in the order of imports; add it to ORDER in tests/test_layout.py"),
        ("novelty/part.py", "", "novelty has no place in the order of imports; add it"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, path: str, source: str, sentence: str) -> None:
    _write(tmp_path, {"data.py": "", path: source})
    found = wrong_imports(tmp_path)
    assert len(found) == 1
    assert sentence in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("data.py", "from operant.rng import mix\nfrom operant.model import Classifier\nimport operant.suite"),
        ("model.py", "def f():\n    from operant.model.doctor import examine"),
        ("types.py", "if TYPE_CHECKING:\n    from operant.data import Samples"),
        ("types.py", "import typing\nif typing.TYPE_CHECKING:\n    from operant.data import Samples"),
        ("networks/a.py", "from . import b\nfrom .b import c\nfrom ..data import Samples\nfrom .. import data"),
        ("generate/__init__.py", "from operant.generate.pgd import PGD"),
        ("rng.py", "import torch\nfrom torch.data import x\nfrom operant_like.data import y\nimport data"),
        ("__init__.py", "from operant.cli import app"),
        ("cli/version.py", "from operant import __version__"),
    ],
)
def test_a_right_import_is_left_alone(tmp_path: Path, path: str, source: str) -> None:
    _write(tmp_path, {"data.py": "", path: source})
    assert not wrong_imports(tmp_path)


def _write(root: Path, files: dict[str, str]) -> None:
    for path, source in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source)


# What is never called ------------------------------------------------------------------------------------------------

UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
DRAWS = {"rand", "randint", "randn", "randperm", "normal", "bernoulli", "multinomial", "poisson"}
DRAWS_IN_PLACE = {
    "uniform_",
    "normal_",
    "bernoulli_",
    "random_",
    "exponential_",
    "log_normal_",
    "cauchy_",
    "geometric_",
}
RESEEDS = {"torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.random.seed", "torch.cuda.manual_seed"}

# The only places that touch a global random stream, and why.
ALLOWED = {
    ("rng.py", "numpy.random"): "other libraries draw from it: seeded from our generator, then put back",
}


def forbidden(path: str, tree: ast.Module) -> list[str]:
    """A sentence for everything that could run code from a file, or draws from a stream nobody passed in."""
    names = _aliases(tree)
    found = [s for node in ast.walk(tree) for s in _forbidden_node(node, names, path)]
    forked = {id(inner) for node in ast.walk(tree) if _forks(node, names) for inner in ast.walk(node)}
    found += [
        f"{path}:{node.lineno} seeds torch's global stream; pass a generator, or seed inside torch.random.fork_rng"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _full_name(node.func, names) in RESEEDS and id(node) not in forked
    ]
    return found


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What each imported word stands for: ``np`` is ``numpy``."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (a.asname or a.name).split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def _full_name(node: ast.AST, names: dict[str, str]) -> str:
    """``numpy.random.seed`` for ``np.random.seed``; empty for anything but names and dots."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (base := _full_name(node.value, names)):
        return f"{base}.{node.attr}"
    return ""


def _forks(node: ast.AST, names: dict[str, str]) -> bool:
    return isinstance(node, ast.With) and any(
        isinstance(item.context_expr, ast.Call) and _full_name(item.context_expr.func, names) == "torch.random.fork_rng"
        for item in node.items
    )


def _forbidden_node(node: ast.AST, names: dict[str, str], path: str) -> Iterator[str]:
    where = f"{path}:{getattr(node, 'lineno', 0)}"
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        roots = {module.split(".")[0] for module in modules}
        if roots & UNPICKLERS:
            yield f"{where} imports {', '.join(roots & UNPICKLERS)}: files that are read must not be able to run code"
        if "random" in roots:
            yield f"{where} imports random, whose stream is global; pass a torch.Generator"
    elif isinstance(node, ast.Attribute | ast.Name):
        name = _full_name(node, names)
        if _draws_from_numpy(name) and (path, "numpy.random") not in ALLOWED:
            yield f"{where} uses {name}, numpy's global stream; pass a torch.Generator"
    elif isinstance(node, ast.Call):
        yield from _forbidden_call(node, names, where)


def _draws_from_numpy(name: str) -> bool:
    """Anything of numpy.random but the types, and generators that are given a seed."""
    inner = name.removeprefix("numpy.random.")
    return inner != name and inner not in {"Generator", "SeedSequence", "PCG64", "default_rng"}


def _forbidden_call(node: ast.Call, names: dict[str, str], where: str) -> Iterator[str]:
    name = _full_name(node.func, names)
    given = {k.arg: k.value for k in node.keywords}
    if "allow_pickle" in given and ast.unparse(given["allow_pickle"]) != "False":
        yield f"{where} allows pickle; only allow_pickle=False is safe"
    if name == "torch.load" and ("weights_only" not in given or ast.unparse(given["weights_only"]) != "True"):
        yield f"{where} calls torch.load without weights_only=True, which can run code from the file"
    if name == "numpy.random.default_rng" and not (node.args or given):
        yield f"{where} makes a generator without a seed"
    module, _, last = name.rpartition(".")
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    draws = (module == "torch" and last.removesuffix("_like") in DRAWS) or method in DRAWS_IN_PLACE
    if draws and "generator" not in given:
        yield f"{where} draws with {name or method} from torch's global stream; pass generator=..."


def test_nothing_unpickles_and_nothing_draws_from_a_global_stream() -> None:
    assert not [s for path, tree in modules(SOURCE).items() for s in forbidden(path, tree)]


def test_pickles_are_taken_apart_in_one_place_only() -> None:
    """`formats.py` reads CIFAR's batches with `pickletools`, which lists opcodes and runs none of them."""
    users = {
        path
        for path, tree in modules(SOURCE).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and "pickletools" in ast.unparse(node)
    }
    assert users <= {"data/formats.py"}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import pickle", "imports pickle"),
        ("import os, pickle as p", "imports pickle"),
        ("from pickle import loads", "imports pickle"),
        ("def f():\n    import joblib", "a.py:2 imports joblib"),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", "a.py:2 allows pickle"),
        ("import numpy as np\nnp.load(f, allow_pickle=flag)", "allows pickle"),
        ("import torch\ntorch.load(f)", "without weights_only=True"),
        ("import torch\ntorch.load(f, weights_only=False)", "without weights_only=True"),
        ("import torch as t\nt.load(f)", "without weights_only=True"),
        ("from torch import load\nload(f)", "without weights_only=True"),
        ("import random", "imports random"),
        ("from random import choice", "imports random"),
        ("import numpy as np\nnp.random.seed(3)", "uses numpy.random.seed"),
        ("import numpy\nx = numpy.random.rand", "uses numpy.random.rand"),
        ("from numpy import random\nrandom.normal(3)", "uses numpy.random.normal"),
        ("from numpy.random import rand\nrand(3)", "uses numpy.random.rand"),
        ("import numpy as np\nnp.random.default_rng()", "without a seed"),
        ("import torch\ntorch.manual_seed(3)", "seeds torch's global stream"),
        ("from torch import manual_seed\nmanual_seed(3)", "seeds torch's global stream"),
        ("import torch\nwith torch.no_grad():\n    torch.random.manual_seed(3)", "seeds torch's global stream"),
        ("import torch\ntorch.rand(3)", "draws with torch.rand"),
        ("import torch\ntorch.randn_like(x)", "draws with torch.randn_like"),
        ("import torch\nfrom torch import randperm\nrandperm(3)", "draws with torch.randperm"),
        ("x.uniform_(0, 1)", "draws with x.uniform_"),
        ("f(x).normal_()", "draws with normal_"),
    ],
)
def test_what_is_forbidden_is_found(source: str, sentence: str) -> None:
    found = forbidden("a.py", ast.parse(source))
    assert len(found) == 1
    assert sentence in found[0]


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import torch\ntorch.load(f, weights_only=True)",
        "import torch\ntorch.rand(3, generator=g)\ntorch.Generator().manual_seed(3)\nx.uniform_(0, 1, generator=g)",
        "import torch\nwith torch.random.fork_rng(devices=[]):\n    torch.manual_seed(3)",
        "import numpy as np\nnp.random.default_rng(3)\nx: np.random.Generator",
        "import json\njson.load(f)\nload(f)\nrandom = 3",
        "from safetensors.torch import load\nload(f)",
    ],
)
def test_what_is_fine_is_left_alone(source: str) -> None:
    assert not forbidden("a.py", ast.parse(source))
