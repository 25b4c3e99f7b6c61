"""Options that several commands share, and how they become layers of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli.output import wants_json
from negbench.layers import dataset_layer as dataset_layer
from negbench.layers import named as named
from negbench.layers import plugin_layer as plugin_layer

if TYPE_CHECKING:
    from negbench.display import Display
    from negbench.runfolder import Overwrite

Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy", help="Negative-sampling strategy (see `list strategies`); options as qure:variant=release."
    ),
]
Backbone = Annotated[str | None, typer.Option("--backbone", help="Model family [default: tiny].")]
Dataset = Annotated[
    str | None,
    typer.Option("--dataset", help="Data set, or a file of triplets [default: synthetic]."),
]
Loss = Annotated[str | None, typer.Option("--loss", help="Loss [default: bradley-terry].")]
Seed = Annotated[int | None, typer.Option("--seed", help="Fixes initial weights, batches and draws [default: 0].")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder of the data set [default: the variable NEGBENCH_DATA].")
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Go on without missing images; marks the result partial.")
]
System = Annotated[
    str | None, typer.Option("--system", help="A published system whole (see `list systems`); other flags beat it.")
]
Recipe = Annotated[
    Path | None, typer.Option("--recipe", help="TOML file of settings, or a name (see `list recipes`); flags beat it.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set any key, e.g. train.epochs=12.")
]
Plugins = Annotated[
    list[Path] | None, typer.Option("--plugin", metavar="FILE.py", help="Python file with your own strategy, loss, ...")
]
RunsDir = Annotated[
    Path | None,
    typer.Option("--runs-dir", help="Where runs and the MLflow store lie [default: NEGBENCH_RUNS, ./runs]."),
]
TrackingUri = Annotated[
    str | None, typer.Option("--tracking-uri", help="MLflow store; `none` keeps no copy [default: RUNS_DIR/mlflow.db].")
]
OverwriteFlag = Annotated[
    str, typer.Option("--overwrite", help="failed: compute failed runs again; never: leave them; always: compute anew.")
]

Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Computed at a time [default: 1; with ray as many as there is room for]."),
]
Executor = Annotated[
    str,
    typer.Option(
        "--executor",
        help="Where: pool, processes of this machine; ray, tasks of a Ray cluster, each with one CPU and, where nodes "
        "have GPUs, one GPU, or as ray:cpus=4:gpus=0.5 says.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", help="With ray: HOST:PORT of the cluster's head [default: RAY_ADDRESS, else this machine alone]."
    ),
]


def overwrite_of(given: str) -> Overwrite:
    """The value of `--overwrite`, checked."""
    from negbench.errors import UnknownNameError

    if given not in ("failed", "never", "always"):
        raise UnknownNameError("value of --overwrite", given, ("failed", "never", "always"))
    return given  # type: ignore[return-value]


def console() -> Any:
    """Where results are printed: as wide as the terminal; without one, lines as long as they are; under --json nowhere.

    Notes and progress go to standard error, see `negbench.display.log`.
    """
    from rich.console import Console

    silent = wants_json()
    found = Console(quiet=silent)
    return found if found.is_terminal else Console(soft_wrap=True, quiet=silent)


def remarks(console: Any, found: Iterable[str]) -> None:
    """What a reader of a result must know, printed with it, a line each."""
    for remark in found:
        console.print(f"note: {remark}", style="yellow", highlight=False, soft_wrap=True)


def notes(remarks: Iterable[str]) -> None:
    """What was done beside what was asked for: told on standard error, a line each."""
    from negbench import display

    display.notes(remarks)


def stages(title: str) -> AbstractContextManager[Display]:
    """A live line for the stages of a part of a command."""
    from negbench import display

    return display.stages(title)


def plugin_flags(
    plugin: list[Path] | None, given: Mapping[str, str | None], dataset: str | None, root: Path | None, missing: bool
) -> dict[str, Any]:
    """`--plugin` (first: a flag may name what its files define), plug-in flags by section, and the data set's flags."""
    layers = [plugin_layer(plugin), *(named(section, text) for section, text in given.items())]
    return {key: value for layer in [*layers, dataset_layer(dataset, root, missing)] for key, value in layer.items()}


def folder_name(name: str | None) -> str | None:
    """`--name` as given, if it can be a folder of the runs folder."""
    from negbench.files import checked_name

    return None if name is None else checked_name(name, "--name")
