"""Identity of weights: content hashes of named tensors, and counts of parameters."""

import hashlib
import json
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


def tensors_sha256(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 (hex) over name, dtype, shape and bytes of every tensor, by sorted name; the device does not matter."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        # bytes through uint8: numpy has no bfloat16
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def module_sha256(module: nn.Module) -> str:
    """SHA-256 (hex) of a module's parameters and buffers as they are now, by sorted name."""
    return tensors_sha256([*module.named_parameters(), *module.named_buffers()])


def key_sha256(parts: Mapping[str, object]) -> str:
    """SHA-256 (hex) of plain values (what JSON can carry); the order of the keys does not matter."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def count_parameters(module: nn.Module, *, trainable: bool = False) -> int:
    """Number of parameter values, each shared parameter once; `trainable` counts those that require a gradient."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)
