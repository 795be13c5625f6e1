"""The operator page as a browser shows it: nothing yet, a busy lane, a storm of refusals, and very many rows."""

import time

import pytest
from playwright.async_api import expect

from daemon.http.ledger_stream import PAGE_ROWS
from signals.refusals import RefusalCode
from tests.daemon.conftest import AGENT, Start
from tests.daemon.page.conftest import Visit, connected
from tests.daemon.page.stories import HOSTILE, MANY_ROWS, REPLY, Story, crowd

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_empty_lane_says_what_would_fill_it(start: Start, visit: Visit) -> None:
    async with start() as running, visit(running.url) as page:
        await connected(page)
        assert await page.title() == "tiny-chat · ridealong"
        for part, says in {
            "#lane": "No turn has been served yet",
            "#learning": "--learn NAME",
            "#refusals": "Nothing has been refused",
            "#lessons": "No lesson has been planned yet",
            "#lesson": "Choose a lesson",
            "#adapters": "No agent has adapters yet",
            "#ledger": "The ledger is empty",
        }.items():
            await expect(page.locator(part)).to_contain_text(says)
        await expect(page.locator("#slots li")).to_have_count(2)
        await expect(page.locator("#gauges")).to_contain_text("0 of 2")


async def test_what_comes_about_is_shown_as_it_is_committed(start: Start, visit: Visit) -> None:
    async with start() as running, visit(running.url) as page:
        await connected(page)
        turn = await running.ask("who lit the lighthouse?")
        await expect(page.locator("#rows tbody tr")).to_have_count(1)
        await expect(page.locator("#times figure")).to_be_visible()
        await running.signal("correction", turn=turn["turn"], reply=REPLY)
        await expect(page.locator("#lesson-list tbody tr")).to_contain_text("planned")
        await running.ask("who lit the lighthouse?", learn={"wait": 60})
        await expect(page.locator("#lesson-list tbody tr")).to_contain_text("learned")
        await expect(page.locator("#adapter-list")).to_contain_text("1 more than what is served")
        await expect(page.locator("#curves figcaption")).to_contain_text(f"Loss of {AGENT}'s lessons 1 step")
        await expect(page.locator("#gauges")).to_contain_text("× the time alone")
        shown = await page.locator("#rows tbody th").all_inner_texts()
        last = (await running.get("/ledger/summary"))["ledger"]["last_seq"]
        assert shown == [str(seq) for seq in range(last, 0, -1)]


async def test_a_busy_lane_shows_each_agents_curve_and_numbers(start: Start, visit: Visit) -> None:
    async with start() as running:
        story = Story(running.service)
        await running.store.write(story.busy)
        async with visit(running.url) as page:
            await connected(page)
            await expect(page.locator("#curves figure")).to_have_count(2)
            ada = page.locator("#agents tbody tr").filter(has_text="ada")
            told = (await running.get("/ledger/summary", agent="ada"))["totals"]
            assert (await ada.inner_text()).split()[1:4] == ["17", "16", "1"]
            assert told["lessons"]["learned"] == 16
            figure = page.locator("#curves figure").first
            await figure.locator("summary").click()
            await expect(figure.locator("tbody tr")).to_have_count(16)
            first = (await running.get("/ledger/summary", agent="ada"))["agents"][0]["losses"][0]
            await expect(figure.locator("tbody tr").last).to_have_text(
                f"step 1{first['loss_before']:.3f}{first['loss_after']:.3f}"
            )
            await page.select_option("#agent", "bob")
            await expect(page.locator("#curves figure")).to_have_count(1)
            await expect(page.locator("#lesson-list tbody")).not_to_contain_text("ada")
            await expect(page.locator("#rows tbody")).not_to_contain_text("ada")
            await expect(page.locator("#adapter-list h3")).to_have_text(["bob"])


async def test_lessons_and_rows_are_filtered(start: Start, visit: Visit) -> None:
    async with start() as running:
        await running.store.write(Story(running.service).busy)
        async with visit(running.url) as page:
            await connected(page)
            rows = page.locator("#lesson-list tbody tr")
            await expect(rows).to_have_count(12)
            await page.click("#older-lessons")
            await expect(rows).to_have_count(24)
            await page.select_option("#lesson-state", "refused")
            await expect(rows).to_have_count(1)
            await expect(rows).to_contain_text("expired")
            await page.select_option("#lesson-state", "riding")
            await expect(page.locator("#lesson-list")).to_contain_text("No lesson is like that")
            await page.click("#reasons button:has-text('policy_off')")
            await expect(page.locator("#rows tbody tr")).to_have_count(1)
            await expect(page.locator("#rows tbody")).to_contain_text("policy_off: agent 'eve' does not learn")


async def test_a_lesson_is_shown_token_by_token_tinted_by_weight_and_by_loss(start: Start, visit: Visit) -> None:
    async with start() as running:
        await running.store.write(Story(running.service).busy)
        lesson = (await running.get("/lessons", state="learned"))["lessons"][2]
        told = await running.get(f"/lessons/{lesson['id']}")
        async with visit(running.url) as page:
            await connected(page)
            await page.click(f"#lesson-list a[href='#lesson={lesson['id']}']")
            await expect(page.locator("#lesson-title")).to_be_focused()
            tokens = page.locator(".tokens .token")
            assert "".join(await tokens.all_inner_texts()) == REPLY + "<|im_end|>"
            assert await page.locator(".tokens .before").inner_text() == told["before"].replace("\n", "⏎")
            share = "each => +getComputedStyle(each).getPropertyValue('--share')"
            weights = await tokens.evaluate_all(f"all => all.map({share})")
            assert weights == pytest.approx([token["weight"] for token in told["tokens"]])
            await page.check("input[value=before]")
            most = max(token["loss_before"] for token in told["tokens"])
            losses = await tokens.evaluate_all(f"all => all.map({share})")
            assert losses == pytest.approx([token["loss_before"] / most for token in told["tokens"]])
            await page.check("input[value=after]")
            await page.click("#lesson-detail .numbers summary")
            await expect(page.locator("#lesson-detail tbody tr")).to_have_count(len(told["tokens"]))


async def test_an_agents_text_is_text_wherever_it_is_shown(start: Start, visit: Visit) -> None:
    async with start() as running:
        story = Story(running.service)
        lesson = await running.store.write(story.hostile)
        async with visit(running.url, path=f"/#lesson={lesson}") as page:
            await connected(page)
            await expect(page.locator("#lesson-detail .refusal")).to_contain_text(HOSTILE)
            text = "".join(await page.locator(".tokens .token").all_inner_texts())
            assert text == HOSTILE + "<|im_end|>"
            await expect(page.locator("#lesson-list tbody")).to_contain_text(HOSTILE)
            await expect(page.locator("#rows tbody")).to_contain_text(
                f"unserved_prefix: position 3 is '{HOSTILE}'".replace("'<", '"<').replace(">'", '>"')
            )
            await page.locator("#rows details").first.locator("summary").click()
            await expect(page.locator("#rows pre").first).to_contain_text("<img src=x")
            assert await page.locator("main img").count() == 0
            assert "taken" not in await page.title()


async def test_a_lesson_is_forgotten_after_it_is_said_what_there_is_of_it(start: Start, visit: Visit) -> None:
    async with start() as running:
        turn = await running.ask("who lit the lighthouse?")
        lesson = (await running.signal("correction", turn=turn["turn"], reply=REPLY))["lesson"]
        async with visit(running.url, path=f"/#lesson={lesson}") as page:
            await connected(page)
            await page.get_by_role("button", name="Forget its signal…").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text(f"Of {AGENT}: 0 turns, 1 signal and 1 lesson; 0 steps")
            await dialog.get_by_role("button", name="Cancel").click()
            await expect(page.locator(".tokens")).to_contain_text(REPLY)
            await page.get_by_role("button", name="Forget its signal…").click()
            await dialog.get_by_role("button", name="Forget", exact=True).click()
            await expect(page.locator("#lesson-detail")).to_contain_text("its text is erased")
            await expect(page.locator(".tokens")).to_have_count(0)
            told = await running.get(f"/lessons/{lesson}")
            assert (told["hidden"], told["tokens"], told["before"]) == ("forgotten", [], "")


async def test_a_storm_of_refusals_is_told_by_reason_with_its_sentence(start: Start, visit: Visit) -> None:
    async with start() as running:
        await running.store.write(Story(running.service).storm)
        async with visit(running.url) as page:
            await connected(page)
            rows = page.locator("#reasons tbody tr")
            await expect(rows).to_have_count(len(RefusalCode))
            counts = (await running.get("/ledger/summary"))["totals"]["refusals"]
            shown = await rows.locator("td:nth-child(2)").all_inner_texts()
            assert [int(text.replace(",", "")) for text in shown] == sorted(counts.values(), reverse=True)
            for code in (RefusalCode.UNSERVED_PREFIX, RefusalCode.CANCELLED):
                await expect(rows.filter(has_text=code.sentence)).to_contain_text(code)


async def test_a_hundred_thousand_rows_are_shown_a_page_at_a_time(start: Start, visit: Visit) -> None:
    async with start() as running:
        story = Story(running.service)
        await running.store.write(lambda session: crowd(session, story))
        begun = time.monotonic()
        async with visit(running.url) as page:
            await connected(page)
            rows = page.locator("#rows tbody tr")
            await expect(rows).to_have_count(25)
            assert time.monotonic() - begun < 8
            await expect(rows.first).to_contain_text(f"{MANY_ROWS:,}")
            await page.click("#older-rows")
            await expect(rows).to_have_count(125)
            await running.ask()
            await expect(rows.first).to_contain_text(f"{MANY_ROWS + 1:,}")
            await expect(rows).to_have_count(125)
            assert await page.evaluate("document.querySelectorAll('*').length") < 10 * PAGE_ROWS * 2
            assert await page.locator("#agent option").count() > 1
