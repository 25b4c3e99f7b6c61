"""`negbench advise`: which strategies can be expected to do well on a data set, and what that is worth."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.advise.advise import Advice, Worlds


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "advise",
        help="Look a data set and a backbone up among mapped worlds by their regime card: which strategies did well "
        "where it looked like this, and how often such advice was right on worlds that were held out.",
        epilog="Example: negbench advise --backbone precomputed --dataset triplets.jsonl "
        "--set backbone.images=i.npz --set backbone.texts=t.npz",
    )(advise)


def advise(
    backbone: options.Backbone = None,
    dataset: options.Dataset = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="A finished run's weights, not the untrained ones.")
    ] = None,
    queries: Annotated[int, typer.Option(help="Queries sampled for the regime card; 0 takes all.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the sample, and of untrained weights.")] = 0,
    worlds: Annotated[
        Path | None,
        typer.Option("--worlds", metavar="FILE", help="worlds.json of a map of your own [default: the shipped map's]."),
    ] = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
) -> dict[str, Any]:
    """Load, take the card, look it up, print."""
    from negbench.advise.advise import advise, read_worlds
    from negbench.analysis.regime_card import in_words
    from negbench.cli.audit import layers_below, run_to_audit, set_layers
    from negbench.commands.audit import configured
    from negbench.mining.regime import regime
    from negbench.own.subject import AuditOptions, open_subject

    table = read_worlds(worlds)
    chosen = AuditOptions(queries=queries, seed=seed)
    layers = [layers_below(recipe), options.plugin_layer(plugin)]
    layers.append(options.dataset_layer(dataset, data_root, allow_missing))
    layers += [options.named("backbone", backbone), *set_layers(sets)]
    folder = run_to_audit(run, runs_dir, backbone, layers)
    console = options.console()
    config, _ = configured("all-corpus", folder, layers, seed)
    with options.stages("advise") as display:
        subject = open_subject(config, "train", chosen, display, folder)
        with display.stage("regime"):
            card = regime(subject.task, subject.val, sample=len(subject.rows)).summary()
    known = {**card, "train_queries": float(len(subject.dataset.queries))}
    found = advise(known, table, "untrained" if folder is None else "trained")
    console.print(f"regime  {in_words([card])}", highlight=False)
    _print(console, found, table)
    return {"regime": known, **asdict(found)}


def _print(console: Any, found: Advice, table: Worlds) -> None:
    import pandas as pd

    from negbench.analysis.words import label_of, listed
    from negbench.display import Grid

    near = [
        {
            "world": world.label,
            "distance": f"{distance:.2f}",
            "not beaten there": listed(sorted(world.unbeaten)),
            **{name: f"{-100 * world.behind[name]:+.1f}" for name in table.strategies},
        }
        for world, distance in found.nearest
    ]
    metric = label_of(table.metric)
    title = f"the nearest worlds of the map; {metric} in points against the best strategy there"
    caption = f"compared by {len(found.features)} numbers of the regime card; distance in standard deviations of each"
    console.print(Grid(pd.DataFrame(near), title, caption, words=("not beaten there",)))
    for name, (value, low, high) in found.outside.items():
        text = f"{name.replace('_', ' ')} is {value:.3g} here, and {low:.3g} to {high:.3g} in the worlds of the map"
        console.print(f"note: outside what the map knows: {text}", style="yellow", highlight=False)
    expected = ", ".join(f"{name} {100 * behind:.1f}" for name, behind in found.expected.items())
    console.print(f"expected points behind the best here: {expected}", highlight=False, soft_wrap=True)
    held = found.held
    console.print(
        f"held out, {held.worlds} worlds: such advice named the best strategy, or one within 0.5 points of it, in "
        f"{held.advised:.0%}; always {found.constant} (or what was best elsewhere) in {held.constant:.0%}; "
        f"difference [{100 * held.gain.low:+.0f}, {100 * held.gain.high:+.0f}] %; {100 * held.regret:.1f} against "
        f"{100 * held.constant_regret:.1f} points behind the best",
        highlight=False,
        soft_wrap=True,
    )
    console.print("\nadvice", style="bold")
    if held.better:
        console.print(f"{found.strategy}: best in the worlds that look like this one", highlight=False)
    else:
        console.print(
            f"{found.strategy}: looking at the regime is no better than always naming one strategy, and this one was "
            f"best over all worlds of the map; the nearest worlds alone would say {found.from_card}",
            highlight=False,
            soft_wrap=True,
        )
