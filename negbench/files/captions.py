"""Two captions of one query, written as one text."""


def joined(*captions: str) -> str:
    """'First and second', as CLIP4Cir and QuRe evaluate (and QuRe trains).

    Example:
        >>> joined("is Darker.", " has no sleeves")
        'Is darker and has no sleeves'
    """
    first, *others = (caption.strip(".?, ") for caption in captions)
    return " and ".join([first.capitalize(), *others])


def listed(first: str, second: str) -> str:
    """'first, second.', as HyCoLe trains and evaluates (Wang et al., Findings of EMNLP 2022, sec. 4.2.1).

    Example:
        >>> listed("is Darker.", " has no sleeves")
        'is Darker, has no sleeves.'
    """
    return f"{first.strip('.?, ')}, {second.strip('.?, ')}."
