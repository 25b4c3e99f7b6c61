"""`negbench embed`: a folder's images and texts by an encoder of one's own, for backbone `precomputed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "embed",
        help="Embed every image and text that the triplets of a folder name by an encoder of your own, and write "
        "images.npz and texts.npz there: negbench init then makes a recipe of them.",
        epilog="Example: negbench embed my-data --encoder open_clip:ViT-B-32:openai",
    )(embed)


def embed(
    folder: Annotated[Path, typer.Argument(help="Folder with images and a .jsonl, .csv or .parquet of triplets.")],
    encoder: Annotated[
        str,
        typer.Option(
            "--encoder",
            metavar="SPEC",
            help="open_clip:MODEL[:PRETRAINED]; transformers:NAME, a dual encoder; sentence-transformers:NAME; NAME is "
            "a hub's or a folder. Or your own, FILE.py:NAME: what has encode_image(list of RGB PIL images) and "
            "encode_text(list of strings), both to [n, C], or makes that without arguments.",
        ),
    ],
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images or texts at a time.")] = 32,
    device: Annotated[
        str | None, typer.Option("--device", help="Where: cpu, cuda, ... [default: CUDA where there is a device].")
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option("--gallery", metavar="FILE", help="Embed these, too: one image a line.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Compute anew what is there.")] = False,
) -> dict[str, Any]:
    """Embed, print."""
    from negbench.own.embed import embed_folder, next_steps

    console = options.console()
    found = embed_folder(folder, encoder, batch_size=batch_size, device=device, gallery=gallery, overwrite=overwrite)
    for path, shape, what in (
        (found.images, found.image_shape, "images"),
        (found.texts, found.text_shape, "texts"),
    ):
        console.print(f"{'wrote':8} {path}: {shape[0]:,} {what}, {list(shape)}", highlight=False, soft_wrap=True)
    console.print("next", highlight=False)
    steps = next_steps(found)
    for line in steps:
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
    shapes = {"image_shape": found.image_shape, "text_shape": found.text_shape}
    return {"images": found.images, "texts": found.texts, **shapes, "next": steps}
