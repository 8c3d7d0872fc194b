// Usage: what each project asked for, was granted and used, of which type and where, over a period; and as CSV.

import { shows, whoIsAway } from "./acts.js";
import { WITHIN, gently, get, here, listen } from "./api.js";
import { button, choice, empty, field, fill, h, saved, table } from "./dom.js";
import { myProjects, noProject, page, setView, view } from "./frame.js";
import * as time from "./time.js";

const PERIODS = [["1", "the last day"], ["7", "the last 7 days"], ["30", "the last 30 days"], ["90", "the last 90 days"], ["365", "the last year"]];
/** This month, and the twelve before it, of the calendar in the zone that is shown. */
const months = () => {
  const now = time.parts(Date.now());
  return Array.from({ length: 13 }, (_, back) => {
    const since = time.instant(now.year, now.month - back), { year, month } = time.parts(since);
    return { value: `${year}-${String(month + 1).padStart(2, "0")}`, words: time.month(since), since, until: time.instant(now.year, now.month - back + 1) };
  });
};
/** From when to when the period goes that is chosen by its value, or its days. */
const termOf = (value) => {
  const month = months().find((one) => one.value === value), now = Date.now();
  return month ? [month.since, Math.min(month.until, now)] : [now - Number(value) * time.DAY, now];
};
const hours = (ms) => (ms / time.HOUR).toLocaleString("en", { maximumFractionDigits: 1 });
const COLUMNS = ["Project", "Type", "Site", "Requests", "Granted", "Refused", "Granted unit-hours", "Used unit-hours", "Median lead"];

await page(async (place) => {
  const { projects } = await myProjects();
  const mayAll = here.seesAll;
  if (!projects.length && !mayAll) {
    fill(place, noProject());
    return;
  }
  const periods = () => [...PERIODS, ...months().map(({ value, words }) => [value, words])];
  const days = () => (periods().some(([value]) => value === view().days) ? view().days : "30");
  const project = () => (projects.includes(view().project) ? view().project : mayAll ? "" : projects[0]);
  const list = h("div", {}), again = (name) => (value) => { setView({ [name]: value }); load(true); };
  fill(place, h("div", { class: "tools" },
    field("Over", choice(periods(), days(), again("days"))),
    (projects.length > 1 || mayAll) && field("Project", choice([...(mayAll ? [["", "all"]] : []), ...projects], project(), again("project")))), list);

  const load = shows(async (last) => {
    const [since, until] = termOf(days());
    const told = await get("/usage", { ...(project() ? { project: project() } : { all: true }), since: time.iso(since), until: time.iso(until), within: WITHIN });
    if (!last()) return;
    const rows = added(told.items);
    fill(list, whoIsAway(told.away, soon), bars(told.items, since, until),
      rows.length ? table("Usage", COLUMNS.map((one, index) => (index > 2 ? h("span", { class: "number" }, one) : one)), rows.map((row) => h("tr", {}, cells(row).map((cell, index) => h("td", { class: index > 2 ? "number" : "" }, cell)))))
        : empty("Nothing was asked for or used in this time."),
      rows.length > 0 && button("Save as CSV", () => save(rows)));
  }, list);
  const soon = gently(load);
  await load();
  listen(mayAll ? { all: true } : { calendar: true }, soon, soon);
  setInterval(soon, time.MINUTE); // what is used grows by itself
  window.addEventListener("zone", soon);
});

/** One row by project, type and site: brokers say what was asked for, sites what was used. */
function added(actors) {
  const found = new Map();
  for (const actor of actors) {
    for (const one of actor.accounts) {
      const key = JSON.stringify([one.holder, one.type, one.site]);
      const row = found.get(key) ?? { holder: one.holder, type: one.type, site: one.site, requests: 0, granted: 0, refused: {}, granted_unit_ms: 0, used_unit_ms: 0, lead: null };
      row.requests += one.requests;
      row.granted += one.granted;
      row.granted_unit_ms += one.granted_unit_ms;
      row.used_unit_ms += one.used_unit_ms;
      row.lead ??= one.lead_median_ms;
      for (const [code, count] of Object.entries(one.refused)) row.refused[code] = (row.refused[code] ?? 0) + count;
      found.set(key, row);
    }
  }
  return [...found.values()].sort((a, b) => b.used_unit_ms - a.used_unit_ms || b.granted_unit_ms - a.granted_unit_ms);
}

function refused(row) {
  return Object.entries(row.refused).map(([code, count]) => `${count} ${code}`).join(", ");
}

function cells(row) {
  return [row.holder, row.type, row.site || "–", String(row.requests), String(row.granted), refused(row) || "0", hours(row.granted_unit_ms), hours(row.used_unit_ms), row.lead === null ? "–" : time.span(row.lead)];
}

/** How much of what there was of each type was used, at each site. */
function bars(actors, since, until) {
  const found = [];
  for (const actor of actors.filter((one) => one.role === "authority")) {
    for (const [type, offered] of Object.entries(actor.offered_unit_ms)) {
      const used = actor.accounts.filter((one) => one.type === type).reduce((sum, one) => sum + one.used_unit_ms, 0), share = offered ? used / offered : 0;
      found.push(h("div", { class: "use" }, h("span", {}, `${actor.actor} / ${type}`), h("meter", { min: 0, max: 1, value: share, "aria-label": `${type} at ${actor.actor} used` }), h("strong", {}, `${(100 * share).toFixed(1)}%`), h("span", { class: "dim" }, `${hours(used)} of ${hours(offered)} unit-hours`)));
    }
  }
  return found.length > 0 && h("section", { "aria-label": "Used of what there was" }, h("h2", {}, `Used, ${time.moment(since)} – ${time.moment(until)}`), found);
}

function save(rows) {
  // A cell that begins like a formula is text to a spreadsheet as well.
  const quoted = (value) => `"${String(value).replace(/^([=+\-@\t\r])/, "'$1").replaceAll('"', '""')}"`;
  const lines = [["project", "type", "site", "requests", "granted", "refused", "granted_unit_hours", "used_unit_hours", "lead_median_s"], ...rows.map((row) => [row.holder, row.type, row.site, row.requests, row.granted, refused(row), row.granted_unit_ms / time.HOUR, row.used_unit_ms / time.HOUR, row.lead === null ? "" : row.lead / 1000])];
  saved("leasekit-usage.csv", "text/csv", lines.map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n");
}
