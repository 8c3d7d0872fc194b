// The same as the chart of a calendar, as two tables: what is free, and who has what.

import { button, chip, empty, fill, h, table } from "./dom.js";
import * as time from "./time.js";

const ROWS_MAX = 1000;
const within = (one, from, to) => one.end > from && one.start < to;

/**
 * Have `place` hold the tables of `rows` and `bookings` from an instant `to` another; the last step of a row goes on to
 * `last`. `mine`: what the column of one's own is called. `pick(booking)`, where there is one, tells of a booking, and
 * `reserve(row, from, to)` takes what is free.
 */
export function fillTables(place, { rows, bookings }, { from, to, last }, { mine = "Mine", pick, reserve }) {
  const periods = rows.filter((row) => row.steps).flatMap((row) => row.steps
    .map((step, index) => ({ row, step, start: step[0], end: row.steps[index + 1]?.[0] ?? last }))
    .filter((one) => within(one, from, to))
    .map((one) => period(one, Math.max(one.start, from), Math.min(one.end, to), reserve)));
  const shown = bookings.filter((one) => within(one, from, to)).sort((a, b) => (a.site < b.site ? -1 : a.site > b.site ? 1 : a.start - b.start));
  const leases = shown.slice(0, ROWS_MAX).map((one) => [one.site, one.type, time.moment(one.start), time.moment(one.end), String(one.units), chip(one.state, one.kind), one.project, pick(one) ? button(one.label, pick(one), {}) : one.label]);
  const cut = (list) => list.length > ROWS_MAX && h("p", { class: "dim" }, `The first ${ROWS_MAX} of ${list.length}: show less time, or one site or type.`);
  const begin = `From (${time.zone()})`;
  fill(place, h("h2", {}, "What is free"), cut(periods),
    periods.length ? table("What is free", ["Site", "Type", begin, "To", "Free", mine, "Others", "Withheld", ...(reserve ? [h("span", { class: "hidden" }, "Do")] : [])], periods.slice(0, ROWS_MAX)) : empty("Nothing in this time."),
    h("h2", {}, "Bookings"), cut(shown),
    leases.length ? table("Bookings", ["Site", "Type", begin, "To", "Units", "State", "Whose", "Lease"], leases) : empty("None in this time."));
}

function period({ row, step: [, mine, others, withheld, absent] }, from, to, reserve) {
  const free = Math.max(0, row.units - mine - others - withheld - absent);
  const cells = [row.site, row.depth > 1 ? `${row.type}: ${row.label}` : row.type, time.moment(from), time.moment(to), `${free} of ${row.units - absent}`, String(mine), String(others), String(withheld)];
  if (reserve) cells.push(free && to > Date.now() ? button("Reserve", () => reserve(row, Math.max(from, Date.now()), to), { "aria-label": `Reserve ${row.type} at ${row.site} from ${time.moment(from)}` }) : "");
  return cells;
}
