#!/bin/sh
#SBATCH --gpus=1 --cpus-per-task=4 --time=8:00:00 --output=slurm-%A-%a.log
# One round as an array of jobs; the runs folder and NEGBENCH_CACHE are on a disk that all nodes share:
#   negbench compare --recipe demo --executor jobs:jobs    # exits with 75 while cells are left, and prints the jobs' line
#   sbatch --wait --array=0-$(($(wc -l < jobs/cells.jsonl) - 1)) examples/slurm_array.sh jobs --runs-dir "$PWD/runs"
# Repeat both until the first exits with another code. What follows the folder is what the jobs may use: the flags of the
# line that the command prints (--runs-dir, and --plugin and --tracking-uri where it has them).
folder=$1
shift
exec "${PYTHON:-python}" -m negbench.grid.jobs "$folder" "$SLURM_ARRAY_TASK_ID" "$@"
