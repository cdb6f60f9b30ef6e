"""Calls of the reference library whose failures become domain errors that name the item."""

from collections.abc import Callable, Sequence

from tokenizers import Encoding

from tokend_server.errors import InternalFault, InvalidOption, RequestError

__all__ = ["call_library"]

# Each model says in its own words, in a plain Exception, that it has no unk token for a text.
_NO_UNK_MESSAGES = ("from the vocabulary", "not found in the vocabulary", "`unk_id` is missing")


def call_library(
    run: Callable[[Sequence[object]], list[Encoding]], items: Sequence[object], indexes: Sequence[int]
) -> list[Encoding]:
    """Runs a batch call of the library.

    After a failure the items are run one by one, to find the first one that fails.

    Args:
        run: The batch call.
        items: What it is given.
        indexes: The place of each item in the request.

    Returns:
        One encoding for each item.

    Raises:
        InvalidOption: The vocabulary cannot express a text, and has no unk token.
        InternalFault: The library panicked (its PanicException is a BaseException) or failed in another way.
    """
    try:
        return run(items)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as failure:
        raise _domain_error(run, items, indexes) from failure


def _domain_error(
    run: Callable[[Sequence[object]], list[Encoding]], items: Sequence[object], indexes: Sequence[int]
) -> RequestError:
    for item, index in zip(items, indexes, strict=True):
        try:
            run([item])
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except Exception as failure:  # noqa: BLE001 (the library raises nothing narrower)
            if any(message in str(failure) for message in _NO_UNK_MESSAGES):
                return InvalidOption(
                    "text",
                    index,
                    f"the served vocabulary has no unk token and cannot express the text of item {index}",
                )
            return InternalFault(index=index)
        except BaseException:  # noqa: BLE001 (a panic)
            return InternalFault(index=index)
    return InternalFault()
