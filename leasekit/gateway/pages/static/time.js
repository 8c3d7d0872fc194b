// Instants and lengths of time as people read and write them, in UTC or in the time of this computer.

export const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const two = (number) => String(number).padStart(2, "0");

let local = localStorage.getItem("leasekit-zone") === "local";

export const isLocal = () => local;

/** From now on times are local, or UTC. */
export function setLocal(value) {
  local = value;
  localStorage.setItem("leasekit-zone", value ? "local" : "utc");
}

let virtual = false;

/** From now on times are a run's, whose clock began at an instant: at the beginning of time they are counted in days. */
export function setBegin(at) {
  virtual = at === 0;
  local &&= !virtual;
}

/** Whether days have no names. */
export const isVirtual = () => virtual;

/** What the zone is called. */
export const zone = () => virtual ? "run time" : (local ? new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts().find((part) => part.type === "timeZoneName").value : "UTC");

/** The parts of an instant (milliseconds). */
export function parts(at) {
  const date = new Date(at);
  return local
    ? { year: date.getFullYear(), month: date.getMonth(), day: date.getDate(), weekday: date.getDay(), hour: date.getHours(), minute: date.getMinutes(), second: date.getSeconds() }
    : { year: date.getUTCFullYear(), month: date.getUTCMonth(), day: date.getUTCDate(), weekday: date.getUTCDay(), hour: date.getUTCHours(), minute: date.getUTCMinutes(), second: date.getUTCSeconds() };
}

/** The instant of these parts. */
export const instant = (year, month = 0, day = 1, hour = 0, minute = 0, second = 0) =>
  (local ? new Date(year, month, day, hour, minute, second).getTime() : Date.UTC(year, month, day, hour, minute, second));

export const clock = (at) => { const p = parts(at); return `${two(p.hour)}:${two(p.minute)}`; };
export const date = (at) => { const p = parts(at); return virtual ? `day ${Math.floor(at / DAY) + 1}` : `${p.day} ${MONTHS[p.month]}`; };
export const day = (at) => virtual ? date(at) : `${DAYS[parts(at).weekday]} ${date(at)}`;
export const year = (at) => (virtual ? "" : `${parts(at).year}`);
export const monthName = (at) => (virtual ? date(at) : MONTHS[parts(at).month]);
export const month = (at) => { const p = parts(at); return virtual ? date(at) : `${MONTHS[p.month]} ${p.year}`; };

/** A date and a time; the year where it is not this one. */
export function moment(at, withSeconds = false) {
  const p = parts(at);
  const year = virtual || p.year === parts(Date.now()).year ? "" : ` ${p.year}`;
  return `${day(at)}${year} ${two(p.hour)}:${two(p.minute)}${withSeconds ? `:${two(p.second)}` : ""}`;
}

/** A term; the date of its end is left out where it is that of its start. */
export function term(start, end) {
  const a = parts(start), b = parts(end);
  const same = a.year === b.year && a.month === b.month && a.day === b.day;
  return `${moment(start)} – ${same ? clock(end) : moment(end)}`;
}

/** A length of time in its two largest units, as the API reads it too. */
export function span(ms) {
  const sign = ms < 0 ? "-" : "";
  let left = Math.round(Math.abs(ms) / SECOND) * SECOND;
  const found = [];
  for (const [name, size] of [["d", DAY], ["h", HOUR], ["m", MINUTE], ["s", SECOND]]) {
    if (left >= size && found.length < 2) {
      found.push(`${Math.floor(left / size)}${name}`);
      left %= size;
    } else if (found.length) break;
  }
  return sign + (found.join(" ") || "0s");
}

/** How long it is until an instant, or since. */
export const until = (at, now = Date.now()) => (at >= now ? `in ${span(at - now)}` : `${span(now - at)} ago`);

/** An instant in an input of dates and times. */
export function toInput(at) {
  const p = parts(at);
  return `${p.year}-${two(p.month + 1)}-${two(p.day)}T${two(p.hour)}:${two(p.minute)}`;
}

/** The first whole second from an instant on, in an input that takes seconds. */
export function toExactInput(at) {
  const whole = Math.ceil(at / SECOND) * SECOND;
  return `${toInput(whole)}:${two(parts(whole).second)}`;
}

/** What stands in such an input; NaN where nothing does. */
export function fromInput(text) {
  const found = /^(\d+)-(\d+)-(\d+)T(\d+):(\d+)(?::(\d+))?/.exec(text);
  return found ? instant(+found[1], found[2] - 1, +found[3], +found[4], +found[5], +(found[6] || 0)) : NaN;
}

/** As the API writes it. */
export const iso = (at) => new Date(at).toISOString();

/** A length that somebody wrote, such as 90m, 2h, 1d 12h; NaN where it is none. */
export function toSpan(text) {
  const sizes = { d: DAY, h: HOUR, m: MINUTE, s: SECOND, w: 7 * DAY };
  const found = [...text.matchAll(/(\d+)\s*([wdhms])/g)];
  if (!found.length || text.replace(/(\d+)\s*([wdhms])/g, "").trim()) return NaN;
  return found.reduce((sum, one) => sum + one[1] * sizes[one[2]], 0);
}

const INSTANT = /\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z/;
const TERM = new RegExp(`\\[(${INSTANT.source}), (${INSTANT.source})\\)`, "g");

const parsed = (at) => Date.parse(at.replace(" ", "T"));

/** A sentence of the API, with its instants and terms as people read them. */
export const dated = (words) => words
  .replace(TERM, (_, start, end) => term(parsed(start), parsed(end)))
  .replace(new RegExp(INSTANT.source, "g"), (at) => moment(parsed(at)));
