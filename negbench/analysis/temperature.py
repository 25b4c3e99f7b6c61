"""What divides the scores in a run's loss, and where it starts, in words for captions."""

from collections.abc import Iterable, Mapping
from typing import Any

from negbench.analysis.frame import StoredRun
from negbench.analysis.words import plain
from negbench.settings.config import LEARNED, OWN_TEMPERATURES, RunConfig

_OF_TERMS = "e^-1"  # where the temperatures of a loss's own terms start
_SOURCES = {"file": "of the weights", "default": "default", "option": "as set"}


def temperature_of(run: StoredRun) -> str:
    """Return what divides a run's scores, as tables print it: 'learned from 0.07', '0.1'.

    'none' for a loss without one; 'learned', without its start, of a run that did not store it.
    """
    divisor = run.manifest.get("divisor") or run.config.divisor  # the latter, of an older run, imports its loss
    if divisor == "none":
        return "none"
    if divisor == "tau":
        return f"{run.config.loss.options['tau']}"
    start = _OF_TERMS if divisor == OWN_TEMPERATURES else _start_of(run.manifest)
    return f"{LEARNED} from {start}" if start else LEARNED


def starts_of(runs: Iterable[StoredRun]) -> list[str]:
    """Return what tables print of these runs' learned temperatures, each once: ['learned from 0.07']."""
    texts = [temperature_of(run) for run in runs]
    return list(dict.fromkeys(text for text in texts if text.startswith(LEARNED)))


def _start_of(manifest: Mapping[str, Any]) -> str:
    """Return where the backbone's learned temperature starts; "" where config.json does not say it."""
    start = manifest.get("backbone", {}).get("details", {}).get("temperature")
    return "" if start is None else plain(start)


def temperature_text(config: RunConfig, manifest: Mapping[str, Any]) -> str:
    """Say what divides a run's scores: 'temperature learned from 0.07 (default)', 'temperature fixed at 0.1'.

    Args:
        config: the run's.
        manifest: its config.json, with `divisor` and the identity of its backbone.

    Returns:
        "" without a temperature, or where config.json does not say what divides, or where it starts.
    """
    divisor = manifest.get("divisor", "none")
    if divisor == "tau":
        return f"temperature fixed at {plain(config.loss.options['tau'])}"
    if divisor == OWN_TEMPERATURES:
        return f"temperatures of the loss's terms, learned from {_OF_TERMS}"
    details = manifest["backbone"].get("details", {})
    source = _SOURCES.get(details.get("temperature_from", ""))
    if divisor == "none" or source is None:
        return ""
    text = f"temperature learned from {_start_of(manifest)} ({source})"
    if config.train.temperature_least is not None:
        text += f", at least {plain(config.train.temperature_least)}"
    if config.train.temperature_rate != 1:
        text += f", at {plain(config.train.temperature_rate)} times the rate"
    return text


def temperatures_of(runs: Iterable[StoredRun]) -> str:
    """Say what divides the scores of these runs, each way once: '... or ...'."""
    texts = [temperature_text(run.config, run.manifest) for run in runs]
    return " or ".join(dict.fromkeys(text for text in texts if text))
