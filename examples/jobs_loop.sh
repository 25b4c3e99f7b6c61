#!/bin/sh
# Compute a comparison (or claims) job by job in a plain loop, round after round until it is finished:
#   sh examples/jobs_loop.sh jobs "--runs-dir runs" negbench compare --recipe demo --executor jobs:jobs
# The second argument is what the jobs may use: the flags of the line that the command prints.
folder=$1
trusted=$2
shift 2
while "$@"; code=$?; [ "$code" -eq 75 ]; do
    number=0
    while [ "$number" -lt "$(wc -l < "$folder/cells.jsonl")" ]; do
        # shellcheck disable=SC2086  # several words
        ${PYTHON:-python} -m negbench.grid.jobs "$folder" "$number" $trusted
        number=$((number + 1))
    done
done
exit "$code"
