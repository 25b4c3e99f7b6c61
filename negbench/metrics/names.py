"""Names of metrics: as tables print them, as users write them. What the ranks give besides is in `metrics.named`."""

import re
from collections.abc import Sequence

SHORT = {  # the beginning of a metric's name -> as tables print it
    "subset_recall_at_": "Rs@",
    "neg_recall_at_": "NegRecall@",
    "recall_at_": "R@",
    "map_at_": "mAP@",
    "hit_at_": "hit@",
    "cirqrs_at_": "CIRQRS@",
    "mrr_at_": "MRR@",
    "ndcg_at_": "nDCG@",
}
_WHOLE = {"mrr": "MRR", "ndcg": "nDCG"}
FROM_RANKS = re.compile(r"(recall|mrr|ndcg)_at_([1-9]\d*)|mrr|ndcg")
RANKED = re.compile(r"(.*/)?(subset_)?(recall|map)(_at_\d+)?")  # a data set with one of these ranks images
AVERAGE = "average/"


def short(metric: str) -> str:
    """Shorten a metric's name for tables and plots: 'average/recall_at_10' -> 'average R@10'."""
    *group, name = metric.split("/")
    for long, printed in SHORT.items():
        name = name.replace(long, printed)
    return " ".join([*group, _WHOLE.get(name, name)])


def find_metric(text: str, declared: Sequence[str]) -> str | None:
    """Return the metric that a user means: by its name or as tables print it; None if there is none.

    Args:
        text: such as "recall_at_10", "R@10", "dress R@10", "MRR", "nDCG@5". Without a group, the average over groups is
            meant where the data set has one.
        declared: names of the data set's own metrics.

    Example:
        >>> find_metric("R@20", ["recall_at_1", "recall_at_10"]), find_metric("MRR", ["average/recall_at_10"])
        ('recall_at_20', 'average/mrr')
    """
    if text in declared:
        return text
    printed = [name for name in declared if text in (short(name), short(name).removeprefix("average "))]
    averaged = [name for name in printed if name.startswith(AVERAGE)]
    plain = [name for name in printed if "/" not in name]
    if printed:
        return (averaged or plain or printed)[0]
    if not any(RANKED.fullmatch(name) for name in declared):
        return None
    group, name = _split_group(text)
    if FROM_RANKS.fullmatch(name) is None:
        return None
    groups = {metric.rpartition("/")[0] for metric in declared if "/" in metric}
    if not group and any(metric.startswith(AVERAGE) for metric in declared):
        group = AVERAGE.rstrip("/")
    if group and group not in groups:
        return None
    return f"{group}/{name}" if group else name


def _split_group(text: str) -> tuple[str, str]:
    """Split a printed or plain name into its group, "" if it names none, and the metric's own name."""
    group, _, name = text.replace(" ", "/").rpartition("/")
    for long, printed in SHORT.items():
        if name.lower().startswith(printed.lower()):
            name = long + name[len(printed) :]
    return group, name.lower() if name.lower() in _WHOLE else name
