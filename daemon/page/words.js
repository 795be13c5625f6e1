// Numbers, times and states in words. Between a number and its unit the line does not break.

const WHOLE = new Intl.NumberFormat("en-US");
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const NONE = "–";

/** 12345 → 12,345. */
export const count = (number) => WHOLE.format(number);

/** `1 step`, `2 steps`. */
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

/** A loss, or another small number, with three digits after the point. */
export const loss = (value) => (value == null ? NONE : value.toFixed(3));

/** 0.031 → 3.1 %. */
export const percent = (share) => `${+(100 * share).toFixed(share < 0.1 ? 1 : 0)}\u00a0%`;

/** Milliseconds in the unit that suits them. */
export function ms(value) {
  if (value == null) return NONE;
  if (value < 10) return `${+value.toFixed(1)}\u00a0ms`;
  if (value < 1000) return `${Math.round(value)}\u00a0ms`;
  return seconds(value / 1000);
}

/** Seconds in the unit that suits them. */
export function seconds(value) {
  if (value < 60) return `${+value.toFixed(value < 10 ? 1 : 0)}\u00a0s`;
  const [hours, minutes] = [Math.floor(value / 3600), Math.floor((value % 3600) / 60)];
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${Math.floor(value % 60)} s`;
}

/** Bytes in the unit that suits them. */
export function bytes(value) {
  if (value < 2 ** 20) return `${count(Math.ceil(value / 2 ** 10))}\u00a0KiB`;
  return value < 2 ** 30 ? `${(value / 2 ** 20).toFixed(1)}\u00a0MiB` : `${(value / 2 ** 30).toFixed(2)}\u00a0GiB`;
}

/** The time of day of an ISO time, with its day unless it is today's. */
export function moment(iso) {
  const at = new Date(iso);
  const clock = CLOCK.format(at);
  return at.toDateString() === new Date().toDateString() ? clock : `${DAY.format(at)}, ${clock}`;
}

/** As much of an id as tells it from others. */
export const short = (id) => (id.length > 16 ? `${id.slice(0, 15)}…` : id);

/** A state or kind, each with a sign of its own beside its colour. */
export const SIGNS = {
  received: "·", planned: "◷", riding: "▸", learned: "✓", refused: "✕", applied: "≈",
  turn: "◦", signal: "·", lesson: "▸", step: "✓", refusal: "✕", promotion: "↑", rollback: "↶", export: "⇥",
  policy: "§", forgot: "⌫", archive: "▤",
};

/** `2.100 → 0.400`, with the second part left out where it was not measured. */
export const losses = (before, after) =>
  before == null ? NONE : after == null ? loss(before) : `${loss(before)}\u00a0→\u00a0${loss(after)}`;
