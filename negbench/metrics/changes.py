"""What a modification text changes, told by its words: the kinds of DQE-CIR fig. 5, shown there in pictures only."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from negbench.metrics.query_ranks import QueryRanks

LEAST = 30  # queries of a kind below which its recall is not given
_WORDS = {  # ours, English
    "colour": """colou?r(s|ed|ful)? shade hue dark(er)? light(er|-coloured)? bright(er)? pale(r)? pastel neon
        multicolou?red black white gr[ea]y(ish)? red(dish)? blue(ish)? green(ish)? yellow(ish)? orange purple
        pink(ish)? brown(ish)? beige navy teal tan gold(en)? silver violet turquoise maroon burgundy cream khaki""",
    "quantity": """two three four five six seven eight nine ten \\d+ single double both several many multiple pair
        fewer another additional extra group""",
    "appearance": """pattern(s|ed)? print(s|ed)? stripe[sd]? striped floral flowers? plaid solid plain polka dots?
        graphic logo text writing letters? image picture design texture[sd]? material fabric lace leather denim silk
        cotton sheer shiny shinier glossy matte sequins? furry fluffy spotted decorated embellished background""",
    "form": """long(er)? short(er)? sleeves? sleeved sleeveless straps? strapless neck(line)? v-neck collar(ed)? hem
        length waist fit(s|ted|ting)? tight(er)? loose(r)? flowy flowing shape[ds]? round(er)? square oval wide(r)?
        narrow(er)? big(ger)? large(r)? small(er)? tall(er)? thin(ner)? thick(er)? flat curved pointed open
        closed""",
}
_KINDS = {kind: re.compile(rf"\b({'|'.join(words.split())})\b", re.IGNORECASE) for kind, words in _WORDS.items()}


def changes(texts: Iterable[str]) -> dict[str, Tensor]:
    """Return [Q] bool by kind: colour, quantity, appearance, form; a text may name several, or none.

    Example:
        >>> {kind: told.tolist() for kind, told in changes(["is red with two buttons", "longer"]).items()}
        {'colour': [True, False], 'quantity': [True, False], 'appearance': [False, False], 'form': [False, True]}
    """
    every = list(texts)
    return {kind: torch.tensor([bool(words.search(text)) for text in every]) for kind, words in _KINDS.items()}


def recall_by_change(ranks: QueryRanks, texts: Iterable[str], k: int = 10) -> dict[str, float]:
    """Return `colour/recall_at_10` and the like: recall of each kind that at least `LEAST` queries are of.

    Args:
        ranks: of Q queries.
        texts: Q modification texts, in their order.
        k: first images of the ranking.
    """
    hit = (ranks.target_rank >= 1) & (ranks.target_rank <= k)
    told = {kind: of.to(hit.device) for kind, of in changes(texts).items()}
    return {f"{kind}/recall_at_{k}": float(hit[of].double().mean()) for kind, of in told.items() if of.sum() >= LEAST}
