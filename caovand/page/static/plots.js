// The figures over five minutes, a day or a month, with a mark for whatever happened.

import { $, el, redraw } from "./draw.js";
import { ask, problemText } from "./ask.js";
import { Chart } from "./chart.js";
import { clock, day, moment } from "./format.js";
import { notice } from "./state.js";
import { t } from "./words.js";

const SPANS = { "5m": 300, "1h": 3600, "1d": 86400, "7d": 7 * 86400, "30d": 30 * 86400 };
const AGAIN_MS = 60000;
const MAX_MARKS = 8;
// What a live event is called as a mark; other kinds of event are none.
const EVENT_MARKS = { spawn: "restart", rung: "rung", incident: "incident", mode: "mode", tune: "tune" };
const MARKS = new Set(["restart", "rung", "incident", "mode", "tune", "daemon"]);

const line = (series, name) => ({ series, name });
const CHARTS = [
  { name: "speed", unit: "tokens/s", lines: [line("generation_tokens_per_s", "generated"), line("prompt_tokens_per_s", "prompts")] },
  { name: "under-way", unit: "", lines: [line("running", "running"), line("waiting", "waiting")] },
  { name: "kv-cache", unit: "%", scale: 100, full: 100, lines: [line("kv_cache_usage", "kv-cache")] },
  { name: "requests-s", unit: "", lines: [line("requests_per_s", "a-second")] },
  { name: "latency", unit: "ms", scale: 1000, lines: [line("first_token_p50_s", "median"), line("first_token_p99_s", "p99")] },
  { name: "pace", unit: "ms", scale: 1000, lines: [line("token_p50_s", "median"), line("token_p99_s", "p99")] },
  { name: "per-step", unit: "", lines: [line("tokens_per_step", "steps")] },
  { name: "serving", unit: "%", scale: 100, full: 100, lines: [line("up", "served")] },
];
const OF_CARDS = [
  { name: "power", unit: "W", figure: "power_w" },
  { name: "temperature", unit: "°C", figure: "temperature" },
  { name: "load", unit: "%", figure: "utilization", full: 100 },
];

let span = "5m";
let data = { times: [], series: {}, marks: [] };
let recent = null;
let events = [];
let model = "";
let refusal = "";
let charts = [];
let timer;

export function build() {
  redraw($("spans"), [t("span"), span], () => Object.keys(SPANS).map((name) => {
    const button = el("button", { type: "button", "aria-pressed": String(name === span) }, t(`span-${name}`));
    button.addEventListener("click", () => {
      choose(name);
      $("spans").querySelector("[aria-pressed=true]").focus();
    });
    return button;
  }));
}

function choose(name) {
  span = name;
  build();
  refresh();
}

export function follow(slot) {
  model = slot;
  refresh();
}

export function showRecent(answer) {
  recent = answer;
  if (span === "5m") refresh();
}

export function showEvents(found) {
  if (found === events) return;
  events = found;
  if (span === "5m") refresh();
}

/** Ask anew for what is shown: five minutes come with the stream, the rest from the history. */
export async function refresh() {
  clearTimeout(timer);
  const asked = span;
  if (span === "5m") {
    if (recent) data = ofRecent(recent);
    refusal = "";
  } else {
    timer = setTimeout(refresh, AGAIN_MS);
    try {
      const answer = await ask("/api/history", { span, model });
      if (asked !== span) return;
      [data, refusal] = [answer, ""];
    } catch (refused) {
      if (asked !== span) return;
      [data, refusal] = [{ times: [], series: {}, marks: [] }, problemText(refused)];
    }
  }
  draw();
}

function ofRecent({ age_s: ages = [], card_age_s: cardAges = [], cards = {}, ...series }) {
  const now = Date.now() / 1000;
  const times = (found) => found.map((age) => now - age);
  const first = events.find((one) => one.kind === "spawn"); // which restarts nothing
  const marks = events
    .filter((one) => one.kind in EVENT_MARKS && one !== first && now - one.at < SPANS["5m"])
    .map((one) => ({ at: one.at, kind: EVENT_MARKS[one.kind], text: one.text }));
  return { times: times(ages), series, cardTimes: times(cardAges), cards, marks };
}

/** Draw again, as after another theme or language was chosen. */
export function rebuild() {
  for (const chart of charts) chart.destroy();
  charts = [];
  $("charts").replaceChildren();
  build();
  draw();
}

function draw() {
  redraw($("history-problem"), [data.problem, t("warning")], () =>
    data.problem ? notice("warning", t("warning"), [data.problem]) : []);
  const wanted = [...CHARTS, ...ofCards(data)].filter((one) =>
    one.lines.some((line) => column(line).some((value) => value !== null)));
  const names = wanted.map((one) => one.name + one.lines.length).join();
  const until = Date.now() / 1000;
  const range = [until - SPANS[span], until];
  if (charts.map((chart) => chart.spec.name + chart.spec.lines.length).join() !== names || charts.length === 0) {
    for (const chart of charts) chart.destroy();
    charts = wanted.map((spec) => new Chart(spec, near));
    $("charts").replaceChildren(...(charts.length ? charts.map((chart) => chart.place)
      : [el("p", { class: "panel nothing" }, refusal || t("no-readings"))]));
  }
  const marks = data.marks.filter((mark) => MARKS.has(mark.kind) && mark.at >= range[0]);
  const time = SPANS[span] > 2 * 86400 ? (at) => day(at).slice(5) : (at) => clock(at).slice(0, 5);
  for (const chart of charts) chart.fill(timesOf(chart.spec), chart.spec.lines.map(column), range, marks, time);
  list(marks);
}

/** A plot for each figure of the cards, with a line for each card. */
function ofCards({ cards = {} }) {
  return OF_CARDS.map((one) => ({
    ...one,
    lines: Object.keys(cards).map((n) => ({ series: one.figure, card: n, name: "card", values: { n } })),
  }));
}

/** When a plot's values were read: live ones of cards at other times than the engine's. */
function timesOf({ lines: [{ card }] }) {
  return (card === undefined ? null : data.cardTimes) ?? data.times;
}

/** The values of a line, null where they are unknown. */
function column({ series, card }) {
  return (card === undefined ? data.series : data.cards[card])[series] ?? [];
}

function list(marks) {
  const latest = marks.slice(-MAX_MARKS).reverse();
  const earlier = marks.length - latest.length + (data.marks_left_out ?? 0);
  redraw($("marks"), [latest, earlier, t("span")], () => [...latest.map((mark) =>
    el("span", { class: "mark", data: { kind: mark.kind, at: mark.at }, title: mark.text },
      el("i", { "aria-hidden": "true" }), el("b", {}, t(`mark-${mark.kind}`)), el("time", {}, moment(mark.at)),
      el("span", { class: "text", lang: "en" }, mark.text))),
    ...(earlier ? [el("span", { class: "mark" }, t("marks-earlier", { n: earlier }))] : [])]);
}

/** The cursor is at `at`, Unix time: the mark next to it stands out. */
function near(at) {
  const within = SPANS[span] / 60;
  for (const mark of $("marks").querySelectorAll("[data-at]")) {
    mark.classList.toggle("near", at !== null && Math.abs(Number(mark.dataset.at) - at) < within);
  }
}
