"""Let a batch strategy choose negatives among the members of a batch and the images of its bank."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from negbench.contracts import BankStep, BatchStrategy, Calls, QueryInputs, ScoreView, Slot, SyntheticStrategy
from negbench.contracts.scores import paired_relevance, relevance
from negbench.contracts.splitmix import uniform
from negbench.loop.slots import SlotNegatives, check_triples, choose_triples, full_precision
from negbench.metrics.equal_rows import Copies
from negbench.mining.ask import ask_for_pools, ask_for_synthetic, filter_view
from negbench.mining.draws import keep
from negbench.mining.filters import Filters
from negbench.mining.mined import BatchPools

OF_TARGETS: tuple[Slot, ...] = ("target", "query", "bank")  # slots for which relevance, planes and filters are known


@dataclass(frozen=True)
class ChoiceInputs:
    """Inputs of a batch strategy's choice, other than the scores of its slots.

    Attributes:
        temperature: > 0, the loss's divisor of scores.
        queries: [B, D], with their gradient.
        bank: [K, T, D], tokens of the bank's images; None where there is no bank.
        relevant: [B, B + K] bool, which of the batch's targets and the bank's images are known to be relevant; None:
            nothing is known.
        kinds: [B, B + K] int8, codes of judged negatives among the same images; None: none are known.
        planes: name -> [B, B + K] float, of the same images.
        filters: drop images that no strategy may choose.
        keep: how many negatives to keep of each query's pool, at random; None keeps all.
        seed: [B] int64, each query's random stream, for `keep` and for synthetic negatives.
    """

    temperature: float
    queries: Tensor
    bank: Tensor | None = None
    relevant: Tensor | None = None
    kinds: Tensor | None = None
    planes: Mapping[str, Tensor] = field(default_factory=dict)
    filters: Filters | None = None
    keep: int | None = None
    seed: Tensor | None = None


def slot_scores(
    calls: Calls, inputs: QueryInputs, query: Tensor, embedded: Tensor, slots: tuple[Slot, ...]
) -> dict[Slot, Tensor]:
    """Score every query's corrupted triples: slot -> [B, B] ([B, B, B] for "triple"); always includes "target".

    Args:
        calls: of the backbone, which composes references with other texts, where a slot needs it.
        inputs: the batch's references and texts.
        query: [B, D].
        embedded: [B, T, D] tokens of the targets.
        slots: slots to corrupt; "bank" is not scored here.
    """
    cross = None
    if {"reference", "modification", "triple"} & set(slots):
        # cross[r, p] composes reference r with text p, and is scored against the target that the triple keeps
        cross = calls.cross_queries(inputs)
    with full_precision(query.device):
        by_slot: dict[Slot, Tensor] = {"target": relevance(query, embedded)}
        if "query" in slots:
            by_slot["query"] = Copies.of(query[:, None]).level(by_slot["target"].T.clone())
        if cross is not None and {"modification", "reference"} & set(slots):
            texts = torch.cat([value.reshape(len(value), 1, -1).float() for value in inputs.tokens.values()], 2)
            by_slot["modification"] = Copies.of(texts).level(torch.einsum("ijd,itd->ijt", cross, embedded)).amax(-1)
            alike = Copies.of(inputs.features.flatten(1)[:, None])
            # a copy: rows so far apart would compete for one place of the cache, in the backward pass above all
            swapped = cross.transpose(0, 1).contiguous()
            by_slot["reference"] = alike.level(torch.einsum("ijd,itd->ijt", swapped, embedded)).amax(-1)
        if cross is not None and "triple" in slots:
            count, images = embedded.shape[:2]
            check_triples(count, count * count * images, "strategy over all triples")
            by_slot["triple"] = relevance(cross.flatten(0, 1), embedded).reshape(count, count, count)
    return by_slot


def choose(
    rule: BatchStrategy, by_slot: Mapping[Slot, Tensor], allowed: Mapping[Slot, Tensor], inputs: ChoiceInputs
) -> tuple[dict[Slot, SlotNegatives], BatchPools]:
    """Return the negatives chosen in each slot, thinned to `inputs.keep`, and one slot's pools for statistics.

    These are of "target" if the strategy corrupts it, else of the strategy's first slot.
    """
    slots = dict[Slot, SlotNegatives]()
    views = dict[Slot, ScoreView]()
    truths = dict[Slot, Tensor | None]()
    positive = by_slot["target"].diagonal()[:, None]
    for slot in rule.corrupts:
        scores = by_slot[slot]
        mask = allowed[slot].to(positive.device)
        if slot == "triple":
            slots[slot] = choose_triples(rule, scores, mask)
            table = torch.cat([positive, slots[slot].scores], dim=1).detach()
            views[slot] = ScoreView(table, torch.zeros(len(table), dtype=torch.int64, device=table.device))
            truths[slot] = None
            continue
        view, truths[slot] = _view(rule, slot, positive, scores, mask, inputs)
        views[slot] = view
        pool = ask_for_pools(rule, view)
        guide = None
        if "guide" in inputs.planes and slot in OF_TARGETS:
            guide = of_slot(inputs.planes["guide"], slot)
        if slot == "bank":  # the target is the first column of the view
            slots[slot] = SlotNegatives.of(scores, pool[:, 1:], None if guide is None else guide[:, 1:])
        else:
            slots[slot] = SlotNegatives.of(scores, pool, guide)
        if slot == "bank" and isinstance(rule, SyntheticStrategy):
            slots[slot] = SlotNegatives.side_by_side([slots[slot], _synthesize(rule, view, pool, inputs)])
    thinned = _keep_some(slots, inputs)
    slot = "target" if "target" in slots else rule.corrupts[0]
    view = views[slot]
    target_first = slot in ("bank", "triple")
    pool = _weights(slots[slot], view, target_first)
    drawn = _weights(thinned[slot], view, target_first)
    kinds = None
    if inputs.kinds is not None and slot in OF_TARGETS:
        kinds = of_slot(inputs.kinds, slot).to(positive.device)
    return thinned, BatchPools(view.scores, view.positive, view.allowed, pool, drawn, truths[slot], kinds)


def _view(
    rule: BatchStrategy, slot: Slot, positive: Tensor, scores: Tensor, allowed: Tensor, inputs: ChoiceInputs
) -> tuple[ScoreView, Tensor | None]:
    """Return a slot's view for the strategy (a bank's has the target first), and which columns are known relevant."""
    target = torch.arange(len(scores), device=scores.device)
    if slot == "bank":
        scores = torch.cat([positive, scores], dim=1)
        allowed = torch.cat([torch.zeros_like(allowed[:, :1]), allowed], dim=1)
        target = torch.zeros_like(target)
    truth = None
    planes: dict[str, Tensor] = {}
    filters = None
    if slot in OF_TARGETS:
        if inputs.relevant is not None:
            truth = of_slot(inputs.relevant, slot).to(scores.device)
        planes = {name: of_slot(plane, slot) for name, plane in inputs.planes.items()}
        filters = inputs.filters
    view = ScoreView(
        scores=scores.detach(),
        target=target,
        allowed=allowed,
        relevant=truth if rule.reads_truth else None,
        temperature=inputs.temperature,
        dim=inputs.queries.shape[1],
        planes=planes,
    )
    return filter_view(view, filters, rule), truth


def of_slot(table: Tensor, slot: Slot) -> Tensor:
    """Select a slot's columns from a [B, B + K] table over the batch's targets and a bank's images.

    Of "bank" these are [B, 1 + K], a query's own target first.
    """
    batch = len(table)
    targets = table[:, :batch]
    if slot == "bank":
        return torch.cat([targets.diagonal()[:, None], table[:, batch:]], dim=1)
    return targets.T if slot == "query" else targets


def _synthesize(rule: SyntheticStrategy, view: ScoreView, pool: Tensor, inputs: ChoiceInputs) -> SlotNegatives:
    """Return the negatives that the strategy synthesises from embeddings."""
    assert inputs.bank is not None
    assert inputs.seed is not None
    stream = inputs.seed.to(pool.device)
    used = 0

    def random(count: int) -> Tensor:
        nonlocal used
        used += count
        return uniform(stream[:, None], torch.arange(used - count, used, device=stream.device))

    with full_precision(pool.device):
        with torch.no_grad():
            step = BankStep(view, pool, inputs.queries.detach(), inputs.bank, random)
            tokens, mask = ask_for_synthetic(rule, step)
        return SlotNegatives(paired_relevance(inputs.queries, tokens.to(inputs.queries.dtype)), mask)


def _keep_some(slots: dict[Slot, SlotNegatives], inputs: ChoiceInputs) -> dict[Slot, SlotNegatives]:
    """Keep `inputs.keep` random negatives per query, uniformly over all slots together; weights stay."""
    if inputs.keep is None:
        return slots
    assert inputs.seed is not None
    mask = torch.cat([part.mask for part in slots.values()], dim=1)
    widths = [part.mask.shape[1] for part in slots.values()]
    masks = keep(mask, inputs.seed.to(mask.device), inputs.keep).split(widths, 1)
    thinned = {}
    for (slot, part), mask in zip(slots.items(), masks, strict=True):
        thinned[slot] = replace(part, mask=mask)
    return thinned


def _weights(part: SlotNegatives, view: ScoreView, target_first: bool) -> Tensor:
    """Return the [B, M] weights of a slot's images; with `target_first` the view's first column is the target.

    Synthetic negatives follow the images and are in no view.
    """
    weights = part.mask if part.weights is None else part.weights * part.mask
    if target_first:
        weights = weights[:, : view.scores.shape[1] - 1]
        weights = torch.cat([torch.zeros_like(weights[:, :1]), weights], dim=1)
    return weights
