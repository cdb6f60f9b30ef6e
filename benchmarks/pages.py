"""Where the figures stand in the documentation: between two comments that name what they are."""

from pathlib import Path

__all__ = ["ROOT", "replace", "standing"]

ROOT = Path(__file__).parents[1]


def replace(page: Path, mark: str, content: str) -> None:
    """Put content in place of what stands between a page's marks."""
    before, _, after = _split(page, mark)
    page.write_text(f"{before}\n{content}\n{after}", encoding="utf-8")


def standing(page: Path, mark: str) -> str:
    """What stands between a page's marks."""
    return _split(page, mark)[1].strip("\n")


def _split(page: Path, mark: str) -> tuple[str, str, str]:
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, found_begin, rest = text.partition(begin)
    content, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise RuntimeError(f"{page.name} has no place for {mark}")
    return before + begin, content, end + after
