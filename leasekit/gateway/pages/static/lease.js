// One lease: what it is, why it is so, its units and how they are reached, what happened to it, and what one does to it.

import { Dialog } from "./acts.js";
import { gently, get, here, latest, listen, path } from "./api.js";
import { button, chip, empty, fill, h, named, table } from "./dom.js";
import { myProjects, note, onlyLooks, page, view } from "./frame.js";
import { changeForm, closeForm, extendForm, extends_, goesOn, handForm, lastEnd, plain, sshLine, stateOf, title, undoForm, whose } from "./lease-actions.js";
import * as time from "./time.js";

const id = here.given.lease, query = { project: view().project };
const at = `/leases/${encodeURIComponent(id)}`;
let lease, history = [], may = false;

await page(async (place) => {
  const head = h("div", {}), units = h("section", {}), past = h("section", {}), dialog = new Dialog();
  const heading = document.querySelector("main > h1");
  fill(place, h("p", {}, h("a", { href: path("leases", query) }, "All leases")), head, units, past, dialog.place);

  const close = () => { dialog.close(); load(); };

  const load = latest(async (last) => {
    let found;
    try {
      found = await Promise.all([get(at, query), get(`${at}/history`, query), myProjects()]);
    } catch (problem) {
      if (!lease && problem.status === 404) {
        fill(place, empty(`There is no lease ${id}, or it is of a project that is not yours.`, h("a", { class: "button", href: path("leases", query) }, "All leases")));
        return;
      }
      if (!lease || problem.status === undefined) throw problem;
      note(problem.message, { refused: true });
      return;
    }
    if (!last()) return;
    [lease, { items: history }] = found;
    may = found[2].uses(lease.project);
    show();
  });

  function show() {
    heading.textContent = title(lease);
    document.title = `${title(lease)} · leasekit`;
    const start = Date.parse(lease.start), end = lastEnd(lease);
    fill(head,
      h("p", {}, chip(stateOf(lease)), " ", lease.pending && h("span", {}, `${plain(lease.pending)} `), lease.reason && h("span", { class: "why" }, time.dated(lease.reason))),
      bar(start, end),
      h("dl", {},
        h("dt", {}, "Units"), h("dd", {}, lease.units ? `${lease.units} × ${lease.type}` : lease.type),
        h("dt", {}, "Term"), h("dd", {}, `${time.term(start, end)} (${time.zone()}), ${time.span(end - start)} `, h("span", { id: "left", class: "dim" })),
        lease.extended_to && [h("dt", {}, "Extended"), h("dd", {}, `from ${time.moment(Date.parse(lease.end))} on`)],
        h("dt", {}, "Site"), h("dd", {}, lease.site || "not known yet", lease.broker && ` by ${lease.broker}`),
        h("dt", {}, "Project"), h("dd", {}, lease.project, lease.slice && ` / ${lease.slice}`),
        whose(history) && [h("dt", {}, "Holder"), h("dd", {}, whose(history))],
        lease.keepalive && [h("dt", {}, "Ends when silent for"), h("dd", {}, lease.keepalive)],
        lease.properties?.filter && [h("dt", {}, "Filter"), h("dd", { class: "code" }, lease.properties.filter)],
        Object.entries(lease.configuration ?? {}).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "code" }, value)]),
        h("dt", {}, "Id"), h("dd", { class: "code" }, lease.id)),
      goesOn(lease) && !may && onlyLooks(lease.project),
      goesOn(lease) && may && h("div", { class: "buttons" },
        extends_(lease) && button("Extend…", () => dialog.open(extendForm(lease, close), `Extend ${title(lease)}`), { class: "do" }),
        lease.undo && button("Undo extension…", () => dialog.open(undoForm(lease, close))),
        button("Change…", () => dialog.open(changeForm(lease, close), `Change ${title(lease)}`)),
        button("Hand over…", () => dialog.open(handForm(lease, close))),
        button("Close…", () => dialog.open(closeForm([lease], close)), { class: "danger" })));
    fill(units, h("h2", {}, "Units"), lease.members?.length ? table("Units", ["Unit", "State", "Reach it by", "Said"], lease.members.map(member)) : h("p", { class: "dim" }, goesOn(lease) ? "None yet." : "None any more."));
    fill(past, h("h2", {}, "What happened"), timeline());
    count();
  }

  const bar = (start, end) => {
    const share = Math.max(0, Math.min(1, (Date.now() - start) / (end - start)));
    return h("progress", { class: "term", max: 1, value: share, "aria-label": "How much of the term is over" });
  };

  function member(one) {
    const ssh = sshLine(one.properties), rest = Object.entries(one.properties);
    const reach = ssh ? copied(ssh) : one.properties.host ? copied([one.properties.host, one.properties.port].filter(Boolean).join(":")) : h("span", { class: "dim" }, "–");
    return h("tr", {}, h("td", {}, named(one.unit)), h("td", {}, chip(one.state), one.reason && h("div", { class: "dim" }, one.reason)),
      h("td", {}, reach, rest.length > 0 && h("details", {}, h("summary", { data: { key: `All that ${one.unit} says` } }, "All it says"), h("dl", {}, rest.map(([name, value]) => [h("dt", {}, name), h("dd", { class: "code" }, value)])))),
      h("td", {}, may && button("Console", () => lines(one.unit, "console"), { "aria-label": `Console of ${one.unit}` }), " ", button("Log", () => lines(one.unit, "log"), { "aria-label": `Log of ${one.unit}` })));
  }

  const copied = (text) => h("span", {}, h("code", {}, text), " ", button("Copy", async () => { await navigator.clipboard.writeText(text); note("Copied."); }, { class: "quiet", "aria-label": `Copy ${text}` }));

  async function lines(unit, what) {
    const text = h("pre", { tabindex: 0, "aria-label": `${what} of ${unit}` }, "Loading…");
    dialog.open(h("div", {}, h("h2", {}, `${unit}: ${what}`), text, h("div", { class: "buttons" }, button("Close", () => dialog.close()))));
    try {
      const told = await get(`${at}/units/${encodeURIComponent(unit)}/${what}`, query);
      text.textContent = told.lines.join("\n") || "It has said nothing.";
    } catch (problem) {
      text.replaceWith(h("p", {}, problem.message));
    }
  }

  const state = (pair) => plain(pair.replace(/\/-$/, "").replace("/", ", "));
  const timeline = () => h("ol", { class: "timeline" }, [...history].reverse().map((one) => h("li", { data: { kind: state(one.after) } },
    h("time", { datetime: one.at }, time.moment(Date.parse(one.at), true)),
    h("span", {}, one.before !== one.after ? [h("strong", {}, state(one.after) || one.event), " "] : [h("span", {}, one.event), " "], h("span", { class: "dim" }, time.dated(one.reason))))));

  function count() {
    const left = document.getElementById("left"), now = Date.now(), start = Date.parse(lease.start), end = lastEnd(lease);
    if (left) left.textContent = !goesOn(lease) ? "" : start > now ? `starts ${time.until(start, now)}` : `ends ${time.until(end, now)}`;
    const progress = head.querySelector("progress");
    if (progress) progress.value = Math.max(0, Math.min(1, (now - start) / (end - start)));
  }

  const soon = gently(load);
  await load();
  if (!lease) return;
  listen({ project: lease.project }, (event) => { if (event.lease === lease.id) soon(); }, soon);
  setInterval(count, 1000);
  window.addEventListener("zone", show);
});
