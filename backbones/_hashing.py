"""Identity of weights and towers: content hashes of tensors and of what a module is built from."""

import hashlib
import json
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from negbench.backbones._preprocess import Preprocess


def tensors_sha256(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 (hex) over name, dtype, shape and bytes of every tensor, by sorted name; the device does not matter.

    Tensors on the meta device have no bytes: of those only names, dtypes and shapes count.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.is_meta:
            continue
        # bytes through uint8: numpy has no bfloat16
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def module_sha256(module: nn.Module, beside: Mapping[str, Tensor] | None = None) -> str:
    """SHA-256 (hex) of a module's parameters and buffers as they are, and of tensors beside them, by sorted name."""
    return tensors_sha256([*module.named_parameters(), *module.named_buffers(), *(beside or {}).items()])


def tower_sha256(tower: nn.Module, transform: Preprocess, *beside: object) -> str:
    """SHA-256 (hex) of all that determines the output of a frozen tower: a backbone's `feature_key`.

    It covers the tensors and, read off every module, its class and its attributes: sizes, heads, activations, epsilons,
    transformers' configurations, a vocabulary. So nothing that a constructor was given can be left out.

    Args:
        tower: everything that computes what is stored, as built.
        transform: preprocessing of its images.
        beside: other plain values that change its output or make its tokens.
    """
    of_module = vars(nn.Module()).keys()  # hooks, the training mode, and the tensors, which have a hash of their own
    parts = {}
    for name, part in tower.named_modules():
        attributes = {key: _plain(value) for key, value in vars(part).items() if key not in of_module}
        parts[name] = [_plain(type(part)), attributes]
    return key_sha256({"tensors": module_sha256(tower), "parts": parts, "beside": [repr(transform), *beside]})


def _plain(value: object) -> object:
    """Return an attribute as what JSON can carry: never an address, and no other object than a configuration."""
    if hasattr(value, "to_dict"):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(str(part) for part in value)
    if isinstance(value, Tensor):
        return tensors_sha256([("", value)])
    if isinstance(value, torch.dtype):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    with_name = value if hasattr(value, "__qualname__") else type(value)
    return f"{with_name.__module__}.{with_name.__qualname__}"


def key_sha256(parts: Mapping[str, object]) -> str:
    """SHA-256 (hex) of plain values (what JSON can carry); the order of the keys does not matter."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
