"""Explicit randomness: every draw comes from a generator that is passed in."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import index

import numpy as np
import torch
from torch import Tensor


def spawn(seed: int, *path: int | str) -> torch.Generator:
    """A random generator for one place in a run, named by a path of numbers and words.

    The same seed and path always give the same stream; different paths give unrelated streams. So a chunk can be
    recomputed alone or by another worker with the same result.

    >>> a = torch.rand(2, generator=spawn(7, "round", 1, "chunk", 3))
    >>> bool((a == torch.rand(2, generator=spawn(7, "round", 1, "chunk", 3))).all())
    True
    """
    name = json.dumps([index(seed), *(str(p) if isinstance(p, str) else index(p) for p in path)])
    state = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return torch.Generator().manual_seed(state >> 1)


def uniform_like(x: Tensor, low: float, high: float, *, generator: torch.Generator) -> Tensor:
    """Uniform numbers in ``[low, high]`` with the shape, type and device of ``x``.

    They are drawn on the generator's device and then moved, so that every device gets the same stream.
    """
    u = torch.rand(x.shape, generator=generator, device=generator.device, dtype=torch.float32)
    return (low + (high - low) * u).to(x).clamp(low, high)  # rounding must not leave the range


def normal_like(x: Tensor, *, generator: torch.Generator) -> Tensor:
    """Standard normal numbers with the shape, type and device of ``x``."""
    return torch.randn(x.shape, generator=generator, device=generator.device, dtype=torch.float32).to(x)


def shuffled(n: int, generator: torch.Generator) -> Tensor:
    """The numbers from 0 to n - 1 in random order, drawn on the generator's device, on the CPU."""
    return torch.randperm(n, generator=generator, device=generator.device).cpu()


@contextmanager
def global_streams(generator: torch.Generator) -> Iterator[None]:
    """Seed the global random streams of torch and numpy from ``generator``, and restore them afterwards.

    For code that draws from global streams: initial weights and dropout of layers, and other libraries.
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    before = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.random.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def stream_states() -> dict[str, Tensor]:
    """The states of the global streams by name, to resume from later or in another process."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    rest = torch.tensor([numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]], dtype=torch.float64)
    cuda = {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    key = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
    return {"torch": torch.random.get_rng_state(), **cuda, "numpy": key, "numpy rest": rest}


def restore_streams(states: Mapping[str, Tensor]) -> None:
    """Restore the states that `stream_states` returned; only for use within `global_streams`."""
    torch.random.set_rng_state(states["torch"])
    for i in range(torch.cuda.device_count()):
        torch.cuda.set_rng_state(states[f"cuda{i}"], i)
    position, has_next, next_one = states["numpy rest"].tolist()
    key = states["numpy"].numpy().astype(np.uint32)
    if not 0 <= position <= len(key) == 624:  # numpy would read beyond its state
        raise ValueError(f"the state of numpy's generator must be 624 numbers and a position, got {position}")
    np.random.set_state(("MT19937", key, int(position), int(has_next), next_one))  # noqa: NPY002


def mix(ids: Tensor) -> Tensor:
    """Uniform numbers in ``[0, 1)``, each a hash of its id (the finaliser of splitmix64).

    Consecutive ids give unrelated numbers. Used to assign inputs to roles.
    """
    z = ids.detach().to("cpu", torch.int64).numpy().view(np.uint64).copy()  # torch's own >> copies the sign bit
    shifted, share = np.empty_like(z), np.empty(z.shape)
    for by, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= np.right_shift(z, np.uint64(by), out=shifted)
        z *= np.uint64(factor)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    np.multiply(np.right_shift(z, np.uint64(11), out=z), 2.0**-53, out=share)
    return torch.from_numpy(share)
