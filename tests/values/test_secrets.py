"""A secret is not seen by accident: not printed, not in a shown payload, not in an exception's text."""

import json
import logging
import pickle
from dataclasses import dataclass
from datetime import date
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from rich.pretty import pretty_repr

from holdfast.values.secret import MASK, Secret, mask, mask_dsn, scrub, secrets_in

CARD = "4111-1111-1111-1111"
secret_texts = st.text(min_size=4, max_size=40).filter(lambda text: text.isprintable() and text.strip("* "))


def test_a_secret_gives_its_value_only_when_asked() -> None:
    assert Secret(CARD).reveal() == CARD


def test_a_secret_shows_a_mask_however_it_is_printed(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(CARD)
    with caplog.at_level(logging.INFO):
        logging.getLogger("x").info("card %s %r", secret, secret)
    shown = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret:>10}",
        f"{[secret]}",
        pretty_repr(secret),
        caplog.text,
    ]
    assert all("4111" not in text for text in shown)
    assert f"{secret:>8}" == "   *****"


def test_secrets_compare_by_value_and_have_no_hash() -> None:
    assert Secret(CARD) == Secret(CARD)
    assert Secret(CARD) != Secret("other")
    with pytest.raises(TypeError, match="no hash"):
        hash(Secret(CARD))


def test_a_secret_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Secret(CARD)._value = "other"  # type: ignore[misc]


def test_a_secret_survives_the_way_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Secret(CARD))) == Secret(CARD)


def test_a_secret_travels_in_a_form_that_can_be_recognised() -> None:
    assert msgspec.json.encode(Secret(CARD)) == b'{"$secret":"4111-1111-1111-1111"}'
    day = msgspec.json.decode(b'{"$secret":"2024-02-29"}', type=Secret[date])
    assert day.reveal() == date(2024, 2, 29)


def test_mask_hides_every_secret_at_any_depth_and_nothing_else() -> None:
    payload = {
        "user": 7,
        "cards": [{"$secret": CARD}, {"n": {"$secret": {"deep": 1}}}],
        "t": (Secret("x"), None),
    }
    assert mask(payload) == {"user": 7, "cards": [MASK, {"n": MASK}], "t": [MASK, None]}
    assert mask("plain") == "plain"


def test_mask_also_hides_an_object_that_only_contains_the_mark() -> None:
    assert mask({"$secret": CARD, "note": CARD}) == MASK


@dataclass
class Account:
    owner: str
    token: Secret[str]


def test_secrets_are_found_in_payloads_and_in_decoded_arguments() -> None:
    number = UUID("018f4e6a-0000-7000-8000-000000000001")
    assert secrets_in({"a": {"$secret": {"x": ["one", 12345, None, True, ""]}}, "b": "open"}) == [
        "x",
        "one",
        "12345",
    ]
    arguments = {"account": Account("ann", Secret("tok-1")), "n": Secret(number), "ctx": object()}
    assert secrets_in(arguments) == ["tok-1", str(number)]


def test_secret_bytes_are_found_in_each_form_they_may_be_shown_in() -> None:
    found = secrets_in({"key": Secret(b"\xffkey-\x01")})
    text = "bad key b'\\xffkey-\\x01', sent as /2tleS0B"
    assert scrub(text, found) == "bad key b'*****', sent as *****"


@settings(deadline=None)
@given(secret_texts)
def test_a_secret_never_remains_in_a_scrubbed_text_in_any_of_its_forms(secret: str) -> None:
    text = f"plain <{secret}> repr <{secret!r}> json <{json.dumps(secret)}> bytes <{secret.encode()!r}>"
    cleaned = scrub(text, [secret])
    for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], repr(secret.encode())[2:-1]):
        assert f"<{form}>" not in cleaned
        assert f'"{form}"' not in cleaned


def test_a_secret_in_a_url_is_scrubbed_in_its_quoted_form() -> None:
    assert (
        scrub("GET https://api/?key=p%40ss%20word failed", ["p@ss word"])
        == "GET https://api/?key=***** failed"
    )


def test_of_two_secrets_the_longer_is_scrubbed_first() -> None:
    assert scrub("token-long", ["token", "token-long"]) == MASK


def test_a_short_secret_is_only_scrubbed_where_it_stands_alone() -> None:
    assert scrub("code 123 of order 91234", ["123"]) == "code ***** of order 91234"


def test_an_empty_secret_scrubs_nothing() -> None:
    assert scrub("text", [""]) == "text"
    assert scrub("text", []) == "text"


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://me:pw@db:5432/app", "postgresql://me:*****@db:5432/app"),
        ("postgresql://me:p@w/x@db/app", "postgresql://me:*****@db/app"),
        ("postgresql://db/app?user=me&password=pw&sslmode=require", "postgresql://db/app?user=me&password=*****&sslmode=require"),
        ("postgresql://me@db/app", "postgresql://me@db/app"),
        ("host=db password=pw user=me", "host=db password=***** user=me"),
        (r"host=db password='it\'s pw' user=me", "host=db password=***** user=me"),
        (r"password = a\ b&c host=db", "password = ***** host=db"),
        ("host=db password='open", "host=db password=*****"),
        ("dbname=app", "dbname=app"),
    ],
)  # fmt: skip
def test_a_connection_string_is_shown_without_its_passwords(dsn: str, shown: str) -> None:
    assert mask_dsn(dsn) == shown


def test_a_key_in_a_secret_is_a_secret_and_one_outside_is_not() -> None:
    payload = {"outer": {"$secret": {"ada@example.org": {"grace": 1}}}}
    assert secrets_in(payload) == ["ada@example.org", "grace", "1"]
    assert secrets_in({"given": Secret({"ada": [{"grace": True}]})}) == ["ada", "grace"]
    assert scrub("KeyError: 'ada@example.org'", secrets_in(payload)) == "KeyError: '*****'"
