"""One composed query of a data set."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Query:
    """One composed query: a reference image, a modification text, and the images known to answer it.

    `target` is None where the labels are closed (CIRR test1, CIRCO test). `relevant` holds every image known to satisfy
    the query, the target first; it is empty where only the target is known. Images are named by id, never by path.
    """

    id: str
    reference: str
    text: str
    target: str | None = None
    group: str = ""
    relevant: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()  # the raw annotation(s) that `text` was made from
    subset: tuple[str, ...] = ()  # CIRR: the other members of the image group
    reference_text: str | None = None  # privileged texts (HyCoLe), used in training only
    target_text: str | None = None
    negatives: tuple[str, ...] = field(default=(), repr=False)  # images that the data list as negatives of the query
    # judged negatives as (kind, image), kinds of `metrics.fixed.KINDS`, and further wordings of the text; they are
    # for evaluation, statistics and oracles: not part of any hash but an oracle's
    wrong: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    wordings: tuple[str, ...] = field(default=(), repr=False)
    # similar queries share a cluster, and statistics resample whole clusters; not part of any hash
    cluster: str = field(default="", repr=False)
