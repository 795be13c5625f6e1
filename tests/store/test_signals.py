import pytest

from store import ledger
from store.chain import verify
from store.database import Database
from store.errors import Unknown, WrongState
from store.records import Put, RefusedSignal
from store.signals import (
    apply_signal,
    latest_relevance,
    put_signals,
    received_signals,
    refuse_signal,
    signal_of,
    signals_of_turn,
    verdict_of,
)
from store.turns import record_turn
from store.words import LedgerKind, SignalState
from tests.store.builders import SECRET, a_signal, a_turn

RECEIVED = SignalState.RECEIVED


def test_a_signal_is_read_as_it_was_put(database: Database) -> None:
    with database.write() as session:
        (put,) = put_signals(session, [a_signal(turn="a turn nobody served")])
    with database.read() as session:
        kept = signal_of(session, "s1")
    assert put == Put("new", kept)
    assert kept.signal == a_signal(turn="a turn nobody served")
    assert (kept.state, kept.lesson, kept.step) == (RECEIVED, None, None)


def test_the_same_signal_twice_is_one_row_and_one_ledger_row(database: Database) -> None:
    for status in ("new", "same"):
        with database.write() as session:
            (put,) = put_signals(session, [a_signal()])
            assert put.status == status
    with database.read() as session:
        assert len(received_signals(session)) == 1
        assert len(ledger.page(session).rows) == 1


def test_another_body_under_the_same_id_is_a_conflict_and_changes_nothing(database: Database) -> None:
    with database.write() as session:
        put_signals(session, [a_signal()])
    with database.write() as session:
        (put,) = put_signals(session, [a_signal(fingerprint="f2")])
    with database.read() as session:
        assert put == Put("conflict", signal_of(session, "s1"))
    assert put.kept.signal.fingerprint == "f1"


def test_one_list_may_hold_a_retry_and_a_conflict(database: Database) -> None:
    with database.write() as session:
        puts = put_signals(session, [a_signal(), a_signal(), a_signal(fingerprint="f2"), a_signal("s2")])
    assert [put.status for put in puts] == ["new", "same", "conflict", "new"]


def test_a_retry_is_told_where_the_signal_stands_now(database: Database) -> None:
    with database.write() as session:
        put_signals(session, [a_signal()])
        refuse_signal(session, "s1", code="policy_off", message="no policy")
    with database.write() as session:
        (put,) = put_signals(session, [a_signal()])
        assert (put.id, put.status, put.state) == ("s1", "same", SignalState.REFUSED)


def test_no_signals_are_no_rows(database: Database) -> None:
    with database.write() as session:
        assert put_signals(session, []) == []


def test_a_refusal_is_kept_with_its_reason_and_position(database: Database) -> None:
    with database.write() as session:
        put_signals(session, [a_signal()])
        refuse_signal(session, "s1", code="span_not_found", message="no such message", position=7)
    with database.read() as session:
        kept = signal_of(session, "s1")
        (row,) = ledger.page(session, ledger.Filter(code="span_not_found")).rows
    assert (kept.code, kept.message, kept.position) == ("span_not_found", "no such message", 7)
    assert (row.kind, row.subject) == (LedgerKind.REFUSAL, "s1")


def test_a_refused_signal_cannot_be_refused_or_applied_again(database: Database) -> None:
    with database.write() as session:
        put_signals(session, [a_signal()])
        refuse_signal(session, "s1", code="policy_off", message="no policy")
    with pytest.raises(WrongState, match="refused"), database.write() as session:
        refuse_signal(session, "s1", code="expired", message="late")
    with pytest.raises(WrongState, match="received"), database.write() as session:
        apply_signal(session, "s1")


def test_an_unknown_signal_says_so(database: Database) -> None:
    with pytest.raises(Unknown, match="no signal 'nobody'"), database.write() as session:
        apply_signal(session, "nobody")
    with pytest.raises(Unknown, match="no signal 'nobody'"), database.read() as session:
        signal_of(session, "nobody")


def test_the_latest_relevance_is_the_last_to_arrive_and_not_refused(database: Database) -> None:
    with database.write() as session:
        put_signals(session, [a_signal(name, kind="relevance", engram="e1") for name in ("z", "b", "c")])
        put_signals(session, [a_signal("other's", kind="relevance", engram="e1", agent="bob")])
        apply_signal(session, "z")
        refuse_signal(session, "c", code="expired", message="late")
    with database.read() as session:
        latest = latest_relevance(session, agent="ada", engram="e1")
        assert latest is not None
        assert latest.signal.id == "b"
        assert latest_relevance(session, agent="ada", engram="e2") is None


def test_the_verdict_of_a_turn_is_its_last(database: Database) -> None:
    with database.write() as session:
        put_signals(session, [a_signal("v1", kind="verdict"), a_signal("v2", kind="verdict"), a_signal("e")])
    with database.read() as session:
        verdict = verdict_of(session, agent="ada", turn="t1")
        assert verdict is not None
        assert verdict.signal.id == "v2"
        assert verdict_of(session, agent="ada", turn="t2") is None


def test_a_restart_goes_on_with_what_was_received_in_order_of_arrival(database: Database) -> None:
    with database.write() as session:
        put_signals(session, [a_signal(name) for name in ("z", "a", "m", "b")])
        apply_signal(session, "a")
        refuse_signal(session, "m", code="policy_off", message="no policy")
    with database.read() as session:
        assert [kept.signal.id for kept in received_signals(session)] == ["z", "b"]
        assert [kept.signal.id for kept in signals_of_turn(session, "t1")] == ["z", "a", "m", "b"]


def test_a_private_signal_keeps_its_fingerprint_and_no_body(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn(private=True))
        put_signals(session, [a_signal("said private", context="hall", private=True)])
        put_signals(session, [a_signal("in a private room")])
        put_signals(session, [a_signal("open", context="hall")])
    with database.read() as session:
        for name in ("said private", "in a private room"):
            kept = signal_of(session, name).signal
            assert (kept.private, kept.body, kept.fingerprint) == (True, None, "f1")
        assert signal_of(session, "open").signal.body is not None
        assert all(SECRET not in str(row.body) for row in ledger.page(session).rows)


def test_a_signal_that_is_applied_as_it_is_put_is_told_of_once_and_one_that_is_refused_has_its_refusal(
    database: Database,
) -> None:
    given = [a_signal("a", kind="verdict"), a_signal("e"), a_signal("r", kind="verdict")]
    ends = {"a": None, "r": RefusedSignal("r", "policy_off", "no policy", 3)}
    with database.write() as session:
        puts = put_signals(session, given, ends=ends)
    with database.read() as session:
        assert [put.kept for put in puts] == [signal_of(session, name) for name in "aer"]
        rows = ledger.page(session).rows
        assert verify(session).why is None
    assert [put.state for put in puts] == [SignalState.APPLIED, RECEIVED, SignalState.REFUSED]
    told = [(row.kind, row.subject, row.body["state"] if row.code is None else row.code) for row in rows]
    signal, refusal = LedgerKind.SIGNAL, LedgerKind.REFUSAL
    arrived = [(signal, "a", "applied"), (signal, "e", "received"), (signal, "r", "received")]
    assert told == [*arrived, (refusal, "r", "policy_off")]


def test_a_signal_that_was_there_does_not_end_again(database: Database) -> None:
    with database.write() as session:
        put_signals(session, [a_signal("v", kind="verdict")], ends={"v": None})
    with database.write() as session:
        (put,) = put_signals(session, [a_signal("v", kind="verdict")], ends={"v": None})
    with database.read() as session:
        assert (put.status, put.kept) == ("same", signal_of(session, "v"))
        assert len(ledger.page(session).rows) == 1


def test_what_has_no_words_is_kept_whole_in_a_private_context(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn(private=True))
        put_signals(session, [a_signal("v", kind="verdict"), a_signal("e", private=True)])
    with database.read() as session:
        assert [kept.signal.body is None for kept in signals_of_turn(session, "t1")] == [False, True]
