// Charts, by uPlot: each a figure with its words, and the same numbers as a table.

import { el, table } from "./dom.js";

const HEIGHT = 190;

/**
 * A chart in a figure. `title` and `says` are its words; `x` and each of `series` (`name, color, dash, points, values`)
 * are columns of one length, null where there is nothing. `color` names a property of the style sheet.
 */
export class Chart {
  constructor({ title, x, unit, columns }) {
    this.x = x;
    this.unit = unit;
    this.columns = columns;
    this.data = null;
    this.says = el("span", { class: "says" });
    this.readout = el("output", { class: "readout" });
    this.plot = el("div", { class: "plot", "aria-hidden": "true" });
    this.numbers = el("div", { class: "scroll" });
    this.details = el("details", { on: { toggle: () => this.#tabulate() } },
      el("summary", {}, "As a table"), this.numbers);
    this.node = el("figure", { class: "chart" },
      el("figcaption", {}, el("strong", {}, title), " ", this.says),
      el("div", { class: "legend" }, ...columns.map(legendOf), this.readout),
      this.plot, this.details);
    this.title = title;
    new ResizeObserver(() => this.#fit()).observe(this.plot);
    document.addEventListener("theme", () => this.#draw());
  }

  /** Show these columns, the first of them x. */
  show(data, says) {
    const signature = JSON.stringify(data);
    if (signature === this.signature) return;
    this.signature = signature;
    this.says.textContent = says;
    const fresh = this.data === null;
    this.data = data;
    if (fresh || this.uplot === undefined) this.#draw();
    else this.uplot.setData(data);
    this.#tabulate();
  }

  #draw() {
    if (this.data === null || !this.plot.isConnected) return;
    this.uplot?.destroy();
    this.uplot = new uPlot(this.#options(), this.data, this.plot);
  }

  #fit() {
    if (this.uplot === undefined) this.#draw();
    else this.uplot.setSize({ width: Math.max(this.plot.clientWidth, 120), height: HEIGHT });
  }

  #options() {
    const [ink, line] = [color("--soft"), color("--line")];
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
    return {
      width: Math.max(this.plot.clientWidth, 120),
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: this.x.time === true, range: wide }, y: { range: (_plot, _least, most) => [0, (most || 1) * 1.08] } },
      axes: [
        { ...axis, space: 60, size: 32, ...(this.x.time ? { values: clocks, incrs: STEPS, space: 80 } : { values: wholes }) },
        { ...axis, size: 56, values: (_plot, ticks) => ticks.map((tick) => `${+tick.toFixed(3)}${this.unit}`) },
      ],
      series: [{}, ...this.columns.map(seriesOf)],
      hooks: { setCursor: [(plot) => this.#read(plot.cursor.idx)] },
    };
  }

  #read(at) {
    if (at == null) {
      this.readout.value = "";
      return;
    }
    const values = this.columns.map((column, number) => [column, this.data[number + 1][at]]);
    const said = values.filter(([, value]) => value != null).map(([column, value]) => `${column.name} ${column.text(value)}`);
    this.readout.value = `${this.x.text(this.data[0][at])}: ${said.join(", ")}`;
  }

  #tabulate() {
    if (!this.details.open || this.data === null) return;
    const columns = [[this.x.name, "number"], ...this.columns.map((column) => [column.name, "number"])];
    const [x, ...rest] = this.data;
    const rows = x.map((value, at) => [this.x.text(value),
      ...rest.map((values, number) => (values[at] == null ? "–" : this.columns[number].text(values[at])))]);
    this.numbers.replaceChildren(table(this.title, columns, rows.reverse(), { hidden: true }));
  }
}

/** A property of the style sheet as a color that a canvas knows. */
function color(name) {
  const probe = el("span", { class: "sr" });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color: found } = getComputedStyle(probe);
  probe.remove();
  return found;
}

function seriesOf(column) {
  const stroke = color(column.color);
  const points = { show: column.points === true || undefined, size: column.size ?? 5, stroke, fill: column.hollow ? color("--panel") : stroke };
  return { label: column.name, stroke, width: 2, dash: column.dash, spanGaps: true, points, ...(column.points ? { paths: () => null } : {}) };
}

function legendOf(column) {
  const kind = column.points ? (column.hollow ? "ring" : "dot") : column.dash ? "dashed" : "solid";
  const mark = el("span", { class: `mark ${kind}`, "aria-hidden": "true" });
  mark.style.setProperty("--of", `var(${column.color})`);
  return el("span", {}, mark, column.name);
}

const clocks = (_plot, ticks) => ticks.map((tick) => new Date(1000 * tick).toLocaleTimeString("en-GB"));
const wholes = (_plot, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : ""));

/** All of it, and some room where there is but one. */
const wide = (_plot, least, most) => (most - least < 1 ? [least - 1, most + 1] : [least, most]);

/** Seconds between two labels of a time. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400];
