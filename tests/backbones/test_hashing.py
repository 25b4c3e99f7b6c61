import hashlib
import struct

import torch
from torch import nn

from negbench.backbones._hashing import key_sha256, module_sha256, tensors_sha256


def test_hash_is_over_name_type_shape_and_bytes():
    tensor = torch.tensor([[1.5, -2.0]])
    want = hashlib.sha256(b'["w", "torch.float32", [1, 2]]' + struct.pack("<ff", 1.5, -2.0)).hexdigest()
    assert tensors_sha256([("w", tensor)]) == want
    others = [("v", tensor), ("w", tensor.T), ("w", tensor.double()), ("w", tensor + 1), ("w", -tensor)]
    assert want not in {tensors_sha256([other]) for other in others}


def test_order_layout_and_gradients_do_not_matter():
    table = torch.arange(6.0).reshape(2, 3)
    strided = table.T.contiguous().T.requires_grad_()
    one = torch.ones((), dtype=torch.bfloat16)
    assert tensors_sha256([("a", table), ("b", one)]) == tensors_sha256([("b", one), ("a", strided)])


def test_module_hash_sees_parameters_and_buffers():
    module = nn.BatchNorm1d(2)
    before = module_sha256(module)
    module.running_mean[0] = 1
    after = module_sha256(module)
    with torch.no_grad():
        module.weight[0] = 3
    assert len({before, after, module_sha256(module)}) == 3


def test_key_does_not_depend_on_the_order_of_its_parts():
    assert key_sha256({"a": 1, "b": "x"}) == key_sha256({"b": "x", "a": 1}) != key_sha256({"a": 1, "b": "y"})
