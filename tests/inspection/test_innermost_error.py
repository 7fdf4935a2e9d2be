"""A failure is told with the error that was raised, at the place where it was raised, not with what wrapped it."""

from __future__ import annotations

import pytest

from durable.core.errors import ErrorInfo, JoinError, RaceError
from durable.inspection.forks import innermost_error

LAST = 'step "watermark" failed on its last attempt: PixelError: pixel 57 is broken'
EXHAUSTED = ErrorInfo("StepExhaustedError", LAST)
OTHER = ErrorInfo("ValueError", "no such size")
PIXEL = "PixelError: pixel 57 is broken"


def text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("location", "error", "place", "innermost"),
    [
        ("charge", "ValueError: no", "charge", "ValueError: no"),
        ("charge", f"StepExhaustedError: {LAST}", "charge", PIXEL),
        ("", "ValueError: no", "", "ValueError: no"),
        ("images", text_of(JoinError({"image 057": EXHAUSTED})), "images/image 057", PIXEL),
        (
            "images/image 057/watermark",
            text_of(JoinError({"image 057": EXHAUSTED})),
            "images/image 057/watermark",
            PIXEL,
        ),
        (
            "images/b/size",
            text_of(JoinError({"a": EXHAUSTED, "b": OTHER})),
            "images/b/size",
            "ValueError: no such size",
        ),
        ("images/a/watermark", text_of(RaceError({"a": EXHAUSTED, "b": OTHER})), "images/a/watermark", PIXEL),
        ("images", text_of(JoinError({"a/b": OTHER})), "images/a%2Fb", "ValueError: no such size"),
        (
            "all/one/sides/front/watermark",
            text_of(JoinError({"one": ErrorInfo("JoinError", str(JoinError({"front": EXHAUSTED})))})),
            "all/one/sides/front/watermark",
            PIXEL,
        ),
        ("images", "JoinError: (hidden)", "images", "JoinError: (hidden)"),
        ("images", "JoinError: join failed: (hidden)", "images", "JoinError: join failed: (hidden)"),
    ],
)
def test_the_innermost_error_is_told(location: str, error: str, place: str, innermost: str) -> None:
    assert innermost_error(location, error) == (place, innermost)


@pytest.mark.parametrize("text", ['JoinError: join failed: branch "', 'JoinError: join failed: branch "a": ' * 2_000])
def test_texts_that_no_error_has_made_end_too(text: str) -> None:
    _, error = innermost_error("images", text)
    assert len(error) <= len(text)
