#!/bin/sh
# Optuna counts a pruned trial as startup for TPE, not for CMA-ES: with a pruner that stops four trials of five, `n_startup_trials=5`
# is over for TPE after five trials, and for CMA-ES once a fifth one has finished, after 21. Exits non-zero if that changes.
set -eu
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT
python3 -m venv "$where/venv"
"$where/venv/bin/pip" install --quiet --disable-pip-version-check optuna==5.0.0 cmaes==0.13.1
"$where/venv/bin/python" - <<'PYTHON'
import cmaes
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def objective(trial):
    x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    if trial.number % 5:  # what a pruner does to four of five
        trial.report(x + y, 0)
        raise optuna.TrialPruned
    return x + y


def points(sampler):
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=30)
    return [tuple(trial.params.values()) for trial in study.trials]


random = points(optuna.samplers.RandomSampler(seed=0))
first = {}
for name, sampler in (
    ("TPE", optuna.samplers.TPESampler(seed=0, n_startup_trials=5)),
    ("CMA-ES", optuna.samplers.CmaEsSampler(seed=0, n_startup_trials=5)),
):
    same = [a == b for a, b in zip(points(sampler), random, strict=True)]
    first[name] = same.index(False) if False in same else None
    print(f"{name}: trials that are the random sampler's: {sum(same)} of {len(same)}; first other one: {first[name]}")
print(f"optuna {optuna.__version__}, cmaes {cmaes.__version__}")
print("TPE's startup counts pruned trials; CMA-ES's counts finished ones only.")
raise SystemExit(not (first["TPE"] == 5 and (first["CMA-ES"] or 30) > 20))
PYTHON
