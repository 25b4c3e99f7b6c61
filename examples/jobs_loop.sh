#!/bin/sh
# Compute a comparison (or claims) job by job in a plain loop, round after round until it is finished:
#   sh examples/jobs_loop.sh jobs negbench compare --recipe demo --executor jobs:jobs
folder=$1
shift
while "$@"; code=$?; [ "$code" -eq 75 ]; do
    number=0
    while [ "$number" -lt "$(wc -l < "$folder/cells.jsonl")" ]; do
        ${PYTHON:-python} -m negbench.grid.jobs "$folder" "$number"
        number=$((number + 1))
    done
done
exit "$code"
