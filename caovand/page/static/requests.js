// The gateway's requests: how many wait and run, how those ended that have, and the latest of them.

import { $, el, redraw } from "./draw.js";
import { brief, clock, day, figure } from "./format.js";
import { t } from "./words.js";

const COLUMNS = ["time", "outcome", "key", "model", "waited", "first-token", "whole", "read", "written"];

/** `gateway` is the status's, null without one; `rows` are what ended, the latest last. */
export function show(gateway, rows) {
  $("requests").hidden = $("requests-link").hidden = !gateway;
  if (!gateway) return;
  const { waiting, at_engine: running, totals } = gateway;
  redraw($("request-counts"), [waiting, running, totals.ended, t("requests")], () => [
    t("n-waiting", { n: figure(waiting, 0) }), `${figure(running, 0)} ${t("running")}`,
    ...Object.entries(totals.ended).map(([status, n]) => t("ended-with", { status: answered(status), n: figure(n, 0) })),
  ].join(" · "));
  redraw($("request-list"), [rows, t("requests")], () => {
    if (rows.length === 0) return el("p", { class: "nothing" }, t("no-requests"));
    const head = COLUMNS.map((key) => el("th", { scope: "col" }, t(key)));
    return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...[...rows].reverse().map(row)));
  });
}

/** The status of an answer; a client that left before it has none. */
const answered = (status) => (Number(status) ? String(status) : t("client-gone"));

function row({ at, status, outcome, key, model, path, waited_s, first_s, whole_s, read, written, estimated, prefix }) {
  const cell = (name, text) => el("td", { data: { name: t(name) } }, text);
  const time = (name, seconds) => cell(name, brief(seconds).join(" ").trim());
  const tokens = (name, count) => cell(name, `${estimated ? "~" : ""}${figure(count, 0)}`);
  const moment = el("time", { dateTime: new Date(at * 1000).toISOString(), title: day(at) }, clock(at));
  return el("tr", { class: outcome || status >= 400 ? "failed" : "" },
    el("th", { scope: "row" }, moment), el("td", { class: "outcome" }, [status || "", outcome].join(" ").trim()),
    el("td", { translate: false }, key || "–"),
    el("td", { class: "model", translate: false }, model || "–", " ", el("small", {}, path), prefix && el("small", { lang: "en", class: "prefix" }, prefix)),
    time("waited", waited_s), time("first-token", first_s), time("whole", whole_s),
    tokens("read", read), tokens("written", written));
}
