"""Long texts cut so that they still differ: values of an axis that are sections begin alike."""

from __future__ import annotations

from collections.abc import Sequence


def told_apart(texts: Sequence[str], limit: int) -> list[str]:
    """Each in at most `limit` characters: by its beginning, else from where they differ on, else
    by its number."""
    distinct = len(set(texts))
    heads = [cut(text, limit) for text in texts]
    if len(set(heads)) == distinct:
        return heads
    first, last = min(texts), max(texts)
    at = next(i for i, character in enumerate(last) if first[i : i + 1] != character)
    while at and first[at - 1].isalnum():
        at -= 1  # a number or a name is not cut in two
    tails = [cut(f"…{text[at:]}", limit) for text in texts]
    if len(set(tails)) == distinct:
        return tails
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts), 1)}
    return [cut(f"{numbers[text]}: {text}", limit) for text in texts]


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
