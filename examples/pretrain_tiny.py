"""Pretrain the tiny backbone's encoders: `python examples/pretrain_tiny.py --out FILE`.

CLIP's symmetric contrastive loss (Radford et al., ICML 2021) on pictures and descriptions of synthetic garments, with
further negatives for the pictures: descriptions of garments that differ in one attribute (the idea of NegCLIP,
Yuksekgonul et al., ICLR 2023). The random streams have the name "pretrain" and seeds from 1,000,000 on, so they contain
no picture of a data set. The result depends on the seed and on torch's arithmetic: on another machine or version the
weights first differ in their last bits and in the end visibly, but their quality is the same. Tests check the quality,
not the bits.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from negbench.backbones._composed import MIN_TEMPERATURE
from negbench.backbones.tiny import FORMAT, Encoders
from negbench.contracts import DEFAULT_TEMPERATURE, check_option
from negbench.datasets.stream import Stream
from negbench.errors import NegbenchError
from negbench.worlds._garments import CATEGORIES, mutate, sample_attributes, sample_nuisance
from negbench.worlds._rendering import render
from negbench.worlds._synthesis import GENERATOR
from negbench.worlds._wording import VOCABULARY, describe

FIRST_SEED = 1_000_000
TEXTS = 4
COUNT = 24_000
BATCH = 128
LR = 3e-3
WEIGHT_DECAY = 0.05
EPOCHS = 4  # 6 give five points of R@10 more, but a benchmark needs room above its backbone


def examples(seed: int, count: int) -> tuple[Tensor, list[str]]:
    """Pictures [count, 3, 64, 64] uint8 of garments, cycling through all categories, and `TEXTS` descriptions of each.

    A garment's TEXTS descriptions are consecutive. The first is its own; the others describe garments that differ from
    it in one attribute.
    """
    pictures = []
    texts = []
    for index in range(count):
        stream = Stream(seed, "pretrain", index)
        attributes = sample_attributes(stream, CATEGORIES[index % len(CATEGORIES)])
        pictures.append(render(attributes, sample_nuisance(stream)))
        texts.append(describe(attributes, stream))
        texts += [describe(mutate(stream, attributes, 1), stream) for _ in range(TEXTS - 1)]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), texts


def renderer_sha256() -> str:
    """Hash of the first pictures, descriptions and the vocabulary; it changes if the garments' generator changes."""
    pictures, texts = examples(FIRST_SEED, 16)
    words = json.dumps([texts, VOCABULARY]).encode()
    return hashlib.sha256(pictures.numpy().tobytes() + words).hexdigest()


def scale(pictures: Tensor) -> Tensor:
    """Scale uint8 pixels as the backbone's preprocessing does (no resizing: the pictures already have its size)."""
    return (pictures.float() / 255 - 0.5) / 0.25


class _Trainer(nn.Module):
    """The encoders with batch normalisation after each convolution, which `fold` merges into the convolutions."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.encoders = Encoders(VOCABULARY)
        self.encoders.reset(torch.Generator().manual_seed(seed))
        self.norms = nn.ModuleList(nn.BatchNorm2d(layer[1]) for layer in self.encoders.image.LAYERS)
        self.log_temperature = nn.Parameter(torch.tensor(DEFAULT_TEMPERATURE).log())

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        """Loss of B pictures and TEXTS descriptions of each, as word ids [B, TEXTS, S]."""
        maps = pixels.contiguous(memory_format=torch.channels_last)
        for layer, norm in zip(self.encoders.image.layers, self.norms, strict=True):
            maps = torch.relu(norm(layer(maps)))
        image = F.normalize(self.encoders.image.output(maps.flatten(1)), dim=1)
        # own descriptions first: the pictures' columns are 0 .. B-1
        text = F.normalize(self.encoders.text(ids.transpose(0, 1).flatten(0, 1))[1], dim=1)
        logits = image @ text.T / self.log_temperature.exp().clamp(min=MIN_TEMPERATURE)
        targets = torch.arange(len(pixels))
        by_picture = F.cross_entropy(logits, targets)
        by_text = F.cross_entropy(logits[:, : len(targets)].T, targets)
        return (by_picture + by_text) / 2

    def fold(self) -> Encoders:
        """Return only the encoders, equal to the trained network in evaluation mode."""
        from torch.nn.utils.fusion import fuse_conv_bn_eval

        self.eval()
        for index, norm in enumerate(self.norms):
            self.encoders.image.layers[index] = fuse_conv_bn_eval(
                self.encoders.image.layers[index], cast(nn.BatchNorm2d, norm)
            )
        return self.encoders


def pretrain(seed: int, count: int = COUNT, epochs: int = EPOCHS) -> tuple[Encoders, dict[str, str]]:
    """Trained encoders and the metadata of their file. Deterministic for one machine and number of threads.

    Args:
        seed: determines the garments, the initial weights and the order; >= 1,000,000.
        count: number of pictures, rendered once; at least a batch of 128.
        epochs: passes over them, >= 1.

    Raises:
        OptionError: a value outside its range.
    """
    check_option("seed", seed, seed >= FIRST_SEED, f">= {FIRST_SEED} (lower ones are the data sets')")
    check_option("count", count, count >= BATCH, f">= {BATCH}, the batch")
    check_option("epochs", epochs, epochs >= 1, ">= 1")
    trainer = _Trainer(seed)
    pictures, texts = examples(seed, count)
    ids = trainer.encoders.word_ids(texts)[0].reshape(count, TEXTS, -1)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    steps = epochs * (count // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps, pct_start=0.1)
    order = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        total = 0.0
        batches = torch.randperm(count, generator=order)[: count // BATCH * BATCH].reshape(-1, BATCH)
        for batch in batches:
            loss = trainer(scale(pictures[batch]), ids[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        typer.echo(f"epoch {epoch + 1}/{epochs}: loss {total / len(batches):.4f}")
    metadata = {
        "format": FORMAT,
        "command": f"python examples/pretrain_tiny.py --seed {seed} --count {count} --epochs {epochs}",
        "seed": str(seed),
        "steps": str(steps),
        "loss": f"{total / len(batches):.4f}",
        "generator": str(GENERATOR),
        "renderer": renderer_sha256(),
        "vocabulary": json.dumps(VOCABULARY),
        "torch": torch.__version__,
    }
    return trainer.fold(), metadata


def write(encoders: Encoders, metadata: dict[str, str], path: Path) -> None:
    """Write a weights file in float16, as `tiny.load_encoders` reads it."""
    from safetensors.torch import save_file

    save_file({name: tensor.half() for name, tensor in encoders.state_dict().items()}, path, metadata)


def main(
    out: Annotated[Path, typer.Option(help="file to write")],
    seed: Annotated[int, typer.Option(help="names garments, weights and order; at least 1,000,000")] = FIRST_SEED,
    count: Annotated[int, typer.Option(help="pictures, at least 128")] = COUNT,
    epochs: Annotated[int, typer.Option(help="passes over the pictures, at least 1")] = EPOCHS,
) -> None:
    """Pretrain the tiny backbone's encoders on one core (minutes) and write them to a safetensors file."""
    torch.set_num_threads(1)  # another order of summation would give other bits
    try:
        check_option("out", str(out), out.parent.is_dir(), "a file in a folder that is there")
        write(*pretrain(seed, count, epochs), out)
    except NegbenchError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
