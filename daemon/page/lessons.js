// Lessons as a list, the newest first, filtered by state and code.

import { byId, choice, el, nothing, renew, row, table } from "./dom.js";
import { SIGNS, count, losses, moment, short } from "./words.js";

const PAGE = 12;
const COLUMNS = [["Lesson"], ["Planned"], ["Agent"], ["Context"], ["Kind"], ["State"], ["Tokens", "number"], ["Loss", "number"]];

export class LessonsPart {
  #pages = 1;
  #state = "";
  #code = "";

  constructor(service, sentences) {
    this.service = service;
    this.agent = "";
    const states = ["", "planned", "riding", "learned", "refused"].map((state) => [state, state || "any"]);
    const codes = [["", "any"], ...Object.keys(sentences).sort().map((code) => [code, code])];
    const state = choice("State", "lesson-state", states, (value) => this.#choose(() => { this.#state = value; }));
    const code = choice("Refused as", "lesson-code", codes, (value) => this.#choose(() => { this.#code = value; }));
    byId("lesson-filters").append(state.field, code.field);
    byId("older-lessons").addEventListener("click", () => this.#choose(() => { this.#pages += 1; }, this.#pages + 1));
  }

  async #choose(change, pages = 1) {
    change();
    this.#pages = pages;
    await this.refresh().catch(() => {});
  }

  /** Show one agent's only, or everyone's. */
  of(agent) {
    this.agent = agent;
    this.#pages = 1;
  }

  async refresh() {
    const query = { agent: this.agent, state: this.#state, code: this.#code, limit: String(Math.min(200, PAGE * this.#pages)) };
    const { lessons, next_cursor: next } = await this.service.get("lessons", query);
    byId("older-lessons").hidden = next === null || PAGE * this.#pages >= 200;
    renew(byId("lesson-list"), lessons, () => (lessons.length === 0 ? this.#nothing() : listOf(lessons)));
  }

  #nothing() {
    if (this.#state !== "" || this.#code !== "") return nothing("No lesson is like that. Choose “any” to see the others.");
    return nothing("No lesson has been planned yet. A signal about a turn becomes one: ", el("code", {}, "POST /signals"), " or ",
      el("code", {}, "POST /learn"), ".");
  }
}

/** A state with its sign. */
export const badge = (state) => el("span", { class: "badge", "data-state": state },
  el("span", { "aria-hidden": "true" }, `${SIGNS[state] ?? ""} `), state);

function listOf(lessons) {
  const made = table("Lessons, the newest first", COLUMNS, [], { hidden: true });
  made.tBodies[0].append(...lessons.map((one) => row(COLUMNS, [
    el("a", { href: `#lesson=${encodeURIComponent(one.id)}`, "data-focus": one.id, title: one.id }, short(one.id)),
    el("time", { datetime: one.planned_at }, moment(one.planned_at)),
    one.agent, one.context, one.kind,
    el("span", {}, badge(one.state), one.refusal === null ? "" : ` ${one.refusal.code}`),
    count(one.rows), losses(one.loss_before, one.loss_after),
  ])));
  return made;
}
