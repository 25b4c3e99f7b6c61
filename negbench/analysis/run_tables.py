"""Tables of one run and of an audit, for the terminal and the page."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from negbench.analysis.columns import BASELINES, TABLES, texts
from negbench.analysis.regime_card import in_words
from negbench.analysis.temperature import temperature_text
from negbench.analysis.words import label_of, percent
from negbench.display import Grid
from negbench.loop.step_plan import StepPlan
from negbench.store.runfolder import RunFolder

if TYPE_CHECKING:
    from negbench.own.audit import AuditResult


def metrics_frame(folder: RunFolder) -> pd.DataFrame:
    """Metrics of the reported split in percent: the run, the untrained model, and either modality alone."""
    result = folder.result
    columns = {folder.config.strategy.name: result["metrics"]}
    for name, label in BASELINES.items():
        if name in result["baselines"]:
            columns[label] = result["baselines"][name]
    frame = {"metric (%)": [label_of(metric) for metric in result["metrics"]]}
    for name, values in columns.items():
        frame[name] = [percent(values.get(metric), 2) for metric in result["metrics"]]
    return pd.DataFrame(frame)


def run_table(folder: RunFolder) -> Grid:
    """Return `metrics_frame` with a title and caption on the data, gallery and backbone."""
    result = folder.result
    manifest = folder.manifest
    gallery = " / ".join(f"{name} {size:,}" for name, size in manifest["dataset"]["gallery"].items())
    identity = manifest["backbone"]
    temperature = temperature_text(folder.config, manifest)
    return Grid(
        metrics_frame(folder),
        f"{manifest['dataset'].get('named', manifest['dataset']['val'])}, epoch {result['reported_epoch']}",
        f"gallery {gallery}; text: {manifest['dataset']['text_template']}; backbone {identity['name']} "
        f"{identity['weights']} {identity['sha256'][:12]}, {identity['composition']}, "
        f"{identity['parameters']:,} parameters" + (f", {temperature}" if temperature else ""),
        rest=str(folder.path / "result.json"),
        bold=(label_of(result["main_metric"]),),
    )


def behaviour_lines(folder: RunFolder) -> list[str]:
    """Write one line each on the strategy's behaviour, the model's final regime, and the cost."""
    result = folder.result
    behaviour = []
    for column in TABLES["behaviour"]:
        text = column.text(result["behaviour"])
        if text != "-":
            behaviour.append(f"{column.title} {text}")
    lines = []
    if behaviour:
        lines.append(f"negatives  {', '.join(behaviour)}")
    lines.append(f"regime     {in_words([result['regime']])}")
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in result["seconds"].items())
    memory = ", ".join(f"{name} {value:,.0f} MiB" for name, value in result["peak_memory_mib"].items())
    lines.append(f"cost       seconds: {seconds}; {result['negatives_seen']:,} negatives seen; peak memory: {memory}")
    plans = [str(plan) for plan in StepPlan.of_result(result)]
    if plans not in ([], [str(StepPlan())]):
        lines.append(f"steps      in {', then in '.join(plans)}")
    return lines


# --- audits ------------------------------------------------------------------------------------------------------


def audit_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Build one row per audited strategy; columns without any value are left out."""
    columns = []
    for column in TABLES["audit"]:
        if any(pd.notna(row.get(column.key)) for row in rows):
            columns.append(column)
    return texts(columns, rows, ["strategy"])


def audit_table(audit: "AuditResult") -> Grid:
    """Return `audit_frame` with a title and caption on the audited model, data and queries."""
    frame = audit_frame(audit.rows)
    judged = "likeness: their mean score by the judge; " if "likeness" in frame else ""
    source = "by the data set's ground truth" if audit.truth else "unknown: only the target is annotated"
    return Grid(
        frame,
        f"audit: {audit.backbone}, {audit.model}, on {audit.dataset}: {audit.options['queries']:,} queries, "
        f"{audit.options['draws']} draws each",
        f"false negatives {source}; band: rank percentile of the pool; diversity: 1 - mean cosine of the draws; "
        f"{judged}fallbacks: queries with an empty pool",
        rest="--json",
    )
