// What waits to be approved, with what a broker would answer to it now, and what was decided; approved, refused and withdrawn.

import { Dialog, did, shows, whyForm } from "./acts.js";
import { Problem, gently, get, here, listen, path, post } from "./api.js";
import { button, chip, choice, empty, field, fill, h, paged } from "./dom.js";
import { myProjects, noProject, page, setView, view } from "./frame.js";
import { verdict } from "./lease-actions.js";
import { daysOf, outcome, showDays } from "./recurring.js";
import { words } from "./schema-form.js";
import * as time from "./time.js";

const STATES = [["pending", "waits"], ["approving", "being approved"], ["approved", "approved"], ["stopped", "stopped half-way"], ["refused", "refused"], ["withdrawn", "withdrawn"], ["expired", "too late"], ["all", "all"]];
const KINDS = { pending: "waits", approving: "waits", approved: "granted", stopped: "failed", refused: "refused" };
const TRIED = 20, PAGE = 50;
const INSTANTS = ["start", "end", "deferrable_until"];
const LABELS = { every: "On", begin: "At", finish: "To", until: "Last day", zone: "Zone of the hours", each: "Those that can be had" };
const dialog = new Dialog();

await page(async (place) => {
  const { projects, manages } = await myProjects();
  if (!projects.length) {
    fill(place, noProject());
    return;
  }
  const list = h("div", {});
  const state = () => (STATES.some(([value]) => value === view().state) ? view().state : "pending");
  const project = () => (projects.includes(view().project) ? view().project : "");
  const chosen = (name) => (value) => { setView({ [name]: value }); turned.from = 0; tried = TRIED; load(); };
  fill(place, h("div", { class: "tools" },
    projects.length > 1 && field("Project", choice([["", "all"], ...projects], project(), chosen("project"))),
    field("State", choice(STATES, state(), chosen("state")))), list, dialog.place);
  const turned = {};
  let refocus = false, tried = TRIED;

  const load = shows(async (last) => {
    const [{ items }, { items: policies }] = await Promise.all([get("/approvals", { project: project(), state: state() === "all" ? "" : state() }), get("/policies")]);
    if (!last()) return;
    const approvers = new Map(policies.map((one) => [one.project, one.policy.approvers ?? []]));
    const waits = items.filter((one) => one.state === "pending"), over = items.filter((one) => one.state !== "pending").reverse();
    const cards = waits.slice(0, tried).map((one) => card(one, approvers.get(one.project) ?? []));
    const focused = document.activeElement, name = focused.getAttribute("aria-label"), had = refocus || list.contains(focused);
    refocus = false;
    fill(list,
      cards.map((one) => one.place),
      waits.length > tried && button(`${waits.length - tried} more wait: show ${Math.min(TRIED, waits.length - tried)}`, () => { tried += TRIED; load(); }),
      over.length > 0 && paged(turned, PAGE, "Decided", [`When (${time.zone()})`, "What", "Asked for by", "State", "By", "Lease"], over, row),
      !items.length && empty(state() === "pending" ? "Nothing waits to be approved." : "There is none."));
    if (had) ([...list.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === name) ?? list.querySelector("h2, .empty p, .scrolls"))?.focus();
    // One after the other: a broker has others to answer as well.
    for (const one of cards) {
      if (!last()) return;
      await one.tried();
    }
  });

  /** Who may decide it is who manages the project, or is named by its policy and has not asked for it. */
  function decides(one, approvers) {
    return manages(one.project) || (approvers.includes(here.caller) && one.caller !== here.caller);
  }

  function card(one, approvers) {
    const answer = h("div", { class: "answer", role: "status" }, h("p", { class: "dim" }, "Asking what would be answered…"));
    const { series } = one.asked;
    const decide = (verb, words, kind) => button(`${verb}…`, () => dialog.open(whyForm(`${verb} ${brief(one)}, for ${one.caller}?`, verb, async (reason) => {
      const link = (made) => made.lease && leaseLink(made);
      if (await did(words, () => post(`/approvals/${encodeURIComponent(one.id)}/${verb.toLowerCase()}`, { reason }), { link })) dialog.close();
      refocus = true; // the button that was pressed is gone
      await load();
    }, () => dialog.close(), kind)), { class: kind, "aria-label": `${verb} ${brief(one)} for ${one.caller}` });
    const place = h("section", { class: "approval", "aria-label": `${brief(one)} for ${one.caller}` },
      h("h2", { tabindex: -1 }, brief(one)),
      h("dl", {},
        h("dt", {}, "Asked for by"), h("dd", {}, `${one.caller}, ${one.project}, ${time.moment(Date.parse(one.created))}`),
        h("dt", {}, "Why"), h("dd", { class: "why" }, one.asked.why || h("span", { class: "dim" }, "not said")),
        one.asked.lease && [h("dt", {}, "Lease"), h("dd", {}, leaseLink({ ...one, lease: one.asked.lease }))],
        details(one.asked),
        h("dt", {}, "To be decided"), h("dd", {}, `by ${time.moment(Date.parse(one.until))} (${time.zone()}), ${time.until(Date.parse(one.until))}`)),
      answer,
      h("div", { class: "buttons" },
        decides(one, approvers) && [decide("Approve", (made) => (made.series ? `Approved. ${outcome(made.series)}` : "Approved."), "do"), decide("Refuse", "Refused.", "danger")],
        (here.operates || one.caller === here.caller) && decide("Withdraw", "Withdrawn.", "")));
    const tried = async () => {
      try {
        const found = await post(...dryRun(one.asked), { project: one.project });
        if (series) showDays(answer, found, one.project, true);
        else verdict(answer, found);
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        if (problem.code === "forbidden") fill(answer, h("p", { class: "dim" }, `What would be answered is not known: ${problem.message}.`));
        else verdict(answer, problem);
      }
    };
    return { place, tried };
  }

  function row(one) {
    return [time.moment(Date.parse(one.created)), [brief(one), one.asked.why && h("div", { class: "dim why" }, one.asked.why)], `${one.caller}, ${one.project}`,
      [chip(one.state, KINDS[one.state] ?? one.state), one.state === "stopped" && h("div", { class: "dim why" }, "Something was away for a day. What was leased until then is in ", h("a", { href: path("leases", { project: one.project }) }, "Leases"), "; ask for the rest anew.")], [one.decided_by, one.reason && h("div", { class: "dim why" }, one.reason)],
      one.series ? h("details", {}, h("summary", { data: { key: one.id } }, outcome(one.series)), daysOf(one.series, one.project)) : one.lease && leaseLink(one)];
  }

  const soon = gently(load);
  await load();
  listen({}, () => {}, soon);
  window.addEventListener("approvals", soon);
  window.addEventListener("zone", load);
});

function leaseLink(one) {
  return h("a", { class: "whole", href: path(`leases/${encodeURIComponent(one.lease)}`, { project: one.project }) }, one.lease);
}

/** What is asked for, in a few words. */
function brief({ asked }) {
  const { units = 1, type, name } = asked.request ?? asked.series?.request ?? {};
  if (type) return `${units} × ${type}${name ? `, ${name}` : ""}${asked.series ? `, ${asked.series.every}` : ""}`;
  return `${asked.extend ? "More time for" : "A change of"} ${asked.lease}`;
}

/** All that is asked for, in words and values. */
function details(asked) {
  const said = (name, value) => (INSTANTS.includes(name) ? time.moment(Date.parse(value)) : value === true ? "yes" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const { request, ...days } = asked.series ?? { request: asked.request ?? asked.extend ?? asked.modify };
  return Object.entries({ ...request, ...(asked.series && { every: "", begin: "", finish: "", until: "", zone: "UTC" }), ...days }).filter(([, value]) => value !== null && value !== "").map(([name, value]) => [h("dt", {}, LABELS[name] ?? words(name)), h("dd", {}, said(name, value))]);
}

/** The path and the body by which one learns what would be answered. */
function dryRun(asked) {
  if (asked.request) return ["/leases/dry-run", asked.request];
  if (asked.series) return ["/leases/series/dry-run", asked.series];
  const lease = `/leases/${encodeURIComponent(asked.lease)}`;
  return asked.extend ? [`${lease}/extend/dry-run`, asked.extend] : [`${lease}/modify/dry-run`, asked.modify];
}
