// The lane as it is: slots, queue, duty, and what a token takes with and without learning beside it.

import { Chart } from "./charts.js";
import { bar, byId, el, fact, nothing, renew } from "./dom.js";
import { count, many, ms, percent, seconds, short } from "./words.js";

/** Turns on the chart: more than can be told apart. */
const TURNS = 200;

export class LanePart {
  #turns = new Map();
  #ridden = new Set();

  constructor() {
    this.chart = new Chart({
      title: "Time per token of the latest turns",
      unit: " ms",
      x: { name: "turn's end", time: true, text: (at) => new Date(1000 * at).toLocaleTimeString("en-GB") },
      columns: [
        { name: "no lesson rode it", color: "--plain", points: true, text: ms },
        { name: "a lesson rode it", color: "--accent", points: true, hollow: true, size: 8, text: ms },
      ],
    });
    this.empty = nothing("No turn has been served yet. Point a client at this address: OpenAI's at /v1, Anthropic's and llama-server's at their own paths.");
    byId("times").append(this.empty, this.chart.node);
    this.#draw();
  }

  /** Show the lane of a summary; to an agent's key there is none. */
  show(lane) {
    renew(byId("gauges"), lane, () => (lane === null
      ? nothing("This is an agent's key: the lane as a whole is the operators' to see.")
      : el("dl", { class: "gauges" }, ...gaugesOf(lane))));
  }

  /** Show what each slot holds. */
  showSlots(slots) {
    renew(byId("slots"), slots, () => slots.map(slotOf));
  }

  /** Forget every turn. */
  clear() {
    this.#turns.clear();
    this.#ridden.clear();
    this.#draw();
  }

  /** Take in rows of the ledger, in any order. */
  add(rows) {
    for (const { kind, subject, at, body } of rows) {
      if (kind === "lesson" && body.ridden_turn != null) this.#ridden.add(body.ridden_turn);
      if (kind !== "turn" || body.first_token_ms == null || body.reply_token_count < 2) continue;
      const each = (body.total_ms - body.first_token_ms) / (body.reply_token_count - 1);
      this.#turns.set(subject, { at: Date.parse(at) / 1000, each });
    }
    this.#draw();
  }

  #draw() {
    const turns = [...this.#turns].sort(([, one], [, other]) => one.at - other.at).slice(-TURNS);
    this.#turns = new Map(turns);
    this.empty.hidden = turns.length > 0;
    this.chart.node.hidden = turns.length === 0;
    if (turns.length === 0) return;
    const of = (ridden) => turns.map(([id, turn]) => (this.#ridden.has(id) === ridden ? turn.each : null));
    const middle = turns.map(([, turn]) => turn.each).sort((one, other) => one - other)[turns.length >> 1];
    this.chart.show([turns.map(([, turn]) => turn.at), of(false), of(true)], `median ${ms(middle)} of ${many(turns.length, "turn")}`);
  }
}

function gaugesOf(lane) {
  const { slots, duty } = lane;
  const dutySays = `of ${seconds(lane.serving_seconds)} serving; at most ${percent(duty.most)}`;
  return [
    gauge("Slots serving", `${slots.serving} of ${slots.total}`, bar(slots.serving / slots.total),
      `${many(lane.queued_turns, "turn")} in the queue`),
    gauge("Learning's share", percent(duty.share), bar(duty.share / duty.most, duty.share > duty.most ? "over" : ""), dutySays),
    gauge("Lessons waiting", count(lane.waiting_lessons), null, "for a turn to ride, or for a pause"),
    gauge("Time per token", ms(lane.ms_per_token_alone), null, "with no lesson beside"),
    gauge("With a lesson beside", ms(lane.ms_per_token_beside_lessons), null, slower(lane)),
    gauge("Ledger's lag", seconds(lane.ledger_lag_seconds), null, "age of the oldest event not yet written"),
  ];
}

function slower({ ms_per_token_alone: alone, ms_per_token_beside_lessons: beside }) {
  if (alone == null || beside == null) return "time per token of such turns";
  return `${(beside / alone).toFixed(2)} × the time alone`;
}

function gauge(term, value, drawn, says) {
  return fact(term, el("strong", {}, value), drawn, el("span", { class: "says" }, says));
}

function slotOf(slot) {
  const state = slot.is_processing ? "serving" : slot.n_past > 0 ? "idle" : "empty";
  const held = `${count(slot.n_past)} of ${count(slot.n_ctx)} tokens`;
  const lesson = slot.lesson == null ? null
    : el("a", { class: "lesson-link", href: `#lesson=${encodeURIComponent(slot.lesson)}` }, `▸ ${short(slot.lesson)} walks`);
  return el("li", { class: `slot ${state}` },
    el("p", {}, el("strong", {}, `Slot ${slot.id}`), " ", el("span", { class: "badge", "data-state": state }, state)),
    bar(slot.n_past / slot.n_ctx),
    el("p", { class: "says" }, held, slot.stable ? ` · ${slot.stable}` : "",
      slot.pinned_tokens > 0 ? ` · ${count(slot.pinned_tokens)} kept for a lesson` : ""),
    lesson);
}
