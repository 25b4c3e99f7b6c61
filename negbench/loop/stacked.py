# mypy: ignore-errors
"""Runs that differ in seed, negatives and schedule only, trained as one computation: a stack of M models.

Every trained parameter of the M models is one tensor [M, ...]; `torch.func.vmap` carries a step's scores and losses
over it, and one fused AdamW takes the step. All else is each run's own and as in a run by itself: initial weights,
batches, draws, refreshes, records, its folder (`train.course`, with the run's weights copied into its backbone).

Runs of one seed begin with one model and, while they draw the same negatives (all strategies do in the warm-up), go on
with it: it is trained, scored, mined from and looked at once for all of them, until an epoch in which they part.

The numbers are those of the runs one by one but for rounding: a batched product may add in another order. The same
stack computed twice gives the same bits; with other runs in it, a run's numbers agree to rounding. A run that fails
leaves the stack, the others go on. Nothing is saved on the way: what is killed begins again, with all of its stack.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from negbench.config import ResolvedConfig
from negbench.contracts import AspectScores, Backbone, Loss, Slot, Strategy, paired_relevance, relevance
from negbench.data.scene import Tokens, trained_state
from negbench.datasets.dataset import Dataset
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.loop.accelerator import precision_of
from negbench.loop.checkpoint import Log
from negbench.loop.chosen import Seen as Told
from negbench.loop.hybrid import Temperatures
from negbench.loop.objective import Batch, Objective
from negbench.loop.optimizer import AdamW
from negbench.loop.schedule import cosine
from negbench.loop.slots import Beside, Corrupted, loss_of_slots
from negbench.loop.train import Loop, Together, course
from negbench.mining.draws import splitmix
from negbench.mining.filters import Filters
from negbench.registry import registry
from negbench.runfolder import RunFolder

if TYPE_CHECKING:
    from negbench.loop.runs import OpenRun

MOST = 32  # runs in a stack
_MOST_CROSSED = 4  # where every reference meets every text in a step: the arithmetic takes the time, and much memory


# --- what can be stacked ---------------------------------------------------------------------------------------------


def obstacle(config: ResolvedConfig, backbone: Backbone, train: Dataset) -> str:
    """Why a run is trained by itself, as a clause; '' where it can be stacked."""
    strategy, loss = _strategy(config), _loss(config)
    if not (backbone.frozen_images and getattr(backbone, "stackable", False)):
        return f"backbone '{config.backbone.name}' with these options cannot be stacked"
    if not getattr(loss, "stackable", False):
        return f"loss '{config.loss.name}' does not say that it can be stacked"
    if loss.candidate_set == "corpus":
        return "the loss takes the whole corpus in every step"
    if config.hybrid.active or Temperatures.of(config.hybrid, loss).log:
        return "it has hybrid terms or temperatures of its own"
    if strategy.beside is not None or strategy.switches:
        return f"strategy '{config.strategy.name}' is made of others"
    if strategy.several_positives:
        return f"strategy '{config.strategy.name}' has several positives of a query"
    if "bank" in strategy.corrupts or strategy.reads_losses:
        return f"strategy '{config.strategy.name}' remembers the steps before, or scores the corpus in each"
    if type(strategy).order is not Strategy.order:
        return f"strategy '{config.strategy.name}' orders the queries by itself"
    if strategy.scope == "batch" and (strategy.reads or Filters.of(config.mining).active):
        return "planes and filters of a batch are made in every step"
    if "triple" in strategy.corrupts:
        return f"strategy '{config.strategy.name}' takes all triples of a batch"
    if precision_of(config) != "fp32":
        return f"train.precision is {precision_of(config)}, and a stack is trained in fp32"
    if train.redraws or any(train.at_epoch(epoch, config.seed) is not train for epoch in range(config.train.epochs)):
        return "the data set has other texts or pairs in every epoch"
    return ""


def stack_key(config: ResolvedConfig, data: str) -> str:
    """Runs of one key can be one stack; `data` is `PlannedRun.data`."""
    strategy = _strategy(config)
    form = "corpus" if strategy.scope == "corpus" else f"batch {strategy.corrupts}"
    same = config.model_dump_json(exclude={"strategy": True, "seed": True, "schedule": True, "eval": {"dev_seed"}})
    return f"{data} {form} {same}"


def most_of(config: ResolvedConfig) -> int:
    """How many runs of this kind a stack holds at most."""
    strategy = _strategy(config)
    return MOST if strategy.scope == "corpus" or strategy.corrupts == ("target",) else _MOST_CROSSED


def _strategy(config: ResolvedConfig) -> Strategy:
    found: Strategy = registry.make("strategies", config.strategy.name, **config.strategy.options)
    return found


def _loss(config: ResolvedConfig) -> Loss:
    found: Loss = registry.make("losses", config.loss.name, **config.loss.options)
    return found


# --- scores of a model, without its masks ----------------------------------------------------------------------------


class _Scored(nn.Module):
    """Scores of a step as tensors alone, for `vmap`: what is chosen of them is decided outside.

    Args:
        objective: of any of the stack's runs; its backbone's parameters are the ones that are replaced.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, reference: Tensor, tokens: Tokens, images: Tensor) -> dict[str, Any]:
        """Of one model.

        Args:
            reference: [B, L, C] features.
            tokens: of the modifications, first dimension B.
            images: [B, 1 + K, L, C], the target first, then the drawn negatives; K = 0 for a batch strategy.

        Returns:
            "temperature" scalar; "positive" [B]; "slots" {slot: [B, K or B]}; "aspects" {name: (positive [B], negatives
            [B, K or B], weight scalar, present [B])}; "candidates" [B, B] where the loss takes the batch's targets.
        """
        objective, backbone = self.objective, self.objective.backbone
        query = backbone.queries(reference, tokens).float()
        embedded = backbone.candidates(images.flatten(0, 1)).float().unflatten(0, images.shape[:2])
        target, drawn = embedded[:, 0], images.shape[1] > 1
        subs = backbone.sub_queries(reference, tokens) if objective.loss.uses_aspects else {}
        found: dict[str, Any] = {"temperature": backbone.temperature, "aspects": {}}
        if drawn:
            scores = paired_relevance(query, embedded)
            found |= {"positive": scores[:, 0], "slots": {"target": scores[:, 1:]}}
        else:
            slots = objective.slot_scores(reference, tokens, query, target)
            found |= {"positive": slots["target"].diagonal(), "slots": slots}
        for name, sub in subs.items():
            embeddings = sub.embeddings.float()
            own = paired_relevance(embeddings, embedded) if drawn else relevance(embeddings, target)
            pair = (own[:, 0], own[:, 1:]) if drawn else (own.diagonal(), own)
            found["aspects"][name] = (*pair, sub.weight, sub.present)
        if objective.loss.candidate_set == "batch":
            found["candidates"] = relevance(query, target)
        return found


def _value(objective: Objective, found: Mapping[str, Any], chosen: Mapping[str, Any]) -> Tensor:
    """Loss of one model: `found` of `_Scored`, `chosen` of `Stack._chosen`."""
    scores, weights = found["slots"], chosen["weights"]
    slots: dict[Slot, Corrupted] = {s: Corrupted(scores[s], m, weights.get(s)) for s, m in chosen["masks"].items()}
    aspects = [AspectScores(name, *parts) for name, parts in found["aspects"].items()]
    beside = Beside(aspects, found.get("candidates"), chosen.get("candidates"))
    return loss_of_slots(objective.loss, objective.slots, found["positive"], slots, found["temperature"], beside)


# --- the stack -------------------------------------------------------------------------------------------------------


class Stack:
    """M models, their optimiser, and an epoch of all of them.

    Args:
        runs: of one `stack_key`, each opened, so that its backbone is in its initial state now or, where runs share
            one, was; not more than `most_of`.
        display: shows the training.
    """

    def __init__(self, runs: Sequence[OpenRun], display: Display) -> None:
        first = runs[0]
        self.display = display
        self.scene = first.scene
        self.runs = [replace(run, scene=self.scene, display=Display()) for run in runs]
        self.loops: dict[int, Loop] = {}
        self.epoch: dict[int, tuple[float, list[dict[str, float]]]] = {}  # mean loss, statistics of its batches
        self.models, self.trained = self._initial()  # of each model the runs that share it, and the weights of all
        config = first.config
        names = {id(parameter): name for name, parameter in first.backbone.named_parameters()}
        groups = [
            {**group, "params": [self.trained[names[id(parameter)]] for parameter in group["params"]]}
            for group in first.backbone.parameter_groups(config.train.lr, config.train.weight_decay)
        ]
        self.optimizer = AdamW(groups, fused=True)
        queries = len(self.scene.train.dataset.queries)
        schedule = cosine(self.optimizer, config, -(-queries // config.train.batch_size))
        self.together = Together(self.optimizer, schedule)
        self.scored = _Scored(self._objective(first))

    def _initial(self) -> tuple[list[list[int]], dict[str, Tensor]]:
        """The runs of each model, and name -> [M, ...] leaf of every trained parameter.

        Raises:
            NegbenchError: what is frozen is not the same in all.
        """
        states = [trained_state(run.backbone) for run in self.runs]
        trains = [name for name, parameter in self.runs[0].backbone.named_parameters() if parameter.requires_grad]
        for run in self.runs[1:]:
            for name, value in run.backbone.state_dict().items():
                if name not in trains and not torch.equal(value, self.runs[0].backbone.state_dict()[name]):
                    raise NegbenchError(
                        f"backbone '{run.config.backbone.name}': {name} is frozen and hangs on the seed"
                    )
        models: list[list[int]] = []
        for index, state in enumerate(states):
            same = (m for m in models if all(torch.equal(state[name], states[m[0]][name]) for name in trains))
            found = next(same, [])
            if not found:
                models.append(found)
            found.append(index)
        return models, {
            name: torch.stack([states[model[0]][name] for model in models]).requires_grad_() for name in trains
        }

    def _objective(self, run: OpenRun) -> Objective:
        config = run.config
        return Objective(run.backbone, _strategy(config), _loss(config), self.scene, config.mining, config.hybrid)

    def course(self, index: int, folder: RunFolder, log: Log) -> Generator[None, None, dict[str, Any]]:
        """All that run `index` does but train; it stops where an epoch of all is to be trained.

        Returns:
            What result.json holds.
        """
        steps = course(self.runs[index], folder, log, self.together)
        while True:
            try:
                self.loops[index] = next(steps)
            except StopIteration as end:
                return dict(end.value)
            yield
            self.loops[index].log_epoch(*self.epoch[index])

    def load(self, model: int, index: int) -> None:
        """Copy a model's weights into the backbone of run `index`."""
        with torch.no_grad():
            for name, parameter in self.runs[index].backbone.named_parameters():
                if name in self.trained:
                    parameter.copy_(self.trained[name][model])

    @contextmanager
    def turn(self, model: Sequence[int]) -> Iterator[None]:
        """The block is about these runs of one model: what is known of it is theirs, and its cost is shared evenly."""
        clocks = [self.runs[index].display.seconds for index in model]
        before = [dict(clock) for clock in clocks]
        yield
        self.together.known.forget()
        for name in {name for clock in clocks for name in clock} if len(model) > 1 else ():
            spent = sum(clock.get(name, 0.0) - old.get(name, 0.0) for clock, old in zip(clocks, before, strict=True))
            for clock, old in zip(clocks, before, strict=True):
                clock[name] = old.get(name, 0.0) + spent / len(model)

    def keep(self, alive: Collection[int]) -> None:
        """Go on with these runs only."""
        left = [[index for index in model if index in alive] for model in self.models]
        self._become([(place, model) for place, model in enumerate(left) if model])

    def _become(self, models: Sequence[tuple[int, list[int]]]) -> None:
        """Have these models: the place of the one that each comes of, and its runs."""
        comes_of, self.models = [place for place, _ in models], [model for _, model in models]
        if not models or comes_of == list(range(len(next(iter(self.trained.values()))))):
            return
        places = torch.tensor(comes_of)
        for group in self.optimizer.param_groups:
            for number, old in enumerate(group["params"]):
                new = old.detach()[places.to(old.device)].requires_grad_()
                moments = self.optimizer.state.pop(old, {})
                self.optimizer.state[new] = {
                    name: value[places.to(value.device)] if value.shape == old.shape else value
                    for name, value in moments.items()
                }
                group["params"][number] = new
                self.trained = {name: new if value is old else value for name, value in self.trained.items()}

    # --- an epoch ----------------------------------------------------------------------------------------------------

    def train_epoch(self) -> None:
        """One pass of every run over the train queries, each in its own order; `epoch` holds what came of it."""
        config, started = self.runs[0].config, time.perf_counter()
        size = config.train.batch_size
        passes = {index: self._pass(index) for model in self.models for index in model}
        self._become([(place, part) for place, model in enumerate(self.models) for part in _alike(model, passes)])
        first = [passes[model[0]] for model in self.models]
        orders = torch.stack([own.order for own in first])
        drawn = None if first[0].drawn is None else torch.stack([own.drawn for own in first])  # type: ignore[misc]
        statistics: list[list[dict[str, float]]] = [[] for _ in first]
        losses, counts = list[Tensor](), list[Tensor]()
        backbone = self.scored.objective.backbone.train()
        note = f"epoch {self.loops[self.models[0][0]].state.epoch + 1}/{config.train.epochs}"
        with self.display.stage("train", total=-(-orders.shape[1] // size), note=note) as advance:
            for rows in orders.split(size, dim=1):
                found = self._scores(rows, drawn)
                bases = zip([own.base for own in first], rows, strict=True)
                seeds = [splitmix(base, own) for base, own in bases if base is not None]
                chosen = self._chosen(rows, drawn, found, seeds, statistics)
                losses.append(self._step(found, chosen))
                counts.append(torch.stack([mask.flatten(1).sum(1) for mask in chosen["masks"].values()]).sum(0))
                advance(1)
        backbone.eval()
        means, seen = torch.stack(losses).mean(0).tolist(), torch.stack(counts).sum(0).tolist()
        spent = (time.perf_counter() - started) / len(passes)
        for place, model in enumerate(self.models):
            for index in model:
                loop = self.loops[index]
                loop.state.step += len(losses)
                loop.state.negatives_seen += seen[place]
                seconds = loop.run.display.seconds
                seconds["train"] = seconds.get("train", 0.0) + spent
                self.epoch[index] = means[place], statistics[place]

    def _pass(self, index: int) -> _Pass:
        loop = self.loops[index]
        drawn, streams, config = loop.draws(), loop.moving.streams, loop.run.config
        order = torch.randperm(len(self.scene.train.dataset.queries), generator=streams["batches"])
        if drawn is not None:
            return _Pass("", order, drawn, None)
        kept = config.train.num_negatives
        base = torch.randint(2**63 - 1, (1,), generator=streams["draws"]) if kept else None
        return _Pass(config.strategy.model_dump_json(), order, None, base)

    def _scores(self, rows: Tensor, drawn: Tensor | None) -> dict[str, Any]:
        """What `_Scored` returns, with a first dimension M; `rows` [M, B], `drawn` [M, Q, K]."""
        scene = self.scene
        split, device = scene.train, next(iter(self.trained.values())).device
        columns = split.dataset.target_columns[rows][..., None]
        if drawn is not None:
            columns = torch.cat([columns, drawn[torch.arange(len(rows))[:, None], rows]], dim=-1)
        images = scene.source(split.images[columns].flatten()).unflatten(0, columns.shape)
        reference = scene.source(split.references[rows].flatten()).unflatten(0, rows.shape)
        tokens = {name: value[rows].to(device) for name, value in split.texts(self.runs[0].backbone).items()}
        parameters = {f"objective.backbone.{name}": value for name, value in self.trained.items()}

        def of_one(own: dict[str, Tensor], reference: Tensor, tokens: Tokens, images: Tensor) -> dict[str, Any]:
            found: dict[str, Any] = functional_call(self.scored, own, (reference, tokens, images))
            return found

        stacked: dict[str, Any] = vmap(of_one)(parameters, reference, tokens, images)
        return stacked

    def _chosen(
        self,
        rows: Tensor,
        drawn: Tensor | None,
        found: Mapping[str, Any],
        seeds: Sequence[Tensor],
        statistics: list[list[dict[str, float]]],
    ) -> dict[str, Any]:
        """Which of the scores are negatives, and which candidates.

        Returns:
            "masks" {slot: [M, B, K or B] bool}, "weights" {slot: likewise, float >= 0} of slots that have any, and
            "candidates" [M, B, B] bool where the loss takes the batch's targets; `statistics` are appended to.
        """
        device = found["positive"].device
        if drawn is not None:
            every = torch.ones_like(found["slots"]["target"], dtype=torch.bool)
            chosen: dict[str, Any] = {"masks": {"target": every}, "weights": {}}
        else:
            parts = [
                self._pools(place, rows[place], found, seeds, statistics[place]) for place in range(len(self.models))
            ]
            chosen = {"masks": {}, "weights": {}}
            for slot in parts[0]:
                own = [part[slot] for part in parts]
                chosen["masks"][slot] = torch.stack([part.mask for part in own])
                if any(part.weights is not None for part in own):
                    weights = [part.mask.float() if part.weights is None else part.weights for part in own]
                    chosen["weights"][slot] = torch.stack(weights)
        if "candidates" in found:
            masks = [self._candidates(place, rows[place], drawn, chosen) for place in range(len(self.models))]
            chosen["candidates"] = torch.stack(masks).to(device)
        return chosen

    def _pools(
        self,
        place: int,
        rows: Tensor,
        found: Mapping[str, Any],
        seeds: Sequence[Tensor],
        statistics: list[dict[str, float]],
    ) -> dict[Slot, Corrupted]:
        """What a batch strategy chooses for the run at `place`, as `Objective` has it."""
        objective, split = self.loops[self.models[place][0]].moving.objective, self.scene.train
        kept = self.runs[0].config.train.num_negatives
        batch = Batch(rows, None, {}, kept, seeds[place] if seeds else None)
        scores: dict[Slot, Tensor] = {slot: value[place].detach() for slot, value in found["slots"].items()}
        allowed = {slot: objective.allowed(slot, batch) for slot in objective.strategy.corrupts}
        tau = objective.loss.tau
        told = Told(
            float(found["temperature"][place].detach()) if tau is None else tau,
            objective.backbone.identity.embedding_dim,
        )
        slots, values = objective.pools(batch, scores, allowed, split.batch_relevant(rows), told)
        statistics.append(values)
        return slots

    def _candidates(self, place: int, rows: Tensor, drawn: Tensor | None, chosen: Mapping[str, Any]) -> Tensor:
        """[B, B] bool: which of the batch's targets the run at `place` ranks the target against, each image once."""
        split, mining = self.scene.train, self.runs[self.models[place][0]].config.mining
        targets = split.dataset.target_columns[rows]
        same = targets[:, None] == targets
        first = ~same.tril(-1).any(1)
        if drawn is not None:
            taken = (drawn[place][rows][:, :, None] == targets).any(1)
        elif "target" in chosen["masks"]:
            taken = (chosen["masks"]["target"][place].cpu().float() @ same.float()) > 0
        else:
            taken = torch.zeros_like(same)
        return split.allowed_images(rows, targets, mining) & first & ~taken

    def _step(self, found: dict[str, Any], chosen: dict[str, Any]) -> Tensor:
        """[M] losses; every model takes a step."""
        objective, limit = self.scored.objective, self.runs[0].config.train.max_grad_norm
        losses: Tensor = vmap(lambda a, b: _value(objective, a, b))(found, chosen)
        self.optimizer.zero_grad()
        losses.sum().backward()
        if limit is not None:
            gradients = [value.grad for value in self.trained.values() if value.grad is not None]
            norms = torch.stack([gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]).norm(dim=0)
            scale = (limit / (norms + 1e-6)).clamp(max=1.0)  # as `torch.nn.utils.clip_grad_norm_` of each model
            for gradient in gradients:
                gradient.mul_(scale.reshape(-1, *[1] * (gradient.ndim - 1)))
        self.optimizer.step()
        self.together.schedule.step()
        return losses.detach()


@dataclass(frozen=True, eq=False)
class _Pass:
    """What a run goes through in an epoch; runs that go on with one model and have it alike have the same model after.

    Attributes:
        chooses: who chooses the negatives of a batch, as text; "" where they are drawn before.
        order: [Q] int64 queries.
        drawn: [Q, K] columns, or None.
        base: [1] int64 that the negatives which are kept of a batch derive from, or None where all are.
    """

    chooses: str
    order: Tensor
    drawn: Tensor | None
    base: Tensor | None

    def same(self, other: _Pass) -> bool:
        """Whether nothing differs."""
        pairs = [(getattr(self, name), getattr(other, name)) for name in ("order", "drawn", "base")]
        return self.chooses == other.chooses and all(
            a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs
        )


def _alike(model: Sequence[int], passes: Mapping[int, _Pass]) -> list[list[int]]:
    """The runs of a model, parted into those that have the same before them."""
    parts: list[list[int]] = []
    for index in model:
        found = next((part for part in parts if passes[part[0]].same(passes[index])), None)
        if found is None:
            parts.append([index])
        else:
            found.append(index)
    return parts


def train_together(stack: Stack, courses: Sequence[Generator[None, None, Any]]) -> list[Any]:
    """Train a stack to its end.

    Args:
        stack: whose `course` each of the courses follows, in the order of its runs.
        courses: what a run does before and after an epoch.

    Returns:
        What each course returned, or the exception that ended it.
    """
    results: dict[int, Any] = {}
    try:
        while len(results) < len(courses):
            for place, model in enumerate(stack.models):
                with stack.turn(model):
                    for index in model:
                        stack.load(place, index)
                        try:
                            next(courses[index])
                        except StopIteration as end:
                            results[index] = end.value
                        except Exception as error:
                            results[index] = error
            stack.keep([index for index in range(len(courses)) if index not in results])
            if len(results) < len(courses):
                stack.train_epoch()
    except BaseException as error:
        for index in (index for model in stack.models for index in model):
            try:
                courses[index].throw(error)  # each writes down what ended it
            except BaseException:  # the same; it is raised below, once
                continue
        raise
    return [results[index] for index in range(len(courses))]
