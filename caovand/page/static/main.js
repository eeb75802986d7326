// Takes what the server sends and hands it to the sections, once a frame.

import * as cards from "./cards.js";
import * as display from "./display.js";
import { $, el, icon, redraw } from "./draw.js";
import * as figures from "./figures.js";
import { duration } from "./format.js";
import { Live } from "./live.js";
import * as log from "./log.js";
import * as nodes from "./nodes.js";
import * as plan from "./plan.js";
import * as plots from "./plots.js";
import * as processes from "./processes.js";
import * as requests from "./requests.js";
import * as state from "./state.js";
import * as timeline from "./timeline.js";
import * as trial from "./try.js";
import { t } from "./words.js";

const MAX_EVENTS = 300;
const seen = { status: null, cluster: null, requests: [], events: [], at: 0, page: "connecting", daemon: null };
let model = "";
let due = false;
let planned = "";

const live = new Live(take, (why) => {
  if (why === seen.page) return;
  seen.page = why;
  banner();
});

function take(kind, data) {
  if (kind === "status") {
    [seen.status, seen.at] = [data, Date.now()];
    seen.daemon = null;
    choices(data);
  } else if (kind === "event") {
    seen.events = [...seen.events, data].slice(-MAX_EVENTS);
    if (data.kind === "incident") timeline.showIncidents(model);
  } else if (kind === "recent") plots.showRecent(data);
  else if (kind === "cluster") seen.cluster = data;
  else if (kind === "requests") seen.requests = data;
  else if (kind === "log") log.add(data.lines);
  else if (kind === "daemon") seen.daemon = data.reachable ? null : data.message;
  draw();
}

/** Draw once, however much came; a hidden page is drawn too, for its title. */
function draw() {
  if (due) return;
  due = true;
  const now = () => {
    if (!due) return;
    due = false;
    sections();
  };
  requestAnimationFrame(now);
  setTimeout(now, 250);
}

function sections() {
  banner();
  timeline.showEvents(seen.events);
  plots.showEvents(seen.events);
  if (!seen.status) return;
  const status = slotOf(seen.status);
  state.show(status);
  figures.show(status);
  nodes.show(status.cluster ? seen.cluster : null);
  requests.show(status.gateway, seen.requests);
  cards.show(status);
  processes.show(status);
  trial.show(status);
  replan(status);
  const { version, pid, config } = status.daemon;
  redraw($("about"), [version, pid, config, t("plan")], () => t("about", { version, pid, config }));
}

/** The chosen model's status: with one model, all there is. */
function slotOf(status) {
  const own = status.slots?.find((slot) => slot.name === model);
  return own ? { ...status, ...own } : status;
}

function replan(status) {
  const { generation, revision, rungs, daemon, state: now } = status;
  const plannedFor = JSON.stringify([model, generation, revision, rungs, daemon.pid, now]);
  if (plannedFor === planned) return;
  planned = plannedFor;
  plan.show(model);
}

function choices(status) {
  const names = (status.slots ?? []).map((slot) => slot.name).sort();
  const select = $("slot");
  select.hidden = names.length < 2;
  redraw(select, [names, model], () => names.map((name) => el("option", { value: name, selected: name === model }, name)));
  if (names.length > 1 && !names.includes(model)) choose(names[0]);
}

function choose(name) {
  model = name;
  seen.requests = [];
  log.clear();
  live.open(name);
  trial.choose(name);
  plots.follow(name);
  timeline.showIncidents(name);
  draw();
}

/** What is not up to date, and since when; the figures below are grey then. */
function banner() {
  const why = seen.page || (seen.daemon === null ? "" : "lost-daemon");
  document.body.dataset.lost = why && why !== "connecting" ? "yes" : "";
  $("banner").hidden = !why;
  const ago = seen.status ? Math.floor((Date.now() - seen.at) / 1000) : 0;
  redraw($("banner"), [why, seen.daemon, ago, t("plan")], () => {
    if (!why) return [];
    const shown = [icon(why === "connecting" ? "starting" : "warning"), el("p", {}, t(why))];
    if (seen.daemon !== null && !seen.page) shown.push(el("small", { lang: "en" }, seen.daemon));
    // A timer that is read out each second helps nobody.
    if (seen.status && ago > 2) shown.push(el("small", { "aria-hidden": "true" }, t("last-known", { ago: duration(ago) })));
    if (why === "login-again") shown.push(el("a", { href: "/" }, t("login")));
    return shown;
  });
}

$("slot").addEventListener("change", (event) => choose(event.target.value));
display.begin(() => {
  trial.build();
  plots.rebuild();
  log.label();
  timeline.showIncidents(model);
  if (planned) plan.show(model);
  sections();
});
trial.build();
plots.build();
log.clear();
timeline.showIncidents(model);
setInterval(banner, 1000);
banner();
live.open("");
