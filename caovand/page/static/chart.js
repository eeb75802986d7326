// One plot: lines over time with uPlot, its legend with the values under the cursor, and marks.

import uPlot from "./uplot.js";
import { el } from "./draw.js";
import { figure } from "./format.js";
import { t } from "./words.js";

const HEIGHT = 150;
const COLOURS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6", "line-7", "line-8"];
const MARK_COLOURS = { incident: "bad", restart: "warn", rung: "warn" };
const FONT = "11px Inter, system-ui, sans-serif";

/** A colour of the stylesheet, as a canvas needs it. */
function colour(name) {
  const probe = el("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const faint = (rgb) => rgb.replace(/^rgb\((.*)\)$/, "rgb($1 / 12%)").replaceAll(",", " ");

export class Chart {
  constructor(spec, near) {
    this.spec = spec;
    this.near = near;
    this.marks = [];
    this.time = String;
    this.canvas = el("div", { class: "canvas", role: "img" });
    this.values = spec.lines.map(() => el("b", {}, "–"));
    const legend = spec.lines.map((one, index) =>
      el("li", {}, el("i", { class: COLOURS[index % COLOURS.length] }), t(one.name, one.values), this.values[index]));
    this.place = el("figure", { class: "panel chart", data: { chart: spec.name } },
      el("figcaption", {}, el("h3", {}, t(spec.name)), el("span", { class: "unit" }, spec.unit)),
      el("ul", { class: "lines" }, ...legend), this.canvas);
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.canvas);
  }

  fill(times, found, range, marks, time) {
    const scale = this.spec.scale ?? 1;
    const columns = found.map((values) =>
      times.map((_, index) => ((values[index] ?? null) === null ? null : values[index] * scale)));
    [this.range, this.marks, this.time] = [range, marks, time];
    this.data = withGaps([times, ...columns], range[1]);
    if (this.plot) this.plot.setData(this.data);
    else this.resize();
    this.legend(null);
    this.canvas.setAttribute("aria-label", this.words());
  }

  resize() {
    const width = Math.floor(this.canvas.clientWidth);
    if (!width || !this.data) return;
    if (this.plot) {
      if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
      return;
    }
    this.plot = new uPlot(this.options(width), this.data, this.canvas);
  }

  options(width) {
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("muted"), font: FONT, grid, ticks: { show: false } };
    const series = this.spec.lines.map((_, index) => {
      const stroke = colour(COLOURS[index % COLOURS.length]);
      const dash = index % 2 ? [5, 2] : undefined;
      const points = { show: false, filter: alone, size: 4, fill: stroke };
      return { stroke, dash, width: 1.5, fill: index === 0 ? faint(stroke) : undefined, points, spanGaps: false };
    });
    return {
      width, height: HEIGHT, legend: { show: false }, padding: [12, 16, 0, 0],
      cursor: { sync: { key: "caovan", setSeries: false }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
      scales: {
        x: { time: true, range: () => this.range },
        y: { range: (_, __, most) => [0, this.spec.full ?? ceiling(most)] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 36, values: (_, splits) => splits.map((at) => this.time(at)) },
        { ...axis, size: 42, space: 30, values: (_, splits) => splits.map((value) => figure(value, value % 1 ? 1 : 0)) },
      ],
      series: [{}, ...series],
      hooks: {
        draw: [(plot) => this.draw(plot)],
        setCursor: [(plot) => this.legend(plot.cursor.idx ?? null)],
      },
    };
  }

  /** A vertical line for each mark, with a shape at its top that tells kinds apart. */
  draw(plot) {
    const { ctx, bbox } = plot;
    const size = 4 * devicePixelRatio;
    ctx.save();
    for (const { at, kind } of this.marks) {
      const x = Math.round(plot.valToPos(at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(MARK_COLOURS[kind] ?? "muted");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      if (MARK_COLOURS[kind] === "bad") {
        ctx.moveTo(x - size, bbox.top - size);
        ctx.lineTo(x + size, bbox.top - size);
        ctx.lineTo(x, bbox.top + size);
      } else if (MARK_COLOURS[kind] === "warn") ctx.rect(x - size / 1.3, bbox.top - size, size * 1.5, size * 1.5);
      else ctx.arc(x, bbox.top - size / 3, size / 1.3, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  }

  /** The values at one place, or the latest. */
  legend(index) {
    if (!this.data) return;
    const [times, ...columns] = this.data;
    columns.forEach((column, line) => {
      const value = index === null ? column[column.length - 1] : column[index];
      this.values[line].textContent = figure(value);
    });
    if (index !== this.cursor) this.near(index === null ? null : times[index]);
    this.cursor = index;
  }

  words() {
    return this.data.slice(1).map((column, index) => {
      const known = column.filter((value) => value !== null);
      return t("latest-max", {
        label: t(this.spec.lines[index].name, this.spec.lines[index].values),
        latest: figure(column[column.length - 1]), max: figure(known.length ? Math.max(...known) : null), unit: this.spec.unit,
      });
    }).join("; ");
  }

  destroy() {
    this.resized.disconnect();
    this.plot?.destroy();
  }
}

/** Where a value has none next to it: no line shows it, as of a request now and then. */
function alone(plot, line) {
  const values = plot.data[line];
  const known = (index) => (values[index] ?? null) !== null;
  return values.map((_, index) => index)
    .filter((index) => known(index) && !known(index - 1) && !known(index + 1));
}

/** A readable end of a scale that begins at 0. */
function ceiling(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most * 1.05));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((end) => end >= most * 1.05);
}

/** Columns with an unknown value wherever readings are missing, so that no line bridges the time. */
function withGaps(columns, until) {
  const times = columns[0];
  const steps = times.slice(1).map((at, index) => at - times[index]).sort((a, b) => a - b);
  const usual = steps[Math.floor(steps.length / 2)] ?? Infinity;
  const longest = 2.5 * usual;
  const filled = columns.map(() => []);
  times.forEach((at, index) => {
    if (index && at - times[index - 1] > longest) {
      filled.forEach((column, n) => column.push(n ? null : (at + times[index - 1]) / 2));
    }
    filled.forEach((column, n) => column.push(columns[n][index]));
  });
  // Of an engine that is gone the last reading is not the latest; a minute comes once it is over.
  if (times.length && until - times[times.length - 1] > 4 * usual) filled.forEach((column, n) => column.push(n ? null : until));
  return filled;
}
