"""`negbench audit`: what strategies would draw, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.own.audit import Audit


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "audit",
        help="Show what strategies would draw, without training: false negatives, hardness, diversity, fallbacks.",
        epilog="Example: negbench audit --strategy qure,top-k --backbone tiny --dataset synthetic --out audit",
    )(audit)


def audit(
    strategy: Annotated[
        str | None,
        typer.Option(
            help="'all' (that need no guide and go with any loss), or names by comma; options as top-k:k=50 "
            "[default: all, or the run's]."
        ),
    ] = None,
    backbone: options.Backbone = None,
    dataset: options.Dataset = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Audit a finished run's weights, not the untrained ones.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Whose queries and corpus.")] = "train",
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="BACKBONE[:OPTION=VALUE]|FILE",
            help="Calls images that look like the target false negatives; FILE: a TREC run file of its scores.",
        ),
    ] = None,
    threshold: Annotated[float, typer.Option(help="Cosine to the target (or score) above which it does so.")] = 0.9,
    queries: Annotated[int, typer.Option(help="Queries sampled; 0 takes all.")] = 1000,
    draws: Annotated[int, typer.Option(help="Negatives drawn for each query.")] = 10,
    refresh: Annotated[int, typer.Option(help="Which refresh strategies with a schedule are told, from 0.")] = 0,
    curves: Annotated[int, typer.Option(help="Queries whose score curve is written.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the sample and the draws, and of untrained weights.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write audit.csv, audit.json and curves.png there.")
    ] = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
) -> dict[str, Any]:
    """Load, audit, print, write."""
    from negbench.commands.audit import audited, configured
    from negbench.own.audit import write_audits
    from negbench.own.audit_curves import write_curves
    from negbench.own.subject import AuditOptions

    chosen = AuditOptions(queries=queries, draws=draws, refresh=refresh, curves=curves, seed=seed)
    layers = [
        layers_below(recipe),
        options.plugin_layer(plugin),
        options.dataset_layer(dataset, data_root, allow_missing),
    ]
    layers += [options.named("backbone", backbone), *set_layers(sets)]
    folder = run_to_audit(run, runs_dir, backbone, layers)
    console = options.console()
    layers += [] if judge is None else [{"mining": {"judge": judge}}]
    config, strategies = configured(strategy, folder, layers, seed)
    found = audited(
        config,
        strategies,
        chosen,
        split=split,
        folder=folder,
        threshold=threshold,
        skip_oracles=strategy is None,
    )
    _print(console, found)
    if out is not None:
        written = write_audits([found], out)
        if found.curves:
            written.append(write_curves(found, out / "curves.png"))
        for path in written:
            console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return found.plain()


def layers_below(recipe: Path | None) -> dict[str, Any]:
    """A recipe's settings; its seed is that of its runs."""
    from negbench.config import recipe_settings

    return {key: value for key, value in recipe_settings(recipe).items() if key != "seed"}


def set_layers(sets: list[str] | None) -> list[dict[str, Any]]:
    """`--set` texts as layers."""
    from negbench.config import set_layer

    return [set_layer(text) for text in sets or ()]


def run_to_audit(name: str | None, runs_dir: Path | None, backbone: str | None, layers: list[dict[str, Any]]) -> Any:
    """The finished run whose weights are looked at; None: the untrained ones."""
    from negbench import files
    from negbench.errors import OptionError
    from negbench.runfolder import find_run

    if name is None:
        return None
    if backbone is not None or any("backbone" in layer for layer in layers):
        raise OptionError("--run takes the run's own backbone: leave --backbone and --set backbone... out")
    return find_run(files.runs_dir(runs_dir), name)


def _print(console: Any, found: Audit) -> None:
    from negbench.analysis.regime_card import in_words
    from negbench.analysis.tables import audit_table

    console.print(audit_table(found))
    console.print(f"regime  {in_words([found.regime])}", highlight=False)
