"""Save and load weights as safetensors."""

from pathlib import Path
from typing import TypeVar

from safetensors.torch import load, save
from torch import Tensor, nn

from operant.files import read_regular
from operant.formatting import first_few
from operant.results import write_atomically

M = TypeVar("M", bound=nn.Module)
PICKLED = (".pt", ".pth", ".ckpt")  # suffixes of torch.save


def save_weights(module: nn.Module, path: str | Path) -> None:
    """Write all parameters and buffers by name, atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, weights_content(module))


def weights_content(module: nn.Module) -> bytes:
    """What `save_weights` writes."""
    return save({name: v.cpu().contiguous().clone() for name, v in module.state_dict().items()})


def load_weights(module: M, path: str | Path) -> M:
    """Load the weights of a safetensors file into ``module`` and return it.

    Names and shapes must agree, and all weights must be finite real numbers; otherwise a ValueError is raised and the
    module stays unchanged. Only batch norm's counters may be missing.
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
    complex_ = [n for n, values in found.items() if n in wanted and values.is_complex() and not wanted[n].is_complex()]
    problems = [
        ("is missing", missing),
        ("has unexpected", unexpected),
        ("has other shapes:", reshaped),
        ("has complex numbers in", complex_),
    ]
    if any(names for _, names in problems):
        what = "; it ".join(f"{verb} {first_few(names, most=6)}" for verb, names in problems if names)
        raise ValueError(
            f"{path} does not hold the weights of this {type(module).__name__}: it {what}; build the network with the "
            "options it was saved with (channels, classes, size), or rename the file's tensors"
        )
    if broken := [name for name, values in found.items() if not _are_numbers(values, wanted[name])]:
        raise ValueError(
            f"{path} has NaN or infinity in {first_few(broken, most=6)}; train it again, or use an earlier file"
        )
    module.load_state_dict(wanted | found)
    return module


def _are_numbers(values: Tensor, old: Tensor) -> bool:
    """Whether all values are finite; a network's own infinity, as in a mask for attention, may stay where it is."""
    if not (values.is_floating_point() or values.is_complex()):
        return True
    values = values if values.is_complex() else values.double()
    return bool((values.isfinite() | (values == old.to(values))).all())


def conversion(path: str | Path) -> str:
    """Python code that converts a file of torch.save to safetensors; ``module`` is the network of the weights.

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
    content = read_regular(path)
    if path.suffix in PICKLED or b"/data.pkl" in content[:256]:  # the first entry of torch.save's archive
        raise ValueError(
            f"{path} is a file of torch.save, which may run code when it is read. Convert it to safetensors once, "
            f"and give the new file: {conversion(path.name).replace(chr(10), '; ')}"
        )
    try:
        tensors: dict[str, Tensor] = load(content)
    except Exception as error:  # safetensors has checks of its own, and torch others after them
        reason = str(error).strip() or type(error).__name__
        raise ValueError(f"{path} is not a readable safetensors file ({reason}); download or save it again") from None
    return tensors
