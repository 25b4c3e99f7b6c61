"""Calls of the backbone in a training step: at once, in micro-batches, or divided among processes.

At once, a call computes all of its rows, and autograd keeps their activations until the backward pass. In parts
(`compute.micro_batch`, after GradCache: Gao et al., arXiv:2101.06983) a step has the gradients of the whole batch,
whatever its loss compares:

1. Each call computes its rows part by part, without a graph; what it returns are leaves.
2. The loss is computed from the leaves, on the whole batch, and its backward pass ends at them.
3. `TrainingCalls.backward` computes each part once more, with a graph, and sends it the gradient of its leaves: the
   last call first, as queries are composed from image features.

Masks of dropout belong to rows (`negbench.contracts.dropout`), so that both passes of a part have the same ones.

Of several processes (`compute.processes`) each computes its share of a call's rows and receives the others'; in 3 it
sends gradients to its own rows only, and the parameters' gradients are summed. What the loss makes of a parameter
without the backbone (a temperature's gradient) is the same in all of them and counts once, in the first.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from negbench.contracts import Backbone, Calls, SubQuery
from negbench.contracts.calls import Call, Part, T
from negbench.contracts.dropout import checking_generators
from negbench.data.batch_size import EMBED_BATCH
from negbench.data.reading import InTurn, RowSource
from negbench.data.scene import FeatureSource
from negbench.machine.team import ALONE, Team

KEPT_BYTES = 2**32  # of features or pixels that a step keeps for its second pass
_KEPT_ACTIVATIONS = 2**28  # bytes of many images' activations, for the backward pass


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A call whose rows wait for their gradient.

    Attributes:
        make: computes the tensors of a part.
        parts: of this process.
        outputs: each part's tensors with their graph; None where they are computed again.
        leaves: what the loss reads, of all rows; a number that is the same for all rows is [].
        autocast: precision of the call.
        read_by_calls: whether later calls read what it returned.
    """

    make: Callable[[Part], list[Tensor]]
    parts: Sequence[Part]
    outputs: Sequence[list[Tensor] | None]
    leaves: Sequence[Tensor]
    autocast: AbstractContextManager[Any]
    read_by_calls: bool


class TrainingCalls(Calls):
    """Calls of a backbone in training, at once or in parts.

    Args:
        backbone: called.
        seed: the run's.
        micro_batch: rows of a part; 0: all of them.
        team: the processes that share the step.
    """

    def __init__(self, backbone: Backbone, seed: int, micro_batch: int = 0, team: Team = ALONE) -> None:
        super().__init__(backbone, seed)
        self.micro_batch = micro_batch
        self.team = team
        self._waiting: list[_Waiting] = []
        self._last_many = -1  # which of them is the last `many_candidates`
        self._image_bytes: float | None = None  # that the graph of one image keeps, once known

    @property
    def _at_once(self) -> bool:
        return self.micro_batch == 0 and self.team.count == 1

    # --- calls ------------------------------------------------------------------------------------------------------

    def image_features(self, read: FeatureSource, pictures: Tensor) -> Tensor:
        """See `Calls`; the pixels of a part are read once, by the process that computes it."""
        return super().image_features(read if self._at_once else _ReadOnce(read), pictures)

    def many_candidates(self, read: FeatureSource, pictures: Tensor, *, sparing: bool = False) -> Tensor:
        """Return [C, T, D] float32 candidates of many pictures [C] int64, whose stored features `read` returns.

        They pass in parts. Where the activations of all would take much memory (a Q-Former's for thousands of images
        fit into none), no graph is kept, and the parts are computed once more in the backward pass: there are two
        passes forward and one backward. Features are read once as far as KEPT_BYTES hold them, the others twice.

        Args:
            read: returns [c, L, C] features of pictures [c].
            pictures: feature rows.
            sparing: `spare` follows, which says whose second pass is left out; those of the others are read again.
        """
        learns = torch.is_grad_enabled()
        size = min(self.micro_batch or EMBED_BATCH, EMBED_BATCH) if learns else EMBED_BATCH
        if isinstance(read, RowSource):  # while a part is computed, the next one is read
            read = InTurn(read, pictures[self.team.share(len(pictures))].split(size))
        if self._at_once and not sparing and (not learns or self._keeps_few(read, pictures)):
            return torch.cat([self.candidates(read(part), part) for part in pictures.split(size)])
        reader = _ReadOnce(read) if learns and not sparing else read

        def embed(part_pictures: Tensor) -> Tensor:
            return self.backbone.candidates(reader(part_pictures))

        call = Call(embed, ("image",), pictures, (pictures,))

        def compute(part: Part) -> list[Tensor]:
            return [self._compute_part(call, part)]

        embedded = self._in_parts(compute, call.sizes, size=size)[0].float()
        self._last_many = len(self._waiting) - 1
        return embedded

    def spare(self, light: Tensor) -> None:
        """Send no gradient to these rows, [C] bool, of the last `many_candidates`."""
        call = self._waiting[self._last_many]
        heavy = (~light.cpu()).nonzero().squeeze(1)
        share = heavy[self.team.share(len(heavy))]
        size = min(self.micro_batch or EMBED_BATCH, EMBED_BATCH)
        parts = [(rows,) for rows in share.split(size) if len(rows)]
        self._waiting[self._last_many] = replace(call, parts=parts, outputs=[None] * len(parts))

    def _keeps_few(self, read: FeatureSource, pictures: Tensor) -> bool:
        """Whether the graph of all these pictures keeps little memory."""
        if self._image_bytes is None:
            some = pictures[:EMBED_BATCH]
            saved_bytes = list[int]()

            def note_size(tensor: Tensor) -> None:
                saved_bytes.append(tensor.nbytes)

            def unpack(_: None) -> Tensor:
                raise AssertionError("this graph has no backward pass")

            # without dropout: this is no part of the step
            with self.backbone.evaluating(), saved_tensors_hooks(note_size, unpack):
                self.backbone.candidates(read(some))
            self._image_bytes = sum(saved_bytes) / len(some)
        return self._image_bytes * len(pictures) <= _KEPT_ACTIVATIONS

    def _compute(self, call: Call[T]) -> T:
        if self._at_once:
            return super()._compute(call)
        last_part = list[T]()  # its form is that of all parts

        def compute(part: Part) -> list[Tensor]:
            last_part[:] = [self._compute_part(call, part)]
            return _tensors(last_part[0])

        pairwise = getattr(call.make, "__func__", None) is Backbone.cross_queries
        leaves = self._in_parts(compute, call.sizes, pairwise=pairwise, read_by_calls=call.read_by_calls)
        return _in_form(last_part[0], leaves)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _in_parts(
        self,
        make: Callable[[Part], list[Tensor]],
        sizes: tuple[int, ...],
        *,
        size: int | None = None,
        pairwise: bool = False,
        read_by_calls: bool = False,
    ) -> list[Tensor]:
        """Compute a call in parts; return its tensors for all rows, as leaves that wait for their gradient.

        Args:
            make: computes the tensors of a part.
            sizes: their first dimensions: rows, or references and modifications.
            size: rows of a part; None: `micro_batch`.
            pairwise: whether each pair of a reference and a modification is computed by itself.
            read_by_calls: whether other calls read what is returned.
        """
        size = self.micro_batch if size is None else size
        parts = _parts(self.team.share(sizes[0]), sizes[1:], size, pairwise)
        learns = torch.is_grad_enabled()
        again = learns and size > 0
        kind = self.backbone.device.type
        precision: dict[str, Any] = {
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
        }
        # a weight that autocast converts without a graph, and keeps, would have no gradient when it is used next
        first = torch.autocast(kind, cache_enabled=False, **precision) if again else nullcontext()
        setting = "compute.micro_batch" if self.micro_batch else "compute.processes"
        if self._at_once:
            setting = "a corpus in every step"
        checking = checking_generators(self.backbone, self.backbone.device, setting)
        with torch.set_grad_enabled(learns and not again), first, checking:
            # a process without rows computes one, to learn what the others send
            computed = parts or [(slice(0, 1),) * len(sizes)]
            by_part = [make(part) for part in computed]
        with torch.no_grad():
            leaves = [self._whole(tensors, parts, sizes) for tensors in zip(*by_part, strict=True)]
        if not learns:
            return leaves
        for leaf in leaves:
            leaf.requires_grad_(leaf.is_floating_point())
        outputs: list[list[Tensor] | None] = [None] * len(parts)
        if not again:
            outputs = list(by_part[: len(parts)])
        self._waiting.append(_Waiting(make, parts, outputs, leaves, torch.autocast(kind, **precision), read_by_calls))
        return leaves

    def _whole(self, tensors: Sequence[Tensor], parts: Sequence[Part], sizes: tuple[int, ...]) -> Tensor:
        """Put the parts of this process together, and gather those of the others: [*sizes, ...]; a number: []."""
        like = tensors[0]
        if like.ndim == 0:
            return like.detach().clone()
        share = self.team.share(sizes[0])
        rows_of_process = like.new_empty(share.stop - share.start, *sizes[1:], *like.shape[len(sizes) :])
        for part, tensor in zip(parts, tensors, strict=False):  # none of a process without rows
            block = part[0]
            assert isinstance(block, slice)  # parts are blocks of rows
            rows = slice(block.start - share.start, block.stop - share.start)
            rows_of_process[(rows, *part[1:])] = tensor
        return self.team.gather(rows_of_process, sizes[0])

    def forget(self) -> None:
        """Forget the calls of a step that failed."""
        self._waiting.clear()

    # --- backward ---------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, parameters: Sequence[nn.Parameter]) -> None:
        """Add the loss's gradient to `grad` of the parameters, which must have none yet."""
        waiting = self._waiting
        self._waiting = []
        loss.backward()
        if not self.team.first:  # what the loss makes of them without a part is counted in the first process
            for parameter in parameters:
                parameter.grad = None
            for call in waiting:
                if call.read_by_calls:
                    for image in call.leaves:
                        image.grad = None
        while waiting:
            self._send(waiting.pop())
        self.team.add_up(parameters)

    def _send(self, call: _Waiting) -> None:
        """Send the gradient of a call's leaves through its parts."""
        if call.read_by_calls:
            for leaf in call.leaves:
                self.team.add_up_gradient(leaf)
        if all(leaf.grad is None for leaf in call.leaves):
            return
        for number, (part, tensors) in enumerate(zip(call.parts, call.outputs, strict=True)):
            if tensors is None:
                with call.autocast:
                    tensors = call.make(part)
            outputs = list[Tensor]()
            gradients = list[Tensor]()
            for output, leaf in zip(tensors, call.leaves, strict=True):
                # a number is the same in every part, and its gradient counts once
                once = leaf.ndim > 0 or (number == 0 and self.team.first)
                if once and output.requires_grad and leaf.grad is not None:
                    outputs.append(output)
                    gradients.append(leaf.grad[part] if leaf.ndim else leaf.grad)
            if outputs:
                torch.autograd.backward(outputs, gradients)


class _ReadOnce:
    """Reads each list of rows once, and hands it out once more; what does not fit into KEPT_BYTES is read again."""

    def __init__(self, read: FeatureSource) -> None:
        self._read = read
        self._stored = dict[tuple[int, ...], Tensor]()
        self._seen = set[tuple[int, ...]]()
        self._bytes = 0

    def __call__(self, rows: Tensor) -> Tensor:
        key = tuple(rows.tolist())
        if key in self._stored:
            return self._stored.pop(key)
        values = self._read(rows)
        if key not in self._seen and self._bytes + values.nbytes <= KEPT_BYTES:
            self._stored[key] = values
            self._bytes += values.nbytes
        self._seen.add(key)
        return values


def _parts(share: slice, others: tuple[int, ...], size: int, pairwise: bool) -> list[Part]:
    """Cut a process's share of the rows; with modifications as second dimension, cut both.

    Args:
        share: rows of the process.
        others: number of modifications, if a call composes all pairs.
        size: rows of a part (each of its references and of its modifications); 0: all.
        pairwise: whether a part has `size` pairs in all, as each passes by itself.
    """
    rows = size or max(1, share.stop - share.start)
    if not others:
        return [(part,) for part in _slices(share, rows)]
    columns = size or others[0]
    if pairwise and size:
        columns = min(size, others[0])
        rows = max(1, size // columns)
    return list(itertools.product(_slices(share, rows), _slices(slice(0, others[0]), columns)))


def _slices(whole: slice, size: int) -> list[slice]:
    return [slice(start, min(start + size, whole.stop)) for start in range(whole.start, whole.stop, size)]


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of what a call returns: one, or those of its sub-queries."""
    if isinstance(value, Tensor):
        return [value]
    tensors = []
    for sub in value.values():
        tensors += [sub.embeddings, sub.weight, sub.present]
    return tensors


def _in_form(value: T, tensors: Sequence[Tensor]) -> T:
    """Return tensors in the form of what a call returned; reverses `_tensors`."""
    form: Any = value
    if isinstance(value, Tensor):
        form = tensors[0]
    else:
        rest = iter(tensors)
        form = {name: SubQuery(next(rest), next(rest), next(rest)) for name in form}
    return cast(T, form)
