"""Replace the fixture `hf` by the shop's own Holdfast, so that all other fixtures use it."""

from collections.abc import Iterator

import pytest
import shop

from holdfast import Holdfast


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch, holdfast_dsn: str) -> Iterator[Holdfast]:
    monkeypatch.setenv("HOLDFAST_DSN", holdfast_dsn)
    with shop.hf:  # it connects at its first use, and closes here
        yield shop.hf


@pytest.fixture(autouse=True)
def fresh_shop(monkeypatch: pytest.MonkeyPatch, hf: Holdfast) -> None:
    """Replace the database in every test, so that none can reach another one."""
    monkeypatch.setattr(shop, "payments", {})
    monkeypatch.setattr(shop, "letters", [])
