// The ledger's rows as they are committed, filtered by kind and code.

import { byId, choice, el, nothing, renew, row, table } from "./dom.js";
import { badge } from "./lessons.js";
import { NONE, count, loss, losses, many, moment, ms, short } from "./words.js";

const PAGE = 25;

/** As many as a page of the ledger may have. */
const MOST = 1000;

const COLUMNS = [["Row", "number"], ["Time"], ["Kind"], ["Agent"], ["Context"], ["What happened", "what"]];

export const KINDS = ["turn", "signal", "lesson", "step", "refusal", "promotion", "rollback", "export", "policy", "archive", "forgot"];

export class LedgerPart {
  #rows = [];
  #size = PAGE;
  #paused = false;
  #missed = 0;

  constructor(service, sentences) {
    this.service = service;
    this.agent = "";
    const any = [["", "any"]];
    const ask = () => this.#again();
    this.kind = choice("Kind", "row-kind", [...any, ...KINDS.map((kind) => [kind, kind])], ask);
    this.code = choice("Refused as", "row-code", [...any, ...Object.keys(sentences).sort().map((code) => [code, code])], ask);
    this.pause = el("button", { type: "button", "aria-pressed": "false", on: { click: () => this.#pauseOrGoOn() } }, "Pause");
    this.news = el("span", { class: "says" });
    byId("row-filters").append(this.kind.field, this.code.field, this.pause, this.news);
    byId("older-rows").addEventListener("click", () => this.#again(this.#size + 4 * PAGE));
  }

  /** Show the rows of refusals with that code. */
  only(code) {
    this.kind.select.value = "refusal";
    this.code.select.value = code;
    byId("ledger").scrollIntoView();
    this.kind.select.focus({ preventScroll: true });
    this.#again();
  }

  /** Ask for the newest rows. */
  async refresh() {
    const query = { agent: this.agent, kind: this.kind.select.value, code: this.code.select.value, newest: "true", limit: String(this.#size) };
    const { rows, next_cursor: next } = await this.service.get("ledger", query);
    this.#rows = rows;
    this.#missed = 0;
    byId("older-rows").hidden = next === null || this.#size >= MOST;
    this.#draw();
  }

  /** Take in rows that were just committed, in their order. */
  add(rows) {
    const kind = this.kind.select.value, code = this.code.select.value;
    const known = this.#rows[0]?.seq ?? 0;
    const wanted = rows.filter((one) => one.seq > known && (kind === "" || one.kind === kind) && (code === "" || one.code === code));
    if (wanted.length === 0) return;
    if (this.#paused) {
      this.#missed += wanted.length;
      this.#say();
      return;
    }
    this.#rows = [...wanted.reverse(), ...this.#rows].slice(0, this.#size);
    this.#draw();
  }

  #again(size = PAGE) {
    this.#size = Math.min(size, MOST);
    this.refresh().catch(() => {});
  }

  #pauseOrGoOn() {
    this.#paused = !this.#paused;
    this.pause.setAttribute("aria-pressed", String(this.#paused));
    this.pause.textContent = this.#paused ? "Go on" : "Pause";
    if (!this.#paused) this.#again(this.#size);
    this.#say();
  }

  #say() {
    this.news.textContent = this.#paused ? `paused; ${many(this.#missed, "row")} came since` : "";
  }

  #draw() {
    this.#say();
    renew(byId("rows"), this.#rows.map(({ seq, sha }) => [seq, sha]), () => {
      if (this.#rows.length > 0) return tableOf(this.#rows);
      const filtered = this.kind.select.value !== "" || this.code.select.value !== "" || this.agent !== "";
      return nothing(filtered ? "No row of the ledger is like that." : "The ledger is empty. Whatever is served, signalled, learned or refused becomes a row here, as it is committed.");
    });
  }
}

function tableOf(rows) {
  const made = table("Rows of the ledger, the newest first", COLUMNS, [], { hidden: true });
  made.tBodies[0].append(...rows.map((one) => row(COLUMNS, [
    count(one.seq), el("time", { datetime: one.at }, moment(one.at)), badge(one.kind), one.agent || NONE, one.context ?? NONE, whatOf(one),
  ])));
  return made;
}

function whatOf(one) {
  const details = el("details", { "data-focus": `row-${one.seq}` }, el("summary", {}, sentenceOf(one)));
  details.addEventListener("toggle", () => {
    if (details.open && details.querySelector("pre") === null) details.append(el("pre", {}, JSON.stringify(one, null, 2)));
  });
  return details;
}

/** A row in words. */
function sentenceOf({ kind, subject, code, body }) {
  switch (kind) {
    case "turn":
      return `${many(body.reply_token_count, "token")} after ${count(body.prompt_token_count)} (${count(body.cached_token_count)} cached) in ${ms(body.total_ms)}: ${body.finish_reason}`;
    case "signal":
      return body.kind === undefined ? `${short(subject)} is ${body.state}` : `${body.kind} ${short(subject)} is ${body.state}`;
    case "lesson":
      return lessonSentence(subject, body);
    case "step":
      return `step ${count(body.number)} of ${many(body.rows, "token")}: loss ${losses(body.loss_before, body.loss_after)}, ${ms(body.learning_ms)}`;
    case "refusal":
      return `${code}: ${body.message}`;
    case "promotion":
      return body.replaces == null ? "begins with version 0, the base" : `version ${body.version} of ${many(body.step_number, "step")} is served, in place of version ${body.replaces}`;
    case "rollback":
      return `version ${body.version} is served again`;
    case "forgot":
      return `a ${body.asked} is forgotten: ${many(body.signals, "signal")}, ${many(body.lessons, "lesson")}; ${many(body.steps_left_out, "step")} left out, ${count(body.steps_rebuilt)} taken again`;
    default:
      return plainly(body);
  }
}

function lessonSentence(subject, { state, kind, rows, why, ridden_turn: turn, weighed_by: weigher, weight_sum: sum }) {
  if (kind !== undefined) return `${short(subject)}: ${kind} of ${many(rows, "token")}, weight ${loss(sum)}, is ${state}`;
  if (why !== undefined) return `${short(subject)} is ${state} again: ${why}`;
  if (weigher !== undefined) return `${short(subject)} is weighed anew by ${short(weigher)}: ${loss(sum)}`;
  return turn == null ? `${short(subject)} is ${state}` : `${short(subject)} is ${state}, on turn ${short(turn)}`;
}

function plainly(body) {
  const told = Object.entries(body).filter(([, value]) => value !== null && typeof value !== "object");
  return told.map(([name, value]) => `${name.replaceAll("_", " ")} ${short(String(value))}`).join(", ") || NONE;
}
