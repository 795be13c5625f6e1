"""A browser for the operator page's tests: Debian's chromium, one a session. Without it they are skipped."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

CHROMIUM = shutil.which("chromium")
WIDE: ViewportSize = {"width": 1440, "height": 900}

expect.set_options(timeout=10_000)


async def connected(page: Page) -> None:
    """Wait until the page follows the lane."""
    await expect(page.locator("#connection")).to_have_text("Connected")


Visit = Callable[..., AbstractAsyncContextManager[Page]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The browser."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed, and the operator page is tested with it")
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        await opened.close()


@pytest.fixture
def visit(browser: Browser) -> Visit:
    """Open the page of a service in a session of its own; whatever it complains of fails the test."""

    @asynccontextmanager
    async def visiting(
        url: str,
        *,
        path: str = "/",
        viewport: ViewportSize = WIDE,
        dark: bool = False,
        still: bool = True,
        allowed: str | None = None,
    ) -> AsyncIterator[Page]:
        context = await browser.new_context(
            viewport=viewport,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference",
        )
        context.set_default_timeout(10_000)
        page = await context.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        await page.goto(url + path)
        yield page
        await context.close()
        assert not [text for text in wrong if allowed is None or allowed not in text], wrong

    return visiting
