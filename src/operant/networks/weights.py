"""Weights on disk, as safetensors."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from operant.results import write_atomically

M = TypeVar("M", bound=nn.Module)
PICKLED = (".pt", ".pth", ".ckpt")  # as torch.save writes it


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


def conversion(path: str | Path) -> str:
    """The Python that turns weights of torch.save into a safetensors file, where ``module`` is the network they are of.

    >>> print(conversion("net.pt"))
    from operant.networks import save_weights
    module.load_state_dict(torch.load("net.pt", weights_only=True))
    save_weights(module, "net.safetensors")
    """
    path = Path(path)
    return (
        "from operant.networks import save_weights\n"
        f'module.load_state_dict(torch.load("{path.as_posix()}", weights_only=True))\n'
        f'save_weights(module, "{path.with_suffix(".safetensors").as_posix()}")'
    )


def _read(path: Path) -> dict[str, Tensor]:
    content = path.read_bytes()
    if path.suffix in PICKLED or b"/data.pkl" in content[:256]:  # which torch.save writes first
        raise ValueError(
            f"{path} is a file of torch.save, which may run code when it is read; weights are safetensors. Convert it, "
            f"once, and name the new file: {conversion(path.name).replace(chr(10), '; ')}"
        )
    try:
        tensors: dict[str, Tensor] = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}); get or save it again") from None
    return tensors


def _listed(names: Sequence[str], *, most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
