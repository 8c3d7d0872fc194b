// What is around every page: the look, the zone of times, and notes of what was done.

import { actors, get, path } from "./api.js";
import { empty, h } from "./dom.js";
import { isLocal, setLocal, zone } from "./time.js";

const LOOKS = ["", "light", "dark"];

function showLook(look) {
  document.documentElement.dataset.look = look;
  document.getElementById("look").textContent = look ? (look === "light" ? "Light" : "Dark") : "Auto";
}

const look = document.getElementById("look");
showLook(document.documentElement.dataset.look || "");
look.addEventListener("click", () => {
  const next = LOOKS[(LOOKS.indexOf(document.documentElement.dataset.look || "") + 1) % LOOKS.length];
  document.cookie = `leasekit-look=${next}; path=/; max-age=31536000; samesite=lax`;
  showLook(next);
  window.dispatchEvent(new Event("look"));
});

// On a phone the menu is one line, which scrolls.
document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

const zoned = document.getElementById("zone");
zoned.textContent = zone();
zoned.addEventListener("click", () => {
  setLocal(!isLocal());
  zoned.textContent = zone();
  window.dispatchEvent(new Event("zone"));
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const one of document.querySelectorAll(".hint:is(:hover, :focus-within)")) one.dataset.away = "";
  if (!document.querySelector("dialog[open]")) document.getElementById("notes").replaceChildren();
});

const NOTED_MS = 12000;

/** Say what was done, or why not; it stays for a while, a refusal until it is put away. One of what an open dialog asked for
 * is said in it: nothing beside it can be read out, or pressed. */
export function note(words, { refused = false, link } = {}) {
  const made = h("p", { class: refused ? "note refused" : "note" }, words, link && [" ", link],
    h("button", { class: "quiet", type: "button", "aria-label": "Put away", on: { click: () => made.remove() } }, "×"));
  const modal = refused && [...document.querySelectorAll("dialog[open]")].at(-1);
  if (modal) {
    modal.querySelector(":scope > .note")?.remove();
    made.setAttribute("role", "alert");
  }
  for (const one of document.querySelectorAll("#notes > .note.refused")) if (one.textContent === made.textContent) one.remove();
  (modal || document.getElementById("notes")).append(made);
  if (!refused) setTimeout(() => made.remove(), NOTED_MS);
}

const LOADING_MS = 150;

/** Have a place say that it is loaded, and who does not answer where that takes long; gives what takes that back. */
export function loading(place) {
  const words = h("p", { class: "loading", role: "status" }, "Loading…");
  let over = false;
  setTimeout(async () => {
    if (over) return;
    place.append(words);
    const away = (await actors().catch(() => [])).filter((one) => one.state === "away").map((one) => one.problem); // why it is not known is for the page to say
    if (away.length) words.textContent = `${away.join("; ")}. It is shown here once there is an answer.`;
    if (!over) place.append(words); // the page has its tools by now
  }, LOADING_MS);
  return () => {
    over = true;
    words.remove();
  };
}

/** Why something can't be shown, with a way on. */
export const failed = (problem, again) => h("div", { class: "empty refused" }, h("p", { tabindex: -1 }, problem.message),
  problem.status === 403 ? h("a", { class: "button", href: path("calendar") }, "Calendar") : h("button", { type: "button", on: { click: again } }, "Try again"));

/** The projects that one may look into, and one's role in each, as the API says it; that the address names another is noted. */
export async function myProjects() {
  const { items, roles } = await get("/projects"), { project } = view();
  if (project && items.length && !items.includes(project)) note(`There is no project ${project}, or it is not yours.`, { refused: true });
  return { projects: items, uses: (name) => roles[name] !== "viewer", manages: (name) => roles[name] === "manager" };
}

/** What is said to who may look into no project. */
export const noProject = () => empty("You have no project. An operator can give you a role in one.");

/** What is said in the place of what asks for a type, where brokers have none. */
export const nothingOffered = () => empty("There is nothing to be asked for: no broker has units by now.");

/** What is said in the place of what only users of a project may do. */
export const onlyLooks = (project) => h("p", { class: "dim" }, `You look at ${project} as a viewer. An operator can make you a user, who leases.`);

/** Have the page show something, or why it can't: `make` gives its elements. */
export async function page(make) {
  const place = document.getElementById("page"), loaded = loading(place);
  try {
    await make(place);
  } catch (problem) {
    place.replaceChildren(failed(problem, () => location.reload()));
    if (problem.status === undefined) throw problem;
  } finally {
    loaded();
    place.removeAttribute("aria-busy");
  }
}

/** The words and values of the address; what is empty is left out. */
export const view = () => Object.fromEntries(new URLSearchParams(location.search));

/** Have the address say these as well, so that it can be sent to somebody. */
export function setView(values, push = false) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(values)) {
    if (value === undefined || value === null || value === "" || value === false) query.delete(key);
    else query.set(key, String(value));
  }
  const text = query.toString();
  history[push ? "pushState" : "replaceState"](null, "", location.pathname + (text ? `?${text}` : ""));
}

/** Names as one word of an address, whatever is in them; and such a word as names. */
export const asList = (names) => [...names].map((one) => one.replace(/[%,]/g, encodeURIComponent)).join(",");
export const ofList = (word = "") => word.split(",").filter(Boolean).map((one) => one.replace(/%2C|%25/g, decodeURIComponent));
