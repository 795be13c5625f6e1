// What was learned: totals, each agent's, and her losses before and after each step.

import { Chart } from "./charts.js";
import { bar, byId, el, fact, nothing, renew, row, table } from "./dom.js";
import { count, loss, losses, many, ms } from "./words.js";

/** Curves at once; with more agents one is chosen above. */
const CURVES = 4;

const AGENTS = [["Agent"], ["Turns", "number"], ["Learned", "number"], ["Waiting", "number"], ["Refused", "number"],
  ["Tokens learned", "number"], ["Loss of the last step", "number"]];

export class LearningPart {
  #curves = new Map();

  show({ totals, agents }) {
    renew(byId("totals"), totals, () => tilesOf(totals));
    renew(byId("agents"), agents.map(({ losses: _losses, ...own }) => own), () => agentsOf(agents));
    this.#draw(agents.filter((agent) => agent.losses.length > 0));
  }

  #draw(learners) {
    const shown = learners.sort((one, other) => latest(other).localeCompare(latest(one))).slice(0, CURVES);
    const names = shown.map(({ agent }) => agent).sort();
    renew(byId("curves"), [names, learners.length > CURVES], () => {
      for (const name of names) if (!this.#curves.has(name)) this.#curves.set(name, curveOf(name));
      if (names.length === 0) {
        return nothing("Nothing has been learned yet. An agent learns when the lane was started with ",
          el("code", {}, "--learn NAME"), ", or has a policy that lets her, and signals what matters.");
      }
      const more = learners.length - names.length;
      return [...names.map((name) => this.#curves.get(name).node), more > 0
        ? el("p", { class: "says" }, `${many(more, "more agent")} learned too: choose one above to see her curve.`) : []].flat();
    });
    for (const { agent, losses: points, steps } of shown) this.#curves.get(agent).show(columnsOf(points), saysOf(points, steps));
  }
}

const latest = ({ last_step: step }) => step?.at ?? "";

function curveOf(agent) {
  return new Chart({
    title: `Loss of ${agent}'s lessons`,
    unit: "",
    x: { name: "step", text: (step) => `step ${count(step)}` },
    columns: [
      { name: "before the step", color: "--before", dash: [6, 4], text: loss },
      { name: "after it", color: "--accent", text: loss },
    ],
  });
}

const columnsOf = (points) => [points.map((point) => point.step), points.map((point) => point.loss_before), points.map((point) => point.loss_after)];

function saysOf(points, steps) {
  const last = points.at(-1);
  const each = points.some((point) => point.steps > 1) ? ", neighbours as their mean" : "";
  return `${many(steps, "step")}${each}; the last ${losses(last.loss_before, last.loss_after)}`;
}

function tilesOf(totals) {
  const waiting = totals.lessons.planned + totals.lessons.riding;
  return [
    tile("Turns served", totals.turns),
    tile("Signals", Object.values(totals.signals).reduce((sum, number) => sum + number, 0)),
    tile("Lessons learned", totals.lessons.learned),
    tile("Lessons waiting", waiting),
    tile("Signals refused", totals.signals.refused),
    tile("Tokens learned", totals.learned_tokens),
    fact("Time spent learning", el("strong", {}, ms(totals.learning_ms))),
    fact("Of it, others waited", el("strong", {}, ms(totals.waited_ms))),
  ];
}

const tile = (term, number) => fact(term, el("strong", {}, count(number)));

function agentsOf(agents) {
  if (agents.length === 0) {
    return nothing("No agent has been served yet. She says who she is with the header ", el("code", {}, "X-Ridealong-Agent"), ".");
  }
  const sorted = [...agents].sort((one, other) => other.lessons.learned - one.lessons.learned || other.turns - one.turns
    || one.agent.localeCompare(other.agent, "en", { numeric: true }));
  return table("Agents, those who learned most first", AGENTS, sorted.map((own) => [own.agent, count(own.turns), count(own.lessons.learned),
    count(own.lessons.planned + own.lessons.riding), count(own.signals.refused), count(own.learned_tokens),
    losses(own.last_step?.loss_before, own.last_step?.loss_after)]));
}

const REASONS = [["Reason"], ["Signals", "number"], ["Lessons", "number"], ["Share of the most frequent", "bars"]];

export class RefusalsPart {
  /** `sentences` says what each code means; `wanted` is called with a code whose rows somebody wants to see. */
  constructor(sentences, wanted) {
    this.sentences = sentences;
    this.wanted = wanted;
  }

  show({ refusals, refused_lessons: ofLessons }) {
    const codes = Object.keys({ ...refusals, ...ofLessons });
    const size = (code) => Math.max(refusals[code] ?? 0, ofLessons[code] ?? 0);
    codes.sort((one, other) => size(other) - size(one) || one.localeCompare(other));
    const most = Math.max(1, ...codes.map(size));
    renew(byId("reasons"), [refusals, ofLessons], () => {
      if (codes.length === 0) return nothing("Nothing has been refused. What cannot be learned is told here, by its reason.");
      const made = table("Refusals by reason, the most frequent first", REASONS, []);
      made.tBodies[0].append(...codes.map((code) => row(REASONS, [
        this.#reason(code), count(refusals[code] ?? 0), count(ofLessons[code] ?? 0), bar(size(code) / most, "bad")])));
      return made;
    });
  }

  #reason(code) {
    const rows = el("button", { type: "button", class: "link", "data-focus": `code-${code}`, title: "Show its rows in the ledger",
      on: { click: () => this.wanted(code) } }, code);
    return el("span", {}, rows, el("span", { class: "sentence" }, this.sentences[code] ?? ""));
  }
}
