"""`make pinned`: compute small comparisons of every kind, and show what differs from the recorded reference.

    python -m tests.pinned.pins [--record] [--only ITEM ...]

These pins train, so their numbers are those of one machine: compare a change with its base there. `make pinned` first
runs tests/pinned/verdicts.py, whose pins depend on no arithmetic.

A line of `reference.txt` is a pin: class, key and value. Class "never" holds numbers and names (ranks, results, rows of
statistics.json, rates, claims, planned labels): exit code 1 if one differs; a row may gain fields, but lose none. The
other classes: "hash" of a run, "corners" between systems, "tuned" strategies, "files" (SHA-256 of tables and MLflow
summaries, further keys of comparison.json), "free" wording. At most 20 differences of a class are printed, with --only
all of them. After an intended change record again, and commit the new reference.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).with_name("reference.txt")
SIZES = {"train_images": 200, "train_queries": 64, "val_images": 120, "val_queries": 40}
SETS = [*(f"dataset.{key}={size}" for key, size in SIZES.items()), "train.epochs=3", "train.batch_size=32"]
COMMON = ["--dataset", "vectors", "--backbone", "vectors:dim=16", *(part for text in SETS for part in ("--set", text))]
COMMANDS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
LABELS = ("system", "point", "settings", "loss", "backbone", "dataset", "strategy")
RESULTS = ("metrics", "baselines", "reported_epoch", "refresh_epochs", "temperatures", "steps", "negatives_seen")
# columns and keys that differ from run to run
MEASURED = re.compile("seconds|memory|mib|^used/.* s$|^used/.*MiB$|hash|run$|token|mlflow")
HIDDEN = re.compile(r"\b[0-9a-f]{64}\b|(?<=-)[0-9a-f]{8}\b|/\S*/(?=pins-)pins-\w+|\b\d+ (s|min|h) of computing")


def sha(value: Any) -> str:
    """Return the first twelve digits of the SHA-256 of bytes, or of a value as JSON."""
    content = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:12]


def leave_out_measured(value: Any) -> Any:
    """Leave out what differs from run to run: measured keys, hashes inside texts, the folder of this process."""
    if isinstance(value, dict):
        return {key: leave_out_measured(entry) for key, entry in value.items() if not MEASURED.search(key)}
    if isinstance(value, list):
        return [leave_out_measured(entry) for entry in value]
    if isinstance(value, str):
        return HIDDEN.sub("#", value)
    return value


def name_of_labels(labels: dict[str, Any]) -> str:
    return "|".join(str(labels.get(name) or "") for name in LABELS).strip("|")


ESTIMATES = ("mean", "against_best", "against_highest", "against_baseline")  # nested in a verdict of schema 3


def flat_verdicts(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of statistics.json, of schema 2 or 3, in the flat form of schema 2.

    Schema 3 nests estimates, and the best's differences are the strategy minus the best; schema 2 had the best minus
    the strategy, in `gap` and `behind`.
    """
    if "schema" not in document:
        return list(document["rows"])
    return [_flat_verdict(row) for row in document["verdicts"]]


def _flat_verdict(row: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in row.items() if key not in (*ESTIMATES, "facts", "baseline_asked")}
    mean = row["mean"]
    flat |= {"mean": mean["value"], "low": mean["low"], "high": mean["high"]}
    for key, name in {"against_best": "gap", "against_highest": "behind"}.items():
        other = row[key] or {"value": None, "low": None, "high": None}
        flat[name] = _negative(other["value"])
        flat[f"{name}_low"] = _negative(other["high"])
        flat[f"{name}_high"] = _negative(other["low"])
    test = row["against_baseline"] or {"value": None, "low": None, "high": None, "p": None}
    flat |= {"difference": test["value"], "diff_low": test["low"], "diff_high": test["high"], "p_adjusted": test["p"]}
    flat["against"] = row["baseline_asked"]
    return flat | row["facts"]


def _negative(value: float | None) -> float | None:
    return None if value is None else 0.0 - value  # 0 stays 0


def pins_of(folder: Path, item: str) -> Any:
    """Yield the pins of one comparison, claims or study: class, key, value."""

    def class_of(labels: dict[str, Any]) -> str:
        if item == "k-tuned":
            return "tuned"
        return "corners" if ": " in (labels.get("system") or "") else "never"

    documents = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
    yield "files", "folder", folder.name
    for cell in documents.get("comparison", {}).pop("cells", ()):
        key = f"{name_of_labels(cell)}|{cell['seed']}"
        kind = class_of(cell)
        yield "hash", f"hash {key}", cell["hash"][:12]
        if cell["run"] is None:
            yield kind, f"failed {key}", True
        else:
            run = folder.parent / cell["run"]
            yield kind, f"ranks {key}", sha((run / "ranks.parquet").read_bytes())
            result = json.loads((run / "result.json").read_text())
            yield kind, f"result {key}", sha([result.get(name) for name in RESULTS])
    for key, value in documents.get("comparison", {}).items():
        yield "never" if key in ("kind", "rates") else "files", f"comparison.json {key}", leave_out_measured(value)
    for row in flat_verdicts(documents.get("statistics", {"rows": []})):
        numbers = {key: value for key, value in row.items() if key not in (*LABELS, "metric")}
        yield class_of(row), f"row {name_of_labels(row)}|{row['metric']}", numbers
    for claim in documents.get("claims", {}).get("claims", ()):
        yield "never", f"claim {claim['id']}", {key: claim[key] for key in ("verdict", "reason", "tests")}
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".csv", ".md", ".tex") and not re.match("answer|cost|claims", file.stem):
            text = file.read_text()
            table = list(csv.DictReader(io.StringIO(text))) if file.suffix == ".csv" else text
            yield "files", str(file.relative_to(folder)), sha(leave_out_measured(table))
    if (folder / "answer.md").exists():
        yield "free", "answer.md", leave_out_measured((folder / "answer.md").read_text().split("\n\n"))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(folder.name)
    if experiment is not None:
        summaries = []
        for run in client.search_runs(experiment.experiment_id, "tags.`negbench.kind` = 'summary'"):
            summaries.append([run.info.run_name, sha(leave_out_measured([run.data.tags, run.data.metrics]))])
        yield "files", "mlflow", sorted(summaries)


def recipes(runs: Path) -> Any:
    """Plan the shipped recipes on generated data, the only calls into the package beside its commands."""
    from negbench.campaign.plan import plan_comparison, with_recipe
    from negbench.errors import NegbenchError
    from negbench.settings.layers import recipes as shipped
    from negbench.settings.options import Compare

    for name in sorted(shipped()):
        options = with_recipe(Compare(recipe=Path(name), datasets="vectors", backbones="vectors", seeds=1))
        dials = {dial.partition("=")[0] for dial in options.dials}
        sizes = {f"dataset.{key}": size for key, size in SIZES.items()}
        sets = tuple(f"{key}={size}" for key, size in sizes.items() if key not in dials)
        try:
            cells = plan_comparison(options.model_copy(update={"sets": sets}), runs).cells
        except NegbenchError as error:  # it does not go with data this small
            yield "never", f"{name} labels", str(error)
            continue
        yield "never", f"{name} labels", [f"{name_of_labels(cell.labels)}|{cell.seed}" for cell in cells]
        yield "hash", f"{name} hashes", [cell.hash[:8] for cell in cells]


def folders(runs: Path) -> set[Path]:
    """Return the folders of comparisons, claims and studies."""
    paths = set()
    for path in runs.glob("*"):
        if path.is_dir() and path.name != "artifacts" and not (path / "config.json").exists():
            paths.add(path)
    return paths


def compute_pins(items: Iterable[str]) -> dict[str, tuple[str, Any]]:
    """Run the commands of these items in a new folder, and return their pins: key -> class and value."""
    from negbench.cli.main import run

    pins: dict[str, tuple[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="pins-") as home:
        runs = Path(home).resolve() / "runs"
        os.environ |= {"COLUMNS": "200", "NEGBENCH_CACHE": f"{runs}-cache", "NEGBENCH_RUNS": str(runs)}
        for item in items:
            for number, line in enumerate(COMMANDS[item]):
                command, *flags = line.split()
                before = folders(runs)
                output = io.StringIO()
                with redirect_stdout(output), redirect_stderr(output):
                    code = run([command, *(COMMON if command != "report" else ()), *flags])
                pins[f"{item} {number} exit code"] = "never", code
                if code:
                    print(f"{item}: {output.getvalue()[-1000:]}", end="", file=sys.stderr)
                for nth, folder in enumerate(sorted(folders(runs) - before)):
                    for kind, key, value in pins_of(folder, item):
                        pins[f"{item} {number}.{nth} {key}"] = kind, value
            if item == "l-recipes":
                for kind, key, value in recipes(runs):
                    pins[f"{item} {key}"] = kind, value
    return json.loads(json.dumps(pins))


def difference(before: Any, after: Any) -> str:
    """Say how two values differ; new fields of a row are no difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        changes = []
        for name, value in before.items():
            new = after.get(name, "(gone)")
            if new != value:
                changes.append(f"{name}: {value} -> {new}")
        return ", ".join(changes)
    if before == after:
        return ""
    if isinstance(before, list) and isinstance(after, list):
        gone = [value for value in before if value not in after]
        new = [value for value in after if value not in before]
        return f"{gone} -> {new}"
    return f"{before} -> {after}"


def main() -> bool:
    """Record, or compare and print; return whether a pin of class "never" differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the reference (of these items)")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=())
    arguments = parser.parse_args()
    items = arguments.only or COMMANDS
    new = compute_pins(items)
    reference = read_reference()
    old = {key: pin for key, pin in reference.items() if key.split()[0] in items}
    if arguments.record:
        others = {key: pin for key, pin in reference.items() if key not in old}
        write_reference(others | new)
        return False
    changes: dict[str, list[str]] = {kind: [] for kind in ("free", "files", "hash", "tuned", "corners", "never")}
    for key in sorted({*old, *new}):
        kind, _ = old[key] if key in old else new[key]
        _, before = old.get(key, (kind, "(absent)"))
        _, after = new.get(key, (kind, "(absent)"))
        text = difference(before, after)
        if text:
            changes[kind].append(f"{key}  {text}"[:400])
    counts = Counter(kind for kind, _ in old.values())
    for kind, lines in changes.items():
        print(f"== {kind}: {len(lines)} of {counts[kind]} differ")
        print(*(lines if arguments.only else lines[:20]), sep="\n")
    return bool(changes["never"])


def read_reference() -> dict[str, tuple[str, Any]]:
    """Return the recorded pins: key -> class and value."""
    pins = {}
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        kind, key, value = line.split("\t", 2)
        pins[key] = kind, json.loads(value)
    return pins


def write_reference(pins: dict[str, tuple[str, Any]]) -> None:
    lines = [f"{kind}\t{key}\t{json.dumps(value)}\n" for key, (kind, value) in sorted(pins.items())]
    REFERENCE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
