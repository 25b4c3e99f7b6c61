"""Every call by which a training step reaches the backbone, each with the rows that it computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from torch import Tensor

from negbench.contracts.backbone import Backbone
from negbench.contracts.dropout import Rows, Side, computing
from negbench.contracts.optional import ComposesTexts, HasSubQueries, SubQuery

T = TypeVar("T")

Tokens = Mapping[str, Tensor]
TextSide = Literal["modification", "reference text", "target text"]
Part = tuple[slice | Tensor, ...]  # indices into what a call returns, along its first dimensions


@dataclass(frozen=True)
class QueryInputs:
    """What B queries of a step are composed from.

    Attributes:
        rows: [B] int64 train queries, on the CPU.
        pictures: [B] int64, their reference images' feature rows: one for pictures that are equal byte for byte.
        features: [B, L, C] of the reference images.
        tokens: the tokenised modifications, on the model's device.
    """

    rows: Tensor
    pictures: Tensor
    features: Tensor
    tokens: Tokens


@dataclass(frozen=True, eq=False)
class Call(Generic[T]):
    """A call of the backbone for B rows of a step.

    Attributes:
        make: a method of the backbone.
        sides: what the rows are; where each row is crossed with each of B texts, what the texts are comes second.
        ids: [B] int64, queries or pictures.
        inputs: of `make`, each with B rows; of a crossed call, one for each side.
        read_by_calls: whether later calls read what it returns.
    """

    make: Callable[..., T]
    sides: tuple[Side, ...]
    ids: Tensor
    inputs: tuple[Tensor | Tokens, ...]
    read_by_calls: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """First dimensions of what it returns: (B,), or (B, B)."""
        return (len(self.ids),) * len(self.sides)


class Calls:
    """A backbone in training, as the objective, hybrid terms, slots and planes of a step reach it.

    Attributes:
        backbone: called.
        seed: the run's.
        step: number of the current step. Masks of dropout depend on both (`negbench.contracts.dropout`).
    """

    def __init__(self, backbone: Backbone, seed: int) -> None:
        self.backbone = backbone
        self.seed = seed
        self.step = 0

    def image_features(self, read: Callable[[Tensor], Tensor], pictures: Tensor) -> Tensor:
        """Return [B, L, C] of pictures [B] int64, where the image tower trains; `read` returns their pixels."""

        def encode(part: Tensor) -> Tensor:
            return self.backbone.image_features(read(part))

        return self._compute(Call(encode, ("image",), pictures, (pictures,), read_by_calls=True))

    def candidates(self, features: Tensor, pictures: Tensor) -> Tensor:
        """[B, L, C] of pictures [B] int64 -> [B, T, D] float32."""
        return self._embed(self.backbone.candidates, "image", pictures, features).float()

    def queries(self, inputs: QueryInputs) -> Tensor:
        """Return [B, D] float32 queries."""
        return self._embed(self.backbone.queries, "query", inputs.rows, inputs.features, inputs.tokens).float()

    def sub_queries(self, inputs: QueryInputs) -> dict[str, SubQuery]:
        """Return the B queries' sub-queries by aspect, for a backbone that `HasSubQueries`; masks as `queries`."""
        assert isinstance(self.backbone, HasSubQueries)
        return self._embed(self.backbone.sub_queries, "query", inputs.rows, inputs.features, inputs.tokens)

    def cross_queries(self, inputs: QueryInputs) -> Tensor:
        """Return [B, B, D] float32: every reference with every modification."""
        sides: tuple[Side, Side] = ("query", "modification")
        return self._cross(self.backbone.cross_queries, sides, inputs.rows, inputs.features, inputs.tokens).float()

    def text_queries(self, tokens: Tokens, rows: Tensor, side: TextSide) -> Tensor:
        """Return [B, D] float32 embeddings of the texts that queries [B] have on this side."""
        return self._embed(self.backbone.text_queries, side, rows, tokens).float()

    def compose_texts(self, reference: Tokens, inputs: QueryInputs) -> Tensor:
        """Return [B, D] float32: texts of the references with the modifications, if the backbone `ComposesTexts`."""
        assert isinstance(self.backbone, ComposesTexts)
        return self._embed(self.backbone.compose_texts, "reference text", inputs.rows, reference, inputs.tokens).float()

    def cross_texts(self, reference: Tokens, inputs: QueryInputs) -> Tensor:
        """Return [B, B, D] float32: every text of a reference with every modification, as `compose_texts`."""
        assert isinstance(self.backbone, ComposesTexts)
        sides: tuple[Side, Side] = ("reference text", "modification")
        return self._cross(self.backbone.cross_texts, sides, inputs.rows, reference, inputs.tokens).float()

    def _embed(self, make: Callable[..., T], side: Side, ids: Tensor, *inputs: Tensor | Tokens) -> T:
        return self._compute(Call(make, (side,), ids, inputs))

    def _cross(self, make: Callable[..., T], sides: tuple[Side, Side], ids: Tensor, *inputs: Tensor | Tokens) -> T:
        return self._compute(Call(make, sides, ids, inputs))

    def _compute(self, call: Call[T]) -> T:
        """Return what a call makes of all rows: the only way in which they reach the backbone."""
        return self._compute_part(call, (slice(None),) * len(call.sides))

    def _compute_part(self, call: Call[T], part: Part) -> T:
        """Return what a call makes of a part of its rows, and of its texts if it crosses them."""
        sides = [self._rows(side, call.ids[block]) for side, block in zip(call.sides, part, strict=True)]
        if len(sides) == 1:
            rows = sides[0]
            inputs = [_rows_of(table, part[0]) for table in call.inputs]
        else:
            references, texts = sides
            rows = Rows(references.streams, crossed=texts.streams)
            inputs = [_rows_of(table, block) for table, block in zip(call.inputs, part, strict=True)]
        with computing(rows):
            return call.make(*inputs)

    def _rows(self, side: Side, ids: Tensor) -> Rows:
        return Rows.of(self.seed, self.step, side, ids.to(self.backbone.device))


def _rows_of(table: Tensor | Tokens, rows: slice | Tensor) -> Tensor | Tokens:
    if isinstance(table, Tensor):
        return table[rows]
    return {name: value[rows] for name, value in table.items()}
