// The leases of a project: their states, why, when they end; many are extended or closed at once.

import { Dialog, shows } from "./acts.js";
import { all, gently, listen, path } from "./api.js";
import { h, fill, button, choice, chip, empty, paged, field } from "./dom.js";
import { myProjects, noProject, onlyLooks, page, setView, view } from "./frame.js";
import { OVER, closeForm, extendMany, extendForm, extends_, goesOn, lastEnd, plain, stateOf, title } from "./lease-actions.js";
import * as time from "./time.js";

const STATES = [["", "going on"], ["all", "all, also over"], ["active", "active"], ["ticketed", "ticketed"], ["nascent", "asked for"], ["failed", "failed"], ["closed", "closed"]];
const PAGE = 100, MOST = 5000, turned = {};
const chosen = new Set();
const dialog = new Dialog();
let leases = [], place, list, may = false;

await page(async (into) => {
  place = into;
  const { projects, uses } = await myProjects();
  const shown = view();
  if (!projects.length) {
    fill(place, noProject());
    return;
  }
  const project = projects.includes(shown.project) ? shown.project : projects[0];
  may = uses(project);
  const search = h("input", { type: "search", placeholder: "name, id, type, site", "aria-label": "Find", value: shown.find ?? "", on: { input: () => { setView({ find: search.value }); turned.from = 0; show(); } } });
  list = h("div", {});
  fill(place, h("div", { class: "tools" },
    projects.length > 1 && field("Project", choice(projects, project, (value) => { setView({ project: value }); location.reload(); })),
    field("State", choice(STATES, shown.state ?? "", (value) => { setView({ state: value }); turned.from = 0; load(); })),
    search,
    h("span", { class: "right" }),
    may ? [button("Extend…", () => dialog.open(extendMany(marked(), close)), { id: "extend-many", disabled: true }),
      button("Close…", () => dialog.open(closeForm(marked(), close)), { id: "close-many", disabled: true, class: "danger" }),
      h("a", { class: "button do", href: path("request", { project: projects.length > 1 ? project : "" }) }, "Request")] : onlyLooks(project)), list, dialog.place);

  const load = shows(async (last) => {
    const state = view().state ?? "", over = state === "all" || OVER.includes(state);
    const found = await all("/leases", { project, all: over, state: over && state !== "all" ? state : "" }, MOST);
    if (!last()) return;
    leases = found.filter((one) => ["", "all", stateOf(one)].includes(state)).sort((a, b) => OVER.includes(a.state) - OVER.includes(b.state) || lastEnd(a) - lastEnd(b));
    show();
  });
  const soon = gently(load);
  await load();
  listen({ project }, soon, soon);
  setInterval(count, 1000);
  window.addEventListener("zone", show);
});

function marked() {
  return leases.filter((lease) => chosen.has(lease.id) && goesOn(lease));
}

function close() {
  dialog.close();
  chosen.clear();
  show();
}

function show() {
  const words = (view().find ?? "").toLowerCase();
  const found = leases.filter((lease) => [lease.name, lease.id, lease.type, lease.site, lease.slice].some((text) => text.toLowerCase().includes(words)));
  if (!found.length) {
    fill(list, leases.length ? empty("No lease fits what you look for.") : empty("No leases. What is free is in the calendar.", h("a", { class: "button do", href: path("calendar") }, "Calendar")));
    return marks();
  }
  const some = may ? found.filter(goesOn) : [], every = some.length > 0 && some.every((lease) => chosen.has(lease.id));
  const box = h("input", { type: "checkbox", "aria-label": `Choose all ${some.length} that are found`, checked: every, on: { change: () => { for (const lease of some) chosen[box.checked ? "add" : "delete"](lease.id); show(); } } });
  fill(list, paged(turned, PAGE, "Leases", [some.length > 0 ? box : h("span", { class: "hidden" }, "Choose"), "Lease", "State", h("span", { class: "number" }, "Units"), "Type", "Site", `Term (${time.zone()})`, "Ends", h("span", { class: "hidden" }, "Do")], found, row),
    leases.length >= MOST && h("p", { class: "dim" }, `No more than ${MOST} are shown here: choose a state, or use the command line.`));
  marks();
  count();
  return undefined;
}

function row(lease) {
  const start = Date.parse(lease.start), end = lastEnd(lease), link = path(`leases/${encodeURIComponent(lease.id)}`, { project: lease.project });
  const box = may && goesOn(lease) ? h("input", { type: "checkbox", id: `mark-${lease.id}`, "aria-label": `Choose ${title(lease)}`, checked: chosen.has(lease.id), on: { change: () => { chosen[box.checked ? "add" : "delete"](lease.id); marks(); } } }) : "";
  return h("tr", { data: { lease: lease.id } },
    h("td", {}, box),
    h("td", {}, h("a", { class: "whole", href: link }, title(lease)), lease.slice !== "default" && lease.slice !== lease.name && h("div", { class: "dim" }, lease.slice)),
    h("td", {}, chip(stateOf(lease)), lease.pending && [" ", h("span", { class: "dim" }, plain(lease.pending))], lease.reason && h("div", { class: "dim why" }, time.dated(lease.reason))),
    h("td", { class: "number" }, String(lease.units)),
    h("td", {}, lease.type), h("td", {}, lease.site || h("span", { class: "dim" }, "–")),
    h("td", {}, end > start ? time.term(start, end) : `${time.moment(start)}, never begun`),
    h("td", { data: OVER.includes(lease.state) ? {} : { start: String(start), end: String(end) } }, OVER.includes(lease.state) ? h("span", { class: "dim" }, "over") : ""),
    h("td", {}, may && extends_(lease) && button("Extend", () => dialog.open(extendForm(lease, close), `Extend ${title(lease)}`), { id: `extend-${lease.id}`, "aria-label": `Extend ${title(lease)}` })));
}

function marks() {
  const none = marked().length === 0;
  if (may) for (const id of ["extend-many", "close-many"]) document.getElementById(id).disabled = none;
}

/** How long it is until each begins, or ends. */
function count() {
  const now = Date.now();
  for (const cell of list.querySelectorAll("td[data-end]")) {
    const start = Number(cell.dataset.start), end = Number(cell.dataset.end);
    cell.textContent = start > now ? `starts ${time.until(start, now)}` : time.until(end, now);
  }
}
