"""`make pinned`: compute small comparisons of every kind, and show what differs from the recorded reference.

    python -m tests.pinned.pins [--record] [--only ITEM,ITEM] [--all]

Every pin is one line of `reference.txt`: class, key and value. The classes:

    never      numbers and names: ranks, results, rows of statistics.json, rates, claims, folders, planned labels
    hash       hashes of runs; compared run by run through labels and seed
    corners, tuned     rows of the corners between systems, and of tuned strategies
    files      SHA-256 of tables and MLflow summaries, and further keys of comparison.json
    free       wording: answer.md

Exit code 1 if anything of the class `never` differs. A row may gain fields, but lose none. Only the commands and the
files that they write are read, apart from `planned` below. After an intended change record again, and commit the
new reference with it.
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
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent
REFERENCE = HOME / "reference.txt"
SIZES = {"train_images": 200, "train_queries": 64, "val_images": 120, "val_queries": 40}
SETS = [*(f"dataset.{key}={size}" for key, size in SIZES.items()), "train.epochs=3", "train.batch_size=32"]
COMMON = ["--dataset", "vectors", "--backbone", "vectors:dim=16", *(part for each in SETS for part in ("--set", each))]
UNTIL = "--until decided --pairs all --max-seeds 5 --lr fixed"
TWO = "--strategies in-batch,qure --seeds 2"
CLAIMS = "claims --only 5,8,12,16,17,18 --seeds 2"
COMMANDS = {
    "a-axes": ("compare --strategies in-batch,qure,dqe --losses bradley-terry,info-nce --name axes",),
    "b-negatives": (f"compare {TWO} --negatives 1,5,10 --lr fixed",),
    "c-data": (f"compare {TWO} --lr fixed --datasets vectors,vectors:twins=3 --backbones vectors,vectors:dim=16",),
    "d-dials": (f"compare {TWO} --dial dataset.twins=3,12 --dial dataset.look=0,0.5",),
    "e-systems": ("compare --systems plain,qure,cirqrs,hycole --strategies qure,all-corpus --seeds 2 --lr fixed",),
    "f-until": (
        f"compare --strategies in-batch,qure,dqe {UNTIL} --set train.epochs=2 --name until",
        f"compare --systems plain,qure --strategies dqe {UNTIL}",
    ),
    "g-failing": ("compare --plugin tests/pinned/failing.py --strategies in-batch,failing --lr fixed",),
    "h-claims": (CLAIMS, f"{CLAIMS} --until decided --max-seeds 3"),
    "i-study": ("study --strategy qure --trials 4 --final-seeds 2 --sampler random --name knobs",),
    "j-against": ("report axes --against until",),
    "k-tuned": (f"compare {TWO} --tuned 3",),
}
LABELS = ("system", "point", "settings", "loss", "backbone", "dataset", "strategy")
RESULTS = ("metrics", "baselines", "reported_epoch", "refresh_epochs", "temperatures", "steps", "negatives_seen")
MEASURED = re.compile("seconds|memory|mib|hash|run$|token|mlflow")  # columns and keys that differ from run to run
HIDDEN = re.compile(r"\b[0-9a-f]{64}\b|(?<=-)[0-9a-f]{8}\b|/\S*/(?=pins-)pins-\w+|\b\d+ (s|min|h) of computing")

Pins = Iterator[tuple[str, str, Any]]


def sha(value: Any) -> str:
    """Return the first twelve digits of the SHA-256 of bytes, or of a value as JSON."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:12]


def steady(value: Any) -> Any:
    """Leave out what differs from run to run: measured keys, hashes inside texts, the folder of this process."""
    if isinstance(value, dict):
        return {key: steady(each) for key, each in value.items() if not MEASURED.search(key)}
    if isinstance(value, list):
        return [steady(each) for each in value]
    return HIDDEN.sub("#", value) if isinstance(value, str) else value


def place(labels: dict[str, Any]) -> str:
    return "|".join(str(labels.get(name) or "") for name in LABELS).strip("|")


def class_of(item: str, labels: dict[str, Any]) -> str:
    return "tuned" if item == "k-tuned" else "corners" if ": " in (labels.get("system") or "") else "never"


def pins_of(folder: Path, item: str) -> Pins:
    """Yield the pins of one comparison, claims or study: class, key, value."""
    yield "files", "folder", folder.name
    document = json.loads((folder / "comparison.json").read_text()) if (folder / "comparison.json").exists() else {}
    for cell in document.pop("cells", ()):
        key, kind = f"{place(cell)}|{cell['seed']}", class_of(item, cell)
        yield "hash", f"hash {key}", cell["hash"][:12]
        if cell["run"] is None:
            yield kind, f"failed {key}", True
        else:
            run = folder.parent / cell["run"]
            yield kind, f"ranks {key}", sha((run / "ranks.parquet").read_bytes())
            result = json.loads((run / "result.json").read_text())
            yield kind, f"result {key}", sha([result[name] for name in RESULTS])
    for key, value in document.items():
        yield "never" if key in ("kind", "rates") else "files", f"comparison.json {key}", steady(value)
    if (folder / "statistics.json").exists():
        for row in json.loads((folder / "statistics.json").read_text())["rows"]:
            numbers = {key: value for key, value in row.items() if key not in (*LABELS, "metric")}
            yield class_of(item, row), f"row {place(row)}|{row['metric']}", numbers
    if (folder / "claims.json").exists():
        for claim in json.loads((folder / "claims.json").read_text())["claims"]:
            yield "never", f"claim {claim['id']}", {key: claim[key] for key in ("verdict", "reason", "tests")}
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".csv", ".md", ".tex") and not re.match("answer|cost|claims", file.stem):
            yield "files", str(file.relative_to(folder)), sha(steady(_text(file)))
    if (folder / "answer.md").exists():
        yield "free", "answer.md", steady((folder / "answer.md").read_text().split("\n\n"))


def _text(file: Path) -> Any:
    """Return a file's text, or of a CSV file the rows as dictionaries."""
    text = file.read_text()
    return list(csv.DictReader(io.StringIO(text))) if file.suffix == ".csv" else text


def planned(recipe: str, runs: Path) -> Any:
    """Plan a shipped recipe on generated data; the only call into the package beside its commands."""
    from negbench.grid.compare import over_recipe, plan_comparison
    from negbench.settings.options import Compare

    asked = over_recipe(Compare(recipe=Path(recipe), datasets="vectors", backbones="vectors", seeds=1))
    dialled = {text.partition("=")[0] for text in asked.dials}
    sets = tuple(text for text in SETS[:4] if text.partition("=")[0] not in dialled)
    return plan_comparison(asked.model_copy(update={"sets": sets}), runs).cells


def recipes(runs: Path) -> Pins:
    """Yield the planned labels, seeds and hashes of every shipped recipe."""
    from negbench.errors import NegbenchError
    from negbench.settings.layers import recipes as shipped

    for name in sorted(shipped()):
        try:
            cells = planned(name, runs)
        except NegbenchError as error:  # it does not go with data this small
            yield "never", f"l-recipes {name} labels", str(error)
            continue
        yield "never", f"l-recipes {name} labels", [f"{place(cell.labels)}|{cell.seed}" for cell in cells]
        yield "hash", f"l-recipes {name} hashes", [cell.hash[:8] for cell in cells]


def summaries(folder: Path) -> Pins:
    """Yield the summaries in a comparison's MLflow experiment: names, and SHA-256 of tags and metrics."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    if (experiment := client.get_experiment_by_name(folder.name)) is not None:
        runs = client.search_runs(experiment.experiment_id, "tags.`negbench.kind` = 'summary'")
        yield "files", "mlflow", sorted([r.info.run_name, sha(steady([r.data.tags, r.data.metrics]))] for r in runs)


def folders(runs: Path) -> set[Path]:
    """Return the folders of comparisons, claims and studies, and of pages against another comparison."""
    made = [path for path in (*runs.glob("*"), *runs.glob("*/against-*")) if path.is_dir()]
    return {path for path in made if path.name != "artifacts" and not (path / "config.json").exists()}


def computed(only: list[str]) -> dict[str, tuple[str, Any]]:
    """Run the commands of the items in a new folder, and return their pins: key -> class and value."""
    from negbench.cli.main import run

    pins: dict[str, tuple[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="pins-") as place_of_runs:
        runs = Path(place_of_runs).resolve() / "runs"
        os.environ |= {"COLUMNS": "200", "NEGBENCH_CACHE": f"{runs}-cache", "NEGBENCH_RUNS": str(runs)}
        for item in only or [*COMMANDS, "l-recipes"]:
            for number, (command, *flags) in enumerate(map(str.split, COMMANDS.get(item, ()))):
                before, shown = folders(runs), io.StringIO()
                with redirect_stdout(shown), redirect_stderr(shown):
                    code = run([command, *(COMMON if command != "report" else ()), *flags])
                pins[f"{item} {number} exit code"] = "never", code
                if code:
                    print(f"{item}: exit code {code}\n{shown.getvalue()[-1000:]}", file=sys.stderr)
                for nth, folder in enumerate(sorted(folders(runs) - before)):
                    for kind, key, value in (*pins_of(folder, item), *summaries(folder)):
                        pins[f"{item} {number}.{nth} {key}"] = kind, value
            if item == "l-recipes":
                pins |= {key: (kind, value) for kind, key, value in recipes(runs)}
    return pins


def differences(old: dict[str, tuple[str, Any]], new: dict[str, tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the class of every pin that differs, and a line that shows how; new fields of a row are no difference."""
    for key in sorted({*old, *new}):
        (kind, before), (_, after) = old.get(key, (new.get(key, [""])[0], None)), new.get(key, ("", None))
        if isinstance(before, dict) and isinstance(after, dict):
            after = {name: after.get(name, "(gone)") for name in before}
            fields = [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
            if fields:
                yield kind, f"{key}  {', '.join(fields)}"
        elif key not in new or key not in old:
            yield kind, f"{key}  {'only in the reference' if key in old else 'not in the reference'}"
        elif before != after:
            if isinstance(before, list):  # shows what is only in one of them
                before, after = ([each for each in a if each not in b] for a, b in ((before, after), (after, before)))
            yield kind, f"{key}  {before} -> {after}"


def main() -> int:
    """Record, or compare and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the reference (of these items)")
    parser.add_argument("--only", default="", help="items, e.g. a-axes,f-until,j-against (which needs the other two)")
    parser.add_argument("--all", action="store_true", help="print every difference, not the first 20 of a class")
    given = parser.parse_args()
    only = [item for item in given.only.split(",") if item]
    new = computed(only)
    lines = REFERENCE.read_text(encoding="utf-8").splitlines() if REFERENCE.exists() else []
    reference = {key: (kind, json.loads(value)) for kind, key, value in (line.split("\t", 2) for line in lines)}
    old = {key: pin for key, pin in reference.items() if not only or key.split()[0] in only}
    if given.record:
        kept = {key: pin for key, pin in reference.items() if key not in old} | new
        texts = [f"{kind}\t{key}\t{json.dumps(value)}\n" for key, (kind, value) in sorted(kept.items())]
        REFERENCE.write_text("".join(texts), encoding="utf-8")
        return 0
    changes = list(differences(old, json.loads(json.dumps(new))))
    for kind in ("free", "files", "hash", "tuned", "corners", "never"):
        lines = [line for each, line in changes if each == kind]
        print(f"== {kind}: {len(lines)} of {sum(each == kind for each, _ in old.values())} differ")
        print(*(line[:400] for line in lines[: None if given.all else 20]), sep="\n")
    return any(kind == "never" for kind, _ in changes)


if __name__ == "__main__":
    sys.exit(main())
