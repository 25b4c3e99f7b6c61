"""`negbench mine`: mine negatives for your own trainer, from embeddings in files or for a data set."""

from collections.abc import Callable
from typing import Any

from negbench.cli import command, output
from negbench.settings.command_options import Mine

_LEAVE_OUT = "leave them out with --set mining.exclude_relevant=true"


def _dry_run(options: Mine, say: Callable[[str], None]) -> Any:
    from negbench.own.negatives import dry_run

    return None, dry_run(options)


@command.of(
    Mine,
    "negbench mine --queries q.npy --images i.npy --targets t.parquet --strategy qure --draws 5 "
    "--out negatives.parquet",
    "negbench mine --recipe my-data/recipe.toml --strategy top-k:k=100 --draws 5 --format sentence-transformers "
    "--out pairs.jsonl",
    help="Mine negatives for your own trainer: from embeddings in files (no model, no training), or for a data set "
    "scored by a finished run (--run) or an untrained backbone.",
    dry_run=_dry_run,
)
def mine(options: Mine) -> dict[str, Any]:
    """Mine, write, print."""
    from negbench.display import log
    from negbench.own.negatives import write_negatives

    mined = write_negatives(options)
    console = output.console()
    if mined.source:
        console.print(mined.source, highlight=False)
    with_fewer = int((mined.frame["negatives"].map(len) < options.draws).sum())
    fewer = ""
    if with_fewer:
        fewer = f" ({with_fewer:,} queries have fewer: their pools are smaller)"
    ties = ""
    if mined.summary["cut_ties"]:
        ties = f"; {mined.summary['cut_ties']:,.0f} pools cut a tie"
    fallbacks = int(mined.summary["fallback_below"] + mined.summary["fallback_any"])
    low, middle, high = mined.frame["pool_size"].quantile([0.25, 0.5, 0.75])
    console.print(
        f"{len(mined.frame):,} queries, {options.draws} negatives each{fewer}, from pools of "
        f"{middle:,.0f} images in the middle (quartiles {low:,.0f} and {high:,.0f}) of {mined.images:,}; "
        f"{fallbacks:,} queries fell back; hardness {mined.summary['hardness']:.4f}{ties}",
        highlight=False,
    )
    left_out = len(mined.frame) - mined.kept
    if left_out and options.format != "triplets":
        share = 100 * left_out / len(mined.frame)
        mend = "lower --draws, or take larger pools, as of top-k:k=100"
        log.warning("note: %d queries (%.0f %%) fell back or have fewer, and are left out: %s", left_out, share, mend)
    wrong = mined.summary["false_negative_rate_draws"]
    if wrong > 0:
        log.warning("note: %.3g %% of the draws are known to be relevant: %s", 100 * wrong, _LEAVE_OUT)
    console.print(f"wrote {options.out}", highlight=False, soft_wrap=True)
    return {"out": options.out, "queries": len(mined.frame), "draws": options.draws, **mined.summary}
