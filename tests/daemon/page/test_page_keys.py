"""The key on the page: asked for, kept in the tab only, what it may not told plainly; all of it by keyboard."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.page.conftest import Visit, connected
from tests.daemon.test_keys import KEYS, OPERATORS, write_keys

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSED = "Failed to load resource"
"""What a browser says of every answer that is a refusal."""


async def learned(running: Running, headers: dict[str, str] | None = None) -> None:
    """One lesson of ada's, learned, so that there is something to promote."""
    who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room"} | (headers or {})
    turn = await running.ask("who lit the lighthouse?", who=who)
    fields = {"id": "c", "agent": AGENT, "context": "room", "kind": "correction"}
    status, _ = await running.post("/signals", fields | {"turn": turn["turn"], "reply": "bees"}, **(headers or {}))
    assert status == 200
    answer = await running.ask("who lit the lighthouse?", who=who, learn={"wait": 60})
    assert answer["learn"]["lessons"][0]["status"] == "learned"


async def press_until(page: Page, name: str, *, key: str = "Tab", most: int = 60) -> None:
    """Press a key until what has the focus is called so."""
    named = "(document.activeElement.ariaLabel ?? document.activeElement.innerText ?? '').trim()"
    for _ in range(most):
        await page.keyboard.press(key)
        if await page.evaluate(named) == name:
            return
    raise AssertionError(f"{name!r} was not reached with {most} times {key}")


async def test_the_keyboard_reaches_everything_in_order_and_promotes_and_rolls_back(
    start: Start, visit: Visit
) -> None:
    async with start() as running:
        await learned(running)
        async with visit(running.url) as page:
            await connected(page)
            await page.keyboard.press("Tab")
            await expect(page.locator(".skip")).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(page.locator("main")).to_be_focused()
            for name in ("As a table", "Agents", f"Promote {AGENT}'s shadow"):
                await press_until(page, name)
            await page.keyboard.press("Enter")
            dialog = page.get_by_role("dialog", name=f"Promote {AGENT}'s shadow?")
            await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
            await page.keyboard.press("Escape")
            await expect(dialog).to_have_count(0)
            promote = page.get_by_role("button", name=f"Promote {AGENT}'s shadow")
            await expect(promote).to_be_focused()
            assert (await running.get("/adapters"))[0]["stable"]["version"] == 0
            await page.keyboard.press("Enter")
            await press_until(page, "Promote", most=2)
            await page.keyboard.press("Enter")
            await expect(page.locator("#announcer")).to_have_text(f"{AGENT} is served with version 1 now.")
            assert (await running.get("/adapters"))[0]["stable"]["version"] == 1
            await expect(promote).to_be_disabled()
            await press_until(page, f"Roll {AGENT} back to version 0")
            await page.keyboard.press("Space")
            await press_until(page, "Roll back", most=2)
            await page.keyboard.press("Enter")
            await expect(page.locator("#announcer")).to_have_text(f"{AGENT} is served with version 0 again.")
            assert (await running.get("/adapters"))[0]["stable"]["version"] == 0


async def test_what_comes_by_itself_never_takes_the_place_of_an_answer_not_yet_read_out(
    start: Start, visit: Visit
) -> None:
    async with start() as running:
        await learned(running)
        async with visit(running.url) as page:
            await connected(page)
            await page.get_by_role("button", name=f"Promote {AGENT}'s shadow").click()
            await page.get_by_role("dialog").get_by_role("button", name="Promote").click()
            await expect(page.locator("#announcer")).to_have_text(f"{AGENT} is served with version 1 now.")
            await running.ask("and who rowed out to it?", who={"X-Ridealong-Agent": AGENT})
            await expect(page.locator("#news")).to_have_text(re.compile(r"\d+ new rows? in the ledger"))
            await expect(page.locator("#announcer")).to_have_text(f"{AGENT} is served with version 1 now.")


async def test_a_lane_with_keys_asks_for_one_and_the_tab_keeps_it(
    start: Start, visit: Visit, tmp_path: Path
) -> None:
    async with start(api_key_file=write_keys(tmp_path / "keys")) as running:
        running.http.headers.clear()
        await learned(running, OPERATORS)
        async with visit(running.url, allowed=REFUSED) as page:
            await expect(page.locator("#connection")).to_have_text("Key needed")
            await expect(page.locator("#banner")).to_contain_text("this lane asks for a key")
            dialog = page.get_by_role("dialog", name="Key")
            await page.keyboard.type("nobodys-0123456789abcdef")
            await page.keyboard.press("Enter")
            await expect(dialog.get_by_role("alert")).to_contain_text("The lane does not know this key")
            await page.locator("#key-input").fill(KEYS["operator"])
            await page.keyboard.press("Enter")
            await connected(page)
            await expect(page.locator("#lesson-list tbody tr")).to_have_count(1)
            await page.reload()
            await connected(page)
            kept = "[{...sessionStorage}, {...localStorage}, document.cookie, location.href]"
            session, *others = await page.evaluate(kept)
            assert session == {"ridealong-key": KEYS["operator"]}
            assert KEYS["operator"] not in str(others)
            await running.ask(who=OPERATORS | {"X-Ridealong-Agent": "bob", "X-Ridealong-Context": "room"})
            await expect(page.locator("#rows tbody tr").first).to_contain_text("bob")
            await page.click("#key")
            await page.click("dialog button:has-text('Forget the key')")
            await expect(page.locator("#connection")).to_have_text("Key needed")
            assert await page.evaluate("sessionStorage.length") == 0


async def test_an_agents_key_sees_hers_and_is_told_what_is_the_operators(
    start: Start, visit: Visit, tmp_path: Path
) -> None:
    async with start(api_key_file=write_keys(tmp_path / "keys")) as running:
        running.http.headers.clear()
        await learned(running, OPERATORS)
        await running.ask(who=OPERATORS | {"X-Ridealong-Agent": "bob", "X-Ridealong-Context": "room"})
        async with visit(running.url, allowed=REFUSED) as page:
            await page.locator("#key-input").fill(KEYS[AGENT])
            await page.keyboard.press("Enter")
            await connected(page)
            await expect(page.locator("#gauges")).to_contain_text("This is an agent's key")
            await expect(page.locator("#agents tbody th")).to_have_text([AGENT])
            await expect(page.locator("#rows")).not_to_contain_text("bob")
            await page.get_by_role("button", name=f"Promote {AGENT}'s shadow").click()
            await page.get_by_role("dialog").get_by_role("button", name="Promote").click()
            alert = page.get_by_role("dialog").get_by_role("alert")
            await expect(alert).to_contain_text("Not with this key: this key is 'ada''s")
