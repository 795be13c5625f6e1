"""The page for everyone: names, headings, contrast in both themes, narrow screens, nothing by colour alone."""

from itertools import pairwise

import pytest
from playwright.async_api import Page, ViewportSize, expect

from tests.daemon.conftest import Running, Start
from tests.daemon.page.conftest import Visit, connected
from tests.daemon.page.stories import Story

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEAST_CONTRAST = 4.5
"""WCAG 2.2, 1.4.3, for text of any size."""

LEAST_MARK_CONTRAST = 3.0
"""WCAG 2.2, 1.4.11, for what is no text: the lines of charts, and controls' borders."""

NAMELESS = """() => [...document.querySelectorAll(
    'a, button, select, input, summary, figure, table, section, dialog, [role=region]')]
  .filter((each) => each.checkVisibility())
  .filter((each) => !(each.ariaLabel || document.getElementById(each.getAttribute('aria-labelledby'))?.textContent
    || each.caption?.textContent || each.labels?.[0]?.textContent || each.textContent).trim())
  .map((each) => each.outerHTML.slice(0, 200))"""

TWICE = """() => { const ids = [...document.querySelectorAll('[id]')].map((each) => each.id);
  return ids.filter((id, at) => ids.indexOf(id) !== at); }"""

HEADINGS = "() => [...document.querySelectorAll('h1, h2, h3, h4')].map((each) => +each.tagName[1])"

COLOURS = """
const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
function rgba(color) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}
const over = (top, under) => [0, 1, 2].map((at) => top[at] * top[3] + under[at] * (1 - top[3])).concat(1);
function ground(node) {
  const own = rgba(getComputedStyle(node).backgroundColor);
  if (own[3] === 1) return own;
  return over(own, node.parentElement === null ? [255, 255, 255, 1] : ground(node.parentElement));
}
function light([r, g, b]) {
  const linear = (value) => (value <= 10.3 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}
function contrast(one, other) {
  const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
}
"""

POOR_TEXT = (
    "(least) => {"
    + COLOURS
    + """
  const words = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim() !== '');
  return [...document.querySelectorAll('body *')]
    .filter((node) => words(node) && node.checkVisibility() && !node.closest('script, noscript, option'))
    .map((node) => [contrast(over(rgba(getComputedStyle(node).color), ground(node)), ground(node)), node])
    .filter(([found]) => found < least)
    .map(([found, node]) => `${found.toFixed(2)} ${node.outerHTML.slice(0, 120)}`);
}"""
)

POOR_MARKS = (
    "(least) => {"
    + COLOURS
    + """
  const panel = ground(document.querySelector('main > section'));
  const style = getComputedStyle(document.documentElement);
  const probe = document.createElement('i');
  document.body.append(probe);
  const poor = ['--accent', '--before', '--plain', '--focus'].filter((name) => {
    probe.style.color = `var(${name})`;
    return contrast(rgba(getComputedStyle(probe).color), panel) < least;
  });
  probe.remove();
  return poor;
}"""
)

TOO_WIDE = """() => [...document.querySelectorAll('body *')]
  .filter((each) => !each.closest('.scroll, nav, .sr') && each.checkVisibility())
  .filter((each) => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map((each) => each.outerHTML.slice(0, 120))"""


async def lived(running: Running) -> str:
    """A lane that learned and refused; the id of a lesson that was refused."""
    story = Story(running.service)
    await running.store.write(story.busy)
    return await running.store.write(story.hostile)


async def opened(page: Page) -> None:
    """Have everything on the page open that can be."""
    await connected(page)
    await expect(page.locator("#rows tbody tr").first).to_be_visible()
    await page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    await expect(page.locator("details[open] table, details[open] pre").first).to_be_visible()


async def test_everything_has_a_name_and_headings_go_down_a_step_at_a_time(start: Start, visit: Visit) -> None:
    async with start() as running:
        lesson = await lived(running)
        async with visit(running.url, path=f"/#lesson={lesson}") as page:
            await opened(page)
            assert await page.evaluate(NAMELESS) == []
            assert await page.evaluate(TWICE) == []
            levels = await page.evaluate(HEADINGS)
            assert levels[0] == 1
            assert all(after <= before + 1 for before, after in pairwise(levels))
            assert await page.get_by_role("region").count() >= 7
            for role in ("banner", "navigation", "main", "contentinfo"):
                await expect(page.get_by_role(role)).to_have_count(1)
            assert await page.evaluate("document.documentElement.lang") == "en"
            assert await page.locator("table:not(:has(caption))").count() == 0
            assert await page.locator("figure:not(:has(figcaption)), figure:not(:has(table))").count() == 0
            figures = page.locator("figure.chart:visible")
            assert await figures.count() == 3


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_text_has_contrast(start: Start, visit: Visit, dark: bool) -> None:
    async with start() as running:
        lesson = await lived(running)
        async with visit(running.url, path=f"/#lesson={lesson}", dark=dark) as page:
            await opened(page)
            assert await page.evaluate(POOR_TEXT, LEAST_CONTRAST) == []
            assert await page.evaluate(POOR_MARKS, LEAST_MARK_CONTRAST) == []
            learned = (await running.get("/lessons", state="learned"))["lessons"][0]["id"]
            await page.evaluate(f"location.hash = 'lesson={learned}'")
            for tint in ("weight", "before", "after"):
                await page.check(f"input[value={tint}]")
                assert await page.evaluate(POOR_TEXT, LEAST_CONTRAST) == [], tint
            await page.get_by_role("button", name="Promote ada's shadow").click()
            assert await page.evaluate(POOR_TEXT, LEAST_CONTRAST) == []


async def test_the_theme_is_the_browsers_until_it_is_chosen_and_the_choice_stays(
    start: Start, visit: Visit
) -> None:
    async with start() as running, visit(running.url, dark=True) as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        await connected(page)
        dark = await page.evaluate(ground)
        await page.select_option("#theme", "light")
        light = await page.evaluate(ground)
        assert light != dark
        await page.reload()
        assert await page.evaluate(ground) == light
        await expect(page.locator("#theme")).to_have_value("light")
        await page.select_option("#theme", "auto")
        assert await page.evaluate(ground) == dark


async def test_a_narrow_screen_needs_no_scrolling_to_the_side(start: Start, visit: Visit) -> None:
    async with start() as running:
        lesson = await lived(running)
        await running.store.write(Story(running.service, begins=1000).storm)
        narrow: ViewportSize = {"width": 360, "height": 740}
        async with visit(running.url, path=f"/#lesson={lesson}", viewport=narrow) as page:
            await opened(page)
            assert await page.evaluate(TOO_WIDE) == []
            scroll = "each => each.scrollWidth - each.clientWidth"
            assert await page.evaluate("document.documentElement.scrollWidth") == 360
            for part in await page.locator(".scroll").all():
                assert await part.evaluate(scroll) <= 1, await part.evaluate(
                    "each => each.outerHTML.slice(0, 300)"
                )
            await page.get_by_role("button", name="Promote ada's shadow").click()
            assert await page.evaluate(TOO_WIDE) == []


async def test_what_a_colour_says_is_said_without_it(start: Start, visit: Visit) -> None:
    async with start() as running:
        await lived(running)
        async with visit(running.url) as page:
            await connected(page)
            for badge in await page.locator(".badge").all():
                assert await badge.inner_text() != ""
            assert {"✓ learned", "✕ refused", "◷ planned"} <= set(
                await page.locator("#lesson-list .badge").all_inner_texts()
            )
            marks = (
                await page.locator("#curves figure")
                .first.locator(".mark")
                .evaluate_all("all => all.map(each => each.className)")
            )
            assert marks == ["mark dashed", "mark solid"]


async def test_who_wants_no_motion_gets_none(start: Start, visit: Visit) -> None:
    moves = "getComputedStyle(document.querySelector('.bar .fill')).transitionDuration"
    async with start() as running:
        async with visit(running.url, still=True) as page:
            await connected(page)
            assert (
                await page.evaluate(moves),
                await page.evaluate("getComputedStyle(document.documentElement).scrollBehavior"),
            ) == ("0s", "auto")
        async with visit(running.url, still=False) as page:
            await connected(page)
            assert await page.evaluate(moves) == "0.3s"
