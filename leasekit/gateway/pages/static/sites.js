// Sites, for those who operate them: units and what ails them, maintenance, delegations, peers; and what one does about it.

import { Dialog, did, shows, whyForm } from "./acts.js";
import { actors, ask, gently, get, here, listen, path, post } from "./api.js";
import { button, chip, choice, empty, field, fill, h, named, paged, table } from "./dom.js";
import { page, setView, view } from "./frame.js";
import { known } from "./lease-actions.js";
import * as time from "./time.js";

const at = (text) => (text ? time.moment(Date.parse(text)) : "–");
const FAR = Date.parse("2200-01-01");
const PAGE = 100, turned = {}, dialog = new Dialog();
let site;

await page(async (place) => {
  const deployed = await actors();
  const sites = deployed.filter((one) => one.role === "authority").map((one) => one.name);
  if (!sites.length) {
    fill(place, empty("This deployment has no site of its own."));
    return;
  }
  site = sites.includes(view().site) ? view().site : sites[0];
  const list = h("div", {}), all = h("section", {}), units = h("section", {}), windows = h("section", {}), given = h("section", {}), peers = h("section", {});
  const find = h("input", { type: "search", "aria-label": "Find units", placeholder: "unit, type, state", value: view().find ?? "", on: { input: () => { setView({ find: find.value }); turned.from = 0; showUnits(); } } });
  fill(place,
    h("div", { class: "tools" }, sites.length > 1 && field("Site", choice(sites, site, (value) => { site = value; turned.from = 0; setView({ site: value }); load(true); })), find,
      h("span", { class: "right" }), here.operates && button("Maintenance…", () => dialog.open(maintenanceForm(shown.units)), { class: "do" })),
    list, dialog.place);
  const shown = { units: [] };

  const load = shows(async (last) => {
    const of = { site };
    // A site that hangs has one of the browser's few connections, and not all: other pages need some.
    const status = await get("/sites/status", of);
    const [unitList, inventory, maintenance, delegations, peerList] = await Promise.all([get("/units", of), get("/sites/inventory", of), get("/maintenance", of), get("/delegations", { actor: site }), get("/peers", { actor: site })]);
    if (!last()) return;
    const numbers = new Map(inventory.map((one) => [one.unit, one]));
    Object.assign(shown, { status, units: unitList.map((one) => ({ ...numbers.get(one.unit), ...one })).sort((a, b) => a.unit.localeCompare(b.unit, "en", { numeric: true })), maintenance, delegations, peers: peerList });
    showStatus();
    showUnits();
    showWindows();
    showGiven();
    if (all.parentElement !== list) fill(list, all, units, windows, given, peers);
  }, list);

  function showStatus() {
    const { status } = shown, clock = status.shell?.clock;
    const away = (status.peers ?? []).filter((one) => !one.connected).map((one) => one.peer ?? one.name);
    fill(all, h("p", { class: "sums" },
      Object.entries(status.units).map(([type, states]) => h("span", { class: "sum" }, h("strong", {}, type), Object.entries(states).map(([state, count]) => [" ", chip(`${count} ${state}`, state)]))),
      clock && clock.state !== "agrees" && chip(`clock ${clock.state}`, "failed"),
      away.length > 0 && chip(`away: ${away.join(", ")}`, "away"), status.waiting > 0 && chip(`${status.waiting} waiting`, "waits")),
      (status.outages ?? []).map((one) => h("p", { class: "note refused" }, `${one.type}: ${one.reason}; tried again ${at(one.again)}`)),
      status.shell?.problem && h("p", { class: "note refused" }, status.shell.problem));
  }

  function showUnits() {
    const words = (view().find ?? "").toLowerCase();
    const found = shown.units.filter((one) => [one.unit, one.type, one.state, one.reason, one.lease].some((text) => (text ?? "").toLowerCase().includes(words)));
    fill(units, h("h2", {}, "Units"), found.length ? paged(turned, PAGE, "Units", ["Unit", "Type", "State", "Lease", ...more().map(([word]) => word), "Attributes", "Power", "Failures", h("span", { class: "hidden" }, "Do")], found, unitRow) : empty("No unit fits."));
  }

  /** What machines and hosts have, where there are any. */
  const more = () => [["Host", ({ leaves, host }) => (leaves ? [named(leaves), " → ", host && named(host)] : host && named(host))], ["CPU", cpu], ["Taken of it", ({ taken, capacity }) => capacity && `${taken || "nothing"} of ${capacity}`.replaceAll(",", ", ")]].filter(([, cell]) => shown.units.some(cell));

  function unitRow(one) {
    const words = Object.entries(one.attributes ?? {}).map(([name, value]) => `${name}=${value}`).join(", ");
    return h("tr", {}, h("td", {}, named(one.unit), one.differs && h("div", { class: "dim" }, `${one.differs}, unlike the file`)), h("td", {}, one.type),
      h("td", {}, chip(one.state, one.state === "active" ? "leased" : one.state === "out" ? "disabled" : one.state), (one.trouble || one.reason) && h("div", { class: "dim why" }, time.dated(one.trouble || one.reason))),
      h("td", { class: "code" }, leaseLink(one.lease || one.promised)), more().map(([, cell]) => h("td", {}, cell(one))), h("td", {}, words || h("span", { class: "dim" }, "–")), h("td", {}, one.power), h("td", { class: "number" }, String(one.failures)),
      h("td", {}, h("span", { class: "group" }, button("Log", () => log(one.unit), { "aria-label": `Log of ${one.unit}` }),
        here.operates && [one.state === "out" || one.state === "disabled"
          ? button("Enable", () => done(`${one.unit} is in service.`, () => post(`/units/${encodeURIComponent(one.unit)}/enable`, {}, { site })), { "aria-label": `Enable ${one.unit}` })
          : button("Disable…", () => dialog.open(why(`Take ${one.unit} out of service?`, "Disable", `${one.unit} is out of service.`, (reason) => post(`/units/${encodeURIComponent(one.unit)}/disable`, { reason }, { site }))), { "aria-label": `Disable ${one.unit}` }),
        one.lease && button("Move…", () => dialog.open(why([`Give another unit than ${one.unit} to `, known(one.lease), "?"], "Move", `Lease ${one.lease} gets another unit.`, (reason) => post(`/units/${encodeURIComponent(one.unit)}/move`, { reason }, { site }))), { "aria-label": `Move ${one.unit}` }),
        one.lease && button("Evict…", () => dialog.open(evictForm(one.lease)), { "aria-label": `Evict from ${one.unit}` })])));
  }

  function showWindows() {
    fill(windows, h("h2", {}, "Maintenance"), shown.maintenance.length ? table("Maintenance", ["Units", `From (${time.zone()})`, "To", "Why", "Leases that it hits", h("span", { class: "hidden" }, "Do")], shown.maintenance.map((one) => [
      one.units.length > 6 ? `${one.units.slice(0, 6).join(", ")} and ${one.units.length - 6} more` : one.units.join(", "), at(one.start), Date.parse(one.end) > FAR ? "until it is removed" : at(one.end), one.reason,
      one.leases.length ? one.leases.map((hit) => h("div", {}, `${hit.holder}: `, leaseLink(hit.lease), ` ends ${at(hit.end)}`)) : h("span", { class: "dim" }, "none"),
      here.operates ? button("Remove", () => done("There is no such window any more.", () => post(`/maintenance/${encodeURIComponent(one.window)}/remove`, {}, { site })), { "aria-label": `Remove maintenance of ${one.units[0] ?? ""}` }) : ""])) : h("p", { class: "dim" }, "None."));
  }

  function showGiven() {
    const differs = new Map((shown.status.delegations ?? []).map((one) => [one.chain, one]));
    fill(given, h("h2", {}, "Delegations"), shown.delegations.length ? table("Delegations", ["To", "Type", "Units", `Term (${time.zone()})`, "State", "Unlike the file"], shown.delegations.map((one) => [one.broker, one.type, String(one.units), `${at(one.term[0])} – ${at(one.term[1])}`, chip(one.state), differs.get(one.chain)?.reason ?? ""])) : h("p", { class: "dim" }, "None."));
    fill(peers, h("h2", {}, "Peers"), table("Peers", ["Peer", "Role", "May", "Known by", "Key"], shown.peers.map((one) => [one.peer, one.role, one.may.join(", "), one.origin, h("code", {}, one.fingerprint)])));
  }

  async function log(unit) {
    const text = h("pre", { tabindex: 0, "aria-label": `Log of ${unit}` }, "Loading…");
    dialog.open(h("div", {}, h("h2", {}, unit), text, h("div", { class: "buttons" }, button("Close", () => dialog.close()))));
    text.textContent = await get(`/units/${encodeURIComponent(unit)}/log`, { site }).then((told) => told.lines.join("\n") || "Its drivers have said nothing.", (problem) => problem.message);
  }

  async function done(words, doing) {
    if (!await did(words, doing)) return;
    dialog.close();
    await load();
  }

  const why = (words, verb, said, doing) => whyForm(words, verb, (reason) => done(said, () => doing(reason)), () => dialog.close());

  function evictForm(lease) {
    const when = h("input", { type: "datetime-local", name: "at" });
    const evict = (reason) => done(when.value ? `Lease ${lease} ends then; its holder is told.` : `Lease ${lease} ends.`,
      () => post(`/sites/leases/${encodeURIComponent(lease)}/evict`, { reason, ...(when.value && { at: time.iso(time.fromInput(when.value)) }) }, { site }));
    return whyForm(["End ", known(lease), "?"], "Evict", evict, () => dialog.close(), "danger", field(`When (${time.zone()})`, when, "Empty: now."));
  }

  function maintenanceForm(list) {
    const types = [...new Set(list.map((one) => one.type))];
    // Without a type, and without units, all of the site would be meant.
    const type = choice([["", "the units below"], ...types.map((one) => [one, `all of ${one}`])], "", (value) => { which.required = !value; }, { name: "type" });
    const which = h("select", { multiple: true, size: 6, name: "units", required: true }, list.map((one) => h("option", { value: one.unit }, `${one.unit} (${one.type}, ${one.state})`)));
    const start = h("input", { type: "datetime-local", name: "start" }), end = h("input", { type: "datetime-local", name: "end" }), reason = h("input", { name: "reason", maxlength: 1000 });
    const close = h("input", { type: "checkbox", name: "close" });
    const body = () => ({
      type: type.value, units: type.value ? [] : [...which.selectedOptions].map((one) => one.value), reason: reason.value, close: close.checked,
      ...(start.value ? { start: time.iso(time.fromInput(start.value)) } : {}), ...(end.value ? { end: time.iso(time.fromInput(end.value)) } : {}),
    });
    return h("form", { on: { submit: (event) => { event.preventDefault(); done("The window is there.", () => ask("POST", "/maintenance", { body: body(), query: { site } })); } } },
      h("h2", {}, "Maintenance"), field("What", type), field("Units", which),
      h("div", { class: "pair" }, field(`From (${time.zone()})`, start, "Empty: from now on."), field("To", end, "Empty: units are drained, until the window is removed.")),
      field("Why", reason), h("label", { class: "check" }, close, "End leases for it"),
      h("div", { class: "buttons" }, h("button", { class: "do", type: "submit" }, "Withhold"), button("Cancel", () => dialog.close())));
  }

  const soon = gently(load);
  await load();
  listen({ all: true }, (event) => { if (!event || event.actor === site) soon(); }, soon);
  window.addEventListener("zone", () => load());
});

/** How much CPU a machine gets of what was asked for it, in cores, and how much it uses. */
function cpu({ asked, cap, used }) {
  if (!asked) return "";
  return `${cap >= 0 && cap < asked ? `${cap / 1000} of ` : ""}${asked / 1000}${used >= 0 ? ` (uses ${used / 1000})` : ""}`;
}

function leaseLink(id) {
  return id ? h("a", { class: "code", href: path(`leases/${encodeURIComponent(id)}`) }, id) : "";
}
