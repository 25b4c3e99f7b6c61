"""What is said before a run: its lines, refusals and what would make a step fit; skeletons without weights."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from negbench.data.scene import DataCache
from negbench.errors import OptionError
from negbench.loop import fitting, run_forecast
from negbench.loop.fitting import fitting_plan
from negbench.loop.run_forecast import RunForecast, forecast_lines, open_run_lines
from negbench.loop.step_memory import Architecture, CallMemory
from negbench.plugins.registry import make_options, registry
from negbench.settings.config import ResolvedConfig, resolve
from tests.runs import config_of, untrained

SKELETONS = {
    "blip2": {"init": "random", "size": "toy"},
    "blip": {"init": "random", "size": "toy", "attribute_weights": True},
    "clip": {"init": "random", "size": "toy", "frozen": False, "projection": 16},
}


@pytest.mark.parametrize(("name", "options"), SKELETONS.items(), ids=SKELETONS)
def test_a_skeleton_has_the_shapes_of_the_backbone(name, options):
    cls = registry.get("backbones", name)
    skeleton = cls.skeleton(make_options(cls, options, name), 0)
    loaded = registry.make("backbones", name, **options, seed=0)

    def shapes(backbone: torch.nn.Module) -> dict[str, tuple[torch.Size, bool]]:
        parameters = backbone.named_parameters()
        return {name: (parameter.shape, parameter.requires_grad) for name, parameter in parameters}

    assert shapes(skeleton) == shapes(loaded)
    assert [name for name, parameter in skeleton.named_parameters() if not parameter.is_meta] == []
    assert skeleton.tokenize(["red"]).keys() == loaded.tokenize(["red"]).keys()


MISSING = {  # weights that are not here -> parameters of the published model
    "hub": ("blip2", "nobody/nothing", 1_172_030_721),
    "ViT-L": ("blip2", "lavis:weights/blip2_pretrained_vitL.pth,tower=weights/clip_vit_L.pth", 473_123_073),
    "large": ("blip", "lavis:weights/model_large.pth", 445_737_985),
    "base": ("blip", "lavis:weights/model_base.pth", 223_742_721),
}


@pytest.mark.parametrize(("name", "weights", "parameters"), MISSING.values(), ids=MISSING)
def test_missing_weights_are_as_published(name, weights, parameters, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cls = registry.get("backbones", name)
    skeleton = cls.skeleton(make_options(cls, {"weights": weights}, name), 0)
    assert sum(parameter.numel() for parameter in skeleton.parameters()) == parameters


@pytest.fixture
def sets(toy_root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the settings of runs of BLIP-2 whose steps take 1 MiB a row, 2 KiB when recomputed."""

    def memory_of_rows(self: Architecture, name: str, rows: int, *, recompute: bool = False) -> CallMemory:
        return CallMemory(2**11 if recompute else 2**20, 0, output=0, operations=1e9, forward=2.5e8) * rows

    monkeypatch.setattr(Architecture, "call", memory_of_rows)
    monkeypatch.setattr(run_forecast, "cpu_speed", lambda: 1e9)
    monkeypatch.setattr(run_forecast, "SMALL", 0)
    backbone = ["backbone.name=blip2", "backbone.init=random", "backbone.size=toy"]
    return [f"dataset.root='{toy_root}'", *backbone, "train.batch_size=32", "train.epochs=6"]


@pytest.fixture
def config(sets: list[str]) -> ResolvedConfig:
    """Return such a run of QuRe."""
    return resolve(config_of(sets, "qure"))


def test_the_lines_of_a_run(config, monkeypatch):
    """72 queries in three batches of 32: 18 steps of 96 rows, a second each."""
    monkeypatch.setattr(fitting, "machine_memory", lambda: 2**34)
    step, counts, hours = forecast_lines(config, DataCache())
    assert step.startswith("a step of 32 queries takes about 97 MiB (activations 96 MiB)")
    assert counts.startswith("18 steps; ")
    assert "pictures to decode and encode once (about " in counts
    assert hours == "the steps alone take about 29 min on this CPU"
    monkeypatch.setattr(run_forecast, "cpu_speed", lambda: 1e7)  # a hundredth
    _, _, hours = forecast_lines(config, DataCache())
    assert hours == "the steps alone take about 48.0 h on this CPU (a GPU takes hours)"


KL = ("loss.name=margin-kl", "loss.kl_over=corpus")
CORPUS = {  # in 18 steps 96 images of 1e9 operations, of which a quarter forward
    "kl": (
        "qure",
        KL,
        "96 images pass the trained part in each of 18 steps: about 29 min; --set loss.kl_bound=0.001 (a departure) "
        "leaves out gradients of images that weigh less: at least 7 min",
    ),
    "kl with a bound": (
        "qure",
        (*KL, "loss.kl_bound=0.01"),
        "96 images pass the trained part in each of 18 steps: about 7 min to 29 min",
    ),
    "bank": ("bank", (), "96 images of the bank pass the backbone in each of 18 steps: about 7 min"),
    "queue": ("xbm", (), None),
    "batch": ("in-batch", (), None),
}


@pytest.mark.parametrize(("strategy", "more", "line"), CORPUS.values(), ids=CORPUS)
def test_a_corpus_in_every_step_is_told(strategy, more, line, sets, monkeypatch):
    monkeypatch.setattr(fitting, "machine_memory", lambda: 2**34)
    lines = forecast_lines(resolve(config_of(sets, strategy, *more)), DataCache())
    assert [text for text in lines if "pass the" in text] == ([] if line is None else [line])


FITS = {
    "whole": (2**30, ""),
    "recomputed": (2**23, r"takes about 97 MiB of memory, this machine has 8 MiB: --set compute.recompute=true$"),
    "never": (2**16, r"and 1 MiB with .*micro_batch=1 --set compute.recompute=true; .* train.batch_size=8, "),
}


@pytest.mark.parametrize(("memory", "message"), FITS.values(), ids=FITS)
def test_a_step_that_cannot_fit_is_refused(memory, message, config, monkeypatch):
    monkeypatch.setattr(fitting, "machine_memory", lambda: memory)
    if not message:
        assert forecast_lines(config, DataCache())
        return
    with pytest.raises(OptionError, match=message):
        forecast_lines(config, DataCache())


def test_planning_names_the_plan_that_a_run_takes(subtests, config, monkeypatch):
    """What the dry run says and what the run computes on a GPU of any size: one decision."""
    on_cpu = RunForecast.of(config, DataCache())
    run = untrained(config)
    cuda = torch.device("cuda")
    gpu = RunForecast(config, on_cpu.splits, on_cpu.architecture, cuda)
    gpu_run = replace(run, precision=replace(run.precision, device=cuda))
    for memory in (2**31, 2**30, 900 * 2**20, 820 * 2**20, 2**20):
        with subtests.test(memory=memory):
            properties = SimpleNamespace(total_memory=memory)
            monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, answer=properties: answer)
            planned = gpu.fitting()
            if planned is None:
                planned = gpu.plans(config.compute)[-1]
            assert planned == fitting_plan(gpu_run)


def test_a_run_that_was_started_is_estimated_in_its_precision(config):
    assert RunForecast.of(config, DataCache()).architecture.precision == "fp32"
    assert RunForecast.of(config, DataCache(), "bf16").architecture.precision == "bf16"


def test_small_backbones_are_not_traced_by_a_run(config, monkeypatch):
    monkeypatch.setattr(run_forecast, "SMALL", 2**28)
    monkeypatch.setattr(Architecture, "call", None)
    assert open_run_lines(untrained(config)) == []


def test_a_measured_card_tells_hours(config, monkeypatch):
    architecture = RunForecast.of(config, DataCache()).architecture
    on_gpu = RunForecast(config, DataCache().splits(config), architecture, torch.device("cuda"))
    monkeypatch.setattr(RunForecast, "memory", 2**40)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    speed = 1e12 * next(gpu["tflops"] for gpu in run_forecast.GPUS if gpu["name"] == "H200")
    assert on_gpu.seconds() == pytest.approx(18 * 96 * 1e9 / speed)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another card")
    assert on_gpu.seconds() is None
