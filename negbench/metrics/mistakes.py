"""Mistakes of a ranking: judged negatives near its top, by kind. Ties count against the model.

A judged negative is known not to answer its query although it looks so: *visual* fits the reference but not the text,
*textual* fits the text but not the reference, *composed* is one step away from right, *unspecified* is of a kind that
nobody wrote down. A table of kinds holds codes: 0 for any other image, 1 + the index in `KINDS` for a judged one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from negbench.metrics.fixed import CUT, KINDS
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import among_first, check_scores, count, less, masked_scores


def kinds_by_attributes(targets: Tensor, changed: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Tell the kind of every image from its attributes.

    With c the attributes that the text changes and r the others, an image is composed if exactly one of all is wrong,
    and that one is in r or not alone in c; visual if r is right, otherwise; textual if c is right and at least two of
    r are wrong. An image with all attributes right is relevant, any other one unrelated: both have the code 0.

    Args:
        targets: [B, A] integers, the attributes of a right answer.
        changed: [B, A] bool, whether the text changes the attribute.
        images: [N, A] integers, the images' attributes.

    Returns:
        [B, N] int8 codes, and [B, N] int8, how many attributes are wrong.

    Example:
        >>> targets, changed = torch.tensor([[1, 5, 5]]), torch.tensor([[True, False, False]])
        >>> kinds_by_attributes(targets, changed, torch.tensor([[1, 5, 5], [1, 5, 0], [0, 5, 5], [1, 0, 0], [0, 0, 5]]))
        (tensor([[0, 1, 2, 3, 0]], dtype=torch.int8), tensor([[0, 1, 1, 2, 2]], dtype=torch.int8))
    """
    width = targets.shape[1].bit_length()  # of r and c apart: a wrong one of c counts 1, one of r 2^width
    # numpy takes a tenth of torch's time for small integers
    weights = np.where(changed.numpy(), 1, 1 << width).astype(np.int8 if 2 * width < 8 else np.int16)
    wrong = np.zeros((len(targets), len(images)), weights.dtype)
    attributes = zip(targets.numpy().T, weights.T, images.T.contiguous().numpy(), strict=True)
    for target_value, weight, image_value in attributes:
        wrong += (target_value[:, None] != image_value).view(np.int8) * weight[:, None]
    of_text = wrong & ((1 << width) - 1)
    one = 1 << width
    composed = (wrong == one) | ((wrong == 1) & (changed.sum(1) > 1).numpy()[:, None])
    visual = (wrong > 0) & (wrong < one) & ~composed
    textual = (of_text == 0) & (wrong > one)
    codes = composed.view(np.int8) + 2 * visual.view(np.int8) + 3 * textual.view(np.int8)
    return torch.from_numpy(codes), torch.from_numpy((of_text + (wrong >> width)).astype(np.int8))


def mistakes(
    scores: Tensor, kinds: Tensor, right: Ragged, kind_names: Sequence[str], allowed: Tensor | None = None
) -> dict[str, Tensor]:
    r"""Measure per query how high judged negatives rank; equal scores put them first.

    - `wrong_at_10`: their share of the first 10; `KIND/wrong_at_10`: that of one kind, where a kind is known.
    - `any_wrong_at_10`: 1 where one is among the first 10.
    - `wrong_first`: 1 where the best of them ranks above the best right image.
    - `neg_recall_at_10`: PinPoint's NegRecall@10 (Mahadev et al., CVPR 2026, as its code computes it),
      :math:`|W_{10}| / \min(|W|, 10)`, and 0 where a query has none.

    Args:
        scores: [B, N] float of any sign, compared in float32.
        kinds: [B, N] int8 codes.
        right: B rows of ranks, those of the right images (`relevant_ranks`).
        kind_names: kinds that the data know.
        allowed: [B, N] bool, the candidates; default: all.

    Returns:
        Name -> [B] float64; nan where no candidate of the query is judged, but for `neg_recall_at_10`.

    Raises:
        NegbenchError: a score is NaN.
    """
    scores = check_scores(scores).cpu()
    allowed = torch.ones_like(kinds, dtype=torch.bool) if allowed is None else allowed
    wrong = (kinds > 0) & allowed
    none = ~wrong.any(1)
    size = count(allowed).clamp(max=CUT)
    total = count(wrong)
    first = among_first(scores, wrong, CUT, allowed)
    wrong_in_first = count(first).double()
    best = masked_scores(scores, wrong).amax(1, keepdim=True)
    rank = 1 + count(allowed & ~wrong & less(best, scores))
    row = torch.arange(len(right)).repeat_interleave(right.lengths)
    above = rank < torch.full_like(rank, torch.iinfo(torch.int64).max).scatter_reduce(0, row, right.values, "amin")
    values = {f"wrong_at_{CUT}": wrong_in_first / size}
    if {*kind_names} - {"unspecified"}:
        for kind in kind_names:
            of_kind = count(first & (kinds == KINDS.index(kind) + 1)).double()
            values[f"{kind}/wrong_at_{CUT}"] = of_kind / size
    values[f"any_wrong_at_{CUT}"] = wrong_in_first > 0
    values["wrong_first"] = above
    if_judged = {name: value.double().masked_fill(none, torch.nan) for name, value in values.items()}
    return if_judged | {f"neg_recall_at_{CUT}": wrong_in_first / total.clamp(1, CUT)}
