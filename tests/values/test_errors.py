"""Errors carry fields, say what to do next, and come out of a SQLSTATE in one place."""

import pickle
from uuid import UUID

import pytest

from holdfast.values import errors
from holdfast.values.errors import (
    BadInput,
    BadName,
    BadValue,
    DatabaseUnavailable,
    HoldfastError,
    LeaseLost,
    NotHeld,
    SchemaMissing,
    UnknownOption,
    from_sqlstate,
    suggest,
)

ID = UUID("018f4e6a-0000-7000-8000-000000000001")


def every_class(root: type[HoldfastError] = HoldfastError) -> list[type[HoldfastError]]:
    ours = [branch for branch in root.__subclasses__() if branch.__module__ == errors.__name__]
    return [root] + [leaf for branch in ours for leaf in every_class(branch)]


def test_an_error_reads_as_its_message_and_then_its_hint() -> None:
    error = BadValue(
        "priority 70000: must be at most 32767", hint="Use 0 to 200.", field="priority", value=70000
    )
    assert str(error) == "priority 70000: must be at most 32767. Use 0 to 200."
    assert (error.field, error.value, error.hint) == ("priority", 70000, "Use 0 to 200.")


def test_an_error_without_a_message_speaks_through_its_docstring() -> None:
    assert str(SchemaMissing()).startswith(
        "Holdfast is not installed in this database. Run `holdfast migrate`"
    )


def test_a_field_that_is_not_known_is_none() -> None:
    assert LeaseLost("lost").current is None


def test_a_field_that_the_class_does_not_have_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="no field 'lease'"):
        LeaseLost("lost", lease=ID)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("HF001", "LeaseLost"),
        ("HF002", "JobNotFound"),
        ("HF003", "NotHeld"),
        ("HF004", "PayloadTooLarge"),
        ("HF005", "BadName"),
        ("HF006", "WorkerLost"),
        ("HF007", "IdConflict"),
        ("HF008", "BadValue"),
        ("HF009", "WrongIsolation"),
        ("HF010", "IllegalTransition"),
        ("HF019", "TooManyLanes"),
    ],
)
def test_each_of_our_codes_has_its_class(code: str, name: str) -> None:
    error = from_sqlstate(code, "said", {}, None)
    assert type(error) is getattr(errors, name)
    assert error.sqlstate == code
    assert all(getattr(error, field) is None for field in error.fields)


def test_detail_becomes_fields_with_ids_as_uuids() -> None:
    error = from_sqlstate(
        "HF001", "the lease is lost", {"id": str(ID), "shown": str(ID), "current": None}, "Stop."
    )
    assert isinstance(error, LeaseLost)
    assert (error.id, error.shown, error.current) == (ID, ID, None)
    assert str(error) == "the lease is lost. Stop."


def test_what_a_newer_schema_adds_is_ignored_not_fatal() -> None:
    error = from_sqlstate("HF003", "not held", {"id": "no uuid", "mood": "bad", "args": []}, "")
    assert isinstance(error, NotHeld)
    assert error.id == "no uuid"
    assert not hasattr(error, "mood")


def test_an_unknown_code_of_ours_is_a_plain_error_and_a_foreign_one_is_not_ours() -> None:
    unknown = from_sqlstate("HF099", "new", {"id": 1}, None)
    assert type(unknown) is HoldfastError
    assert unknown.sqlstate == "HF099"
    assert from_sqlstate("40001", "could not serialize", {}, None) is None


def test_every_class_is_drawn_in_the_tree_and_explains_itself() -> None:
    for kind in every_class():
        assert kind.__name__ in errors.__doc__
        assert kind.__doc__
        assert kind.sqlstate is None or kind.sqlstate in errors.__doc__


def test_every_error_survives_the_way_to_another_process() -> None:
    for kind in every_class():
        error = kind("message", hint="hint")
        for field in kind.fields:
            setattr(error, field, f"a {field}")
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is kind
        assert str(copied) == str(error)
        assert all(getattr(copied, field) == f"a {field}" for field in kind.fields)


def test_a_branch_catches_its_leaves() -> None:
    with pytest.raises(BadInput):
        raise BadName("bad", field="queue", value="Ü")


def test_an_unavailable_database_never_shows_its_password() -> None:
    error = DatabaseUnavailable("no answer", dsn="postgresql://me:hunter2@db/app")
    assert error.dsn == "postgresql://me:*****@db/app"
    assert "hunter2" not in repr(vars(error))


def test_an_unknown_option_suggests_the_nearest_one() -> None:
    error = UnknownOption.among("prioritty", ["queue", "priority"], owner="task mail.send")
    assert str(error) == "task mail.send has no option 'prioritty'. Did you mean 'priority'?"
    assert (error.option, error.suggestion) == ("prioritty", "priority")


def test_where_nothing_is_near_all_are_listed() -> None:
    assert suggest("zzz", ["queue", "delay"]) == "Known: delay, queue."
    assert suggest("zzz", []) == "None are known."
