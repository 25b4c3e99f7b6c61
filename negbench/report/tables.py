"""Tables of one run, for the terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from negbench.report.curve import label_of
from negbench.runfolder import RunFolder

_BASELINES = {
    "untrained": "untrained model",
    "image_only": "image only",
    "text_only": "text only",
    "untrained_image_only": "image only, untrained",
    "untrained_text_only": "text only, untrained",
}


def run_table(folder: RunFolder) -> Table:
    """Metrics of the reported split in percent: the run, the untrained model, and either modality alone."""
    result, manifest = folder.result, folder.manifest
    gallery = " / ".join(f"{name} {size:,}" for name, size in manifest["dataset"]["gallery"].items())
    identity = manifest["backbone"]
    table = Table(
        title=f"{manifest['dataset']['val']}, epoch {result['reported_epoch']}",
        caption=f"gallery {gallery}; text: {manifest['dataset']['text_template']}; backbone {identity['name']} "
        f"{identity['weights']} {identity['sha256'][:12]}, {identity['parameters']:,} parameters",
        title_justify="left",
        caption_justify="left",
    )
    columns = {manifest["config"]["strategy"]["name"]: result["metrics"]}
    columns |= {label: result["baselines"][name] for name, label in _BASELINES.items() if name in result["baselines"]}
    table.add_column("metric (%)")
    for label in columns:
        table.add_column(label, justify="right")
    for metric in result["metrics"]:
        style = "bold" if metric == result["main_metric"] else ""
        table.add_row(label_of(metric), *(percent(values.get(metric)) for values in columns.values()), style=style)
    return table


def behaviour_lines(folder: RunFolder) -> list[str]:
    """What the strategy did and what it cost, one line each."""
    result = folder.result
    behaviour = result["behaviour"]
    lines = []
    if behaviour:
        parts = [f"pool {number(behaviour.get('pool_size'))} images"]
        if behaviour.get("band_start") is not None:
            parts.append(f"at {percent(behaviour['band_start'])}-{percent(behaviour['band_end'])} % of the ranking")
        parts.append(f"false negatives {percent(behaviour.get('false_negative_rate_pool'))} % of the pool")
        parts.append(f"{percent(behaviour.get('false_negative_rate_draws'))} % of the draws")
        parts.append(f"hardness {number(behaviour.get('hardness'), 3)}")
        if behaviour.get("fallback_below") is not None:
            parts.append(
                f"fallbacks {number(behaviour['fallback_below'])} below, {number(behaviour['fallback_any'])} any"
            )
        lines.append("negatives  " + ", ".join(parts))
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in result["seconds"].items())
    memory = ", ".join(f"{name} {value:,.0f} MiB" for name, value in result["peak_memory_mib"].items())
    drawn = result.get("draws")
    if drawn is not None:
        many = "all" if drawn["per_query"] is None else drawn["per_query"]
        how = {
            True: "and epoch, with replacement from epoch to epoch",
            False: "and epoch, without repeats until it is used up",
            None: "and step",
        }[drawn["replacement"]]
        lines.append(f"draws      {many} of the pool for each query {how}")
    lines.append(f"cost       seconds: {seconds}; {result['negatives_seen']:,} negatives seen; peak memory: {memory}")
    return lines


def percent(value: Any, digits: int = 1) -> str:
    """0.123 -> '12.3'; '-' where there is no value."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.{digits}f}"


def number(value: Any, digits: int = 0) -> str:
    """1234.5 -> '1,234'; '-' where there is no value."""
    return "-" if value is None or math.isnan(value) else f"{value:,.{digits}f}"
