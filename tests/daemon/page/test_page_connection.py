"""The page while the service goes away and comes back: it says so, keeps what it shows, and goes on by itself."""

import pytest
from playwright.async_api import expect

from tests.daemon.conftest import Start
from tests.daemon.page.conftest import Visit, connected

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSED = "net::ERR_"
"""What a browser says of requests that nobody answers."""


async def test_a_service_that_goes_away_is_told_and_followed_again_once_it_is_back(
    start: Start, visit: Visit
) -> None:
    async with start() as running:
        await running.ask()
        port = running.url.rpartition(":")[2]
        visiting = visit(running.url, allowed=REFUSED)
        page = await visiting.__aenter__()
        await connected(page)
        await expect(page.locator("#rows tbody tr")).to_have_count(1)
    await expect(page.locator("#connection")).to_have_text("Disconnected")
    await expect(page.get_by_role("alert")).to_contain_text("Disconnected: the lane does not answer")
    await expect(page.locator("#rows tbody tr")).to_have_count(1)
    async with start(port=int(port)) as running:
        await connected(page)
        await expect(page.locator("#banner")).to_be_hidden()
        await running.ask()
        await expect(page.locator("#rows tbody tr")).to_have_count(2)
        await visiting.__aexit__(None, None, None)
