"""`negbench mine`: negatives for a trainer of one's own, from embeddings in files or for a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_LISTS = ("excluded", "relevant")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "mine",
        help="Mine negatives for a trainer of your own: from embeddings in files (no model, no training), or for a "
        "data set as a finished run (--run) or an untrained backbone scores it.",
        epilog="Example: negbench mine --queries q.npy --images i.npy --targets t.parquet --strategy qure --draws 5 "
        "--out negatives.parquet",
    )(mine)


def mine(
    strategy: Annotated[str, typer.Option("--strategy", help="Corpus strategy; options as qure:variant=release.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="One row a query: negatives, statistics; .parquet or .jsonl.")
    ],
    queries: Annotated[Path | None, typer.Option("--queries", metavar="FILE.npy", help="[Q, D] floats.")] = None,
    images: Annotated[
        Path | None, typer.Option("--images", metavar="FILE.npy", help="[N, D] floats, or [N, T, D] tokens.")
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(
            "--targets",
            metavar="FILE",
            help="Row of --images that answers each query: [Q] .npy, or column `target` of a .parquet or .csv, which "
            "may hold `excluded` and `relevant` too: lists of rows (in .csv parted by blanks).",
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option("--groups", metavar="FILE.npy", help="[N] labels: queries draw from their target's group alone."),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", help="Negatives of each query.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws.")] = 0,
    refresh: Annotated[int, typer.Option("--refresh", help="Which refresh a strategy with a schedule is told.")] = 0,
    dot: Annotated[bool, typer.Option("--dot", help="Score files by dot products, not by cosines.")] = False,
    device: Annotated[str, typer.Option("--device", help="Where files are scored: cpu, cuda, ...")] = "cpu",
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="A finished run: its data set as its weights score it.")
    ] = None,
    backbone: options.Backbone = None,
    dataset: options.Dataset = None,
    split: Annotated[str, typer.Option("--split", help="Of the data set.")] = "train",
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
) -> dict[str, Any]:
    """Read or load, mine, write, print."""
    from negbench.own.mine import check_out, write_negatives

    plugins = options.plugin_layer(plugin)
    check_out(out)
    console = options.console()
    data = options.dataset_layer(dataset, data_root, allow_missing)
    if _from_files({"queries": queries, "images": images, "targets": targets}, run or backbone or data or recipe):
        assert queries is not None
        assert images is not None
        assert targets is not None
        miner = Settings(strategy, draws, seed, refresh, dot, device)
        frame, summary = _mine_files(miner, queries, images, targets, groups)
    else:
        from negbench.cli.audit import layers_below, run_to_audit, set_layers
        from negbench.commands.audit import configured
        from negbench.errors import OptionError
        from negbench.own.mine import mine_dataset

        layers = [layers_below(recipe), plugins, data, options.named("backbone", backbone), *set_layers(sets)]
        folder = run_to_audit(run, runs_dir, backbone, layers)
        config, chosen = configured(strategy, folder, layers, seed)
        if len(chosen) > 1:
            raise OptionError(f"--strategy {strategy}: negatives are mined by one")
        (only,) = chosen.values()
        found = mine_dataset(config, only, split=split, folder=folder, draws=draws, seed=seed, refresh=refresh)
        frame, summary = found.frame, found.summary
        console.print(f"{split} of {config.dataset.name} as {config.backbone.name} ({found.model}) scores it")
    write_negatives(frame, out)
    fallbacks = int(summary["fallback_below"] + summary["fallback_any"])
    console.print(
        f"{len(frame):,} queries, {draws} negatives each, from pools of {summary['pool_size']:,.1f} images on average; "
        f"{fallbacks:,} queries fell back; hardness {summary['hardness']:.4f}",
        highlight=False,
    )
    console.print(f"wrote {out}", highlight=False, soft_wrap=True)
    return {"out": out, "queries": len(frame), "draws": draws, **summary}


@dataclass(frozen=True)
class Settings:
    """Of a `negbench.Miner`."""

    strategy: str
    draws: int
    seed: int
    refresh: int
    dot: bool
    device: str


def _from_files(files: dict[str, Path | None], other: object) -> bool:
    """Whether embeddings in files are asked for; OptionError where it is neither these nor a data set, or both."""
    from negbench.errors import OptionError

    given = [f"--{name}" for name, file in files.items() if file is not None]
    lacking = [f"--{name}" for name, file in files.items() if file is None]
    if given and other:
        raise OptionError(f"{given[0]} gives embeddings: leave out --run, --backbone, --dataset and --recipe")
    if not given and not other:
        raise OptionError("give --queries, --images and --targets, or a data set: --run, --dataset or --recipe")
    if given and lacking:
        raise OptionError(f"{', '.join(lacking)} must be given, too")
    return bool(given)


def _mine_files(
    settings: Settings, queries: Path, images: Path, targets: Path, groups: Path | None
) -> tuple[pd.DataFrame, dict[str, float]]:
    """A row a query, and means over the queries."""
    from negbench.own.miner import Miner
    from negbench.room import device_named

    miner = Miner(
        settings.strategy,
        draws=settings.draws,
        seed=settings.seed,
        refreshes=settings.refresh,
        normalize=not settings.dot,
        device=device_named(settings.device),
    )
    table = _targets(targets)
    known: dict[str, Any] = {name: table[name].tolist() for name in _LISTS if name in table}
    labels = None if groups is None else _array("--groups", groups)
    with options.stages("mine") as display, display.stage("mine", total=len(table)) as advance:
        found = miner.refresh(
            _array("--queries", queries),
            _array("--images", images),
            table["target"].to_numpy(),
            groups=labels,
            **known,
            progress=advance,
        )
    frame = found.statistics
    frame.insert(0, "target", table["target"].to_numpy())
    return frame, found.summary()


def _array(flag: str, file: Path) -> np.ndarray[Any, Any]:
    """What a .npy file holds; nothing in it is executed."""
    import numpy as np

    from negbench.errors import DataError

    try:
        found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{flag} {file}: cannot be read as .npy: {error}") from error
    if not isinstance(found, np.ndarray):
        raise DataError(f"{flag} {file}: holds several arrays; want one, in a .npy file")
    return found


def _targets(file: Path) -> pd.DataFrame:
    """Column `target`, and of a table `excluded` and `relevant` as lists where it has them."""
    import pandas as pd

    from negbench.errors import DataError

    try:
        if file.suffix == ".parquet":
            table = pd.read_parquet(file)
        elif file.suffix == ".csv":
            table = pd.read_csv(file)
        else:
            table = pd.DataFrame({"target": _array("--targets", file)})
        if "target" not in table:
            raise ValueError(f"no column 'target' among {', '.join(map(str, table.columns))}")
        for name in _LISTS:
            if name in table:
                table[name] = [_listed(cell) for cell in table[name]]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"--targets {file}: cannot be read: {error}") from error
    return table


def _listed(cell: Any) -> list[int]:
    """A list of rows: as parquet holds it, or numbers parted by blanks; none where nothing stands."""
    if isinstance(cell, str):
        return [int(word) for word in cell.split()]
    if cell is None or (isinstance(cell, float) and cell != cell):
        return []
    return [int(cell)] if isinstance(cell, int | float) else [int(value) for value in cell]
