import math

import pytest
import torch
from torch import Tensor

from negbench.backbones import _attributes
from negbench.backbones._attributes import ASPECTS, AttributeWeights, attribute_masks, make_attributes

DIM = 5
WIDTH = 4


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _module(seed: int = 0) -> AttributeWeights:
    return AttributeWeights(DIM, WIDTH, _generator(seed)).double()


def _inputs() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    generator = _generator(1)
    query = torch.randn(3, DIM, generator=generator, dtype=torch.float64)
    tokens = torch.randn(3, 6, WIDTH, generator=generator, dtype=torch.float64)
    colour = torch.tensor([[1, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]], dtype=torch.bool)
    shape = torch.tensor([[0, 1, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    return torch.nn.functional.normalize(query, dim=1), tokens, {"colour": colour, "shape": shape}


def test_masks_hand_table():
    words = [["is", "Red,", "with", "long", "sleeves."], [None, "navy-blue", "off-shoulder", "dotted", None, "red"]]
    masks = attribute_masks(words, 5)
    assert masks["colour"].tolist() == [[False, True, False, False, False], [False, True, False, False, False]]
    assert masks["shape"].tolist() == [[False, False, False, True, True], [False, False, True, False, False]]


def test_pieces_are_joined_to_words():
    words = [None, "turquoise", "maroonish", "maroonish", "top", None]
    assert _attributes.words_of_wordpieces(["[CLS]", "turquoise", "maroon", "##ish", "top", "[SEP]"]) == words
    pieces = ["<|startoftext|>", "sleeve", "less</w>", "top</w>", "<|endoftext|>", "<|endoftext|>"]
    assert _attributes.words_of_clip_pieces(pieces) == [None, "sleeveless", "sleeveless", "top", None, None]


def test_sub_queries_against_loops(subtests):
    module = _module()
    query, tokens, masks = _inputs()
    subs = module(query, tokens, masks)
    for aspect in ASPECTS:
        with subtests.test(aspect=aspect):
            sub = subs[aspect].embeddings
            assert float(subs[aspect].weight.detach()) == pytest.approx(0.1)
            assert subs[aspect].present.tolist() == masks[aspect].any(1).tolist()
            for row in range(3):
                words = tokens[row][masks[aspect][row]]
                want = torch.zeros(DIM, dtype=torch.float64)
                if len(words) > 0:
                    logits = [query[row] @ module.keys[aspect] @ word / math.sqrt(DIM) for word in words]
                    total = sum(logit.exp() for logit in logits)
                    for word, logit in zip(words, logits, strict=True):
                        want = want + logit.exp() / total * module.values[aspect](word)
                    want = want / want.norm()
                torch.testing.assert_close(sub[row], want)


def test_text_without_any_attribute_word_leaves_the_query_and_its_gradient_alone():
    module = _module()
    query, tokens, masks = _inputs()
    none = {aspect: torch.zeros_like(mask) for aspect, mask in masks.items()}
    query.requires_grad_()
    combined = module.combine(query, module(query, tokens, none))
    torch.testing.assert_close(combined, query)
    combined.sum().backward()
    assert torch.isfinite(query.grad).all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def test_an_initial_weight_is_an_option():
    assert make_attributes(False, DIM, WIDTH, _generator()) is None
    module = make_attributes(0.7, DIM, WIDTH, _generator())
    weights = [float(torch.nn.functional.softplus(raw.detach())) for raw in module.raw_weights.values()]
    assert weights == pytest.approx([0.7] * 2)
