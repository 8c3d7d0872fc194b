// What operators have announced, above every page until it is over, or put away in this browser.

import { Problem, gently, get, latest } from "./api.js";
import { fill, h } from "./dom.js";
import * as time from "./time.js";

const AWAY = "leasekit-put-away", LATEST = 2 ** 31 - 1, AGAIN = 2000;
const place = document.getElementById("announced");
let items = [], timer = 0;

const putAway = () => (localStorage.getItem(AWAY) ?? "").split(" ");

function show() {
  const now = Date.now(), away = putAway();
  const shown = items.filter((one) => Date.parse(one.end) > now && !away.includes(one.id));
  place.hidden = !shown.length;
  fill(place, shown.map((one) => h("p", { class: "note" },
    h("span", {}, h("strong", {}, `Outage ${time.term(Date.parse(one.start), Date.parse(one.end))} (${time.zone()})`), " ", one.text),
    h("button", { class: "quiet", type: "button", "aria-label": `Put away: ${one.text}`, on: { click: () => hide(one) } }, "×"))));
  clearTimeout(timer);
  if (shown.length) timer = setTimeout(show, Math.min(LATEST, Math.min(...shown.map((one) => Date.parse(one.end))) - now));
}

function hide(one) {
  const known = items.map((each) => each.id);
  localStorage.setItem(AWAY, [...putAway().filter((id) => known.includes(id)), one.id].join(" "));
  show();
  document.getElementById("main").focus(); // the button that had it is gone
}

const load = latest(async (last) => {
  let found;
  try {
    found = await get("/announcements");
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (problem.status !== 401) setTimeout(soon, AGAIN); // the page itself says that the gateway is away, or the session over
    return;
  }
  if (last()) {
    ({ items } = found);
    show();
  }
});
const soon = gently(load);

window.addEventListener("announcements", soon);
window.addEventListener("zone", show);
await load();
