// What the API says of a calendar, as rows of a chart: sites, types, classes of units, and units.

import { WITHIN, get } from "./api.js";
import { packed } from "./chart.js";
import { plain, stateOf } from "./lease-actions.js";
import * as time from "./time.js";

const BINS = 1000, BARS_MAX = 10_000, LANES_FOLDED = 6, LANES_MAX = 60;
const ASKED = ["nascent"], OVER = ["closed", "failed"];

/** What the API tells of a window. */
export const askCalendar = (from, to, signal, within = WITHIN) => get("/calendar", { since: time.iso(from), until: time.iso(to), bins: BINS, limit: BARS_MAX, within }, signal);

/** What the API told, as `project` sees it `now` ({sources, bookings, more, away}); nothing can be changed where it is not `live`, as after the end of all (Infinity). */
export function calendarOf(told, project, now = Date.now(), live = now < Infinity) {
  const start = Date.parse(told.start), step = time.toSpan(told.step);
  const sources = [];
  told.rows.forEach((row, index) => {
    let source = sources.find((found) => found.site === row.site && found.type === row.type);
    if (!source) sources.push((source = { site: row.site, type: row.type, classes: [] }));
    const properties = Object.entries(row.properties ?? {}).map(([name, value]) => `${name}=${value}`).sort();
    const at = row.at ?? [];
    source.classes.push({
      index, properties, id: row.class, units: (row.units ?? []).map((unit, on) => ({ ...unit, on })).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true })), most: Math.max(0, ...(row.there ?? [])),
      steps: at.map((number, nth) => [start + number * step, row.there[nth], row.booked[nth], row.free[nth], row.mine?.[nth]]),
    });
  });
  sources.sort((a, b) => a.site.localeCompare(b.site) || a.type.localeCompare(b.type));
  // A lease that was closed early is shown no more: what was left of its time is free again.
  const bars = told.bars.filter((bar) => !OVER.includes(bar.state) || Date.parse(bar.end) <= now);
  const [bookings, stays] = [bars, told.stays].map((some) => some?.map((bar) => booking(bar, told.rows[bar.row], project, live ? now : Infinity)));
  return { sources, bookings, stays, live, more: told.more, away: told.away ?? [] };
}

function booking(bar, row, project, now) {
  const start = Date.parse(bar.start), end = Date.parse(bar.end), own = Boolean(bar.lease) && bar.project === project;
  const over = OVER.includes(bar.state);
  const kind = bar.kind === "failure" ? "failed" : bar.kind === "maintenance" ? "withheld" : bar.kind === "hold" || ASKED.includes(bar.state) ? "held" : own ? "mine" : "other";
  const state = bar.state ? plain(stateOf(bar)) : { withheld: "maintenance", held: "held" }[kind] || "booked";
  const label = bar.name || (own ? bar.lease : "") || bar.project || (kind === "withheld" ? bar.reason || "maintenance" : kind === "held" ? "held" : "booked");
  return {
    site: row?.site ?? bar.site ?? "", type: row?.type ?? bar.type ?? "", row: bar.row, units: bar.units, on: bar.on ?? [], lease: bar.lease ?? "",
    project: bar.project ?? "", mine: own, start, end, kind, label, state,
    moves: own && !over && start > now, stretches: own && !over && end > now,
  };
}

/** What a booking is, in words. */
export const wordsOf = (bar) => [bar.label, counts(bar.units), bar.state, bar.project, time.term(bar.start, bar.end)].filter(Boolean).join(" · ");

/** The levels of classes, of bookings of one's own and of what is withheld, as steps [from, mine, others, withheld, absent] of `units`. */
function levels(classes, booked, units) {
  const changes = new Map();
  const add = (at, index, by) => {
    if (!by) return;
    let found = changes.get(at);
    if (!found) changes.set(at, (found = [0, 0, 0, 0]));
    found[index] += by;
  };
  for (const one of classes) {
    let before = [0, 0, 0, 0];
    for (const [at, there, taken, free, mine] of one.steps) {
      const now = [mine ?? 0, taken, Math.max(0, there - taken - free), one.most - there];
      now.forEach((count, index) => add(at, index, count - before[index]));
      before = now;
    }
  }
  const known = classes.some((one) => one.steps[0]?.[4] !== undefined);
  // Units that are in maintenance are not there: of those that are missing it is known why.
  for (const one of booked) {
    for (const [at, by] of [[one.start, one.units], [one.end, -one.units]]) {
      if (one.kind === "mine" && !known) add(at, 0, by);
      if (one.kind === "withheld") add(at, 2, by);
      if (one.kind === "withheld") add(at, 3, -by);
    }
  }
  const level = [0, 0, 0, 0];
  return [...changes.keys()].sort((a, b) => a - b).map((at) => {
    changes.get(at).forEach((by, index) => { level[index] += by; });
    const mine = Math.min(level[0], units);
    // The edges of bars and of stretches differ by a little: nothing is less than none in between.
    return [at, mine, Math.max(0, level[1] - mine), Math.max(0, Math.min(level[2], level[2] + level[3])), Math.max(0, level[3])];
  });
}

const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
const counts = (units) => `${units} ${units === 1 ? "unit" : "units"}`;

/** A lease of several classes is one bar, where these are not told apart. */
function merged(bookings) {
  const found = [], places = new Map();
  for (const one of bookings) {
    const theirs = places.get(one.lease) ?? [];
    const place = theirs.find((at) => found[at].start === one.start && found[at].end === one.end);
    if (place !== undefined) found[place] = { ...found[place], units: found[place].units + one.units };
    else theirs.push(found.push(one) - 1);
    if (one.lease) places.set(one.lease, theirs);
  }
  return found;
}

/** The rows of a calendar as it is `shown` (what the address says), with those below that are `open`. */
export function rowsOf(data, shown, open) {
  const words = (shown.find ?? "").toLowerCase(), rows = [];
  const bySource = new Map();
  for (const one of data.bookings) {
    const key = `${one.site}/${one.type}`;
    if (!bySource.has(key)) bySource.set(key, []);
    bySource.get(key).push(one);
  }
  let site = null;
  for (const source of data.sources) {
    if ((shown.site && source.site !== shown.site) || (shown.type && source.type !== shown.type)) continue;
    const classes = source.classes.filter((one) => !words || source.type.toLowerCase().includes(words) || one.properties.some((text) => text.toLowerCase().includes(words)));
    if (!classes.length) continue;
    const all = bySource.get(`${source.site}/${source.type}`) ?? [];
    if (shown.mine && !all.some((one) => one.mine)) continue;
    if (source.site !== site) {
      site = source.site;
      rows.push({ key: `site ${site}`, kind: "site", label: site, depth: 0, site });
    }
    rows.push(...below(source, classes, all, data, open));
  }
  return rows;
}

function below(source, classes, all, data, open) {
  const key = `${source.site}/${source.type}`, units = sum(classes.map((one) => one.most)), several = classes.length > 1;
  const opened = open.has(key), telling = (one) => one.properties.filter((text) => !source.classes.every((each) => each.properties.includes(text)));
  const rest = all.filter((one) => one.kind !== "other" || one.project);
  const { lanes, more } = packed(merged(rest), opened ? LANES_MAX : LANES_FOLDED);
  const rows = [{
    key, kind: "type", depth: 1, label: source.type, sub: counts(units) + (several ? `, ${classes.length} classes` : "") + (more ? `, ${more} more bookings` : ""), site: source.site, type: source.type,
    units, free: data.live, opens: several || more > 0 || classes.some((one) => one.units.length > 0), open: opened, filter: "",
    steps: levels(classes, rest, units), lanes,
  }];
  if (!opened) return rows;
  for (const one of classes) {
    const inside = `${key}/${one.id}`, theirs = (data.stays ?? all).filter((booked) => booked.row === one.index);
    if (several) {
      rows.push({
        key: inside, kind: "class", depth: 2, label: telling(one).join(", ") || "the others", sub: counts(one.most), site: source.site, type: source.type,
        units: one.most, free: data.live, opens: one.units.length > 0, open: open.has(inside), filter: telling(one).map(condition).join(" and "),
        steps: levels([one], theirs, one.most),
      });
      if (!open.has(inside)) continue;
    }
    const lanes = one.units.map(() => []);
    for (const booked of theirs.sort((a, b) => a.start - b.start)) for (const at of booked.on) lanes[at]?.push(booked);
    one.units.forEach((unit) => rows.push({
      key: `unit ${source.site}/${unit.name}`, kind: "unit", depth: 3, label: unit.name, sub: ["free", "active"].includes(unit.state) ? "" : unit.reason || unit.state,
      site: source.site, type: source.type, units: 1, lanes: packed(lanes[unit.on]).lanes,
    }));
  }
  return rows;
}

const condition = (text) => {
  const [name, ...value] = text.split("=");
  return `${name} == ${JSON.stringify(value.join("="))}`;
};
