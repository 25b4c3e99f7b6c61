"""`negbench embed`: encode a folder's images and texts with your own encoder, for backbone `precomputed`."""

import shlex
from collections.abc import Callable
from typing import Any

from negbench.cli import command, output
from negbench.settings.command_options import Embed


def _dry_run(options: Embed, say: Callable[[str], None]) -> Any:
    from negbench.own.embed import dry_run

    return None, dry_run(options)


@command.of(
    Embed,
    "negbench embed my-data --encoder open_clip:ViT-B-32:openai",
    "negbench embed my-data --encoder transformers:google/siglip-base-patch16-224",
    help="Encode every image and text of a folder's triplets with your own encoder, and write images.npz and "
    "texts.npz there; negbench init then writes a recipe that uses them.",
    dry_run=_dry_run,
)
def embed(options: Embed) -> dict[str, Any]:
    """Embed, print."""
    from negbench.own.embed import embed_folder

    embedded = embed_folder(options)
    console = output.console()
    for path, shape in ((embedded.images, embedded.image_shape), (embedded.texts, embedded.text_shape)):
        console.print(f"{'wrote':8} {path}: {shape[0]:,} {path.stem}, {list(shape)}", highlight=False, soft_wrap=True)
    columns = ["--columns", options.columns] if options.columns else []
    missing = ["--allow-missing"] if options.allow_missing else []
    step = shlex.join(["negbench", "init", str(embedded.images.parent), *columns, *missing])
    console.print(f"next\n  {step}", highlight=False, soft_wrap=True, markup=False)
    shapes = {"image_shape": embedded.image_shape, "text_shape": embedded.text_shape}
    return {"images": embedded.images, "texts": embedded.texts, **shapes, "next": [step]}
