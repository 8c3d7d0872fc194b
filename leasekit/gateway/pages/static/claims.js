// Claims: who gave what to whom, from a site's own down to the leases of guests; what is given more than once; evidence.

import { refused, shows } from "./acts.js";
import { actors, gently, get, listen, path } from "./api.js";
import { button, chip, choice, empty, field, fill, h, saved, table } from "./dom.js";
import { page, setView, view } from "./frame.js";
import * as time from "./time.js";

const FAR = Date.parse("2200-01-01");
const CHILDREN_MAX = 200, BEYOND_MAX = 5, WIDE = 1000, HIGH = 24;
const term = (one) => (Date.parse(one.term[1]) > FAR ? `from ${time.moment(Date.parse(one.term[0]))} on` : time.term(...one.term.map((at) => Date.parse(at))));
const counts = (one) => one.honoured && !["void", "returned"].includes(one.state);

/** The units that claims have over time, as [from, to, units]. */
function levels(claims) {
  const changes = new Map(), add = (at, by) => changes.set(Date.parse(at), (changes.get(Date.parse(at)) ?? 0) + by);
  for (const { term: [start, end], units } of claims.filter(counts)) { add(start, units); add(end, -units); }
  const order = [...changes].sort((a, b) => a[0] - b[0]);
  let level = 0;
  return order.map(([at, by], index) => [at, order[index + 1]?.[0] ?? at, (level += by)]).filter(([, , units]) => units);
}

const most = (given) => given.reduce((found, [, , units]) => Math.max(found, units), 0);

/** When more was given than there is, and at most how much: [from, to, units]. */
function beyond(given, units) {
  const found = [];
  for (const [start, end, level] of given.filter((one) => one[2] > units)) {
    const last = found.at(-1);
    if (last?.[1] === start) [last[1], last[2]] = [end, Math.max(last[2], level)];
    else found.push([start, end, level]);
  }
  return found;
}

/** What is given over time, up to the line of what there is, and beyond it. */
function drawn(given, units, [from, to]) {
  const top = Math.max(units, most(given)), x = (at) => (WIDE * (Math.min(to, Math.max(from, at)) - from)) / (to - from), y = (level) => HIGH * (1 - level / top);
  const bar = (start, end, low, high, kind) => h("svg:rect", { class: kind, x: x(start), width: x(end) - x(start), y: y(high), height: y(low) - y(high) });
  return h("svg", { class: "levels", viewBox: `0 -1 ${WIDE} ${HIGH + 2}`, preserveAspectRatio: "none", role: "img", "aria-label": `Given over time, ${time.term(from, to)}` },
    given.map(([start, end, level]) => [bar(start, end, 0, Math.min(level, units), "within"), level > units && bar(start, end, units, level, "beyond")]),
    h("svg:line", { x1: 0, x2: WIDE, y1: y(units), y2: y(units) }));
}

await page(async (place) => {
  const shown = view(), deployed = await actors();
  const sites = deployed.filter((one) => one.role === "authority").map((one) => one.name);
  if (!sites.length) {
    fill(place, empty("This deployment has no site of its own."));
    return;
  }
  const list = h("div", {}), site = () => (sites.includes(view().site) ? view().site : sites[0]);
  const over = h("input", { type: "checkbox", checked: shown.all === "yes", on: { change: () => { setView({ all: over.checked && "yes" }); load(true); } } });
  fill(place, h("div", { class: "tools" },
    sites.length > 1 && field("Site", choice(sites, site(), (value) => { setView({ site: value }); load(true); })), h("label", { class: "check" }, over, "Also what is over")), list);

  const load = shows(async (last) => {
    const [claims, evidence] = await Promise.all([get("/claims", { site: site() }), get("/evidence", { site: site() })]);
    if (last()) fill(list, treeOf(claims, over.checked), evidenceOf(evidence, site()));
  }, list);
  const soon = gently(load);
  await load();
  listen({ all: true }, (event) => { if (!event || event.actor === site()) soon(); }, soon);
  window.addEventListener("zone", () => load());
});

/** Who gave what to whom, and how much of it when; `all`: also what is over. */
function treeOf(claims, all) {
  const known = new Set(claims.map((one) => one.claim)), now = Date.now(), children = new Map();
  for (const one of claims) {
    const parent = known.has(one.parent) ? one.parent : "";
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(one);
  }
  for (const list of children.values()) list.sort((a, b) => Date.parse(a.term[0]) - Date.parse(b.term[0]) || b.units - a.units);

  const bounds = claims.filter((one) => one.parent).flatMap((one) => one.term.map((at) => Date.parse(at))).filter((at) => at < FAR);
  const begin = Math.min(...bounds), span = [all ? begin : Math.max(begin, now), Math.max(now + time.HOUR, ...bounds)];

  const node = (one) => {
    const below = children.get(one.claim) ?? [], given = levels(below), peak = most(given), tooMuch = beyond(given, one.units), seen = below.filter((each) => all || Date.parse(each.term[1]) > now);
    const words = [h("strong", {}, one.holder_name || one.holder_fingerprint), ` ${one.units} × ${one.type} `, h("span", { class: "dim" }, `${term(one)}, by ${one.issuer_name || one.issuer_fingerprint}`), " ", chip(one.state),
      one.lease && [" ", h("a", { class: "code", href: path(`leases/${encodeURIComponent(one.lease)}`) }, one.lease)], peak > 0 && h("span", { class: "given" }, ` ${peak} of ${one.units} given at most`),
      tooMuch.length > 0 && chip("oversubscribed", "failed"),
      tooMuch.slice(0, BEYOND_MAX).map(([start, end, units]) => h("span", { class: "beyond" }, `${units} of ${one.units}, ${time.term(start, end)}`)), tooMuch.length > BEYOND_MAX && ` and ${tooMuch.length - BEYOND_MAX} times more`,
      peak > 0 && drawn(given, one.units, span)];
    if (!seen.length) return h("li", {}, h("div", { class: "claim" }, words));
    return h("li", {}, h("details", { open: seen.length <= 20 }, h("summary", { data: { key: one.claim } }, words), h("ul", { class: "claims" }, seen.slice(0, CHILDREN_MAX).map(node), seen.length > CHILDREN_MAX && h("li", { class: "dim" }, `and ${seen.length - CHILDREN_MAX} more`))));
  };

  const roots = children.get("") ?? [];
  return [
    bounds.length > 0 && h("p", { class: "dim" }, `What is given over time, ${time.term(...span)}, up to the line of what its holder has, and beyond it:`),
    roots.length ? h("ul", { class: "claims" }, roots.map(node)) : empty("This site has given nothing yet."),
  ];
}

/** What somebody did wrong, and how one checks it. */
function evidenceOf(evidence, site) {
  return h("section", {}, h("h2", {}, "Evidence"),
    evidence.length ? table("Evidence", [`When (${time.zone()})`, "Kind", "Guilty", "What was done", h("span", { class: "hidden" }, "Do")], evidence.map((one) => [time.moment(Date.parse(one.at)), one.kind, one.guilty_name || h("code", {}, one.guilty_fingerprint), time.dated(one.words), button("Save", () => save(one.id, site), { "aria-label": `Save evidence ${one.id}` })])) : h("p", { class: "dim" }, "None: nobody was found to have given more than it had."),
    h("p", { class: "dim" }, "Anybody can check offline what is saved: ", h("code", {}, "leasekit evidence verify FILE"), "."));
}

async function save(id, site) {
  try {
    saved(`evidence-${id}.json`, "application/json", (await get(`/evidence/${encodeURIComponent(id)}`, { site })).file);
  } catch (problem) {
    refused(problem);
  }
}
