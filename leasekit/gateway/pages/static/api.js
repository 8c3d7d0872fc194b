// The public API, as a page asks it: the session's cookie goes with each request, and the session's word with each change.

import { dated } from "./time.js";

const meta = document.querySelector('meta[name="leasekit"]').dataset;

/** Who looks at the page, and where things are. */
export const here = {
  base: meta.base,
  page: meta.page,
  caller: meta.caller,
  offices: meta.office.split(" ").filter(Boolean),
  seesAll: Boolean(meta.all),
  operates: meta.office.split(" ").includes("operator"),
  given: JSON.parse(meta.given),
};

/** What the API says of a request that came to nothing. */
export class Problem extends Error {
  constructor(status, told) {
    super(dated(told.detail || told.title || "no answer").replace(/; `leasekit [^]*$|: ask for it [^:]*$/, "")); // commands of the shell are of no use here
    this.status = status;
    this.code = told.code || "";
    this.values = told.values || {};
  }
}

const tags = new Map();

// What was asked for and had no answer may have been done: asked for once more it has the same key, and is done once.
const unanswered = new Map();
const fresh = () => [...crypto.getRandomValues(new Uint32Array(4))].map((one) => one.toString(36)).join("-");

/** The tag of what a path answered last: a change that has it as `match` is carried out if that is still so. */
export const tagOf = (path) => tags.get(path);

/** The answer to a request. Throws Problem; `status` 0: the gateway is away. */
export async function ask(method, path, { query = {}, body, signal, match } = {}) {
  const headers = match ? { "If-Match": match } : {}, address = meta.api + path + asQuery(query);
  const sent = method === "GET" || method === "DELETE" ? undefined : JSON.stringify(body ?? {}), what = `${method} ${address} ${sent}`;
  if (method !== "GET") {
    headers["X-CSRF-Token"] = meta.word;
    headers["Content-Type"] = "application/json";
    if (!unanswered.has(what)) unanswered.set(what, fresh());
    headers["Idempotency-Key"] = unanswered.get(what);
  }
  let answer, told;
  try {
    answer = await fetch(address, { method, headers, signal, credentials: "same-origin", body: sent });
    told = await answer.json().catch((error) => {
      if (error.name === "AbortError" || answer.ok) throw error;
      return {};
    });
  } catch (error) {
    if (error.name === "AbortError") {
      unanswered.delete(what);
      throw error;
    }
    throw new Problem(0, { detail: answer ? "The answer broke off." : "The gateway does not answer." });
  }
  if (answer.status < 500) unanswered.delete(what);
  if (answer.status === 401) over();
  if (!answer.ok) throw new Problem(answer.status, told);
  if (method === "GET") tags.set(path, answer.headers.get("ETag"));
  return told;
}

export const get = (path, query, signal) => ask("GET", path, { query, signal });
export const post = (path, body, query, signal) => ask("POST", path, { body, query, signal });

let looked = null;

/** The daemons of the deployment, and whether each is there (runs of an emulation have none); asked for once at a time, as a browser has the second wait for the first. */
export const actors = async () => !meta.heard ? [] : (looked ??= get("/actors").then(({ items }) => items).finally(() => { looked = null; }));

/** How long a page waits for what several actors say: who is away holds up nobody. */
export const WITHIN = "800ms";

/** All items of a list that comes in pages, at most so many. */
export async function all(path, query, most) {
  const items = [];
  let cursor;
  do {
    const page = await get(path, { ...query, limit: 1000, cursor });
    items.push(...page.items);
    cursor = page.next;
  } while (cursor && items.length < most);
  return items;
}

export function asQuery(query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** A path of a page. */
export const path = (name, query) => `${meta.base}/${name}${asQuery(query)}`;

// -- what happens, as it happens -------------------------------------------------------------------------------------

const RETRY = 1000, HIDDEN = 60_000;
const HINTS = ["announcements", "approvals", "deliveries", "waits"];
let source = null;

/** Have `heard` called with each transition (null: of others, who don't say what), hints told to the window, and `again` where something may have been missed. */
export function listen(query, heard, again) {
  let lost = false, hidden = 0;
  const missed = () => {
    again();
    for (const hint of HINTS) window.dispatchEvent(new Event(hint));
  };
  document.getElementById("live").hidden = false;
  const connect = () => {
    source = new EventSource(meta.api + "/events" + asQuery({ ...query, heard: meta.heard }));
    source.onopen = () => {
      live("live", "live");
      if (lost) missed();
      lost = false;
    };
    source.onerror = () => {
      lost = true;
      live("away", "away, trying again");
      if (source.readyState === EventSource.CLOSED) setTimeout(comeBack, RETRY);
    };
    source.addEventListener("transition", (event) => heard(JSON.parse(event.data)));
    source.addEventListener("changed", () => heard(null));
    source.addEventListener("missed", missed); // while the page was loaded
    for (const hint of HINTS) source.addEventListener(hint, () => window.dispatchEvent(new Event(hint)));
  };
  // An event source hides why it was refused: what asks the API as all else does says that the session is over.
  const comeBack = () => get("/me").catch(() => {}).then(() => document.getElementById("over") || connect());
  connect();
  window.addEventListener("pagehide", () => source.close());
  // A browser has few connections to a host: a page that nobody sees gives its own back.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(() => { source.close(); lost = true; }, HIDDEN);
    else if (source.readyState === EventSource.CLOSED && lost) connect();
  });
}

/** `load`, which asks `last()` after it waited: where it was asked for again meanwhile it shows nothing, lest what is older covers what is newer. */
export function latest(load) {
  let turn = 0;
  return (...given) => {
    const mine = ++turn;
    return load(() => mine === turn, ...given);
  };
}

/** Calls `load` soon after it is asked to, once however often: one at a time, and again if it was asked meanwhile. */
export function gently(load, wait = 80) {
  let timer = 0, runs = false, again = false;
  const soon = () => {
    if (runs) again = true;
    else timer ||= setTimeout(run, wait);
  };
  const run = async () => {
    [timer, runs, again] = [0, true, false];
    try {
      await load();
    } finally {
      runs = false;
      if (again) soon();
    }
  };
  return soon;
}

function live(state, words) {
  const shown = document.getElementById("live");
  shown.hidden = false;
  if (shown.dataset.state === state || shown.dataset.state === "over") return;
  shown.dataset.state = state;
  shown.querySelector(".words").textContent = words;
}

function over() {
  if (document.getElementById("over")) return;
  live("over", "logged out");
  const link = document.createElement("a");
  link.href = path("login", { to: location.pathname + location.search });
  link.textContent = "Log in again";
  const note = document.createElement("p");
  note.id = "over";
  note.className = "note refused";
  note.append("The session is over. ", link, ".");
  document.getElementById("main").prepend(note);
}
