"""An audit from its settings: the model, the strategies, what they would draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from negbench.config import ResolvedConfig, build_config, is_score_file, resolved
from negbench.contracts import Strategy, check_option
from negbench.data.scene import Scenes
from negbench.display import notes, stages
from negbench.errors import OptionError
from negbench.grid.axes import expand, label
from negbench.mining.planes import planes_read
from negbench.own.audit import Audit, audit
from negbench.own.subject import AuditOptions, judge_of, open_subject
from negbench.registry import constructor_of, option_defaults, registry
from negbench.runfolder import RunFolder
from negbench.systems.system import with_system


def configured(
    strategy: str | Sequence[Any] | None, folder: RunFolder | None, layers: Sequence[Mapping[str, Any]], seed: int
) -> tuple[ResolvedConfig, dict[str, Strategy]]:
    """The configuration that all strategies share, and the strategies by label.

    Notes what the backbone or the data set cannot carry of a recipe's system.
    """
    base: list[Any] = [{"seed": seed}] if folder is None else [folder.config.model_dump(mode="json")]
    given: list[Any] = [] if strategy is None and folder is not None else list(expand("strategies", strategy or "all"))
    scenes, asked = Scenes(), [{"strategy": section} for section in given] or [{}]
    wholes = [with_system([*base, *layers, layer], scenes) for layer in asked]
    notes(dict.fromkeys(remark for _, remarks in wholes for remark in remarks))
    configs = [resolved(build_config([whole])) for whole, _ in wholes]
    found: dict[str, Strategy] = {}
    for config in configs:
        chosen = config.strategy
        defaults = option_defaults(constructor_of("strategies", registry.get("strategies", chosen.name)))
        name = label({"name": chosen.name, **chosen.options}, defaults)
        if name in found:
            raise OptionError(f"--strategy names {name} twice")
        found[name] = registry.make("strategies", chosen.name, **chosen.options)
    return configs[0], found


def audited(
    config: ResolvedConfig,
    strategies: Mapping[str, Strategy],
    chosen: AuditOptions,
    *,
    split: str = "train",
    folder: RunFolder | None = None,
    threshold: float = 0.9,
    skip_oracles: bool = False,
) -> Audit:
    """Load data and model, and apply the strategies; notes what had to be left out.

    Args:
        config, strategies: of `configured`.
        chosen: what is looked at.
        split: whose queries and corpus.
        folder: finished run, whose weights are taken.
        threshold: score above which the judge of `config.mining.judge` calls an image a false negative.
        skip_oracles: see `negbench.own.audit.audit`.

    Raises:
        NegbenchError: see `open_subject`, `judge_of` and `audit`.
    """
    judged = config.mining.judge
    cosine = judged is None or not is_score_file(judged)
    check_option("--threshold", threshold, not cosine or -1 <= threshold <= 1, "a cosine, -1 to 1")
    reads = {name for strategy in strategies.values() for name in planes_read(strategy, config.mining)}
    with stages("audit") as display:
        subject = open_subject(
            config, split, chosen, display, folder, reads=reads | (set() if judged is None else {"judge"})
        )
        judge = None if judged is None else judge_of(subject, threshold)
        with display.stage("mine"):
            found = audit(subject, strategies, chosen, judge=judge, skip_oracles=skip_oracles)
    notes(found.remarks)
    return found
