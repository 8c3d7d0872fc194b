// A run of an emulation: the calendar over virtual time, at an instant that one scrubs or plays.

import { get, gently, path } from "./api.js";
import { Chart, SPAN_MIN } from "./chart.js";
import { calendarOf, rowsOf, wordsOf } from "./calendar-data.js";
import { fillTables } from "./calendar-table.js";
import { button, choice, empty, field, fill, h, table } from "./dom.js";
import { asList, ofList, page, setView, view } from "./frame.js";
import * as time from "./time.js";

const { HOUR, DAY } = time;
const SPEEDS = [["1 h/s", HOUR], ["6 h/s", 6 * HOUR], ["1 d/s", DAY], ["7 d/s", 7 * DAY]];
const MOVED_MS = 250, FINER = 12;
const count = (number) => number.toLocaleString("en");
const figure = (value) => String(Math.round(value * 100) / 100);

class RunShown {
  constructor(place, told, shown) {
    this.run = shown.run ?? "";
    [this.begin, this.over] = [Date.parse(told.begin), Date.parse(told.over)];
    time.setBegin(this.begin);
    document.getElementById("zone").hidden = time.isVirtual();
    this.open = new Set(ofList(shown.open));
    this.guest = shown.guest ?? told.guests[0] ?? "";
    const asked = [Date.parse(shown.from), Date.parse(shown.to)], at = Date.parse(shown.at);
    [this.from, this.to] = asked[1] - asked[0] >= SPAN_MIN ? asked : [this.begin, this.over];
    this.at = at >= this.begin && at <= this.over ? at : this.begin;
    this.speed = DAY;
    this.chartPlace = h("div", { class: "chart" });
    this.tablePlace = h("div", { class: "tables", hidden: true });
    this.picked = h("section", { class: "picked", role: "status" });
    this.moment = h("div");
    this.side = h("aside", { class: "side", "aria-label": "At this time" }, this.picked, this.moment);
    this.left = h("div", { class: "dim", role: "status" });
    this.tools = h("div", { class: "tools" });
    this.player = h("div", { class: "tools player" });
    fill(place, this.tools, h("div", { class: "calendar" }, this.chartPlace, this.tablePlace, this.side), this.left, this.player,
      h("p", { class: "hidden", id: "chart-keys" }, "Arrows move, Enter goes to that time or tells of a lease, o opens a row, plus and minus zoom. The button Table shows the same as tables."));
    this.chart = new Chart(this.chartPlace, this.from, this.to, {
      clock: () => this.at,
      at: (at) => this.seek(at),
      pick: (bar) => this.goTo(bar),
      tell: wordsOf,
      moved: (from, to) => this.moved(from, to),
      toggle: (row) => this.toggle(row),
      now: () => this.chart.reveal(this.at, this.at),
    });
    this.makeTools(told.guests);
    this.take(told, this.begin, this.over);
    this.seek(this.at);
    if (this.open.size || this.from !== this.begin || this.to !== this.over) this.soon();
  }

  makeTools(guests) {
    const asTable = button("Table", () => { const on = view().view !== "table"; asTable.setAttribute("aria-pressed", String(on)); setView({ view: on ? "table" : "" }); this.show(); }, { "aria-pressed": String(view().view === "table") });
    const all = path("", {});
    fill(this.tools, h("a", { href: all, class: "button" }, "All runs"), h("strong", {}, this.run),
      h("span", { class: "group" }, button("‹", () => this.chart.pan(-0.5), { "aria-label": "Earlier" }), button("All", () => this.chart.show(this.begin, this.over)), button("›", () => this.chart.pan(0.5), { "aria-label": "Later" })),
      h("span", { class: "group" }, button("−", () => this.chart.zoom(1.6), { "aria-label": "Zoom out" }), button("+", () => this.chart.zoom(1 / 1.6), { "aria-label": "Zoom in" })),
      guests.length > 0 && field("Guest", choice(guests, this.guest, (value) => { this.guest = value; setView({ guest: value }); this.soon(); })),
      asTable);
    this.plays = button("Play", () => this.play(!this.playing), { class: "do", "aria-pressed": "false" });
    this.slider = h("input", { type: "range", min: this.begin, max: this.over, step: 60_000, value: this.at, "aria-label": "Time of the run", on: { input: () => this.seek(Number(this.slider.value)) } });
    this.when = h("output", { class: "when" });
    fill(this.player, this.plays, choice(SPEEDS.map(([words, speed]) => [String(speed), words]), String(this.speed), (value) => { this.speed = Number(value); }, { "aria-label": "Speed" }), this.slider, this.when);
  }

  // -- data ------------------------------------------------------------------------------------------------------

  async load() {
    const span = this.to - this.from, from = Math.max(this.begin, this.from - span), to = Math.min(this.over, this.to + span);
    if (from >= to) return;
    this.take(await get("/calendar", { run: this.run, since: time.iso(from), until: time.iso(to), guest: this.guest, open: asList(this.open) }), from, to);
  }

  soon = gently(() => this.load().catch((problem) => fill(this.left, h("span", { class: "refused" }, problem.message))));

  take(told, from, to) {
    this.loaded = [from, to];
    this.data = calendarOf(told, this.guest, Infinity);
    for (const one of [...this.data.bookings, ...this.data.stays]) if (one.project) one.label = `${one.project} ${one.units}`;
    const left = [told.more && `${count(told.more)} of leases`, told.more_stays && `${count(told.more_stays)} of units`].filter(Boolean);
    fill(this.left, left.length > 0 && `The shortest bars are left out: ${left.join(", ")}. Profiles count them all; zoom in to see them.`);
    this.show();
    requestAnimationFrame(() => performance.mark("run-drawn"));
  }

  show() {
    this.rows = rowsOf(this.data, {}, this.open);
    for (const row of this.rows) row.steps?.push([this.over, 0, 0, 0, row.units]);
    const asTable = view().view === "table";
    this.chartPlace.hidden = asTable;
    this.tablePlace.hidden = !asTable;
    this.chart.setRows(this.rows);
    if (asTable) this.showTable();
    else if (!this.rows.length) fill(this.chartPlace, empty("No site of this run had any unit."));
  }

  showTable() {
    const last = Math.min(this.over, this.loaded[1]);
    fillTables(this.tablePlace, { rows: this.rows, bookings: this.data.bookings }, { from: Math.max(this.from, this.begin), to: Math.min(this.to, last), last }, {
      mine: this.guest || "Mine", pick: (bar) => () => this.goTo(bar),
    });
  }

  moved(from, to) {
    [this.from, this.to] = [from, to];
    clearTimeout(this.movedTimer);
    this.movedTimer = setTimeout(() => setView({ from: time.iso(from), to: time.iso(to) }), MOVED_MS);
    const [first, last] = this.loaded, span = to - from;
    if (Math.max(from, this.begin) < first || Math.min(to, this.over) > last || last - first > FINER * span) this.soon();
    if (view().view === "table") this.showTable();
  }

  toggle(row) {
    this.open[this.open.has(row.key) ? "delete" : "add"](row.key);
    setView({ open: asList(this.open) });
    this.show();
    this.soon();
  }

  // -- an instant ------------------------------------------------------------------------------------------------

  seek(at) {
    this.at = Math.max(this.begin, Math.min(this.over, Math.round(at)));
    this.slider.value = this.at;
    this.when.textContent = time.moment(this.at);
    this.slider.setAttribute("aria-valuetext", this.when.textContent);
    this.chart.draw();
    if (this.bar && (this.at < this.bar.start || this.at >= this.bar.end)) this.pick(null);
    if (!this.playing) this.keep();
    this.told();
  }

  keep() {
    clearTimeout(this.seekTimer);
    this.seekTimer = setTimeout(() => setView({ at: time.iso(this.at) }), MOVED_MS);
  }

  told = gently(async () => {
    const at = this.at, found = await get("/moment", { run: this.run, at: time.iso(at) }).catch((problem) => ({ problem }));
    if (found.problem) fill(this.moment, h("p", { class: "refused" }, found.problem.message));
    else this.tell(at, found);
  });

  tell(at, { series, lines }) {
    const past = lines.filter((one) => Date.parse(one.at) <= at).reverse(), next = lines.filter((one) => Date.parse(one.at) > at);
    const row = (one) => h("li", {}, h("time", { datetime: one.at }, time.moment(Date.parse(one.at), true)), h("span", {}, h("strong", {}, one.actor), ` ${one.event}`, one.lease && one.lease !== one.actor && [" ", h("code", {}, one.lease)], one.why && h("span", { class: "dim" }, ` ${time.dated(one.why)}`)));
    fill(this.moment, h("h2", {}, time.moment(at)),
      table("Figures at this time", ["Figure", h("span", { class: "number" }, "Value")], Object.entries(series).map(([name, value]) => h("tr", {}, h("td", {}, name), h("td", { class: "number" }, figure(value))))),
      past.length > 0 && [h("h3", {}, "What has happened last"), h("ul", { class: "timeline brief" }, past.map(row))],
      next.length > 0 && [h("h3", {}, "What comes next"), h("ul", { class: "timeline brief" }, next.map(row))],
      !lines.length && h("p", { class: "dim" }, "The run kept no log."));
  }

  /** Go to where a bar begins, and tell of it. */
  goTo(bar) {
    this.seek(Math.max(this.begin, bar.start));
    this.pick(bar);
  }

  /** Tell of a bar beside the calendar, for as long as the time is one of its own. */
  pick(bar) {
    this.bar = bar;
    fill(this.picked, bar && [h("h2", {}, bar.label),
      h("dl", {}, bar.lease && [h("dt", {}, "Lease"), h("dd", {}, h("code", {}, bar.lease))],
        bar.project && [h("dt", {}, "Guest"), h("dd", {}, bar.project)],
        h("dt", {}, "Units"), h("dd", {}, `${bar.units} × ${bar.type} at ${bar.site}`),
        h("dt", {}, "Term"), h("dd", {}, time.term(bar.start, bar.end)))]);
  }

  play(on) {
    this.playing = on;
    this.plays.textContent = on ? "Pause" : "Play";
    this.plays.setAttribute("aria-pressed", String(on));
    if (!on) return this.keep();
    if (this.at >= this.over) this.seek(this.begin);
    let before = performance.now();
    const step = (now) => {
      if (!this.playing) return;
      this.seek(this.at + ((now - before) / 1000) * this.speed);
      before = now;
      if (this.at > this.to || this.at < this.from) this.chart.show(this.at, this.at + this.to - this.from);
      if (this.at >= this.over) this.play(false);
      else requestAnimationFrame(step);
    };
    return requestAnimationFrame(step);
  }
}

document.body.dataset.fills = "";
await page(async (place) => {
  const shown = view();
  return new RunShown(place, await get("/calendar", { run: shown.run ?? "", guest: shown.guest }), shown);
});
