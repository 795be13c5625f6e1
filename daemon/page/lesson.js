// One lesson: what became of it, and its tokens tinted by what they weigh or by their loss.

import { byId, el, fact, nothing, table } from "./dom.js";
import { forgetButton } from "./forget.js";
import { badge } from "./lessons.js";
import { NONE, bytes, count, loss, losses, moment, ms, percent, short } from "./words.js";

/** What tokens can be tinted by: its name, a token's value, and which colour says it. */
const TINTS = {
  weight: { name: "weight", of: (token) => token.weight, color: "--tint-weight" },
  before: { name: "loss before", of: (token) => token.loss_before, color: "--tint-before" },
  after: { name: "loss after", of: (token) => token.loss_after, color: "--tint-after" },
};

const COLUMNS = [["Position", "number"], ["Token"], ["Weight", "number"], ["Loss before", "number"], ["Loss after", "number"]];

export class LessonPart {
  #tint = "weight";
  #shown = null;

  constructor(service, sentences) {
    this.service = service;
    this.sentences = sentences;
    this.root = byId("lesson-detail");
    this.root.append(nothing("Choose a lesson in the list to see its tokens, what each weighs, and its loss before and after."));
  }

  /** Show the lesson of that id, and go to it. */
  async open(id) {
    await this.refresh(id);
    const title = byId("lesson-title");
    title.focus({ preventScroll: true });
    title.scrollIntoView({ block: "nearest" });
  }

  /** Ask for it again; without an id for the one that is shown, if any. */
  async refresh(id = this.#shown?.id) {
    if (id === undefined) return;
    const one = await this.service.get(`lessons/${encodeURIComponent(id)}`);
    if (JSON.stringify(one) === JSON.stringify(this.#shown)) return;
    this.#shown = one;
    this.#show(one);
  }

  /** Show none any more. */
  clear() {
    this.#shown = null;
    this.root.replaceChildren(nothing("This lesson cannot be seen with this key, or there is none of that name."));
  }

  #show(one) {
    const tokens = el("div", {});
    const draw = () => tokens.replaceChildren(...tinted(one, TINTS[this.#tint]));
    const measured = Object.entries(TINTS).filter(([, tint]) => one.tokens.some((token) => tint.of(token) != null));
    if (!measured.some(([name]) => name === this.#tint)) this.#tint = "weight";
    const choices = measured.map(([name, tint]) => el("label", {},
      el("input", { type: "radio", name: "tint", value: name, checked: name === this.#tint,
        on: { change: () => { this.#tint = name; draw(); } } }), ` ${tint.name}`));
    draw();
    byId("lesson-title").textContent = `Lesson ${one.id}`;
    this.root.replaceChildren(
      el("p", { class: "heading" }, badge(one.state), ` ${one.kind} of ${one.agent} in ${one.context}, planned `,
        el("time", { datetime: one.planned_at }, moment(one.planned_at))),
      ...(one.refusal === null ? [] : [this.#refusal(one.refusal)]),
      ...(one.hidden === null
        ? [el("fieldset", { class: "tints" }, el("legend", {}, "Tint by"), ...choices), tokens, asTable(one)]
        : one.hidden === "private" ? [nothing("Its context is private: nothing that was said there is shown.")] : []),
      el("dl", { class: "facts" }, ...factsOf(one)),
      ...(one.hidden === "forgotten" ? [] : [this.#forgetting(one)]));
  }

  #forgetting({ signals, agent, context }) {
    const again = () => this.refresh();
    const makers = Object.keys(signals).filter((id) => signals[id] === "makes");
    return el("p", { class: "more" },
      ...makers.map((signal) => forgetButton(this.service, { signal }, makers.length === 1 ? "Forget its signal…" : `Forget ${short(signal)}…`, again)),
      forgetButton(this.service, { agent, context }, "Forget its context…", again));
  }

  #refusal({ code, message, position }) {
    return el("div", { class: "refusal" },
      el("p", {}, el("strong", {}, code), ` ${this.sentences[code] ?? ""}`),
      el("p", {}, message, position == null ? "" : ` (position ${count(position)})`));
  }
}

function tinted(one, tint) {
  const values = one.tokens.map(tint.of).filter((value) => value != null);
  const most = Math.max(...values, tint.name === "weight" ? 1 : 0.001);
  const text = el("p", { class: "tokens" }, el("span", { class: "before" }, visible(one.before)));
  text.style.setProperty("--tint", `var(${tint.color})`);
  for (const token of one.tokens) text.append(tokenOf(token, tint, most), token.text.includes("\n") ? el("br") : "");
  return [text, el("p", { class: "says" }, el("span", { class: "before" }, "Grey"), " is what came before. The stronger the tint and the thicker the line, the higher the ",
    `${tint.name}; the strongest here is ${Math.max(0, ...values).toFixed(3)}.`)];
}

function tokenOf(token, tint, most) {
  const value = tint.of(token);
  const title = `weight ${token.weight.toFixed(3)}, loss ${losses(token.loss_before, token.loss_after)}`;
  const made = el("span", { class: value == null ? "token none" : "token", title }, visible(token.text));
  if (value != null) made.style.setProperty("--share", String(Math.max(0, value) / most));
  return made;
}

/** Line ends are shown, since they are learned as anything else is. */
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");

/** Made only when somebody looks: a lesson may have thousands of tokens. */
function asTable(one) {
  const made = el("details", { class: "numbers" }, el("summary", {}, "As a table"));
  made.addEventListener("toggle", () => {
    if (!made.open || made.querySelector("table") !== null) return;
    const rows = one.tokens.map((token) => [count(token.position), el("code", { class: "piece" }, visible(token.text)),
      token.weight.toFixed(3), loss(token.loss_before), loss(token.loss_after)]);
    made.append(el("div", { class: "scroll" }, table("The lesson's tokens", COLUMNS, rows, { hidden: true })));
  });
  return made;
}

function factsOf(one) {
  const told = [
    fact("Turn", el("code", {}, one.turn)),
    fact("Comes after", `${count(one.prefix_tokens)} tokens`),
    fact("Signals", ...Object.entries(one.signals).map(([id, role]) => el("span", { class: "item" }, el("code", {}, id), ` ${role} it`))),
  ];
  if (one.ridden_turn !== null) told.push(fact("Rode turn", el("code", {}, one.ridden_turn)));
  if (one.measured === null) return told;
  const by = one.measured;
  return [...told,
    fact("Step", `${count(one.step)} of ${one.agent}, ${moment(by.at)}`),
    fact("Loss", losses(one.loss_before, one.loss_after) + changed(one)),
    fact("KL from what was served", by.kl_served == null ? NONE : by.kl_served.toExponential(2)),
    fact("Gradient's norm", loss(by.gradient_norm)),
    fact("Learning rate", String(by.lr)),
    fact("Took", `${ms(by.learning_ms)}; others waited ${ms(by.waited_ms)} of it`),
    fact("Memory at most", bytes(by.peak_bytes)),
  ];
}

function changed({ loss_before: before, loss_after: after }) {
  if (after == null || before === 0) return "";
  return `, ${percent(Math.abs(1 - after / before))} ${after > before ? "more" : "less"}`;
}
