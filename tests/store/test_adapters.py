import pytest
from sqlalchemy.orm import Session

from store import ledger
from store.adapters import adapters_of, agents_with_adapters, open_adapter, promote, rollback
from store.database import Database
from store.errors import DoesNotFollow, NothingToPromote, StorageFailed, Unknown
from store.steps import commit_step
from store.tables import AdapterTable
from store.words import AdapterState, LedgerKind
from tests.store.builders import a_step, next_lesson, riding


def learned(session: Session) -> None:
    """Agent ada has learned one step: her shadow is sha1, her stable version 0."""
    riding(session)
    commit_step(session, a_step())


def test_an_agent_begins_with_version_0_and_a_shadow_of_it(database: Database) -> None:
    with database.write() as session:
        adapters = open_adapter(session, "ada", sha="sha0", snapshot="zero")
    assert (adapters.shadow.version, adapters.shadow.sha) == (None, "sha0")
    assert (adapters.stable.version, adapters.stable.sha) == (0, "sha0")
    assert adapters.versions == (adapters.stable,)


def test_opening_an_adapter_again_leaves_it_as_it_stands(database: Database) -> None:
    with database.write() as session:
        learned(session)
        told = ledger.page(session)
        assert open_adapter(session, "ada", sha="other", snapshot="other").shadow.sha == "sha1"
        assert ledger.page(session) == told


def test_a_promotion_serves_the_shadow_as_the_next_version_and_keeps_the_last(database: Database) -> None:
    with database.write() as session:
        learned(session)
        assert promote(session, "ada", sha="sha1") == 1
    with database.read() as session:
        adapters = adapters_of(session, "ada")
        told = ledger.page(session, newest=True, limit=1).rows[0]
    assert (adapters.stable.version, adapters.stable.sha, adapters.stable.step_number) == (1, "sha1", 1)
    assert [(kept.version, kept.state) for kept in adapters.versions] == [
        (0, AdapterState.KEPT),
        (1, AdapterState.STABLE),
    ]
    assert adapters.shadow.sha == "sha1"
    assert (told.kind, told.body["version"], told.body["replaces"]) == (LedgerKind.PROMOTION, 1, 0)


def test_a_shadow_that_is_served_already_is_not_promoted(database: Database) -> None:
    with database.write() as session:
        learned(session)
        promote(session, "ada", sha="sha1")
    with pytest.raises(NothingToPromote, match="version 1"), database.write() as session:
        promote(session, "ada", sha="sha1")


def test_a_shadow_that_moved_meanwhile_is_not_promoted(database: Database) -> None:
    with database.write() as session:
        learned(session)
    with pytest.raises(DoesNotFollow, match="the head is sha1"), database.write() as session:
        promote(session, "ada", sha="sha0")


def test_a_rollback_serves_the_version_and_goes_on_from_it(database: Database) -> None:
    with database.write() as session:
        learned(session)
        promote(session, "ada", sha="sha1")
        adapters = rollback(session, "ada", version=0)
        assert (adapters.stable.version, adapters.shadow.sha, adapters.shadow.step_number) == (0, "sha0", 0)
        told = ledger.page(session, newest=True, limit=1).rows[0]
        assert (told.kind, told.body["shadow_before"], told.body["shadow_after"]) == ("rollback", "sha1", "sha0")


def test_versions_go_on_after_a_rollback_and_none_is_lost(database: Database) -> None:
    with database.write() as session:
        learned(session)
        promote(session, "ada", sha="sha1")
        rollback(session, "ada", version=0)
        next_lesson(session, 2)
        assert commit_step(session, a_step("x2", lesson="l2", before="sha0", after="sha2")).number == 2
        assert promote(session, "ada", sha="sha2") == 2
        adapters = rollback(session, "ada", version=1)
    history = [(kept.version, kept.sha, kept.state.value) for kept in adapters.versions]
    assert history == [(0, "sha0", "kept"), (1, "sha1", "stable"), (2, "sha2", "kept")]


def test_a_ride_begun_before_a_rollback_does_not_follow(database: Database) -> None:
    with database.write() as session:
        learned(session)
        next_lesson(session, 2)
        rollback(session, "ada", version=0)
    with pytest.raises(DoesNotFollow), database.write() as session:
        commit_step(session, a_step("x2", lesson="l2", before="sha1", after="sha2"))


def test_a_rollback_to_the_version_served_drops_what_was_learned_since(database: Database) -> None:
    with database.write() as session:
        learned(session)
        adapters = rollback(session, "ada", version=0)
    assert (adapters.stable.version, adapters.shadow.sha) == (0, "sha0")


def test_unknown_agents_and_versions_are_named(database: Database) -> None:
    with database.write() as session:
        open_adapter(session, "ada", sha="sha0", snapshot="zero")
    with pytest.raises(Unknown, match="version 7 of agent 'ada'"), database.write() as session:
        rollback(session, "ada", version=7)
    with pytest.raises(Unknown, match="agent 'bob'"), database.write() as session:
        promote(session, "bob", sha="sha0")


def test_the_database_itself_refuses_a_second_stable_adapter(database: Database) -> None:
    with database.write() as session:
        learned(session)
        promote(session, "ada", sha="sha1")
    with pytest.raises(StorageFailed, match=r"(?i)unique"), database.write() as session:
        session.query(AdapterTable).filter_by(version=0).one().state = AdapterState.STABLE


def test_agents_do_not_share_adapters(database: Database) -> None:
    with database.write() as session:
        learned(session)
        open_adapter(session, "bob", sha="shaB", snapshot="b")
        promote(session, "ada", sha="sha1")
        assert adapters_of(session, "bob").stable.version == 0
        assert agents_with_adapters(session) == ["ada", "bob"]
