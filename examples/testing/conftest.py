"""The shop's own Holdfast takes the place of the fixture `hf`, so that all other fixtures use it."""

from collections.abc import Iterator

import pytest
import shop

from holdfast import Holdfast


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch, holdfast_dsn: str) -> Iterator[Holdfast]:
    monkeypatch.setenv("HOLDFAST_DSN", holdfast_dsn)
    with shop.hf:  # it connects when it is first used, and lets go here
        yield shop.hf


@pytest.fixture(autouse=True)
def fresh_shop(monkeypatch: pytest.MonkeyPatch, hf: Holdfast) -> None:
    """In every test, so that none of them can reach another database."""
    monkeypatch.setattr(shop, "payments", {})
    monkeypatch.setattr(shop, "letters", [])
