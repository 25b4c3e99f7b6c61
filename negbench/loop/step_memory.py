"""Memory and arithmetic of a training step, from fake tensors: a backbone computes with shapes alone, without weights.

Each call by which a step reaches the backbone is traced once, forward and backward, on a few rows. What it keeps for
the backward pass and what passes through memory are proportional to the rows; `step_memory` adds the calls of a batch,
cut into micro-batches, recomputed layer by layer or divided among processes as the plan says. Traces are kept in the
cache folder.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from negbench.contracts import Backbone, BankStrategy, Calls, HoldsFeatures, Loss, QueryInputs, Strategy
from negbench.contracts.optional import FreezesTexts, HasSubQueries
from negbench.data.batch_size import EMBED_BATCH
from negbench.datasets.dataset import Dataset
from negbench.loop.schedule import Phase, phases_of
from negbench.loop.step_plan import StepPlan
from negbench.loop.training_calls import KEPT_BYTES
from negbench.loop.types import OpenRun
from negbench.machine.files import cache_dir, intact, read_json, write_json
from negbench.machine.versions import versions
from negbench.mining.composite import batch_rules, slots_of
from negbench.plugins import syntax
from negbench.plugins.registry import registry
from negbench.settings.config import ResolvedConfig

MOVES_SCORES = False  # only estimates

_ROWS = 32  # of a traced call
_SIDES = (4, 12)  # of two traced calls that compose every row with every other: rows of each side
_TEXT = "is shiny and silver with shorter sleeves and fit and flare and has a v neck"
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CROSSED = {"reference", "modification", "triple"}  # slots whose negatives compose every reference with every text
_CONTEXT = 3 * 2**28  # bytes that CUDA itself and its libraries hold on a GPU
_FRAGMENTS = 0.05  # share of the rest that the allocator cannot use


# --- following tensors ------------------------------------------------------------------------------------------------


class MemoryCount(TorchDispatchMode):
    """Within the block: bytes of the tensors made in it, real or fake, and the operations of their products.

    Attributes:
        now, peak: bytes that are alive, and the most that were at any time.
        operations: floating-point operations of matrix products, convolutions and attention.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        super().__init__()  # type: ignore[no-untyped-call]
        self._operations_of = flop_registry
        self.now = 0
        self.peak = 0
        self.operations = 0.0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # two thirds of all calls on fake tensors; makes no tensor
            return args[0].fake_device
        for value in args:
            self._note_outside(value)
        result = func(*args, **(kwargs or {}))
        count = self._operations_of.get(func._overloadpacket)
        if count is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=result)
        outputs = result if isinstance(result, tuple | list) else (result,)
        for output in outputs:
            if isinstance(output, Tensor) and not self._casts(func, args):
                self.add(output)
        return result

    def _note_outside(self, value: object) -> None:
        """Note tensors from before the block, which are not counted when an operation returns them or their views."""
        if isinstance(value, tuple | list):
            for part in value:
                self._note_outside(part)
        elif isinstance(value, Tensor) and id(value.untyped_storage()) not in self._alive:
            storage = value.untyped_storage()
            key = id(storage)

            def forget(_: object) -> None:
                self._alive.pop(key, None)

            self._alive[key] = weakref.ref(storage, forget)

    @staticmethod
    def _casts(func: Any, args: Any) -> bool:
        """Whether an operation is autocast's cast of a parameter, of which there is one a step, whatever the rows."""
        return func._overloadpacket is torch.ops.aten._to_copy and isinstance(args[0], nn.Parameter)

    def add(self, tensor: Tensor) -> None:
        """Count a tensor until nothing refers to it; its views count once."""
        storage = tensor.untyped_storage()
        key = id(storage)
        size = storage.nbytes()
        if key in self._alive:
            return

        def forget(_: object) -> None:
            if self._alive.pop(key, None) is not None:
                self.now -= size

        self._alive[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)

    def leave_out_gradient(self, parameter: Tensor) -> None:
        """Count a parameter's gradient no longer: a hook for `register_post_accumulate_grad_hook`."""
        assert parameter.grad is not None
        if self._alive.pop(id(parameter.grad.untyped_storage()), None) is not None:
            self.now -= parameter.grad.untyped_storage().nbytes()


class _Shapes(FakeTensorMode):
    """Makes tensors that have only a shape; the number in one, where a model asks for it, is 0."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0
        return super().__torch_dispatch__(func, types, args, kwargs or {})


class _LikeCuda(TorchFunctionMode):
    """Keeps norms and softmax in float32 under autocast, as a GPU does and a CPU does not."""

    _WIDE = frozenset({functional.layer_norm, functional.softmax, torch.softmax, Tensor.softmax})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self._WIDE:
            return func(*args, **(kwargs or {}))
        wide = []
        for value in args:
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            wide.append(value.float() if is_float else value)
        with torch.autocast("cpu", enabled=False):
            return func(*wide, **(kwargs or {}))


# --- a backbone of shapes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallMemory:
    """What a call of a backbone takes, forward and backward.

    Attributes:
        held: bytes kept for the backward pass, its output included.
        passing: the most bytes beyond those at any time, with the gradients of inputs, without those of parameters.
        output: bytes of its output.
        operations: floating-point operations.
        forward: those of them before the backward pass.
    """

    held: float
    passing: float
    output: float
    operations: float
    forward: float

    def __add__(self, other: CallMemory) -> CallMemory:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return CallMemory(*(one + another for one, another in pairs))

    def __mul__(self, factor: float) -> CallMemory:
        return CallMemory(*(factor * value for value in astuple(self)))


@dataclass(frozen=True, eq=False)
class Architecture:
    """A backbone as its shapes: real, or built without weights, on any device; tracing does not change it.

    Attributes:
        backbone: its parameters may be on torch's meta device.
        precision: of a step: fp32, bf16 or fp16.
        config: of the run.
        images: ids of images, of which one is looked up if the backbone holds features.
    """

    backbone: Backbone
    precision: str
    config: ResolvedConfig
    images: Sequence[str]

    @classmethod
    def of(cls, run: OpenRun) -> Architecture:
        """Return that of an opened run."""
        return cls(run.backbone, run.precision.name, run.config, run.scene.train.dataset.images)

    @cached_property
    def weights(self) -> int:
        """Bytes of all parameters and buffers."""
        return sum(tensor.nbytes for tensor in (*self.backbone.parameters(), *self.backbone.buffers()))

    @cached_property
    def trained(self) -> int:
        """Bytes of the trained parameters."""
        return sum(parameter.nbytes for parameter in self.backbone.parameters() if parameter.requires_grad)

    @cached_property
    def pixels(self) -> tuple[int, ...]:
        """Shape [3, H, W] of an image as the tower reads it."""
        return tuple(self.backbone.transform(Image.new("RGB", (32, 32))).shape)

    @cached_property
    def features(self) -> tuple[int, ...]:
        """Shape [L, C] of an image's features."""
        if isinstance(self.backbone, HoldsFeatures):
            return tuple(self.backbone.features_of(self.images[:1]).shape[1:])
        return tuple(self._read_or_make("features", partial(trace_features, self)))

    @cached_property
    def fake(self) -> tuple[_Shapes, Backbone]:
        """A copy of the backbone whose tensors have shapes and no numbers, for all traces, and the mode of its tensors.

        Making it takes as long as a fifth of a trace.
        """
        mode = _Shapes()
        with mode, FakeCopyMode(mode):
            return mode, copy.deepcopy(self.backbone, _blanks(self.backbone))

    def call(self, name: str, rows: int, *, recompute: bool = False) -> CallMemory:
        """Return what a call of so many rows takes; one that composes all with all has so many on each side.

        Traces are read from the cache folder, or made now in a few seconds.
        """
        if not name.startswith("cross"):
            return self._trace(name, _ROWS, recompute) * (rows / _ROWS)
        small, large = _SIDES
        few = self._trace(name, small, recompute)
        many = self._trace(name, large, recompute)
        # solve a n + b n^2 at two n: a is what each row takes, b what each pair takes
        per_pair = (many * (1 / large) + few * (-1 / small)) * (1 / (large - small))
        per_row = few * (1 / small) + per_pair * -small
        return per_row * rows + per_pair * rows**2

    def _trace(self, name: str, rows: int, recompute: bool) -> CallMemory:
        part = f"{name} {rows} {self.precision}"
        if recompute:
            part += " recomputed"

        def trace_call() -> dict[str, Any]:
            return asdict(trace(self, name, rows, recompute=recompute))

        return CallMemory(**self._read_or_make(part, trace_call))

    def _read_or_make(self, part: str, make: Callable[[], Any]) -> Any:
        file = cache_dir() / "steps" / f"{self._key}.json"
        traces: dict[str, Any] = {}
        if file.exists():
            with intact(file):
                traces = read_json(file)
        if part not in traces:
            traces[part] = make()
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, traces)
        return traces[part]

    @cached_property
    def _key(self) -> str:
        """Name the shapes of the backbone, its options, and the code that computes with it."""
        plugins = registry.parts("backbones", self.config.backbone.name)
        roots = [(plugin.module, plugin.source()) for plugin in plugins]
        modules = syntax.closure((*roots, (__name__, Path(__file__))))
        tensors = [*self.backbone.named_parameters(), *self.backbone.named_buffers()]
        parts = {
            "options": self.config.backbone.model_dump(mode="json"),
            "tensors": [
                (name, list(tensor.shape), str(tensor.dtype), tensor.requires_grad) for name, tensor in tensors
            ],
            "code": [syntax.traits(module, path).code for module, path in sorted(modules.items())],
            "versions": versions(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def trace_features(architecture: Architecture) -> tuple[int, ...]:
    """Return the shape [L, C] of an image's features, from a picture that is only a shape."""
    with _fake(architecture) as backbone, torch.no_grad():
        backbone.eval()
        return tuple(backbone.image_features(torch.empty(1, *architecture.pixels)).shape[1:])


@contextmanager
def _fake(architecture: Architecture) -> Iterator[Backbone]:
    """Yield the backbone's copy whose tensors have no numbers; new tensors in the block are like that."""
    mode, backbone = architecture.fake
    with torch.random.fork_rng(devices=[]), mode:
        yield backbone


def trace(architecture: Architecture, name: str, rows: int, *, recompute: bool = False) -> CallMemory:
    """Trace a call of the backbone in training, forward and backward.

    Args:
        architecture: gives the shapes.
        name: of a method of `Calls`.
        rows: queries or images.
        recompute: layers are computed again in the backward pass.
    """
    texts = architecture.backbone.tokenize([_TEXT])
    feature_shape = architecture.features
    pixels = architecture.pixels if name == "image_features" else ()
    count = MemoryCount()
    with ExitStack() as stack:
        backbone = stack.enter_context(_fake(architecture))
        backbone.train()
        backbone.recompute(recompute)
        tokens = {key: torch.ones((rows, *value.shape[1:]), dtype=value.dtype) for key, value in texts.items()}
        if isinstance(backbone, FreezesTexts):
            with torch.no_grad():
                tokens = backbone.frozen_text(tokens)
        features = torch.empty(rows, *feature_shape, requires_grad=not backbone.frozen_images)
        pictures = torch.empty(rows, *pixels)
        calls = Calls(backbone, seed=0)
        ids = torch.arange(rows)
        inputs = QueryInputs(ids, ids, features, tokens)
        for parameter in backbone.parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(count.leave_out_gradient)
                stack.callback(hook.remove)
        stack.callback(backbone.zero_grad)  # the next trace has the same copy
        stack.enter_context(count)
        dtype = _DTYPES.get(architecture.precision)
        if dtype is not None:
            stack.enter_context(torch.autocast("cpu", dtype))
            stack.enter_context(_LikeCuda())
        outputs = _outputs_of(calls, name, inputs, pictures)
        held_bytes = count.now
        forward = count.operations
        _run_backward([output for output in outputs if output.requires_grad])
        return CallMemory(
            held_bytes,
            passing=count.peak - held_bytes,
            output=sum(output.nbytes for output in outputs),
            operations=count.operations,
            forward=forward,
        )


def _outputs_of(calls: Calls, name: str, inputs: QueryInputs, pictures: Tensor) -> list[Tensor]:
    """Return what a call makes, by the name of its method."""
    rows = inputs.rows
    tokens = inputs.tokens
    match name:
        case "image_features":
            return [calls.image_features(lambda _: pictures, rows)]
        case "candidates":
            return [calls.candidates(inputs.features, rows)]
        case "queries":
            return [calls.queries(inputs)]
        case "sub_queries":
            return [sub.embeddings for sub in calls.sub_queries(inputs).values()]
        case "cross_queries":
            return [calls.cross_queries(inputs)]
        case "text_queries":
            return [calls.text_queries(tokens, rows, "target text")]
        case "compose_texts":
            return [calls.compose_texts(tokens, inputs)]
        case "cross_texts":
            return [calls.cross_texts(tokens, inputs)]
    raise KeyError(name)


def _run_backward(outputs: Sequence[Tensor]) -> None:
    """Pass gradients without numbers back from these tensors."""
    if not outputs:
        return
    gradients = tuple(torch.empty_like(output) for output in outputs)
    # the engine itself: torch.autograd.backward would switch `_LikeCuda` off, and layers are recomputed in it
    torch.autograd.Variable._execution_engine.run_backward(
        tuple(outputs), gradients, False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def _blanks(module: nn.Module) -> dict[int, Any]:
    """Return the memo of a deep copy in which new tensors on the CPU stand for a module's parameters and buffers."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        blank = torch.empty(parameter.shape, dtype=parameter.dtype)
        memo[id(parameter)] = nn.Parameter(blank, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.zeros(buffer.shape, dtype=buffer.dtype)
    return memo


# --- the calls of a step ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepRows:
    """How many rows a step passes through the backbone, at most.

    Attributes:
        calls: name of a call -> rows with gradients.
        read: images whose features (or pixels) a step reads for them.
        scores: numbers in the score tables of a step.
        corpus: images of the whole corpus among the candidates; 0 if a step has those of its batch only.
        bank: images that are scored without a gradient.
        bank_read: those of them that pass the backbone in every step; a queue holds what passed in earlier steps.
    """

    calls: Mapping[str, int]
    read: int
    scores: int
    corpus: int = 0
    bank: int = 0
    bank_read: int = 0

    @classmethod
    def of(cls, config: ResolvedConfig, train: Dataset, backbone: Backbone) -> StepRows:
        """Return the most rows of any phase of a run.

        Args:
            config: the run's.
            train: its train split.
            backbone: with or without weights.
        """
        strategy: Strategy = registry.make("strategies", config.strategy.name, **config.strategy.options)
        loss: Loss = registry.make("losses", config.loss.name, **config.loss.options)
        phases = [cls._of_phase(phase, config, train, backbone, loss) for phase in phases_of(strategy, config)]
        calls: dict[str, int] = {}
        for phase in phases:
            for name, rows in phase.calls.items():
                calls[name] = max(rows, calls.get(name, 0))
        return cls(
            calls,
            read=max(phase.read for phase in phases),
            scores=max(phase.scores for phase in phases),
            corpus=max(phase.corpus for phase in phases),
            bank=max(phase.bank for phase in phases),
            bank_read=max(phase.bank_read for phase in phases),
        )

    @classmethod
    def _of_phase(
        cls, phase: Phase, config: ResolvedConfig, train: Dataset, backbone: Backbone, loss: Loss
    ) -> StepRows:
        """Return the most rows of one phase."""
        batch = min(config.train.batch_size, len(train.queries))
        drawn = config.train.draws if phase.refreshes else 0
        images = min(batch * (1 + drawn), len(train.images))
        scores = batch * images
        corpus = 0
        if loss.candidate_set == "corpus":
            images = corpus = len(train.images)
            scores += batch * images * backbone.identity.tokens_per_image
        if loss.candidate_set == "relevant" and train.answers is not None:
            images = min(images + batch * int(train.answers.lengths.max()), len(train.images))
            scores = batch * images
        bank = 0
        bank_read = 0
        for rule in batch_rules(phase.strategy):
            if not isinstance(rule, BankStrategy):
                continue
            if rule.queue:
                bank = max(bank, rule.queue)
            else:
                bank = max(bank, len(train.images))
                bank_read = len(train.images)
        scores += batch * bank * backbone.identity.tokens_per_image
        calls = {"queries": batch, "candidates": images}
        if loss.uses_aspects and isinstance(backbone, HasSubQueries):
            calls["sub_queries"] = batch
        slots = set(slots_of(phase.strategy))
        if slots & _CROSSED:
            calls["cross_queries"] = batch
        if slots - {"target"}:
            width = batch if "triple" in slots else len(slots)
            scores += batch * batch * width
        if config.hybrid.active:
            calls["text_queries"] = batch
        if config.hybrid.alpha > 0:
            composing = "cross_texts" if slots & _CROSSED else "compose_texts"
            calls[composing] = batch
        if config.hybrid.beta > 0:
            calls["text_queries"] += batch
            calls["candidates"] += batch
        if not backbone.frozen_images:
            calls["image_features"] = batch + images
        return cls(calls, batch + images, scores, corpus, bank, bank_read)


def step_bytes(architecture: Architecture, step: StepRows, plan: StepPlan, *, gpu: bool) -> dict[str, int]:
    """Return the most bytes that one training step holds at a time in each of its processes, by part.

    Args:
        architecture: the backbone, and the precision of the step.
        step: rows of the batch.
        plan: how the step is computed.
        gpu: with what CUDA needs besides; and AdamW makes temporary tensors for all parameters at once.
    """
    frozen = architecture.backbone.frozen_images
    row = 4 * math.prod(architecture.features if frozen else architecture.pixels)
    activations = _activation_bytes(architecture, step, plan)
    leaves = _leaf_bytes(architecture, step, plan)
    trained = architecture.trained
    low = trained // 2 if architecture.precision in _DTYPES else 0  # the casts of parameters
    update = trained if gpu else 0
    parts = {
        "weights": architecture.weights,
        "moments": 2 * trained,
        "gradients": trained,
        "features" if frozen else "pixels": row * _rows_read(architecture, step, plan),
        "activations": int(max(activations + low + leaves, update)),
        "scores": 3 * 4 * step.scores,  # of a product, its mask and its gradient
    }
    if gpu:
        parts["CUDA"] = _CONTEXT + int(_FRAGMENTS * sum(parts.values()))
    return parts


def _activation_bytes(architecture: Architecture, step: StepRows, plan: StepPlan) -> float:
    """Return the bytes that the calls of a step keep for the backward pass, and what passes through memory."""
    calls = {name: _call_memory(architecture, name, rows, plan) for name, rows in step.calls.items()}
    passing = max(call.passing for call in calls.values())
    if plan.micro_batch == 0:
        return sum(call.held for call in calls.values()) + passing
    # one part at a time: of images, and of what is computed from their features
    tower = calls.pop("image_features", CallMemory(0, 0, 0, 0, 0)).held
    return tower + max(call.held for call in calls.values()) + passing


def _leaf_bytes(architecture: Architecture, step: StepRows, plan: StepPlan) -> float:
    """Return the bytes of a batch's embeddings and their gradients, where a call is computed in parts; and of a bank's.

    The embeddings of a bank have no gradient.
    """
    candidates = step.calls["candidates"]
    if plan.micro_batch > 0 or plan.processes > 1:
        in_parts = dict(step.calls)
    elif architecture.backbone.frozen_images and candidates > EMBED_BATCH:
        in_parts = {"candidates": candidates}
    else:
        in_parts = {}
    leaves = 0.0
    for name, rows in in_parts.items():
        leaves += 2 * architecture.call(name, rows, recompute=plan.recompute).output
    if step.bank:
        leaves += architecture.call("candidates", step.bank, recompute=plan.recompute).output
    return leaves


def _call_memory(architecture: Architecture, name: str, rows: int, plan: StepPlan) -> CallMemory:
    """Return what a process keeps of a call of so many rows: of its own share, or of a part of it."""
    at_once = rows
    if plan.micro_batch > 0:
        at_once = min(rows, _part(architecture.backbone, name, plan.micro_batch))
    elif name == "candidates" and architecture.backbone.frozen_images:  # many pass in parts (`many_candidates`)
        at_once = min(rows, EMBED_BATCH)
    whole = architecture.call(name, at_once, recompute=plan.recompute)
    share = -(-rows // plan.processes)
    if share < at_once:  # a call that crosses its rows with texts crosses its own rows with all of them
        return whole * (share / at_once)
    return whole


def _rows_read(architecture: Architecture, step: StepRows, plan: StepPlan) -> int:
    """Return of how many images a step holds features or pixels at a time, in each of its processes."""
    if not architecture.backbone.frozen_images:  # each process reads the pixels of its pictures
        return -(-step.read // plan.processes)
    candidates = step.calls["candidates"]
    read = step.read
    row = 4 * math.prod(architecture.features)
    if candidates > EMBED_BATCH:  # what is kept for the second pass, the part in use, and the one read ahead
        part = min(plan.micro_batch or EMBED_BATCH, EMBED_BATCH)
        read = step.read - candidates + 2 * part + min(candidates, KEPT_BYTES // row)
    if step.bank_read > EMBED_BATCH:
        read += 2 * EMBED_BATCH
    return read


def step_operations(architecture: Architecture, step: StepRows, plan: StepPlan) -> dict[str, float]:
    """Return the floating-point operations of a training step in each of its processes by call; "bank": of its images.

    Rows of a micro-batch, and of a corpus that passes in parts, pass forward twice: once without a graph.

    Args:
        architecture: the backbone, and the precision of the step.
        step: rows of the batch.
        plan: how it is computed.
    """
    operations = {}
    for name, rows in step.calls.items():
        call = architecture.call(name, rows, recompute=plan.recompute)
        in_parts = name == "candidates" and architecture.backbone.frozen_images and rows > EMBED_BATCH
        total = call.operations
        if plan.micro_batch > 0 or in_parts:
            total += call.forward
        operations[name] = total / plan.processes
    if step.bank_read:
        bank = architecture.call("candidates", step.bank_read, recompute=plan.recompute)
        operations["bank"] = bank.forward / plan.processes
    return operations


def _part(backbone: Backbone, name: str, micro_batch: int) -> int:
    """Return the rows of a call that a micro-batch computes at a time; pairs, where each is computed by itself."""
    if name == "cross_queries" and type(backbone).cross_queries is Backbone.cross_queries:
        return max(1, math.isqrt(micro_batch))
    return micro_batch


def step_memory(run: OpenRun, plan: StepPlan) -> dict[str, int]:
    """Return the most bytes that a training step of an opened run holds at a time in each process, by part.

    Args:
        run: its backbone is on any device and is not changed.
        plan: how the step is computed.
    """
    step = StepRows.of(run.config, run.scene.train.dataset, run.backbone)
    return step_bytes(Architecture.of(run), step, plan, gpu=run.precision.device.type == "cuda")
