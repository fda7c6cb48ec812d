"""Weights on disk, as safetensors."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from operant.results import write_atomically

M = TypeVar("M", bound=nn.Module)


def save_weights(module: nn.Module, path: str | Path) -> None:
    """Write every parameter and buffer under its name; a kill at any moment leaves the old file or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save({name: v.cpu().contiguous().clone() for name, v in module.state_dict().items()}))


def load_weights(module: M, path: str | Path) -> M:
    """Put the weights of a safetensors file into ``module`` and return it.

    Names and shapes must agree, else the file is refused and the module stays as it was; only batch norm's counters of
    seen batches may be missing.
    """
    wanted = module.state_dict()
    found = _read(Path(path))
    missing = [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in found if name not in wanted]
    reshaped = [
        f"{name} {tuple(found[name].shape)} instead of {tuple(values.shape)}"
        for name, values in wanted.items()
        if name in found and found[name].shape != values.shape
    ]
    problems = [("is missing", missing), ("has unexpected", unexpected), ("has other shapes:", reshaped)]
    if any(names for _, names in problems):
        what = "; it ".join(f"{verb} {_listed(names)}" for verb, names in problems if names)
        raise ValueError(
            f"{path} does not hold the weights of this {type(module).__name__}: it {what}; build the network with the "
            "options it was saved with (channels, classes, size), or rename the file's tensors"
        )
    module.load_state_dict(wanted | found)
    return module


def _read(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load(path.read_bytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}); get or save it again") from None
    return tensors


def _listed(names: Sequence[str], *, most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
