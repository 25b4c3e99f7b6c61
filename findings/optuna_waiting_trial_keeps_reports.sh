#!/bin/sh
# A trial that Optuna sets back to WAITING keeps the intermediate values of its first attempt, and `report` of the second one does not
# replace them: MedianPruner then judges the second attempt by the last step of the first. Exits non-zero if that changes.
set -eu
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT
python3 -m venv "$where/venv"
"$where/venv/bin/pip" install --quiet --disable-pip-version-check optuna==5.0.0
"$where/venv/bin/python" - <<'PYTHON'
import optuna
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.ERROR)
storage = optuna.storages.InMemoryStorage()
study = optuna.create_study(storage=storage, direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
whole = study.ask()
for step in range(5):
    whole.report(0.5, step)
study.tell(whole, 0.5)

first = study.ask()
for step in range(4):  # a worker that dies at step 3, far below the median
    first.report(0.1, step)
print("running trial set back to WAITING:", storage.set_trial_state_values(first._trial_id, TrialState.WAITING))

second = study.ask()
second.report(0.9, 0)  # far above the median of step 0
kept = study.get_trials(deepcopy=False)[second.number].intermediate_values
print("reports of the second attempt after its step 0:", kept)
print("the pruner's answer to it:", second.should_prune())
print(f"optuna {optuna.__version__}")
print("The second attempt is judged by the first one's last step.")
raise SystemExit(not (second.number == first.number and kept == dict.fromkeys(range(4), 0.1) and second.should_prune()))
PYTHON
