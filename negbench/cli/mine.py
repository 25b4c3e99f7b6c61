"""`negbench mine`: negatives for embeddings that lie in files, without any training of ours."""

from __future__ import annotations

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
        help="Mine negatives from embeddings in files: no model, no training, no MLflow.",
        epilog="Example: negbench mine --queries q.npy --images i.npy --targets t.parquet --strategy qure --draws 5 "
        "--out negatives.parquet",
    )(mine)


def mine(
    queries: Annotated[Path, typer.Option("--queries", metavar="FILE.npy", help="[Q, D] floats.")],
    images: Annotated[Path, typer.Option("--images", metavar="FILE.npy", help="[N, D] floats, or [N, T, D] tokens.")],
    targets: Annotated[
        Path,
        typer.Option(
            "--targets",
            metavar="FILE",
            help="Row of --images that answers each query: [Q] .npy, or column `target` of a .parquet or .csv, which "
            "may hold `excluded` and `relevant` too: lists of rows (in .csv parted by blanks).",
        ),
    ],
    strategy: Annotated[str, typer.Option("--strategy", help="Corpus strategy; options as qure:variant=release.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.parquet", help="One row a query: negatives, statistics.")],
    groups: Annotated[
        Path | None,
        typer.Option("--groups", metavar="FILE.npy", help="[N] labels: queries draw from their target's group alone."),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", help="Negatives of each query.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws.")] = 0,
    refresh: Annotated[int, typer.Option("--refresh", help="Which refresh a strategy with a schedule is told.")] = 0,
    dot: Annotated[bool, typer.Option("--dot", help="Score by dot products as they are, not by cosines.")] = False,
    device: Annotated[str, typer.Option("--device", help="Where scores are computed: cpu, cuda, ...")] = "cpu",
    plugin: options.Plugins = None,
) -> dict[str, Any]:
    """Read, mine, write, print."""
    from negbench.errors import OptionError
    from negbench.files import atomic_write
    from negbench.miner import Miner

    options.plugin_layer(plugin)
    if out.suffix != ".parquet":
        raise OptionError(f"--out {out}: want a name that ends in .parquet")
    miner = Miner(strategy, draws=draws, seed=seed, refreshes=refresh, normalize=not dot, device=_device(device))
    table = _targets(targets)
    known: dict[str, Any] = {name: table[name].tolist() for name in _LISTS if name in table}
    labels = None if groups is None else _array("--groups", groups)
    console = options.console()
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
    with atomic_write(out, "wb") as file:
        frame.to_parquet(file, index=False)
    summary = found.summary()
    fallbacks = int(summary["fallback_below"] + summary["fallback_any"])
    console.print(
        f"{len(frame):,} queries, {draws} negatives each, from pools of {summary['pool_size']:,.1f} images on average; "
        f"{fallbacks:,} queries fell back; hardness {summary['hardness']:.4f}",
        highlight=False,
    )
    console.print(f"wrote {out}", highlight=False, soft_wrap=True)
    return {"out": out, "queries": len(frame), "draws": draws, **summary}


def _device(name: str) -> str:
    """`name`, if torch has such a device here."""
    import torch

    from negbench.errors import OptionError

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return name


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
