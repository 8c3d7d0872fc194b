// Rows over time, drawn on a canvas: what is taken of so many units as a profile, and bookings as bars in lanes below it.
//
// A row is {key, label, sub, depth, units, steps, lanes, free, opens, open}: `steps` are [from, mine, others, withheld,
// absent] in order of time, each until the next; `lanes` are lists of bars {id, label, start, end, kind, mine, moves, stretches};
// `free` says whether one may reserve there. The chart knows neither the API nor what a lease is.

import { h } from "./dom.js";
import * as time from "./time.js";

const { SECOND, MINUTE, HOUR, DAY } = time, MONTH = 30 * DAY;
const STEPS = [MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 7 * DAY];
const SNAP_PX = 7, TICK_PX = 58, EDGE_PX = 6, DRAG_PX = 4;
const SMALL_PX = 14, WORDS_PX = 46, PALE = 0.34;
const PROFILE = 40, HEAD = 26, LANE = 20, UNIT = 22, AXIS = 40;
const NARROW = 720;
const PAPER_PX = 940; // what A4 and Letter have room for, across
const LABELLED = ["label", "sub", "open", "opens", "depth"];
export const SPAN_MIN = 10 * MINUTE, SPAN_MAX = 400 * DAY;

const name = (row) => [row.label, row.sub].filter(Boolean).join(", ");

/** The least that is free in a row over a term. */
export function freeOver(row, start, end) {
  const steps = row.steps ?? [];
  let least = row.units;
  for (let at = Math.max(0, after(steps, start) - 1); at < steps.length && steps[at][0] < end; at++) {
    const until = at + 1 < steps.length ? steps[at + 1][0] : Infinity;
    if (until > start) least = Math.min(least, row.units - steps[at][1] - steps[at][2] - steps[at][3] - steps[at][4]);
  }
  return Math.max(0, least);
}

/** The index of the first step after an instant. */
function after(steps, at) {
  let low = 0, high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle][0] <= at) low = middle + 1; else high = middle;
  }
  return low;
}

export class Chart {
  #rows = []; #from; #to; #labels = 220; #width = 0; #height = 0; #context; #axis; #patterns = {}; #colors = {};
  #selection = null; #hover = null; #drag = null; #cursor = null; #pending = false; #shown = new Map(); #touches = new Map();
  #pinch = null; #printed = false;

  /**
   * `on`: select(row, start, end, done), pick(bar, row), change(bar, start, end, done), moved(from, to), toggle(row),
   * now(), tell(bar) its words; and, where nothing can be reserved, at(instant) and clock(), the instant that is marked.
   */
  constructor(place, from, to, on) {
    this.clock = on.clock ?? Date.now;
    this.#from = from;
    this.#to = to;
    this.on = on;
    this.axis = h("canvas", { class: "chart-axis", "aria-hidden": "true" });
    this.canvas = h("canvas", { class: "chart-canvas", "aria-hidden": "true" });
    this.rowLabels = h("div", { class: "chart-labels" });
    this.space = h("div", { class: "chart-space" }, this.canvas, this.rowLabels);
    this.scroll = h("div", { class: "chart-scroll", tabindex: 0, role: "application", "aria-label": "Calendar", "aria-describedby": "chart-keys" }, this.space);
    this.said = h("div", { class: "hidden", role: "status", "aria-live": "polite" });
    this.tip = h("div", { class: "tip", hidden: true });
    place.append(this.axis, this.scroll, this.said, this.tip);
    this.#context = this.canvas.getContext("2d", { alpha: false });
    this.#axis = this.axis.getContext("2d", { alpha: false });
    new ResizeObserver(() => this.#resize()).observe(this.scroll);
    this.scroll.addEventListener("scroll", () => this.draw());
    this.#listen();
    for (const event of ["look", "zone"]) window.addEventListener(event, () => this.restyle());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    const paper = matchMedia("print");
    paper.addEventListener("change", () => {
      place.style.width = paper.matches ? `${PAPER_PX}px` : "";
      this.#resize(paper.matches);
      this.restyle();
    });
    this.restyle();
    this.#resize();
  }

  get window() { return [this.#from, this.#to]; }
  get rows() { return this.#rows; }

  setRows(rows) {
    this.#rows = rows;
    let y = 0;
    for (const row of rows) {
      row.y = y;
      row.top = row.steps ? PROFILE : row.kind === "unit" ? 0 : HEAD;
      const lanes = row.lanes?.length ?? 0;
      row.height = row.kind === "unit" ? Math.max(1, lanes) * UNIT : row.top + lanes * LANE + (lanes ? 4 : 0);
      y += row.height;
    }
    this.scroll.dataset.bars = rows.reduce((count, row) => count + (row.lanes ?? []).reduce((sum, lane) => sum + lane.length, 0), 0);
    this.space.style.height = `${Math.max(y, 1)}px`;
    if (this.#cursor) this.#cursor.row = Math.min(this.#cursor.row, rows.length - 1);
    this.draw();
  }

  /** Show another window of time. */
  show(from, to, told = true) {
    const span = Math.min(SPAN_MAX, Math.max(SPAN_MIN, to - from));
    this.#from = Math.round(from);
    this.#to = Math.round(from + span);
    this.draw();
    if (told) this.on.moved(this.#from, this.#to);
  }

  zoom(factor, at = (this.#from + this.#to) / 2) {
    const span = Math.min(SPAN_MAX, Math.max(SPAN_MIN, (this.#to - this.#from) * factor));
    const share = (at - this.#from) / (this.#to - this.#from);
    this.show(at - span * share, at + span * (1 - share));
  }

  pan(share) {
    const by = (this.#to - this.#from) * share;
    this.show(this.#from + by, this.#to + by);
  }

  select(selection) {
    this.#selection = selection;
    this.draw();
  }

  /** Have a term be in sight. */
  reveal(start, end) {
    const span = this.#to - this.#from;
    if (end > this.#to) this.show(Math.min(start, end - span) + span / 20, end + span / 20);
    else if (start < this.#from) this.show(start - span / 20, start + span - span / 20);
  }

  /** Say something where the pointer is. */
  say(words, kind = "") {
    this.tip.hidden = !words;
    this.tip.dataset.kind = kind;
    this.tip.textContent = words;
  }

  get step() {
    return STEPS.find((step) => (step / (this.#to - this.#from)) * this.#plot >= SNAP_PX) ?? STEPS.at(-1);
  }

  /** Take up colours from the style sheet anew. */
  restyle() {
    const style = getComputedStyle(document.documentElement);
    for (const color of ["bg", "surface", "line", "text", "dim", "accent", "mine", "other", "held", "withheld", "failed", "now", "weekend"]) {
      this.#colors[color] = style.getPropertyValue(`--${color}`).trim();
    }
    this.#patterns = {};
    for (const kind of ["other", "held", "withheld", "failed"]) this.#patterns[kind] = this.#pattern(kind);
    this.#paint(); // at once: what is printed does not wait for a frame
  }

  draw() {
    if (this.#pending) return;
    this.#pending = true;
    requestAnimationFrame(() => {
      this.#pending = false;
      this.#paint();
    });
  }

  // -- places ----------------------------------------------------------------------------------------------------

  get #plot() { return Math.max(1, this.#width - this.#labels); }

  #x(at) { return this.#labels + ((at - this.#from) / (this.#to - this.#from)) * this.#plot; }

  #at(x) { return this.#from + ((x - this.#labels) / this.#plot) * (this.#to - this.#from); }

  #snap(at, way = Math.round) {
    const step = this.step;
    const zero = time.instant(time.parts(at).year, time.parts(at).month, time.parts(at).day);
    return zero + way((at - zero) / step) * step;
  }

  #rowAt(y) {
    let low = 0, high = this.#rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#rows[middle].y + this.#rows[middle].height <= y) low = middle + 1; else high = middle;
    }
    return this.#rows[low];
  }

  /** By how much the page is larger than its pixels say, as on a wall screen; a browser that does not tell draws as it is. */
  get #larger() { return this.canvas.currentCSSZoom ?? 1; }

  /** Where on an element an event is, in its own pixels. */
  #on(element, event) {
    const box = element.getBoundingClientRect();
    return [(event.clientX - box.left) / this.#larger, (event.clientY - box.top) / this.#larger];
  }

  /** What is at a place of the canvas: {row, bar, edge, at}. */
  #hit(event) {
    const [x, down] = this.#on(this.canvas, event), y = down + this.scroll.scrollTop;
    const row = this.#rowAt(y);
    if (!row || x < this.#labels) return null;
    const at = this.#at(x), height = row.kind === "unit" ? UNIT : LANE;
    const lane = row.lanes?.[Math.floor((y - row.y - row.top) / height)];
    let bar = null, edge = "";
    if (lane && y > row.y + row.top) {
      for (const one of lane) {
        const left = this.#x(one.start), right = Math.max(this.#x(one.end), left + 3);
        if (x >= left - 2 && x <= right + EDGE_PX) {
          bar = one;
          edge = one.stretches && x > right - EDGE_PX ? "end" : one.moves && x < left + EDGE_PX ? "start" : "";
        }
      }
    }
    return { row, bar, edge, at, x, y };
  }

  #resize(paper = matchMedia("print").matches) {
    const ratio = (window.devicePixelRatio || 1) * this.#larger;
    const before = this.#plot, wide = this.scroll.clientWidth;
    this.#labels = wide < NARROW ? 96 : 216;
    if (!wide) return;
    // A minute stays as wide as it was: what one points at does not move when something opens beside the chart.
    // But on paper there is the time that one sees.
    const keeps = paper || this.#printed;
    this.#printed = paper;
    if (this.#width && !keeps) this.#to = this.#from + Math.min(SPAN_MAX, ((this.#to - this.#from) * Math.max(1, wide - this.#labels)) / before);
    if (this.#width && this.#width !== wide && !keeps) this.on.moved(this.#from, this.#to);
    this.#width = wide;
    this.#height = this.scroll.clientHeight;
    for (const [canvas, context, height] of [[this.canvas, this.#context, this.#height], [this.axis, this.#axis, AXIS]]) {
      canvas.width = Math.round(this.#width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${this.#width}px`;
      canvas.style.height = `${height}px`;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.rowLabels.style.width = `${this.#labels}px`;
    this.#paint();
  }

  // -- drawing ---------------------------------------------------------------------------------------------------

  #paint() {
    if (!this.#width) return;
    Object.assign(this.scroll.dataset, { from: this.#from, to: this.#to, labels: this.#labels });
    this.#ticks = this.#makeTicks();
    this.#paintAxis();
    const context = this.#context, top = this.scroll.scrollTop;
    context.fillStyle = this.#colors.bg;
    context.fillRect(0, 0, this.#width, this.#height);
    context.save();
    context.beginPath();
    context.rect(this.#labels, 0, this.#plot, this.#height);
    context.clip();
    this.#paintDays(context);
    context.translate(0, -top);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const first = this.#rowAt(top), visible = [];
    for (let at = first ? this.#rows.indexOf(first) : 0; at < this.#rows.length && this.#rows[at].y < top + this.#height; at++) {
      visible.push(this.#rows[at]);
      this.#paintRow(context, this.#rows[at]);
    }
    this.#paintSelection(context);
    const now = this.#x(this.clock());
    context.strokeStyle = this.#colors.now;
    context.lineWidth = 1.5;
    line(context, now, top, now, top + this.#height);
    context.restore();
    this.#paintLabels(visible);
  }

  #ticks = [];

  #makeTicks() {
    const span = this.#to - this.#from, wanted = (TICK_PX / this.#plot) * span;
    const found = [];
    if (wanted > 7 * DAY) {
      let { year, month } = time.parts(this.#from);
      const by = wanted > 62 * DAY ? 3 : 1;
      for (let at; (at = time.instant(year, month)) < this.#to; month += by) if (at >= this.#from) found.push(at);
      return { at: found, show: time.monthName, step: MONTH };
    }
    const step = [...STEPS, 2 * DAY].sort((a, b) => a - b).find((one) => one >= wanted) ?? 7 * DAY;
    const p = time.parts(this.#from);
    if (step >= DAY) {
      const days = step / DAY;
      for (let day = p.day, at; (at = time.instant(p.year, p.month, day)) < this.#to; day++) {
        const fits = days === 7 ? time.parts(at).weekday === 1 : Math.floor(at / DAY) % days === 0;
        if (at >= this.#from && fits) found.push(at);
      }
    } else {
      const zero = time.instant(p.year, p.month, p.day);
      for (let at = zero + Math.ceil((this.#from - zero) / step) * step; at < this.#to; at += step) found.push(at);
    }
    return { at: found, show: (at) => (step >= DAY ? time.day(at) : time.clock(at)), step };
  }

  #paintAxis() {
    const context = this.#axis, colors = this.#colors;
    context.fillStyle = colors.bg;
    context.fillRect(0, 0, this.#width, AXIS);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.save();
    context.beginPath();
    context.rect(this.#labels, 0, this.#plot, AXIS);
    context.clip();
    const { at: ticks, show, step } = this.#ticks;
    context.fillStyle = colors.dim;
    for (const at of ticks) {
      const x = this.#x(at);
      context.strokeStyle = colors.line;
      line(context, x, AXIS - 6, x, AXIS);
      context.fillText(show(at), x + 4, 29);
    }
    context.fillStyle = colors.text;
    context.font = "600 12px system-ui, sans-serif";
    let last = -Infinity;
    const above = step >= MONTH ? time.year : step >= DAY ? time.month : time.day;
    const bounds = [this.#from, ...this.#bounds(step)];
    bounds.forEach((at, index) => {
      const x = Math.max(this.#x(at), this.#labels) + 4, next = index + 1 < bounds.length ? this.#x(bounds[index + 1]) : Infinity;
      const words = above(at);
      if (x < last || x + context.measureText(words).width > next) return;
      context.fillText(words, x, 10);
      last = x + context.measureText(words).width + 12;
    });
    const now = this.#x(this.clock());
    context.fillStyle = colors.now;
    context.beginPath();
    context.moveTo(now - 5, AXIS - 8);
    context.lineTo(now + 5, AXIS - 8);
    context.lineTo(now, AXIS);
    context.fill();
    context.restore();
    context.fillStyle = colors.dim;
    context.font = "12px system-ui, sans-serif";
    context.fillText(time.zone(), 8, 29);
  }

  /** Where days, months or years begin within the window. */
  #bounds(step) {
    const found = [], p = time.parts(this.#from);
    for (let by = 1, at; by < 500; by++) {
      at = step >= MONTH ? time.instant(p.year + by) : step >= DAY ? time.instant(p.year, p.month + by) : time.instant(p.year, p.month, p.day + by);
      if (at >= this.#to) break;
      found.push(at);
    }
    return found;
  }

  #paintDays(context) {
    const span = this.#to - this.#from, colors = this.#colors;
    if (span > 2 * HOUR && span < 120 * DAY && !time.isVirtual()) {
      const p = time.parts(this.#from);
      context.fillStyle = colors.weekend;
      for (let day = p.day, at; (at = time.instant(p.year, p.month, day)) < this.#to; day++) {
        if ([0, 6].includes(time.parts(at).weekday)) context.fillRect(this.#x(at), 0, this.#x(at + DAY) - this.#x(at), this.#height);
      }
    }
    context.strokeStyle = colors.line;
    context.lineWidth = 1;
    for (const at of this.#ticks.at) line(context, this.#x(at), 0, this.#x(at), this.#height);
  }

  #paintRow(context, row) {
    const { y, height } = row;
    if (row.kind === "site") {
      context.fillStyle = this.#colors.surface;
      context.fillRect(this.#labels, y, this.#plot, height);
    }
    if (row.steps) this.#paintProfile(context, row);
    if (row.lanes) this.#paintBars(context, row);
    context.strokeStyle = this.#colors.line;
    context.lineWidth = 1;
    line(context, this.#labels, y + height, this.#width, y + height);
  }

  /** What a row's steps are in the window, as columns of whole pixels: of several steps in one the most of each. */
  #columns(row) {
    const steps = row.steps, found = [], pixel = (at) => Math.max(this.#labels, Math.min(this.#width, Math.round(this.#x(at))));
    for (let at = Math.max(0, after(steps, this.#from) - 1); at < steps.length && steps[at][0] < this.#to; at++) {
      const [start, ...levels] = steps[at], last = found.at(-1);
      const left = pixel(start), right = at + 1 < steps.length ? pixel(steps[at + 1][0]) : this.#width, inside = last?.right > left;
      if (right - left > 1 || !inside) found.push({ left: inside ? last.right : left, right: Math.max(right, left + 1), levels });
      else last.levels = last.levels.map((level, which) => Math.max(level, levels[which]));
    }
    return found;
  }

  #paintProfile(context, row) {
    const base = row.y + PROFILE - 1, scale = (PROFILE - 8) / Math.max(1, row.units), columns = this.#columns(row);
    const each = (style, place) => {
      context.fillStyle = style;
      for (const { left, right, levels } of columns) {
        const [from, to] = place(...levels);
        if (to > from) context.fillRect(left, base - to * scale, right - left, (to - from) * scale);
      }
    };
    const { units } = row, { mine, other, surface } = this.#colors, rim = 1.5 / scale;
    each(mine, (own) => [0, own]);
    context.globalAlpha = PALE;
    each(other, (own, others) => [own, own + others]);
    context.globalAlpha = 1;
    each(other, (own, others) => (others ? [own + others - rim, own + others] : [0, 0]));
    each(surface, (own, others, withheld, absent) => [units - absent, units]);
    each(this.#patterns.withheld, (own, others, withheld, absent) => [Math.max(own + others, units - absent - withheld), units - absent]);
    context.font = "11px system-ui, sans-serif";
    for (const column of columns) if (column.right - column.left > WORDS_PX) this.#paintFree(context, row, column);
  }

  #paintFree(context, row, { left, levels: [mine, others, withheld, absent] }) {
    const free = Math.max(0, row.units - Math.min(row.units, mine + others) - withheld - absent);
    const words = free ? `${free} free` : absent >= row.units ? "none" : "full";
    this.#ground(context, left + 1, row.y + 4, context.measureText(words).width + 6, 14);
    context.fillStyle = free ? this.#colors.dim : this.#colors.text;
    context.fillText(words, left + 4, row.y + 11);
  }

  /** What words stand on. */
  #ground(context, x, y, width, height) {
    context.fillStyle = this.#colors.bg;
    context.globalAlpha = 0.86;
    context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
  }

  /** The bars of a row, each kind at once; then what is on them. */
  #paintBars(context, row) {
    const size = row.kind === "unit" ? UNIT : LANE, height = size - 3, kinds = new Map(), large = [];
    row.lanes.forEach((lane, index) => {
      const y = row.y + row.top + index * size + 1;
      for (let at = firstBar(lane, this.#from); at < lane.length && lane[at].start < this.#to; at++) {
        const bar = lane[at];
        const left = Math.max(this.#x(bar.start), this.#labels - 4), right = Math.min(Math.max(this.#x(bar.end), left + 3), this.#width + 4);
        let shapes = kinds.get(bar.kind);
        if (!shapes) kinds.set(bar.kind, (shapes = { small: [], large: new Path2D() }));
        if (right - left < SMALL_PX) shapes.small.push([Math.round(left), y, Math.max(1, Math.round(right - left - 1)), height]);
        else {
          shapes.large.roundRect(left + 0.5, y + 0.5, right - left - 1, height, 4);
          large.push({ bar, left, right, y, height });
        }
      }
    });
    for (const [kind, { small, large: path }] of kinds) {
      context.fillStyle = kind === "mine" ? this.#colors.mine : this.#patterns[kind] ?? this.#patterns.other;
      for (const one of small) context.fillRect(...one);
      context.fill(path);
      context.lineWidth = 1;
      context.setLineDash(kind === "held" ? [4, 3] : []);
      context.strokeStyle = this.#colors[kind] ?? this.#colors.other;
      context.stroke(path);
    }
    context.setLineDash([]);
    context.font = "12px system-ui, sans-serif";
    for (const one of large) this.#paintOnBar(context, one);
  }

  #paintOnBar(context, { bar, left, right, y, height }) {
    const colors = this.#colors, mine = bar.kind === "mine";
    if (bar === this.#hover?.bar) {
      context.lineWidth = 2;
      context.strokeStyle = colors[bar.kind] ?? colors.other;
      context.beginPath();
      context.roundRect(left + 0.5, y + 0.5, right - left - 1, height, 4);
      context.stroke();
    }
    if (right - left > 34 && bar.label) {
      const x = Math.max(left, this.#labels) + 6, wide = (bar.wide ??= context.measureText(bar.label).width), cut = x + wide > right - 1;
      if (cut) {
        context.save();
        context.beginPath();
        context.rect(left, y, right - left - 1, height);
        context.clip();
      }
      if (!mine) this.#ground(context, x - 3, y + 2, wide + 6, height - 3);
      context.fillStyle = mine ? colors.bg : colors.text;
      context.fillText(bar.label, x, y + height / 2 + 1);
      if (cut) context.restore();
    }
    if (bar.stretches) {
      context.fillStyle = mine ? colors.bg : colors.dim;
      context.fillRect(right - 5, y + 5, 1.5, height - 9);
    }
  }

  #paintSelection(context) {
    const shown = this.#drag?.shown ?? this.#selection;
    if (shown) {
      const row = this.#rows.find((one) => one.key === shown.key);
      if (row) {
        const left = this.#x(shown.start), width = Math.max(2, this.#x(shown.end) - left);
        const y = row.y + (shown.bar ? row.top : 0), height = shown.bar ? row.height - row.top : row.top || row.height;
        context.fillStyle = this.#colors.accent;
        context.globalAlpha = 0.16;
        context.fillRect(left, y, width, height);
        context.globalAlpha = 1;
        context.lineWidth = 2;
        context.strokeStyle = shown.refused ? this.#colors.failed : this.#colors.accent;
        context.setLineDash(shown.refused ? [5, 4] : []);
        context.strokeRect(left, y + 1, width, height - 2);
        context.setLineDash([]);
      }
    }
    if (this.#cursor && this.scroll.matches(":focus-visible")) {
      const { row, bar, y, height } = this.#stop();
      if (!row) return;
      const start = bar?.start ?? this.#cursor.start, end = bar?.end ?? start + this.#cursor.length;
      context.lineWidth = 2;
      context.strokeStyle = this.#colors.text;
      context.strokeRect(this.#x(start), y + 1, Math.max(3, this.#x(end) - this.#x(start)), height - 2);
    }
  }

  #paintLabels(rows) {
    const wanted = new Set(rows.map((row) => row.key));
    for (const [key, shown] of this.#shown) {
      if (!wanted.has(key)) {
        shown.made.remove();
        this.#shown.delete(key);
      }
    }
    for (const row of rows) {
      const shown = this.#shown.get(row.key);
      if (shown?.row === row) continue;
      let made = shown?.made;
      if (!made || LABELLED.some((name) => shown.row[name] !== row[name])) {
        made?.remove();
        made = this.#label(row);
        this.rowLabels.append(made);
      }
      this.#shown.set(row.key, { row, made });
      made.style.top = `${row.y}px`;
      made.style.height = `${row.height}px`;
    }
  }

  #label(row) {
    const key = row.key;
    const words = [h("span", { class: "row-name", title: row.label }, row.label), row.sub && h("span", { class: "row-sub" }, row.sub)];
    const inner = row.opens
      ? h("button", { type: "button", tabindex: -1, "aria-expanded": String(Boolean(row.open)), on: { click: () => this.on.toggle(this.#rows.find((one) => one.key === key)) } }, h("span", { class: "fold", "aria-hidden": "true" }, row.open ? "▾" : "▸"), words)
      : h("span", { class: "row-words" }, words);
    return h("div", { class: "row-label", data: { kind: row.kind, depth: row.depth ?? 0 } }, inner);
  }

  #pattern(kind) {
    const size = kind === "failed" ? 6 : 8, canvas = document.createElement("canvas");
    canvas.width = canvas.height = size;
    const context = canvas.getContext("2d");
    context.strokeStyle = this.#colors[kind];
    if (kind === "other") {
      context.fillStyle = this.#colors.other;
      context.globalAlpha = PALE;
      context.fillRect(0, 0, size, size);
      return this.#context.createPattern(canvas, "repeat");
    }
    context.globalAlpha = kind === "held" ? 0.5 : 0.75;
    context.lineWidth = kind === "held" ? 1 : 1.6;
    for (const shift of [-size, 0, size]) {
      line(context, shift, size, shift + size, 0);
      if (kind === "failed") line(context, shift, 0, shift + size, size);
    }
    return this.#context.createPattern(canvas, "repeat");
  }

  // -- pointer ---------------------------------------------------------------------------------------------------

  #listen() {
    const scroll = this.scroll;
    scroll.addEventListener("pointerdown", (event) => this.#down(event));
    scroll.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) scroll.addEventListener(end, (event) => this.#up(event, end === "pointercancel"));
    scroll.addEventListener("pointerleave", () => this.#hovered(null));
    scroll.addEventListener("keydown", (event) => this.#key(event));
    scroll.addEventListener("focus", () => this.#focus());
    scroll.addEventListener("blur", () => this.draw());
    for (const place of [scroll, this.axis]) place.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    let held = null;
    this.axis.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, from: this.#from, to: this.#to };
      this.axis.setPointerCapture(event.pointerId);
    });
    this.axis.addEventListener("pointermove", (event) => {
      if (!held) return;
      const by = ((held.x - event.clientX) / this.#larger / this.#plot) * (held.to - held.from);
      this.show(held.from + by, held.to + by);
    });
    for (const end of ["pointerup", "pointercancel"]) this.axis.addEventListener(end, () => { held = null; });
  }

  #wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const [x] = this.#on(this.canvas, event);
      this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 120), this.#at(Math.max(this.#labels, x)));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan((event.deltaX || event.deltaY) / this.#plot);
    }
  }

  #down(event) {
    if (event.button !== 0 || event.target.closest(".chart-labels button")) return;
    const hit = this.#hit(event);
    if (!hit) return;
    this.scroll.setPointerCapture(event.pointerId);
    if (event.pointerType === "touch") this.#touches.set(event.pointerId, event);
    if (this.#touches.size === 2) {
      const [a, b] = [...this.#touches.values()];
      this.#pinch = { apart: Math.abs(a.clientX - b.clientX) || 1, from: this.#from, to: this.#to };
      this.#drag = null;
      return;
    }
    this.#drag = { ...hit, clientX: event.clientX, from: this.#from, to: this.#to, moved: false, touch: event.pointerType === "touch" };
  }

  #move(event) {
    if (this.#touches.has(event.pointerId)) this.#touches.set(event.pointerId, event);
    if (this.#pinch && this.#touches.size === 2) {
      const [a, b] = [...this.#touches.values()];
      const { apart, from, to } = this.#pinch, middle = (from + to) / 2;
      const span = ((to - from) / 2) * (apart / (Math.abs(a.clientX - b.clientX) || 1));
      this.show(middle - span, middle + span);
      return;
    }
    const drag = this.#drag;
    if (!drag) return this.#hovered(this.#hit(event), event);
    if (!drag.moved && Math.abs(event.clientX - drag.clientX) < DRAG_PX) return undefined;
    drag.moved = true;
    const by = ((event.clientX - drag.clientX) / this.#larger / this.#plot) * (drag.to - drag.from);
    if (drag.touch) return this.show(drag.from - by, drag.to - by);
    const before = drag.shown;
    drag.shown = this.#dragged(drag, by);
    if (drag.shown) {
      const { start, end } = drag.shown;
      this.#tipAt(event);
      if (before && before.start === start && before.end === end) return undefined;
      if (drag.shown.bar) this.on.change(drag.bar, start, end, false, drag.row);
      else this.on.select(drag.row, start, end, false);
    } else this.on.at?.(drag.at + by);
    this.draw();
    return undefined;
  }

  /** The term that a drag stands for. */
  #dragged(drag, by) {
    const { bar, edge, row } = drag;
    if (bar && (edge || bar.moves)) {
      const shown = { key: row.key, bar, start: bar.start, end: bar.end };
      if (edge === "end") shown.end = Math.max(this.#snap(bar.end + by), bar.start + this.step);
      else if (edge === "start") shown.start = Math.min(this.#snap(bar.start + by), bar.end - this.step);
      else {
        shown.start = this.#snap(bar.start + by);
        shown.end = bar.end + shown.start - bar.start;
      }
      return shown;
    }
    if (!row.free || bar) return null;
    const a = this.#snap(Math.min(drag.at, drag.at + by), Math.floor), b = this.#snap(Math.max(drag.at, drag.at + by), Math.ceil);
    return { key: row.key, start: a, end: Math.max(b, a + this.step) };
  }

  #up(event, cancelled) {
    this.#touches.delete(event.pointerId);
    if (this.#touches.size < 2) this.#pinch = null;
    const drag = this.#drag;
    this.#drag = null;
    this.say("");
    if (!drag || cancelled) return this.draw();
    if (drag.moved && drag.shown) {
      const { start, end, bar } = drag.shown;
      this.#selection = drag.shown;
      if (bar) this.on.change(bar, start, end, true, drag.row);
      else this.on.select(drag.row, start, end, true);
    } else if (!drag.moved && drag.bar) this.on.pick(drag.bar, drag.row);
    else if (!drag.moved && drag.row.free) {
      const start = this.#snap(drag.at, Math.floor);
      this.#selection = { key: drag.row.key, start, end: start + Math.max(this.step, HOUR) };
      this.on.select(drag.row, start, this.#selection.end, true);
    } else if (!drag.moved) this.on.at?.(drag.at);
    return this.draw();
  }

  #hovered(hit, event) {
    const before = this.#hover?.bar;
    this.#hover = hit;
    const can = hit && (hit.edge || hit.bar || hit.row.free || this.on.at);
    this.scroll.style.cursor = !can ? "" : hit.edge ? "ew-resize" : hit.bar ? "pointer" : this.on.at ? "col-resize" : "cell";
    const words = hit && (hit.bar ? this.on.tell(hit.bar) : hit.row.steps ? this.#said(hit.row, hit.at) : "");
    this.say(words);
    if (words) this.#tipAt(event);
    if (before !== hit?.bar) this.draw();
  }

  #tipAt(event) {
    const [x, y] = this.#on(this.tip.parentElement, event), right = x > this.tip.parentElement.clientWidth - 260;
    this.tip.style.left = `${right ? x - 12 : x + 14}px`;
    this.tip.style.translate = right ? "-100% 0" : "";
    this.tip.style.top = `${y + 16}px`;
  }

  #said(row, at) {
    return `${time.moment(at)} · ${freeOver(row, at, at + 1)} of ${row.units} free`;
  }

  // -- keyboard --------------------------------------------------------------------------------------------------

  #focus() {
    if (!this.#cursor) {
      const row = Math.max(0, this.#rows.findIndex((one) => one.steps));
      this.#cursor = { row, lane: -1, start: this.#snap(Math.max(this.clock(), this.#from), Math.ceil), length: Math.max(this.step, HOUR) };
    }
    this.draw();
  }

  /** Where the cursor is: the row, or a bar of one of its lanes. */
  #stop() {
    const row = this.#rows[this.#cursor.row];
    if (!row) return {};
    const lane = this.#cursor.lane, size = row.kind === "unit" ? UNIT : LANE;
    if (lane < 0 || !row.lanes?.[lane]?.length) return { row, y: row.y, height: row.top || row.height };
    const bars = row.lanes[lane];
    const bar = bars.find((one) => one.end > this.#cursor.start) ?? bars.at(-1);
    return { row, bar, bars, y: row.y + row.top + lane * size, height: size };
  }

  #down_(by) {
    const cursor = this.#cursor;
    let { row, lane } = cursor;
    for (;;) {
      lane += by;
      const lanes = this.#rows[row]?.lanes?.length ?? 0;
      if (lane >= lanes) { row += 1; lane = -1; }
      if (lane < -1) { row -= 1; lane = (this.#rows[row]?.lanes?.length ?? 0) - 1; }
      if (row < 0 || row >= this.#rows.length) return;
      if (lane >= 0 || this.#rows[row].steps || this.#rows[row].opens) break;
    }
    Object.assign(cursor, { row, lane });
    const { y, height } = this.#stop();
    if (y < this.scroll.scrollTop) this.scroll.scrollTop = y;
    if (y + height > this.scroll.scrollTop + this.#height) this.scroll.scrollTop = y + height - this.#height;
  }

  #key(event) {
    if (event.target !== this.scroll || event.altKey || event.ctrlKey || event.metaKey) return;
    const cursor = this.#cursor, step = this.step, sign = event.key === "ArrowLeft" ? -1 : 1;
    const { row, bar, bars } = this.#stop();
    if (event.key === "ArrowDown") this.#down_(1);
    else if (event.key === "ArrowUp") this.#down_(-1);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (bar && event.shiftKey && bar.stretches) {
        const end = Math.max(bar.start + step, (this.#selection?.bar === bar ? this.#selection.end : bar.end) + sign * step);
        this.#selection = { key: row.key, bar, start: bar.start, end };
        this.on.change(bar, bar.start, end, true, row);
      } else if (bar) {
        const next = bars[bars.indexOf(bar) + sign];
        if (next) cursor.start = next.start;
      } else if (event.shiftKey) cursor.length = Math.max(step, cursor.length + sign * step);
      else cursor.start = this.#snap(cursor.start + sign * step);
      this.#follow();
    } else if (event.key === "Enter" || event.key === " ") {
      if (bar) this.on.pick(bar, row);
      else if (row?.free) {
        this.#selection = { key: row.key, start: cursor.start, end: cursor.start + cursor.length };
        this.on.select(row, cursor.start, cursor.start + cursor.length, true, true);
      } else if (this.on.at) this.on.at(cursor.start);
      else if (row?.opens) this.on.toggle(row);
    } else if (event.key === "o" && row?.opens) this.on.toggle(row);
    else if (event.key === "+" || event.key === "=") this.zoom(1 / 1.5, cursor.start);
    else if (event.key === "-") this.zoom(1.5, cursor.start);
    else if (event.key === "PageDown") this.pan(0.5);
    else if (event.key === "PageUp") this.pan(-0.5);
    else if (event.key === "n") this.on.now();
    else return;
    event.preventDefault();
    this.#announce();
    this.draw();
  }

  #follow() {
    const { start, length } = this.#cursor;
    if (start < this.#from || start + length > this.#to) {
      const span = this.#to - this.#from;
      this.show(start - span / 3, start + (2 * span) / 3);
    }
  }

  #announce() {
    const { row, bar } = this.#stop();
    if (!row) return;
    const { start, length } = this.#cursor;
    this.said.textContent = bar ? this.on.tell(bar)
      : row.steps ? `${name(row)}, ${time.term(start, start + length)}, ${freeOver(row, start, start + length)} of ${row.units} free` : name(row);
  }
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** The index of the first bar of a lane that ends after an instant. */
function firstBar(lane, at) {
  let low = 0, high = lane.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane[middle].end <= at) low = middle + 1; else high = middle;
  }
  return low;
}

/** Bars in as few lanes as they fit in without one over another, in order of their start; and how many do not fit into the `most`. */
export function packed(bars, most = Infinity) {
  const lanes = [], ends = [];
  let more = 0;
  for (const bar of [...bars].sort((a, b) => a.start - b.start || a.end - b.end)) {
    let lane = ends.findIndex((end) => end <= bar.start);
    if (lane < 0 && lanes.length < most) lane = lanes.push([]) - 1;
    if (lane < 0) { more += 1; continue; }
    ends[lane] = bar.end;
    lanes[lane].push(bar);
  }
  return { lanes, more };
}
