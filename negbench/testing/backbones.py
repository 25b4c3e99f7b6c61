"""The conformance suite of backbones: what training, storing and scoring rely on, checked on a handful of pictures."""

import copy
import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from negbench.contracts import (
    Backbone,
    Calls,
    ComposesTexts,
    FreezesTexts,
    HasSubQueries,
    HoldsFeatures,
    QueryInputs,
    RowDropout,
    relevance,
    torch_dropout,
)
from negbench.errors import NegbenchError
from negbench.testing.cut_calls import CutCalls, RecomputedCalls
from negbench.testing.worlds import global_generators

MODES = ("RGB", "RGBA", "L", "P", "CMYK", "1", "I;16")

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
SCALE = 2.0**10  # of the loss under autocast, like a gradient scaler's: small gradients underflow in float16

Make = Callable[[int], Backbone]
Tokens = Mapping[str, Tensor]


def _unit(embeddings: Tensor, *shape: int) -> None:
    """Assert that embeddings have this shape, float32 and unit norm."""
    assert embeddings.shape == shape
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.detach().norm(dim=-1), torch.ones(shape[:-1]), rtol=0, atol=1e-5)


def _rows(tokens: Tokens, rows: Sequence[int]) -> dict[str, Tensor]:
    return {name: tensor[list(rows)] for name, tensor in tokens.items()}


class BackboneTestCase:
    """Subclass it as ``TestX`` and define a fixture `make`: a function of a seed that returns a small instance.

    Attributes:
        texts: modifications, the first of them with several words of every aspect that the backbone knows.
        image_ids: only for a backbone that `HoldsFeatures`: as many ids as texts.
        drawn: whether any weights are drawn from the seed instead of read from a file.
        idle: regular expression of parameters whose gradient may be zero, such as a last layer's for unread positions.
        autocast_bounds: precision -> largest distance between unit-norm embeddings under autocast and in float32.
        gradient_bound: smallest cosine between the whole gradients under autocast and in float32.
    """

    texts: ClassVar[Sequence[str]] = (
        "is red with dark blue dots and has long sleeves",
        "is a blue dress with a v-neck instead of a collar",
        "darker",
        "without a belt",
    )
    image_ids: ClassVar[Sequence[str]] = ()
    drawn: ClassVar[bool] = True
    idle: ClassVar[str] = "(?!)"
    autocast_bounds: ClassVar[Mapping[torch.dtype, float]] = {torch.bfloat16: 0.02, torch.float16: 0.003}
    gradient_bound: ClassVar[float] = 0.995

    @pytest.fixture
    def make(self) -> Make:
        """Factory of the backbone under test."""
        raise NotImplementedError("define the fixture `make` in your test class")

    @pytest.fixture
    def backbone(self, make: Make) -> Backbone:
        """One instance, in evaluation mode."""
        return make(0).eval()

    @pytest.fixture
    def tokens(self, backbone: Backbone) -> dict[str, Tensor]:
        """The texts, tokenised."""
        return backbone.tokenize(self.texts)

    @pytest.fixture
    def features(self, backbone: Backbone) -> Tensor:
        """[B, L, C] of as many images as there are texts."""
        return self.encoded(backbone).detach()

    def encoded(self, backbone: Backbone) -> Tensor:
        """[B, L, C], with a gradient where the backbone is fine-tuned."""
        if isinstance(backbone, HoldsFeatures):
            return backbone.features_of(self.image_ids).to(backbone.device)
        return self.encoded_by(Calls(backbone, 0))

    def encoded_by(self, calls: Calls) -> Tensor:
        """[B, L, C] of the pictures, through the calls of a training step."""
        pixels = torch.stack([calls.backbone.preprocess(picture) for picture in self.pictures()])

        def read(rows: Tensor) -> Tensor:
            return pixels[rows].to(calls.backbone.device)

        return calls.image_features(read, torch.arange(len(pixels)))

    def pictures(self) -> list[Image.Image]:
        """Seeded pictures of several shapes: coarse colours, so that no resize makes them alike."""
        numbers = np.random.default_rng(0)
        coarse = [Image.fromarray(numbers.integers(256, size=(4, 4, 3), dtype=np.uint8)) for _ in self.texts]
        sizes = [(60 + 20 * n, 90 - 10 * n) for n in range(len(coarse))]
        return [picture.resize(size, Image.Resampling.NEAREST) for picture, size in zip(coarse, sizes, strict=True)]

    def loss(self, backbone: Backbone, features: Tensor, tokens: Tokens) -> Tensor:
        """Compute in-batch cross-entropy with targets that differ from the references."""
        calls = Calls(backbone, 0)
        inputs = self.inputs(features, tokens)
        scores = relevance(calls.queries(inputs), calls.candidates(features, inputs.pictures)).float()
        targets = torch.arange(len(self.texts), device=scores.device).roll(1)
        return torch.nn.functional.cross_entropy(scores / backbone.temperature, targets)

    def inputs(self, features: Tensor, tokens: Tokens) -> QueryInputs:
        """Return the inputs of a step that composes each picture with its text."""
        rows = torch.arange(len(self.texts))
        return QueryInputs(rows, rows, features, {name: value.to(features.device) for name, value in tokens.items()})

    def gradients(self, backbone: Backbone, tokens: Tokens) -> dict[str, Tensor]:
        """Return the gradient of every parameter that one step reaches."""
        backbone.zero_grad()
        self.loss(backbone, self.encoded(backbone), tokens).backward()
        return {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}

    # --- what it is -------------------------------------------------------------------------------------------------

    def test_identity(self, make: Make, backbone: Backbone, features: Tensor) -> None:
        """The identity names weights and preprocessing, counts parameters, knows shapes, and is the same at every load.

        The temperature is a learned scalar > 0.
        """
        assert backbone.temperature.shape == ()
        assert backbone.temperature > 0
        assert backbone.temperature.requires_grad
        identity = backbone.identity
        assert identity.name
        assert identity.weights
        assert identity.preprocessing
        assert len(identity.sha256) == 64
        assert identity.parameters == sum(p.numel() for p in backbone.parameters())
        assert identity.trainable_parameters == sum(p.numel() for p in backbone.parameters() if p.requires_grad)
        assert backbone.candidates(features).shape[1:] == (identity.tokens_per_image, identity.embedding_dim)
        again = make(0)
        assert again.identity == identity
        assert again.feature_key == backbone.feature_key

    def test_identity_is_that_of_the_weights_as_loaded(self, backbone: Backbone) -> None:
        """Training changes neither the hash nor the key of the stored features."""
        identity = backbone.identity
        key = backbone.feature_key
        with torch.no_grad():
            for parameter in backbone.parameters():
                parameter.add_(0.1)
        assert (backbone.identity, backbone.feature_key) == (identity, key)

    def test_the_seed_decides_the_weights(self, make: Make) -> None:
        """Same seed, same weights, bit for bit; another seed, others."""
        one = make(1)
        same = make(1)
        other = make(2)
        weights = one.state_dict()
        others = other.state_dict()
        for name, value in same.state_dict().items():
            assert torch.equal(weights[name], value), name
        if self.drawn:
            assert any(not torch.equal(weights[name], others[name]) for name in weights)
            assert one.identity.sha256 != other.identity.sha256

    def test_global_generators_are_untouched(self, make: Make) -> None:
        """Loading, a training step and evaluation leave the global generators unchanged."""
        before = global_generators()
        backbone = make(3).train()
        self.gradients(backbone, backbone.tokenize(self.texts))
        backbone.eval().text_queries(self.texts)
        assert global_generators() == before

    # --- images -----------------------------------------------------------------------------------------------------

    def test_transform(self, backbone: Backbone) -> None:
        """Any image becomes float32 pixels, the same ones each time."""
        if isinstance(backbone, HoldsFeatures):
            with pytest.raises(NegbenchError):
                backbone.preprocess(Image.new("RGB", (9, 9)))
            return
        pixels = {mode: backbone.preprocess(Image.new(mode, (50, 80))) for mode in MODES}
        for mode, values in pixels.items():
            assert values.dtype == torch.float32, mode
            assert values.isfinite().all(), mode
            assert values.shape == (3, *pixels["RGB"].shape[1:]), mode
        for picture in self.pictures():
            assert torch.equal(backbone.preprocess(picture), backbone.preprocess(picture))

    def test_features(self, backbone: Backbone) -> None:
        """[B, L, C], each image encoded on its own; frozen features have no gradient and ignore the training mode."""
        features = self.encoded(backbone)
        assert features.ndim == 3
        assert features.isfinite().all()
        assert not torch.equal(features[0], features[1])
        if isinstance(backbone, HoldsFeatures):
            torch.testing.assert_close(backbone.features_of(self.image_ids[1:2])[0], features[1])
            return
        pixels = torch.stack([backbone.preprocess(picture) for picture in self.pictures()])
        torch.testing.assert_close(backbone.image_features(pixels[1:2])[0], features[1], rtol=1e-4, atol=1e-4)
        trained = self.encoded(backbone.train())
        assert trained.requires_grad != backbone.frozen_images
        if backbone.frozen_images:
            assert torch.equal(trained, features)

    def test_candidates(self, backbone: Backbone, features: Tensor) -> None:
        """[B, T, D] of unit norm, each image on its own; float16 features, as stored, suffice."""
        candidates = backbone.candidates(features)
        _unit(candidates, len(features), backbone.identity.tokens_per_image, backbone.identity.embedding_dim)
        torch.testing.assert_close(backbone.candidates(features[2:3])[0], candidates[2], rtol=0, atol=1e-5)
        half = backbone.candidates(features.half())
        _unit(half, *candidates.shape)
        torch.testing.assert_close(half, candidates, rtol=0, atol=0.02)

    # --- texts and queries ------------------------------------------------------------------------------------------

    def test_tokens(self, backbone: Backbone, tokens: dict[str, Tensor]) -> None:
        """Tensors on the CPU, one row per text; no rows for no texts."""
        assert tokens
        for tensor in tokens.values():
            assert tensor.shape[0] == len(self.texts)
            assert tensor.device.type == "cpu"
        empty = backbone.tokenize([])
        assert {name: len(tensor) for name, tensor in empty.items()} == dict.fromkeys(tokens, 0)

    def test_queries(self, backbone: Backbone, features: Tensor, tokens: dict[str, Tensor]) -> None:
        """[B, D] of unit norm, the same from strings or tokens, in any order, and one at a time."""
        queries = backbone.queries(features, self.texts)
        _unit(queries, len(self.texts), backbone.identity.embedding_dim)
        torch.testing.assert_close(backbone.queries(features, tokens), queries, rtol=0, atol=1e-5)
        order = [2, 0]
        reordered = backbone.queries(features[order], _rows(tokens, order))
        torch.testing.assert_close(reordered, queries[order], rtol=0, atol=1e-5)
        torch.testing.assert_close(backbone.queries(features[2:3], self.texts[2:3])[0], queries[2], rtol=0, atol=1e-5)
        torch.testing.assert_close(backbone.queries(features.half(), tokens), queries, rtol=0, atol=0.02)

    def test_queries_depend_on_both_sides(self, backbone: Backbone, features: Tensor, tokens: Tokens) -> None:
        """A different reference or text gives a different query."""
        queries = backbone.queries(features, tokens)
        for other in (backbone.queries(features.roll(1, 0), tokens), backbone.queries(features, self.texts[::-1])):
            assert (queries - other).norm(dim=-1).min() > 1e-4

    def test_text_queries(self, backbone: Backbone, tokens: dict[str, Tensor]) -> None:
        """[B, D] of unit norm; strings and tokens alike."""
        queries = backbone.text_queries(self.texts)
        _unit(queries, len(self.texts), backbone.identity.embedding_dim)
        torch.testing.assert_close(backbone.text_queries(_rows(tokens, [3, 1])), queries[[3, 1]], rtol=0, atol=1e-5)
        assert (queries[0] - queries[1]).norm() > 1e-4

    def test_crossed_queries_equal_loops(self, backbone: Backbone, features: Tensor, tokens: dict[str, Tensor]) -> None:
        """Crossing every reference (or reference text, if the family composes texts) with every text equals loops."""
        shape = 2, len(self.texts), backbone.identity.embedding_dim
        pairs = list(itertools.product(range(2), range(len(self.texts))))
        by_image = [backbone.queries(features[r : r + 1], self.texts[p : p + 1])[0] for r, p in pairs]
        for chunk in (1, 5, 1024):
            cases = [(backbone.cross_queries(features[:2], tokens, chunk=chunk), by_image)]
            if isinstance(backbone, ComposesTexts):
                by_text = [backbone.compose_texts([self.texts[r]], [self.texts[p]])[0] for r, p in pairs]
                cases.append((backbone.cross_texts(self.texts[:2], self.texts, chunk=chunk), by_text))
            for crossed, loops in cases:
                _unit(crossed, *shape)
                torch.testing.assert_close(crossed, torch.stack(loops).reshape(shape), rtol=0, atol=1e-5)

    def test_sub_queries(self, backbone: Backbone, features: Tensor, tokens: dict[str, Tensor]) -> None:
        """Unit norm where the text has the aspect's words, zero elsewhere; weights are learned and not negative."""
        if not isinstance(backbone, HasSubQueries):
            pytest.skip("the family has no sub-queries")
        for name, sub in backbone.sub_queries(features, tokens).items():
            assert name
            assert sub.present.shape == (len(self.texts),)
            assert sub.present.dtype == torch.bool
            assert sub.present[0], "the first text must have a word of every aspect"
            assert sub.embeddings.shape == (len(self.texts), backbone.identity.embedding_dim)
            torch.testing.assert_close(sub.embeddings.detach().norm(dim=-1), sub.present.float(), rtol=0, atol=1e-5)
            assert sub.weight.shape == ()
            assert sub.weight >= 0
            assert sub.weight.requires_grad

    def test_frozen_text(self, backbone: Backbone, tokens: dict[str, Tensor]) -> None:
        """The frozen part gives the same embeddings and gradients as the texts, and training does not change it."""
        if not isinstance(backbone, FreezesTexts):
            pytest.skip("the family freezes no part of its texts")
        backbone.eval()
        with torch.no_grad():
            frozen = backbone.frozen_text({name: value.to(backbone.device) for name, value in tokens.items()})
        assert {len(value) for value in frozen.values()} == {len(self.texts)}
        want = self.embeddings(backbone, tokens)
        for name, embedding in self.embeddings(backbone, frozen).items():
            torch.testing.assert_close(embedding, want[name], rtol=0, atol=1e-6)
        of_texts = self.gradients(backbone, tokens)
        of_frozen = self.gradients(backbone, frozen)
        assert of_texts.keys() == of_frozen.keys()
        for name, gradient in of_texts.items():
            torch.testing.assert_close(of_frozen[name], gradient, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            for parameter in backbone.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1)
            again = backbone.frozen_text({name: value.to(backbone.device) for name, value in tokens.items()})
        for name, value in frozen.items():
            assert torch.equal(again[name], value), name

    # --- training ---------------------------------------------------------------------------------------------------

    def test_parameter_groups(self, backbone: Backbone) -> None:
        """Every trained parameter is in exactly one group, and no other is; no rate exceeds the run's."""
        groups = backbone.parameter_groups(1e-3, 0.1)
        in_groups = [id(p) for group in groups for p in group["params"]]
        assert sorted(in_groups) == sorted(id(p) for p in backbone.parameters() if p.requires_grad)
        assert groups[0]["lr"] == 1e-3  # the rate that a run logs
        assert all(0 < group["lr"] <= 1e-3 and group["weight_decay"] in (0.0, 0.1) for group in groups)

    def test_gradients(self, backbone: Backbone, tokens: dict[str, Tensor]) -> None:
        """Trained parameters have finite gradients, nonzero for every matrix; frozen ones have none."""
        gradients = self.gradients(backbone.train(), tokens)
        assert set(gradients) == {name for name, p in backbone.named_parameters() if p.requires_grad}
        for name, gradient in gradients.items():
            assert gradient.isfinite().all(), name
            # vectors are exempt: the softmax cancels the bias of an attention's keys
            assert gradient.ndim < 2 or gradient.abs().max() > 0 or re.search(self.idle, name), name

    def test_gradients_of_cut_and_recomputed_steps(self, backbone: Backbone, tokens: dict[str, Tensor]) -> None:
        """With dropout on, a step cut into micro-batches or computed again has the gradients of the whole step."""
        torchs = torch_dropout(backbone)
        assert not torchs, f"dropout from torch's generators: {', '.join(torchs)}; see negbench.contracts.by_rows"
        backbone.train()
        whole = self.step_gradients(Calls(backbone, 7), tokens)
        again = self.step_gradients(RecomputedCalls(backbone, 7), tokens)
        cut = self.step_gradients(CutCalls(backbone, 7), tokens)
        if backbone.recomputes:
            backbone.recompute(True)
            by_layer = self.step_gradients(Calls(backbone, 7), tokens)
            backbone.recompute(False)
            for name, gradient in whole.items():
                assert torch.equal(by_layer[name], gradient), name
        assert again.keys() == cut.keys() == whole.keys()
        for name, gradient in whole.items():
            assert torch.equal(again[name], gradient), name
        # sums in another order: within 1e-6 as a whole. A single number may differ by 2e-6 of the largest, as float32
        # itself does: a toy CLIP's whole step is 1.2e-6 from that in float64, where cut and whole differ by 3e-15
        largest = max(float(gradient.abs().max()) for gradient in whole.values())
        size = torch.cat([gradient.flatten() for gradient in whole.values()]).norm()
        difference = torch.cat([(cut[name] - gradient).flatten() for name, gradient in whole.items()])
        assert float(difference.norm()) <= 1e-6 * float(size)
        assert float(difference.abs().max()) <= 2e-6 * largest
        if any(isinstance(part, RowDropout) and part.training and part.p > 0 for part in backbone.modules()):
            other = self.step_gradients(Calls(backbone, 8), tokens)
            assert any(not torch.equal(other[name], gradient) for name, gradient in whole.items())

    def step_gradients(self, calls: Calls, tokens: Tokens) -> dict[str, Tensor]:
        """Return the gradients of a step that makes every call that the backbone answers."""
        backbone = calls.backbone
        backbone.zero_grad()
        if backbone.frozen_images:
            with backbone.evaluating():
                features = self.encoded(backbone).detach()
        else:
            features = self.encoded_by(calls)
        inputs = self.inputs(features, tokens)
        candidates = calls.candidates(features, inputs.pictures)
        queries = [calls.queries(inputs), calls.text_queries(inputs.tokens, inputs.rows, "target text")]
        queries += list(calls.cross_queries(inputs))
        if isinstance(backbone, HasSubQueries):
            queries += [sub.weight * sub.embeddings for sub in calls.sub_queries(inputs).values()]
        if isinstance(backbone, ComposesTexts):
            queries += [calls.compose_texts(inputs.tokens, inputs), *calls.cross_texts(inputs.tokens, inputs)]
        targets = torch.arange(len(self.texts), device=candidates.device).roll(1)
        scores = [relevance(embedded, candidates) / backbone.temperature for embedded in queries]
        torch.stack([torch.nn.functional.cross_entropy(table, targets) for table in scores]).sum().backward()
        return {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}

    def test_state_survives_saving(self, make: Make, backbone: Backbone, features: Tensor, tokens: Tokens) -> None:
        """A fresh instance that loads a trained state has the same embeddings, temperature and dropout masks."""
        trained = backbone.train()
        optimizer = torch.optim.AdamW(trained.parameter_groups(0.05, 0.1))
        inputs = self.inputs(features, tokens)
        before = Calls(trained, 0).queries(inputs).detach()
        self.gradients(trained, tokens)
        optimizer.step()
        resumed = make(0).train()
        resumed.load_state_dict(copy.deepcopy(trained.state_dict()))
        assert torch.equal(resumed.temperature, trained.temperature)
        drawn = Calls(trained, 0).queries(inputs)
        assert not torch.equal(drawn, before)
        assert torch.equal(Calls(resumed, 0).queries(inputs), drawn)
        candidates = Calls(trained, 0).candidates(features, inputs.pictures)
        assert torch.equal(Calls(resumed, 0).candidates(features, inputs.pictures), candidates)

    # --- precision --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_autocast(self, backbone: Backbone, dtype: torch.dtype, device: str) -> None:
        """Under autocast all embeddings are float32 of unit norm and near float32's; so is the gradient."""
        backbone = backbone.to(device)
        tokens = {name: tensor.to(device) for name, tensor in backbone.tokenize(self.texts).items()}
        exact = self.embeddings(backbone, tokens)
        exact_gradients = self.gradients(backbone, tokens)
        with torch.autocast(device, dtype):
            mixed = self.embeddings(backbone, tokens)
            backbone.zero_grad()
            value = self.loss(backbone, self.encoded(backbone), tokens) * SCALE
        value.backward()
        for name, embeddings in mixed.items():
            _unit(embeddings.cpu(), *exact[name].shape)
            distance = float((embeddings - exact[name]).norm(dim=-1).max())
            assert distance <= self.autocast_bounds[dtype], f"{name}: {distance}"
        gradient = torch.cat([p.grad.flatten() for _, p in backbone.named_parameters() if p.grad is not None])
        assert gradient.isfinite().all()
        exact_gradient = torch.cat([part.flatten() for part in exact_gradients.values()])
        cosine = float(torch.cosine_similarity(gradient, exact_gradient, dim=0))
        assert cosine >= self.gradient_bound, cosine

    @pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
    def test_every_tower_computes_in_the_precision(
        self, backbone: Backbone, tokens: dict[str, Tensor], precision: str
    ) -> None:
        """Every layer and convolution, trained or frozen, encoding included; the key of stored features says so."""
        key = backbone.stored_key
        backbone.precision = precision
        assert (backbone.stored_key == key) == (precision == "fp32")
        dtypes = Counter[torch.dtype]()

        def note(module: nn.Module, inputs: object, output: Tensor) -> None:
            dtypes[output.dtype] += 1

        for module in backbone.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_hook(note)
        with backbone.evaluating():
            embeddings = self.embeddings(backbone, tokens)
        backbone.train()
        with backbone.autocast():
            self.loss(backbone, self.encoded(backbone), tokens)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        assert dtypes.keys() <= {dtype}, dtypes
        assert {embedded.dtype for embedded in embeddings.values()} == {torch.float32}

    @torch.no_grad()
    def embeddings(self, backbone: Backbone, tokens: Tokens) -> dict[str, Tensor]:
        """Compute every embedding that a training step may need."""
        features = self.encoded(backbone).to(backbone.device)
        embeddings = {
            "candidates": backbone.candidates(features),
            "queries": backbone.queries(features, tokens),
            "text_queries": backbone.text_queries(tokens),
            "cross_queries": backbone.cross_queries(features, tokens),
        }
        if isinstance(backbone, ComposesTexts):
            embeddings["cross_texts"] = backbone.cross_texts(tokens, tokens)
        return embeddings
