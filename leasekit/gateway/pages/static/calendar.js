// The calendar: what is free, taken and withheld over time; one reserves by dragging over it, or by its table and forms.

import { whoIsAway } from "./acts.js";
import { Problem, WITHIN, gently, get, here, listen, path } from "./api.js";
import { Chart, SPAN_MAX, SPAN_MIN, freeOver } from "./chart.js";
import { askCalendar, calendarOf, rowsOf, wordsOf } from "./calendar-data.js";
import { fillTables } from "./calendar-table.js";
import { button, called, chip, choice, empty, field, fill, h } from "./dom.js";
import { asList, myProjects, noProject, note, ofList, onlyLooks, page, setView, view } from "./frame.js";
import { Trying, changeForm, closeForm, extendForm, extends_, goesOn, lastEnd, plain, stateOf, title } from "./lease-actions.js";
import { Reserving } from "./reserve.js";
import * as time from "./time.js";

const { HOUR, DAY } = time;
const MOVED_MS = 250, PATIENT = "4s";
const SPANS = [["Day", DAY], ["Week", 7 * DAY], ["Month", 31 * DAY], ["Year", 365 * DAY]];

/** The page: its tools, the chart or the table, and what is beside it. */
class Calendar {
  constructor(place, { projects, uses }, shown, [from, to]) {
    Object.assign(this, { projects, uses });
    this.project = projects.includes(shown.project) ? shown.project : projects[0];
    this.open = new Set(ofList(shown.open));
    [this.from, this.to] = [from, to];
    this.chartPlace = h("div", { class: "chart" });
    this.side = h("aside", { class: "side", "aria-label": "Details", hidden: true });
    this.frame = h("div", { class: "calendar" }, this.chartPlace, this.side);
    this.tablePlace = h("div", { class: "tables", hidden: true });
    this.tools = h("div", { class: "tools" });
    this.absent = h("div", {});
    this.reserve = button("Reserve", () => this.reserveFirst(), { class: "do" });
    this.help = h("dialog", { class: "dialog", "aria-label": "Calendar" });
    fill(place, this.tools, this.absent, this.frame, this.tablePlace, legend(), keys(), this.help);
    this.chart = new Chart(this.chartPlace, this.from, this.to, {
      select: (row, start, end, done, byKeys) => this.select(row, start, end, done, byKeys),
      pick: (bar) => this.pick(bar.lease),
      tell: wordsOf,
      change: (bar, start, end, done) => this.change(bar, start, end, done),
      moved: (from, to) => this.moved(from, to),
      toggle: (row) => this.toggle(row),
      now: () => this.goTo(Date.now() - 2 * HOUR, this.to - this.from),
    });
    this.makeTools();
    window.addEventListener("popstate", () => location.reload());
    window.addEventListener("zone", () => this.show());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.side.hidden && !document.querySelector("dialog[open]")) this.away();
      if (event.key === "?" && event.target === this.chart.scroll) this.explain();
    });
  }

  // -- tools ---------------------------------------------------------------------------------------------------------

  makeTools() {
    const shown = view();
    const spans = SPANS.map(([words, span]) => button(words, () => this.goTo(this.from, span), { data: { span: String(span) }, "aria-pressed": "false" }));
    this.spans = spans;
    this.term = h("span", { class: "dim term-words" });
    const again = (name) => (value) => { setView({ [name]: value }); this.show(); };
    this.sites = h("span", {});
    const find = h("input", { type: "search", value: shown.find ?? "", placeholder: "soc=imx8", "aria-label": "Attributes", on: { input: () => again("find")(find.value) } });
    const mine = button("Mine", () => { const on = view().mine !== "yes"; mine.setAttribute("aria-pressed", String(on)); again("mine")(on ? "yes" : ""); }, { "aria-pressed": String(shown.mine === "yes"), title: "Only what has leases of my project" });
    const asTable = button("Table", () => { const on = view().view !== "table"; asTable.setAttribute("aria-pressed", String(on)); again("view")(on ? "table" : ""); }, { "aria-pressed": String(shown.view === "table") });
    fill(this.tools,
      h("span", { class: "group" }, button("‹", () => this.chart.pan(-0.5), { "aria-label": "Earlier" }), button("Now", () => this.goTo(Date.now() - (this.to - this.from) / 12, this.to - this.from)), button("›", () => this.chart.pan(0.5), { "aria-label": "Later" })),
      h("span", { class: "group" }, spans),
      h("span", { class: "group" }, button("−", () => this.chart.zoom(1.6), { "aria-label": "Zoom out" }), button("+", () => this.chart.zoom(1 / 1.6), { "aria-label": "Zoom in" })),
      this.sites, find,
      this.projects.length > 1 && field("Project", choice(this.projects, this.project, (value) => { this.project = value; setView({ project: value }); this.load(); })),
      mine, asTable, h("span", { class: "right" }, this.term),
      this.reserve,
      button("?", () => this.explain(), { "aria-label": "Keys and marks" }));
    this.said();
  }

  /** Sites and types to choose from, as far as there are several. */
  chooseSites() {
    const shown = view(), pick = (label, name, values) => values.length > 1 && choice([["", `all ${label}`], ...values], shown[name] ?? "", (value) => { setView({ [name]: value }); this.show(); }, { "aria-label": label });
    const sources = this.data.sources;
    fill(this.sites, pick("sites", "site", [...new Set(sources.map((one) => one.site))]), " ", pick("types", "type", [...new Set(sources.map((one) => one.type))]));
  }

  said() {
    for (const one of this.spans) one.setAttribute("aria-pressed", String(Math.abs(Math.log(Number(one.dataset.span) / (this.to - this.from))) < 0.45));
    this.term.textContent = time.term(this.from, this.to);
  }

  explain() {
    fill(this.help, h("h2", {}, "Calendar"),
      h("p", {}, "Each row is what a site has of a type, or of one class of it. Drag over a row to reserve; drag a lease of yours to move it, or its right edge to have it end elsewhere. Click a lease to see it."),
      h("p", {}, "Pan by dragging the axis, zoom with Ctrl and the wheel. With keys, once the calendar has the focus:"),
      h("dl", {}, [["← →", "another time, or the next lease"], ["↑ ↓", "another row, or lane of leases"], ["Shift + ← →", "longer or shorter"], ["Enter", "reserve, or see the lease"], ["o", "open or fold a row"], ["+ −", "zoom"], ["Page ↑ ↓", "earlier, later"], ["n", "now"], ["Esc", "put away what is beside"]].map(([key, words]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)])),
      h("div", { class: "buttons" }, button("Close", () => this.help.close(), { class: "do" })));
    this.help.showModal();
  }

  // -- data ----------------------------------------------------------------------------------------------------------

  /** Read what the window shows, unless that was `asked` for already. */
  async load(asked = null) {
    this.loaded = around(this.from, this.to);
    this.#abort?.abort();
    this.#abort = new AbortController();
    try {
      this.data = calendarOf(await (asked ?? askCalendar(...this.loaded, this.#abort.signal, this.data?.away.length ? PATIENT : WITHIN)), this.project, Date.now(), this.uses(this.project));
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (!this.data || problem.status === undefined) throw problem;
      if (problem.status) note(problem.message, { refused: true });
      return;
    }
    fill(this.absent, whoIsAway(this.data.away, this.soon), this.project && !this.data.live && onlyLooks(this.project));
    this.reserve.hidden = !this.data.live;
    this.chooseSites();
    this.show();
    this.refreshSide();
    requestAnimationFrame(() => performance.mark("calendar-drawn"));
  }

  #abort = null;

  soon = gently(() => this.load());

  listen() {
    listen(here.seesAll ? { all: true } : { calendar: true }, this.soon, this.soon);
    setInterval(() => this.chart.draw(), 15_000);
  }

  moved(from, to) {
    if (from === this.from && to === this.to) return;
    this.from = from;
    this.to = to;
    this.said();
    clearTimeout(this.movedTimer);
    this.movedTimer = setTimeout(() => setView({ from: time.iso(from), to: time.iso(to) }), MOVED_MS);
    const [first, last] = this.loaded ?? [0, 0], span = to - from;
    if (from < first || to > last || last - first > 40 * span) this.soon();
    if (view().view === "table") this.showTable();
  }

  goTo(from, span) {
    this.chart.show(from, from + span);
  }

  // -- what is shown -------------------------------------------------------------------------------------------------

  show() {
    const asTable = view().view === "table";
    this.chartPlace.hidden = asTable;
    this.tablePlace.hidden = !asTable;
    this.frame.hidden = asTable && this.side.hidden;
    this.rows = rowsOf(this.data, view(), this.open);
    this.chart.setRows(this.rows);
    this.chartPlace.querySelector(".empty")?.remove();
    if (!this.rows.length) this.chartPlace.append(empty(this.data.sources.length ? "Nothing fits what you look for." : "No site has given anything to a broker of yours yet."));
    if (asTable) this.showTable();
  }

  toggle(row) {
    this.open[this.open.has(row.key) ? "delete" : "add"](row.key);
    setView({ open: asList(this.open) });
    this.show();
  }

  showTable() {
    fillTables(this.tablePlace, { rows: this.rows, bookings: this.data.bookings }, { from: this.from, to: this.to, last: this.loaded[1] }, {
      pick: (one) => one.lease && one.mine && (() => this.pick(one.lease)),
      reserve: this.data.live && ((row, from, to) => this.select(row, from, to, true, true)),
    });
  }

  // -- what is beside it ---------------------------------------------------------------------------------------------

  beside(heading, ...content) {
    this.reserving?.stop();
    this.reserving = null;
    this.picked = this.turn = null;
    if (this.tablePlace.contains(document.activeElement)) this.opener = called(document.activeElement);
    this.side.hidden = false;
    this.frame.hidden = false;
    fill(this.side, h("header", {}, h("h2", {}, heading), button("×", () => this.away(), { class: "quiet", "aria-label": "Put away" })), content);
  }

  away() {
    this.reserving?.stop();
    this.reserving = null;
    this.picked = this.turn = null;
    this.side.hidden = true;
    this.chart.select(null);
    if (view().view === "table") {
      this.frame.hidden = true;
      ([...this.tablePlace.querySelectorAll("button")].find((one) => called(one) === this.opener) ?? this.tablePlace.querySelector(".scrolls"))?.focus();
    } else this.chart.scroll.focus();
  }

  select(row, start, end, done, byKeys = false) {
    if (!done) {
      this.tryDragged({ type: row.type, site: row.site, filter: row.filter, units: this.reserving?.wish.units ?? 1, ...timeOf(start, end) }, "/leases/dry-run", start, end);
      return;
    }
    this.endDrag();
    if (!this.reserving || this.reserving.key !== row.key) {
      const wish = { type: row.type, site: row.site, filter: row.filter, start, end, project: this.project, projects: this.projects.filter(this.uses), units: this.reserving?.wish.units ?? 1 };
      const reserving = new Reserving(wish, {
        changed: (wanted) => this.chart.select({ key: row.key, start: wanted.start, end: wanted.end }),
        answered: (granted) => this.chart.select({ key: row.key, start: reserving.wish.start, end: reserving.wish.end, refused: !granted }),
        done: () => { this.away(); this.soon(); },
        away: () => this.away(),
      });
      this.beside(`Reserve ${row.type}`, h("p", { class: "dim" }, row.site, row.filter && [" · ", h("code", {}, row.filter)]), reserving.place);
      reserving.key = row.key;
      this.reserving = reserving;
    } else this.reserving.set(start, end);
    this.chart.select({ key: row.key, start, end });
    requestAnimationFrame(() => requestAnimationFrame(() => this.chart.reveal(start, end)));
    if (byKeys) this.reserving.units.focus();
  }

  /** What was asked while it was dragged is not told any more. */
  endDrag() {
    this.dragging = "";
    this.dragged?.stop();
    this.chart.say("");
  }

  /** While it is dragged: what would be answered is said where the pointer is. */
  tryDragged(body, where, start, end) {
    const words = `${time.term(start, end)} · ${time.span(end - start)}`;
    this.chart.say(words);
    this.dragged ??= new Trying(h("div", {}), () => {});
    this.dragged.shown = (found) => {
      const granted = found.status === "granted";
      const said = granted ? (found.approval ? "granted once approved" : "granted") : found.status === "waits" ? "would wait" : found instanceof Problem || found.status === "refused" ? "not free" : "";
      if (this.dragging === words) this.chart.say(`${words} · ${said}`, granted ? "granted" : "refused");
    };
    this.dragging = words;
    this.dragged.try(where, body, { project: this.project }, 30);
  }

  /** What the button does: the first row that has something free, for an hour from now on. */
  reserveFirst() {
    const start = Math.ceil(Math.max(Date.now(), this.from) / (5 * time.MINUTE)) * 5 * time.MINUTE;
    const rows = this.rows.filter((row) => row.free);
    const row = rows.find((one) => freeOver(one, start, start + HOUR) > 0) ?? rows[0];
    if (row) this.select(row, start, start + HOUR, true, true);
    else note("There is nothing to reserve here.");
  }

  async pick(id) {
    this.beside("Lease", h("p", { class: "loading" }, "Loading…"));
    this.picked = id;
    await this.refreshSide();
  }

  async refreshSide() {
    const id = this.picked;
    if (!id || this.side.querySelector("form")) return;
    let lease;
    try {
      lease = await get(`/leases/${encodeURIComponent(id)}`, { project: this.project });
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (this.picked === id) this.beside("Lease", h("p", {}, problem.message));
      return;
    }
    if (this.picked !== id) return;
    this.showLease(lease);
  }

  showLease(lease) {
    const start = Date.parse(lease.start), end = lastEnd(lease), now = Date.now();
    const form = (make, heading) => () => this.beside(`${heading} ${title(lease)}`, make(lease, () => this.pick(lease.id)));
    const more = path(`leases/${encodeURIComponent(lease.id)}`, { project: lease.project });
    this.beside(title(lease),
      h("p", {}, chip(stateOf(lease)), " ", plain(lease.pending)),
      lease.reason && h("p", { class: "why" }, time.dated(lease.reason)),
      h("dl", {}, h("dt", {}, "Units"), h("dd", {}, `${lease.units} × ${lease.type}${lease.site ? ` at ${lease.site}` : ""}`),
        h("dt", {}, "Term"), h("dd", {}, time.term(start, end)),
        goesOn(lease) && [h("dt", {}, start > now ? "Starts" : "Ends"), h("dd", {}, time.until(start > now ? start : end, now))]),
      goesOn(lease) && this.uses(lease.project) && h("div", { class: "buttons" }, extends_(lease) && button("Extend…", form(extendForm, "Extend"), { class: "do" }), button("Change…", form(changeForm, "Change")), button("Close…", form((one, done) => closeForm([one], done), "Close"), { class: "danger" })),
      h("p", {}, h("a", { href: more }, "All about it")));
    this.picked = lease.id;
  }

  /** A lease of one's own was dragged: the form says what would be answered, and asks for it. */
  async change(bar, start, end, done) {
    if (!done) {
      const begun = bar.start <= Date.now();
      const [what, body] = begun && end > bar.end ? ["extend", { end: time.iso(end) }] : ["modify", { end: time.iso(end), start: begun || start === bar.start ? undefined : time.iso(start) }];
      this.tryDragged(body, `/leases/${encodeURIComponent(bar.lease)}/${what}/dry-run`, start, end);
      return;
    }
    this.endDrag();
    this.beside("Change", h("p", { class: "loading" }, "Loading…"));
    const turn = (this.turn = {});
    let lease;
    try {
      lease = await get(`/leases/${encodeURIComponent(bar.lease)}`, { project: this.project });
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (this.turn === turn) this.beside("Change", h("p", {}, problem.message));
      return;
    }
    if (this.turn !== turn) return; // one has gone on to something else
    // A bar is as exact as one sees: what was not dragged stays as the lease has it.
    const wished = {};
    if (start !== bar.start) wished.start = start;
    if (start !== bar.start && end !== bar.end) wished.end = start + lastEnd(lease) - Date.parse(lease.start);
    else if (end !== bar.end) wished.end = end;
    this.beside(`Change ${title(lease)}`, changeForm(lease, () => { this.chart.select(null); this.pick(lease.id); }, wished));
    this.side.querySelector('button[type="submit"]').focus();
  }
}

/** The window that an address says. */
function windowOf(shown) {
  const now = Date.now(), asked = [Date.parse(shown.from), Date.parse(shown.to)], span = asked[1] - asked[0];
  return span >= SPAN_MIN && span <= SPAN_MAX ? asked : [now - 2 * HOUR, now + 22 * HOUR];
}

/** A window with as much again before and after it, so that a little panning needs no more. */
const around = (from, to) => [from - (to - from), to + (to - from)];

/** A term as a request says it: without a start where that is over. */
const timeOf = (start, end) => ({ ...(start <= Date.now() ? {} : { start: time.iso(start) }), end: time.iso(end) });

const legend = () => h("div", { class: "legend", "aria-label": "Marks" }, [["mine", "mine"], ["other", "others"], ["held", "asked for"], ["withheld", "maintenance"], ["failed", "failed"]].map(([kind, words]) => h("span", {}, h("i", { class: "key", data: { kind }, "aria-hidden": "true" }), words)));

const keys = () => h("p", { class: "hidden", id: "chart-keys" }, "Arrows move, Shift and arrows make longer, Enter reserves or shows a lease, plus and minus zoom, question mark says more. The button Table shows the same as tables.");

document.body.dataset.fills = "";
await page(async (place) => {
  const shown = view();
  const shownWindow = windowOf(shown), asked = askCalendar(...around(...shownWindow));
  asked.catch(() => {}); // who has no project is told that, and nothing of the calendar
  const mine = await myProjects();
  if (!mine.projects.length && !here.seesAll) {
    fill(place, noProject());
    return;
  }
  const calendar = new Calendar(place, mine, shown, shownWindow);
  await calendar.load(asked);
  calendar.listen();
});
