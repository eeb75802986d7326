// The machines of a cluster: which are there, what runs on each, and what differs between them.

import { $, el, icon, redraw } from "./draw.js";
import { duration, figure } from "./format.js";
import { notice } from "./state.js";
import { t } from "./words.js";

const ICONS = { here: "serving", joined: "serving", lost: "failed", refused: "failed" };
const SIZE = /^(?:stage_(\d+)_)?(weights|kv)_gib$/;
const NOTICES = { FAIL: "failed", WARN: "warning" };

/** Show what the daemon knows of its cluster; null where it serves alone. */
export function show(cluster) {
  $("nodes").hidden = $("nodes-link").hidden = !cluster;
  if (!cluster) return;
  // The clocks of the facts run on though nothing happened.
  const seen = cluster.nodes.map(({ since_s, facts, ...rest }) =>
    [rest, duration(since_s), facts.engine, facts.version, facts.cards]);
  redraw($("node-list"), [seen, cluster.missing, cluster.head, cluster.checks, cluster.forecast, t("nodes")], () => [
    ...cluster.nodes.map((one) => node(one, cluster.forecast)),
    never(cluster),
    ...cluster.checks.map(finding),
  ].filter(Boolean));
}

function node({ name, state, since_s, address, facts, ranks, gpus = [], reported = {} }, forecast = {}) {
  const rows = [];
  const row = (key, text) => text && rows.push(el("div", {}, el("dt", {}, t(key)), el("dd", {}, text)));
  row("address", address);
  if (facts.engine) {
    row("engine", `${facts.engine} ${facts.version}`);
    row("cards", kinds(facts.cards) || t("no-card"));
  }
  row("ranks", ranks.map(({ rank, pid }, at) => rankOn(rank, pid, gpus[at])).join(", "));
  row("memory", sizes(forecast, reported));
  return entry(ICONS[state], state, name, [t(`node-${state}`), t("for", { time: duration(since_s) })].join(" · "),
    el("dl", { class: "readings" }, ...rows), state === "lost" ? t("lost-remedy") : "");
}

/** A rank with its process, and its card where that is known. */
function rankOn(rank, pid, gpu) {
  return gpu === undefined || gpu === null ? t("rank-pid", { rank, pid }) : t("rank-gpu", { rank, pid, gpu });
}

/** What a node's engine reports of its memory, next to what was expected of it. */
function sizes(forecast, reported) {
  return Object.entries(forecast).filter(([name]) => SIZE.test(name) && reported[name]).map(([name, expected]) => {
    const [, stage, part] = SIZE.exec(name);
    const words = stage ? t("stage-part", { stage, part: t(`part-${part}`) }) : t(`part-${part}`);
    return t("size-expected", { part: words, size: figure(reported[name], 2), expected: figure(expected, 2) });
  }).join(", ");
}

/** The nodes that have never joined: nobody knows their names. */
function never({ nodes, missing, head }) {
  const count = missing - nodes.filter((one) => one.state === "lost").length;
  if (count <= 0) return null;
  return entry("unknown", "missing", t("node-missing", { n: count }), "", "", t("missing-remedy", { head }));
}

function entry(symbol, state, name, how, readings, remedy) {
  return el("div", { class: "node", data: { node: name, state } },
    el("div", { class: "node-head" }, icon(symbol), el("h3", {}, name), el("small", {}, how)),
    el("div", {}, readings, remedy && el("p", { class: "below alert" }, remedy)));
}

/** The cards by kind: "2 × Tesla T4 (15 GiB)". */
function kinds(cards) {
  const counts = new Map();
  for (const { name, memory_mib, count } of cards) {
    const kind = `${name} (${Math.round(memory_mib / 1024)} GiB)`;
    counts.set(kind, (counts.get(kind) ?? 0) + count);
  }
  return [...counts].map(([kind, count]) => `${count} × ${kind}`).join(", ");
}

function finding({ node: name, verdict, text, remedy }) {
  if (!(verdict in NOTICES)) return el("p", { class: "below agreed", lang: "en" }, icon("serving"), text);
  return notice(NOTICES[verdict], name, [text, remedy && t("remedy", { text: remedy })].filter(Boolean));
}
